#include <gtest/gtest.h>

#include "doctor/probe.h"

namespace gpulet::doctor {
namespace {

TEST(AgentProbe, MigDevicesAreExcludedWithTheirGpu) {
  std::string config;
  const auto agent = parse_agent_page(
      R"({"version":"0.1.0","gpus":[{"index":0,"uuid":"GPU-a","state":"healthy","offered":false,
    "excluded":"is excluded by the rule at x.yaml:3:5","reason":"","outside_pods":[{"pid":813}],
    "mig":{"devices":[{"index":1,"state":"healthy"}]}}]})",
      config);
  ASSERT_TRUE(agent) << agent.error().full_message();
  ASSERT_EQ(agent->devices.size(), 2u);
  for (const auto& device : agent->devices) {
    EXPECT_FALSE(device.offered);
    EXPECT_EQ(device.excluded, "is excluded by the rule at x.yaml:3:5");
  }
  ASSERT_EQ(agent->gpus.size(), 1u);
  EXPECT_TRUE(agent->gpus[0].outside_pods.empty());
}

TEST(AgentProbe, ParsesKnownFields) {
  std::string config;
  const auto agent = parse_agent_page(
      R"({"version":"0.1.0","driver":{"version":"570.1","cuda":"12.8"},
    "problems":["driver: away"],"config":"version: v1\n","gpus":[
    {"index":0,"uuid":"GPU-a","state":"lost","offered":false,"reason":"XID 79","mig":null,"mig_pending":true,
     "nvswitch_links":18,"fabric":true,"faults":[{"class":"pcie-width","text":"8 of 16","effect":"flag"},"x"],
     "unread":[{"source":"violations","reason":"not supported"},7],
     "outside_pods":[{"pid":812,"name":"python3","memory":20971520000},{"pid":813},"x"]},
    {"index":1,"uuid":"GPU-b","state":null,"offered":true,"reason":"","mig":{"devices":[
      {"index":3,"uuid":"MIG-c","state":"quarantined","reason":"XID 95"},{"index":4,"state":"healthy"}]}},
    7],
    "events":[{"message":"labels: the API server answered 403: nodes is forbidden"},
              {"message":"labels: the API server answered 403: nodes is forbidden"},{"message":"GPU 0"},"x",
              {"reason":"MissingDriverRight","message":"no CAP_SYS_ADMIN: no XIDs"}]})",
      config);
  ASSERT_TRUE(agent) << agent.error().full_message();
  EXPECT_EQ(config, "version: v1\n");
  EXPECT_EQ(agent->driver_version, "570.1");
  EXPECT_EQ(agent->problems, std::vector<std::string>{"driver: away"});
  EXPECT_EQ(agent->refusals.size(), 1u);
  EXPECT_EQ(agent->missing_driver_rights, std::vector<std::string>{"no CAP_SYS_ADMIN: no XIDs"});
  ASSERT_EQ(agent->devices.size(), 5u);
  EXPECT_EQ(agent->devices[0].name, "GPU 0");
  EXPECT_FALSE(agent->devices[0].offered);
  EXPECT_EQ(agent->devices[2].name, "MIG 1:3");
  EXPECT_FALSE(agent->devices[2].offered);
  EXPECT_TRUE(agent->devices[3].offered);
  ASSERT_EQ(agent->gpus.size(), 2u);
  const auto& first = agent->gpus[0];
  EXPECT_FALSE(first.mig.enabled);
  EXPECT_EQ(first.mig.pending, true);
  EXPECT_EQ(first.nvswitch_links, 18u);
  EXPECT_TRUE(first.in_fabric);
  ASSERT_FALSE(first.faults.empty());
  EXPECT_EQ(first.faults[0].fault_class + ": " + first.faults[0].text + ", " + first.faults[0].effect,
            "pcie-width: 8 of 16, flag");
  ASSERT_TRUE(first.unread);
  EXPECT_EQ(first.unread->at("violations"), "not supported");
  EXPECT_EQ(first.outside_pods,
            (std::vector<std::string>{"process 812 (python3) holds 20000 MiB", "process 813", "process ?"}));
  EXPECT_TRUE(agent->gpus[1].mig.enabled);
  EXPECT_EQ(agent->gpus[1].mig.instances, 2u);
  EXPECT_FALSE(agent->gpus[1].unread) << "an agent that does not report it";
}

TEST(AgentProbe, RejectsOtherDocuments) {
  std::string config;
  for (const char* text : {"", "x", "[]", "{}", R"({"gpus":{}})"})
    EXPECT_FALSE(parse_agent_page(text, config)) << text;
}

TEST(AgentSettings, ComeFromTheAgentOrAFile) {
  ProbeTargets targets;
  EXPECT_FALSE(agent_settings(fail(Code::kNotFound, "none"), "", targets));
  const auto of_agent = agent_settings(
      AgentFacts{}, "version: v1\nflags: {plugin: {deviceListStrategy: [cdi-cri]}}\n", targets);
  ASSERT_TRUE(of_agent) << of_agent.error().full_message();
  EXPECT_TRUE(of_agent->cdi);
  targets.config_file = "/nonexistent/config.yaml";
  EXPECT_FALSE(agent_settings(fail(Code::kNotFound, "none"), "", targets));
}

}  // namespace
}  // namespace gpulet::doctor

#include <gtest/gtest.h>

#include "doctor/probes.h"

namespace gpulet::doctor {
namespace {

TEST(AgentPage, IsReadAsFarAsItGoes) {
  std::string config;
  const auto agent =
      parse_agent(R"({"version":"0.1.0","problems":["driver: away"],"config":"version: v1\n","gpus":[
    {"index":0,"uuid":"GPU-a","state":"lost","offered":false,"reason":"XID 79","mig":null},
    {"index":1,"uuid":"GPU-b","state":null,"offered":true,"reason":"","mig":{"devices":[
      {"index":3,"uuid":"MIG-c","state":"quarantined","reason":"XID 95"},{"index":4,"state":"healthy"}]}},
    7],
    "events":[{"message":"labels: the API server answered 403: nodes is forbidden"},
              {"message":"labels: the API server answered 403: nodes is forbidden"},{"message":"GPU 0"},"x"]})",
                  config);
  ASSERT_TRUE(agent) << agent.error().text();
  EXPECT_EQ(config, "version: v1\n");
  EXPECT_EQ(agent->problems, std::vector<std::string>{"driver: away"});
  EXPECT_EQ(agent->refusals.size(), 1u);
  ASSERT_EQ(agent->devices.size(), 5u);
  EXPECT_EQ(agent->devices[0].name, "GPU 0");
  EXPECT_FALSE(agent->devices[0].offered);
  EXPECT_EQ(agent->devices[2].name, "MIG 1:3");
  EXPECT_FALSE(agent->devices[2].offered);
  EXPECT_TRUE(agent->devices[3].offered);
}

TEST(AgentPage, WhatIsNoneIsRefused) {
  std::string config;
  for (const char* text : {"", "x", "[]", "{}", R"({"gpus":{}})"})
    EXPECT_FALSE(parse_agent(text, config)) << text;
}

TEST(Settings, ComeFromTheAgentOrAFile) {
  Places places;
  EXPECT_FALSE(settings_of(fail(Code::kNotFound, "none"), "", places));
  const auto of_agent =
      settings_of(Agent{}, "version: v1\nflags: {plugin: {deviceListStrategy: [cdi-cri]}}\n", places);
  ASSERT_TRUE(of_agent) << of_agent.error().text();
  EXPECT_TRUE(of_agent->cdi);
  places.config_file = "/nonexistent/config.yaml";
  EXPECT_FALSE(settings_of(fail(Code::kNotFound, "none"), "", places));
}

}  // namespace
}  // namespace gpulet::doctor

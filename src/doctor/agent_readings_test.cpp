// Checks of GPUs where this process cannot ask the driver, and the agent can.
#include "doctor/agent_readings.h"

#include <gtest/gtest.h>

#include "doctor/test_facts.h"

namespace gpulet::doctor {
namespace {

constexpr const char* kIds[] = {"mig", "clocks", "pcie-width", "fabric"};

// The agent's Pod: the driver is visible, but not to be opened by this process.
Facts without_driver() {
  auto facts = healthy_facts();
  facts.in_agent_pod = true;
  facts.agent->driver_version = kVersion;
  facts.driver = fail(Code::kPermissionDenied, "cannot open /dev/nvidiactl");
  return facts;
}

TEST(AgentReadings, AnswerTheChecksOfGpus) {
  const auto facts = without_driver();
  EXPECT_EQ(result_of(facts, "mig").found, "MIG is off (by the agent)");
  EXPECT_EQ(result_of(facts, "clocks").found, "no GPU is throttled (by the agent)");
  EXPECT_EQ(result_of(facts, "pcie-width").found, "every GPU has all of its PCIe lanes (by the agent)");
  EXPECT_EQ(result_of(facts, "fabric").found, "every GPU has joined its NVLink fabric (by the agent)");
  for (const auto* id : kIds) EXPECT_EQ(result_of(facts, id).verdict, Verdict::kPass) << id;
}

TEST(AgentReadings, AFaultThatFlagsWarnsAndOneThatWithdrawsFails) {
  struct Row {
    const char *id, *fault_class, *text, *effect;
    Verdict verdict;
  };
  const Row rows[] = {
      {"clocks", "thermal", "throttled by temperature", "flag", Verdict::kWarn},
      {"clocks", "power", "throttled by its power limit", "flag", Verdict::kWarn},
      {"pcie-width", "pcie-width", "PCIe lanes are missing: 8 of 16", "flag", Verdict::kWarn},
      {"fabric", "fabric-degraded", "its NVLink fabric is degraded: registration is in progress", "flag",
       Verdict::kWarn},
      {"fabric", "fabric", "not registered with its NVLink fabric: registration failed", "quarantine",
       Verdict::kFail},
  };
  for (const auto& row : rows) {
    auto facts = without_driver();
    facts.agent->gpus[1].faults = {{"xid-reset", "XID 95", "quarantine"},
                                   {row.fault_class, row.text, row.effect}};
    const auto result = result_of(facts, row.id);
    EXPECT_EQ(result.verdict, row.verdict) << row.id;
    EXPECT_EQ(result.found, std::string("GPU 1: ") + row.text);
    EXPECT_FALSE(result.fix.empty()) << row.id;
    for (const auto* id : kIds) {
      EXPECT_EQ(result_of(facts, id).verdict, std::string(id) == row.id ? row.verdict : Verdict::kPass) << id;
    }
  }
}

TEST(AgentReadings, MigIsCheckedAsByTheDriver) {
  auto facts = without_driver();
  facts.agent->gpus[0].mig = {.enabled = true, .pending = {}, .instances = 7, .empty_instances = 0};
  EXPECT_EQ(result_of(facts, "mig").found, "MIG is on and partitioned on 1 GPU (by the agent)");
  facts.agent->gpus[1].mig.enabled = true;
  EXPECT_EQ(result_of(facts, "mig").found, "GPU 1: MIG is on without instances, so none of it is offered");
  facts.agent->gpus[1].mig = {.enabled = false, .pending = true, .instances = 0, .empty_instances = 0};
  EXPECT_EQ(result_of(facts, "mig").found, "GPU 1: MIG is off, and on after the next reset");
  EXPECT_EQ(result_of(facts, "mig").verdict, Verdict::kFail);
}

TEST(AgentReadings, WhatTheAgentCannotReadStaysUnknown) {
  auto facts = without_driver();
  facts.agent->gpus[1].unread->emplace("violations", "not supported");
  EXPECT_EQ(result_of(facts, "clocks").found, "the agent cannot check violations of GPU 1: not supported");
  EXPECT_EQ(result_of(facts, "clocks").verdict, Verdict::kUnknown);
  EXPECT_EQ(result_of(facts, "pcie-width").verdict, Verdict::kPass);
  facts.agent->gpus[0].unread.reset();
  EXPECT_EQ(result_of(facts, "pcie-width").found, "the agent cannot check pcie of GPU 0: not read yet");
  facts.agent->gpus.clear();
  for (const auto* id : kIds) {
    EXPECT_EQ(result_of(facts, id).verdict, Verdict::kUnknown) << id;
    EXPECT_EQ(result_of(facts, id).found, facts.driver.error().full_message()) << id;
  }
}

// GPUs before Hopper are in no fabric that they report; GPUs without an NVSwitch need none.
TEST(AgentReadings, WithoutAFabricTheFabricManagerCounts) {
  auto facts = without_driver();
  for (auto& gpu : facts.agent->gpus) {
    gpu.in_fabric = false;
    gpu.unread->emplace("fabric", "not supported");
  }
  EXPECT_EQ(result_of(facts, "fabric").found, "the fabric manager runs");
  facts.programs->fabric_manager = false;
  EXPECT_EQ(result_of(facts, "fabric").verdict, Verdict::kFail);
  for (auto& gpu : facts.agent->gpus) gpu.nvswitch_links = 0;
  EXPECT_EQ(result_of(facts, "fabric").verdict, Verdict::kSkip);
}

}  // namespace
}  // namespace gpulet::doctor

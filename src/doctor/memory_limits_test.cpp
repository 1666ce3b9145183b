#include "doctor/memory_limits.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "doctor/test_facts.h"
#include "fraction/limit_grade.h"

namespace gpulet::doctor {
namespace {

using Lines = std::vector<std::string>;

Facts limiting_facts(const std::string& grade) {
  auto facts = healthy_facts();
  facts.agent->memory_limit = agent::MemoryLimitStatus{.grade = grade, .reasons = {"the driver is too old"}};
  facts.installed.module = "615.71.09";
  facts.limit_host = LimitHost{
      .controllers = "cpu misc dmem\n", .enabled_controllers = "cpu misc dmem\n", .driver_parameters = ""};
  return facts;
}

TEST(MemoryLimits, WhereOnlyClaimsShareByMpsTheNodeHasNoGrade) {
  auto facts = limiting_facts("");
  facts.agent->memory_limit->containers = {
      {.gpu = DeviceUuid("GPU-0"), .pod = {"team", "a"}, .container = "main", .limit = {}, .grade = "mps"}};
  const auto result = check_memory_limits(facts);
  EXPECT_EQ(result.verdict, Verdict::kPass);
  EXPECT_EQ(result.details, Lines{"team/a, container main, GPU-0: mps"});
}

TEST(MemoryLimits, EachCauseIsNamed) {
  auto facts = limiting_facts("audited");
  EXPECT_EQ(driver_limit_causes(facts), Lines());
  facts.installed.module = "580.95.05";
  facts.limit_host->driver_parameters =
      "DynamicPowerManagement: 3\nRegistryDwords: \"X=1;RmMemacctMode=0\"\n";
  facts.limit_host->controllers = std::nullopt;
  facts.agent->gpus[1].mig.enabled = true;
  const auto causes = driver_limit_causes(facts);
  ASSERT_EQ(causes.size(), 4u);
  EXPECT_EQ(causes[0], "driver 580.95.05: install 615 or newer");
  EXPECT_TRUE(causes[1].starts_with("cgroup v1: boot with")) << causes[1];
  EXPECT_TRUE(causes[2].starts_with("RmMemacctMode is 0: remove it")) << causes[2];
  EXPECT_TRUE(causes[3].starts_with("GPU 1 in MIG mode")) << causes[3];
}

TEST(MemoryLimits, TheKernelAndTheRuntime) {
  auto facts = limiting_facts("audited");
  facts.limit_host->controllers = "cpu memory\n";
  EXPECT_EQ(driver_limit_causes(facts),
            Lines{"the kernel has neither CONFIG_CGROUP_DMEM nor CONFIG_CGROUP_MISC: use one that has"});
  facts.limit_host->controllers = "cpu misc\n";
  EXPECT_EQ(driver_limit_causes(facts), Lines()) << "the driver counts itself";
  facts.limit_host->controllers = "cpu dmem\n";
  facts.limit_host->enabled_controllers = "cpu\n";
  ASSERT_EQ(driver_limit_causes(facts).size(), 1u);
  EXPECT_NE(driver_limit_causes(facts)[0].find("crun"), std::string::npos);
  facts.limit_host->enabled_controllers = "dmem";
  facts.limit_host->driver_parameters = "RmMemacctMode=3";
  EXPECT_EQ(driver_limit_causes(facts), Lines());
}

TEST(MemoryLimits, WhatCouldNotBeReadIsNoCause) {
  auto facts = limiting_facts("audited");
  facts.limit_host = fail(Code::kDeadlineExceeded, "no");
  facts.installed.module = fail(Code::kNotFound, "no");
  facts.agent = fail(Code::kNotFound, "no agent");
  EXPECT_EQ(driver_limit_causes(facts), Lines());
  EXPECT_EQ(result_of(facts, "memory-limits").verdict, Verdict::kUnknown);
}

TEST(MemoryLimits, ACheckOfWhoWantsThem) {
  auto facts = healthy_facts();
  EXPECT_EQ(result_of(facts, "memory-limits").found, "no memory limits of shared GPUs are wanted");
  facts = limiting_facts("audited");
  facts.installed.module = "580.95.05";
  const auto passed = result_of(facts, "memory-limits");
  EXPECT_EQ(passed.verdict, Verdict::kPass);
  EXPECT_EQ(passed.found, "memory limits of shared GPUs have the grade audited");
  EXPECT_EQ(passed.details,
            (Lines{"the driver is too old", "the driver: driver 580.95.05: install 615 or newer"}));
  facts = limiting_facts("kernel");
  facts.agent->memory_limit->reasons.clear();
  facts.installed.module = "580.95.05";
  EXPECT_EQ(result_of(facts, "memory-limits").details, Lines()) << "nothing to explain";
}

TEST(MemoryLimits, AContainerOfALowerGradeIsAWarning) {
  auto facts = limiting_facts("audited");
  facts.agent->memory_limit->containers = {{.gpu = DeviceUuid("GPU-0"),
                                            .pod = {"team", "a"},
                                            .container = "main",
                                            .limit = Bytes{1},
                                            .grade = "audited"},
                                           {.gpu = DeviceUuid("GPU-0"),
                                            .pod = {"team", "b"},
                                            .container = "main",
                                            .limit = Bytes{1},
                                            .grade = "none",
                                            .reasons = {"container main is privileged"}}};
  const auto warned = result_of(facts, "memory-limits");
  EXPECT_EQ(warned.verdict, Verdict::kWarn);
  EXPECT_EQ(warned.found,
            "memory limits of shared GPUs have the grade audited, but 1 container less: team/b, container "
            "main, GPU-0: none: container main is privileged");
}

TEST(MemoryLimits, WithoutHostPidsTheFixIsHostPid) {
  auto facts = limiting_facts("none");
  facts.agent->memory_limit->reasons.emplace_back(fraction::kNoHostPids);
  const auto warned = result_of(facts, "memory-limits");
  EXPECT_EQ(warned.verdict, Verdict::kWarn);
  EXPECT_EQ(warned.found,
            "memory limits of shared GPUs have the grade none: the agent has no hostPID: it "
            "cannot see which container a process on the GPU is in");
  EXPECT_EQ(warned.fix, "set hostPID: true in the chart's values, or share the GPUs by MPS");
  facts.agent->memory_limit->reasons = {"gpulet.fraction.onExceeded is warn"};
  EXPECT_NE(result_of(facts, "memory-limits").fix.find("onExceeded"), std::string::npos);
}

TEST(MemoryLimits, ReadsTheHostsFiles) {
  std::string root = (std::filesystem::temp_directory_path() / "gpulet-limits-XXXXXX").string();
  ASSERT_NE(::mkdtemp(root.data()), nullptr);
  const auto write_file = [&](const std::string& path, const char* text) {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  };
  HostTrees trees;
  trees.sys = root + "/sys";
  trees.proc = root + "/proc";
  const auto nothing = read_limit_host(trees);
  EXPECT_EQ(nothing.controllers, std::nullopt);
  EXPECT_EQ(nothing.driver_parameters, "");
  write_file("/sys/fs/cgroup/cgroup.controllers", "misc\n");
  write_file("/sys/fs/cgroup/cgroup.subtree_control", "dmem\n");
  write_file("/proc/driver/nvidia/params", "RmMemacctMode=0");
  const auto host = read_limit_host(trees);
  EXPECT_EQ(host.controllers, "misc\n");
  EXPECT_EQ(host.enabled_controllers, "dmem\n");
  EXPECT_EQ(host.driver_parameters, "RmMemacctMode=0");
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace gpulet::doctor

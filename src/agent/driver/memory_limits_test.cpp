#include "agent/driver/memory_limits.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "nvml/memory_limits.h"
#include "nvml/test_loop_thread.h"
#include "nvml/test_sim_root.h"
#include "sim/state/mig.h"

namespace gpulet::agent {
namespace {

class MemoryLimitsTest : public testing::TestWithParam<sim::MemoryBackend> {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(cgroup());
    thread_.run_on_loop([&] {
      driver_ =
          std::make_unique<NvmlDriver>(thread_.loop(), NvmlDriverOptions{.driver_root = root_.sim_root()});
    });
    const auto opened = thread_.await<Status>([&](auto done) { driver_->open_driver(done); });
    ASSERT_TRUE(opened && *opened);
    const auto read =
        thread_.await<Result<inventory::Snapshot>>([&](auto done) { driver_->read_snapshot(done); });
    ASSERT_TRUE(read && *read);
    gpu_ = (*read)->gpus[0].uuid;
  }
  void TearDown() override {
    thread_.run_on_loop([&] { driver_.reset(); });
  }

  std::string cgroup() const { return root_.sim_root() + "/cgroups/pod/container"; }
  Status set_limit(Bytes limit) {
    const auto set =
        thread_.await<Status>([&](auto done) { set_memory_limit(*driver_, gpu_, cgroup(), limit, done); });
    return set.value_or(fail(Code::kInternal, "it never returned"));
  }
  Status clear_limit() {
    const auto cleared =
        thread_.await<Status>([&](auto done) { clear_memory_limit(*driver_, gpu_, cgroup(), done); });
    return cleared.value_or(fail(Code::kInternal, "it never returned"));
  }
  Status set_pod_limit(Bytes limit) {
    const auto set = thread_.await<Status>(
        [&](auto done) { set_pod_memory_limit(*driver_, gpu_, cgroup(), limit, done); });
    return set.value_or(fail(Code::kInternal, "it never returned"));
  }
  std::string unsupported_reason(const LimitFiles& files) {
    const auto session = nvml::Session::open_session(root_.sim_root());
    EXPECT_TRUE(session);
    return read_memory_limit_support(**session, files).reason;
  }
  // What the driver has for the cgroup, without its functions.
  std::optional<sim::MemoryLimitReading> kept_limit() {
    const auto path = sim::look_up_cgroup(cgroup());
    return sim::find_memory_limit(*root_.edit_machine(), 0, path.chain.front());
  }

  nvml::SimRoot root_{*sim::machine_with_memory_limits(GetParam())};
  nvml::LoopThread thread_;
  std::unique_ptr<NvmlDriver> driver_;
  DeviceUuid gpu_;
};

TEST_P(MemoryLimitsTest, SetsReadsBackAndClears) {
  ASSERT_TRUE(clear_limit()) << "there is none";
  const auto set = set_limit(mebibytes(3000));
  ASSERT_TRUE(set) << set.error().full_message();
  ASSERT_TRUE(kept_limit());
  EXPECT_EQ(kept_limit()->soft, mebibytes(3000).value);
  EXPECT_EQ(kept_limit()->hard, mebibytes(3000).value);
  EXPECT_TRUE(set_limit(mebibytes(2000))) << "it is replaced";
  EXPECT_EQ(kept_limit()->hard, mebibytes(2000).value);
  EXPECT_TRUE(clear_limit());
  EXPECT_FALSE(kept_limit());
  EXPECT_TRUE(clear_limit());
}

TEST_P(MemoryLimitsTest, APodsHardLimitLeavesTheReservation) {
  ASSERT_TRUE(set_limit(mebibytes(3000)));
  ASSERT_TRUE(set_pod_limit(mebibytes(5000)));
  EXPECT_EQ(kept_limit()->soft, mebibytes(3000).value);
  EXPECT_EQ(kept_limit()->hard, mebibytes(5000).value);
  ASSERT_TRUE(set_pod_limit(nvml::kNoMemoryLimit));
  EXPECT_EQ(kept_limit()->soft, mebibytes(3000).value);
  EXPECT_EQ(kept_limit()->hard, nvml::kNoMemoryLimit.value);
  EXPECT_EQ(set_pod_limit(mebibytes(2000)).error().code(), Code::kInvalidArgument) << "more is reserved";
  root_.edit_machine()->memory.misreported_hard = mebibytes(9000).value;
  const auto refused = set_pod_limit(mebibytes(4000));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("hard memory limit of 4194304000 bytes back as"),
            std::string::npos)
      << refused.error().message();
}

TEST_P(MemoryLimitsTest, WhatIsReadBackOtherwiseIsRefusedAndCleared) {
  root_.edit_machine()->memory.misreported_hard = mebibytes(9000).value;
  const auto refused = set_limit(mebibytes(3000));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kFailedPrecondition);
  EXPECT_EQ(
      refused.error().message(),
      "the driver reads the memory limit of 3145728000 bytes back as soft 3145728000 and hard 9437184000 "
      "bytes");
  EXPECT_EQ(refused.error().subject(), cgroup());
  EXPECT_FALSE(kept_limit());
}

TEST_P(MemoryLimitsTest, WhatCannotBeReadBackIsRefusedAndCleared) {
  {
    const auto machine = root_.edit_machine();
    sim::set_text(machine->answers[0].call, "nvmlDeviceGetMemoryLimits_v1");
    machine->answers[0].gpu = sim::kMaxGpus;
    machine->answers[0].nvml_return = 999;
    machine->answer_count = 1;
  }
  const auto refused = set_limit(mebibytes(3000));
  ASSERT_FALSE(refused);
  EXPECT_TRUE(
      refused.error().message().starts_with("cannot read the memory limit of 3145728000 bytes back: "));
  EXPECT_NE(refused.error().message().find("; it may still be set: nvmlDeviceGetMemoryLimits_v1: "),
            std::string::npos)
      << "nothing shows that it is";
  EXPECT_FALSE(kept_limit());
}

TEST_P(MemoryLimitsTest, TheDriversRefusalsAreErrors) {
  EXPECT_EQ(set_limit(mebibytes(90'000)).error().code(), Code::kInvalidArgument);
  std::filesystem::remove_all(cgroup());
  EXPECT_EQ(set_limit(mebibytes(3000)).error().code(), Code::kIo);
  EXPECT_EQ(clear_limit().error().code(), Code::kIo);
  gpu_ = DeviceUuid("GPU-unknown");
  EXPECT_EQ(set_limit(mebibytes(3000)).error().code(), Code::kNotFound);
}

TEST_P(MemoryLimitsTest, SupportIsDecidedWithoutAskingForLimits) {
  const LimitFiles files{root_.sim_root() + "/cgroups", root_.sim_root() + "/params"};
  EXPECT_NE(unsupported_reason(files).find("cgroup v2"), std::string::npos);
  root_.add_root_file("cgroups/cgroup.controllers", "memory misc\n");
  EXPECT_EQ(unsupported_reason(files), "");
  root_.add_root_file("params", "RegistryDwords: \"RmMemacctMode=0\"\n");
  EXPECT_NE(unsupported_reason(files).find("RmMemacctMode=0"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Backends, MemoryLimitsTest,
                         testing::Values(sim::MemoryBackend::kMisc, sim::MemoryBackend::kDmem),
                         [](const auto& backend) {
                           return backend.param == sim::MemoryBackend::kMisc ? "Misc" : "Dmem";
                         });

}  // namespace
}  // namespace gpulet::agent

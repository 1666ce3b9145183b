// kill -9 before every change of a file that an agent makes while it prepares a claim, and while it
// unprepares one: after a restart the claim is prepared, and after its end nothing of it is left. Changes of
// the driver: dra/partition_keeper_test.cpp.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <system_error>

#include "tests/sim/claim_fixture.h"
#include "tests/storm/fault_file.h"

namespace gpulet::storm {
namespace {

namespace fs = std::filesystem;
using tests::kClaimPod;

constexpr std::uint32_t kDynamicGpu = 7;
constexpr std::int64_t kMostChanges = 200;  // of one call: more means that the kills do not end

class ClaimKill : public tests::ClaimNodeTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(ClaimNodeTest::SetUp());
    auto faults = FaultFile::create_file(sim_node().directory() + "/faults");
    ASSERT_TRUE(faults) << faults.error().full_message();
    faults_ = std::move(*faults);
    // With another program's MIG device, which stays.
    create_mig_devices(kDynamicGpu, {"2g.20gb"});
    write_config("version: v1\nflags: {migStrategy: mixed}\ngpulet: {partition: [{devices: [" +
                 std::to_string(kDynamicGpu) + "], dynamicMig: {profiles: [1g.10gb]}}]}\n");
    mig_devices_ = count_mig_devices();
    start();
    ASSERT_TRUE(becomes_true([this] { return slices_.devices().find(kPartition) != std::string::npos; }));
    files_ = claim_files();
    allow_agent_exit();
  }

  void start() {
    auto options = claim_options(kClaimPod);
    options.arguments.push_back("--config-file=" + config_path());
    const auto preload = faults_->environment(GPULET_FAULTY_CALLS, GPULET_PROGRAMS, sim_node().directory());
    options.environment.insert(options.environment.end(), preload.begin(), preload.end());
    start_agent(options);
    register_driver(kClaimPod);
  }

  // The files of records and of claims' CDI specs, and those of a write in progress.
  std::set<std::string> claim_files() const {
    std::set<std::string> files;
    std::error_code missing;
    for (const auto& directory : {record_dir(), sim_directory() + "/cdi"}) {
      for (const auto& entry : fs::directory_iterator(directory, missing))
        files.insert(entry.path().string());
    }
    return files;
  }
  std::uint32_t count_mig_devices() const {
    std::uint32_t count = 0;
    const auto lock = machine_state().lock_for_read();
    for (const auto& instance : lock->gpus[kDynamicGpu].mig.instances) count += instance.used;
    return count;
  }
  // Of a claim that has ended.
  bool is_all_gone() const { return claim_files() == files_ && count_mig_devices() == mig_devices_; }
  bool nothing_is_left() {
    return becomes_true([this] { return is_all_gone(); });
  }

  // Whether the agent was killed in the call: before the change after `changes` others.
  bool is_killed(std::int64_t changes, const std::function<std::string()>& call) {
    faults_->block().changes_left = changes;
    const auto error = call();
    const bool killed = faults_->block().changes_left.exchange(-1) < 0;
    if (killed) {
      EXPECT_TRUE(sim_node().wait_agent(tests::kTestTimeout));
    } else {
      EXPECT_EQ(error, "");
    }
    return killed;
  }

  // Returns the number of kills.
  std::int64_t kill_while_preparing(const std::string& claim, bool is_prepared_again) {
    for (std::int64_t changes = 0; changes < kMostChanges; ++changes) {
      SCOPED_TRACE(claim + " after " + std::to_string(changes) + " changes");
      const bool killed = is_killed(changes, [&] { return prepare(kClaimPod, claim); });
      if (killed) start();
      if (killed && is_prepared_again) {
        EXPECT_EQ(prepare(kClaimPod, claim), "");
        EXPECT_EQ(record_count(), 1);
      }
      EXPECT_EQ(unprepare(kClaimPod, claim), "");
      EXPECT_TRUE(nothing_is_left()) << testing::PrintToString(claim_files());
      if (!killed || HasFailure()) return changes;
    }
    ADD_FAILURE() << "the kills of " << claim << " do not end";
    return 0;
  }
  std::int64_t kill_while_unpreparing(const std::string& claim) {
    for (std::int64_t changes = 0; changes < kMostChanges; ++changes) {
      SCOPED_TRACE(claim + " after " + std::to_string(changes) + " changes");
      EXPECT_EQ(prepare(kClaimPod, claim), "");
      const bool killed = is_killed(changes, [&] {
        const auto error = unprepare(kClaimPod, claim);
        EXPECT_TRUE(becomes_true([this] { return is_all_gone() || !is_agent_running(); }));
        return error;
      });
      if (killed) {
        start();
        EXPECT_EQ(unprepare(kClaimPod, claim), "");
        EXPECT_TRUE(nothing_is_left()) << testing::PrintToString(claim_files());
      }
      if (!killed || HasFailure()) return changes;
    }
    ADD_FAILURE() << "the kills of " << claim << " do not end";
    return 0;
  }

  static constexpr const char* kPartition = "gpu-7-mig-1g10gb-19-6";

 private:
  std::optional<FaultFile> faults_;
  std::set<std::string> files_;
  std::uint32_t mig_devices_ = 0;
};

TEST_F(ClaimKill, AGpuIsPreparedOnceAndLeavesNothing) {
  EXPECT_GT(kill_while_preparing("gpu-0-again", true), 2);
  EXPECT_GT(kill_while_preparing("gpu-0-ended", false), 2);
  EXPECT_GT(kill_while_unpreparing("gpu-0-gone"), 1);
}

TEST_F(ClaimKill, ADynamicMigDeviceIsMadeOnceAndLeavesNothing) {
  const std::string device = kPartition;
  EXPECT_GT(kill_while_preparing(device + "-again", true), 2);
  EXPECT_GT(kill_while_preparing(device + "-ended", false), 2);
  EXPECT_GT(kill_while_unpreparing(device + "-gone"), 1);
}

}  // namespace
}  // namespace gpulet::storm

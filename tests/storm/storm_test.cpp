// A few seeds of `make storm`, and what it has found, each alone.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <iostream>
#include <set>

#include "agent/health/operator_interface.h"
#include "health/state/cordons.h"
#include "sim/demo/demo.h"
#include "tests/sim/node_fixture.h"
#include "tests/storm/storm.h"

namespace gpulet::storm {
namespace {

TEST(StormPlan, SuccessiveSeedsHaveEveryPair) {
  EXPECT_GT(all_pairs().size(), 250u);
  std::set<std::string> texts;
  for (const auto& pair : all_pairs()) texts.insert(pair_text(pair));
  EXPECT_EQ(texts.size(), all_pairs().size());
  std::set<Pair> pairs;
  for (std::uint64_t seed = 17; seed < 17 + all_pairs().size(); ++seed) pairs.insert(first_pair(seed));
  EXPECT_EQ(pairs.size(), all_pairs().size());
}

TEST(StormPlan, IsAFunctionOfTheSeed) {
  std::mt19937_64 first(5), second(5);
  for (std::size_t fault = 0; fault < kFaults; ++fault) {
    const auto one = plan_fault(static_cast<Fault>(fault), 2, first);
    const auto other = plan_fault(static_cast<Fault>(fault), 2, second);
    EXPECT_EQ(one.delay, other.delay);
    EXPECT_EQ(one.length, other.length);
    EXPECT_EQ(one.stays, other.stays);
  }
}

// Reads that fail for a while: no change of the file follows.
class StormNodeTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root, to mount";
    ASSERT_EQ(::unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
    auto started = StormNode::start_node(GPULET_PROGRAMS, GPULET_FAULTY_CALLS);
    ASSERT_TRUE(started) << started.error().full_message();
    node_ = std::move(*started);
  }
  void TearDown() override {
    if (!node_) return;
    node_->end_agent();
    EXPECT_EQ(node_->violations(), std::vector<std::string>());
    if (HasFailure()) std::cerr << node_->agent_log();
  }
  bool becomes_true(const std::function<bool()>& condition) {
    return node_->wait_until(condition, tests::kTestTimeout, [] {});
  }
  bool is_logged(const std::string& reason) {
    return becomes_true([&] { return node_->agent_log().find(reason) != std::string::npos; });
  }
  std::unique_ptr<StormNode> node_;
};

TEST_F(StormNodeTest, AConfigThatCouldNotBeReadIsReadAgain) {
  node_->set_file_error(EIO);
  ASSERT_TRUE(node_->set_mig_layout(true));
  ASSERT_TRUE(is_logged("ConfigInvalid"));
  node_->set_file_error(0);
  EXPECT_TRUE(becomes_true([&] { return node_->is_settled(); })) << node_->devices_text();
}

TEST_F(StormNodeTest, CordonsThatCouldNotBeReadAreReadAgain) {
  node_->set_file_error(EIO);
  ASSERT_TRUE(health::update_cordons(
      agent::cordons_path(node_->state_dir()), WallTime(), [&](health::Cordons& cordons) {
        cordons[DeviceUuid(node_->gpu_uuid(3))] = {health::OperatorAction::kCordon, WallTime(), "riser"};
      }));
  ASSERT_TRUE(is_logged("CordonsUnreadable"));
  node_->set_file_error(0);
  EXPECT_TRUE(becomes_true([&] {
    return node_->kubelet().wait_for(
        [&](const auto& state) {
          const auto* gpus = tests::find_resource(state, kGpus);
          return gpus != nullptr && tests::unhealthy_ids(*gpus) == std::set{node_->gpu_uuid(3)};
        },
        milliseconds(0));
  })) << node_->devices_text();
}

TEST(StormRun, AFewSeedsHold) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to mount";
  const auto output =
      sim::program_output({GPULET_STORM, "--seeds", "4", "--jobs", "2"}, tests::sanitizer_options());
  ASSERT_TRUE(output) << output.error().full_message();
  EXPECT_TRUE(output->ends_with("4 passed, 0 failed\n")) << *output;
}

}  // namespace
}  // namespace gpulet::storm

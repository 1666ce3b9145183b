#include "agent/gpu_node_care.h"

#include <gtest/gtest.h>

#include "base/manual_loop.h"
#include "scheduler/test_nodes.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;

class GpuNodeCareTest : public testing::Test {
 protected:
  GpuNodeCareTest()
      : care_({.loop = loop_,
               .holders =
                   [this](auto done) {
                     ++asked_;
                     loop_.post([this, done = std::move(done)] {
                       if (silent_) return done(fail(Code::kUnavailable, "away"));
                       done(std::vector<kubelet::ContainerDevices>(holders_));
                     });
                   },
               .node =
                   [this](const auto& holders) {
                     auto node = node_;
                     if (node) {
                       for (std::size_t i = 0; i < holders.size(); ++i)
                         scheduler::hold(*node, holders[i].pod, {i});
                     }
                     return node;
                   },
               .write = [this](std::string spec) { written_.push_back(std::move(spec)); }}) {}

  void held_by(std::vector<std::string> pods) {
    holders_.clear();
    for (auto& pod : pods) holders_.push_back({"a", std::move(pod), "main", {}});
  }

  ManualLoop loop_;
  std::optional<scheduler::GpuNode> node_ = scheduler::test_node(8, 4);
  std::vector<kubelet::ContainerDevices> holders_;
  bool silent_ = false;
  int asked_ = 0;
  std::vector<std::string> written_;
  GpuNodeCare care_;
};

TEST_F(GpuNodeCareTest, NothingIsWrittenWhileNothingIsKnownOrChanges) {
  node_.reset();
  loop_.advance(30s);
  EXPECT_TRUE(written_.empty());
  node_ = scheduler::test_node(8, 4);
  care_.changed();
  loop_.advance(1s);
  EXPECT_EQ(written_.size(), 1U);
  loop_.advance(1h);
  EXPECT_EQ(written_.size(), 1U);
}

TEST_F(GpuNodeCareTest, ABrokenGpuIsToldAtOnceAndABurstIsOneWrite) {
  loop_.advance(1s);
  for (std::size_t gpu = 0; gpu < 8; ++gpu) {
    scheduler::quarantine(*node_, gpu, "XID 79: GPU has fallen off the bus");
    care_.changed();
    loop_.advance(10ms);
  }
  loop_.advance(200ms);
  ASSERT_EQ(written_.size(), 2U);
  EXPECT_NE(written_[1].find("8 quarantined"), std::string::npos);
}

TEST_F(GpuNodeCareTest, AnAllocationIsWaitedForAndManyAreFewWrites) {
  loop_.advance(10s);
  held_by({"p0"});
  care_.allocated();
  loop_.advance(499ms);
  EXPECT_EQ(written_.size(), 1U);
  loop_.advance(1ms);
  ASSERT_EQ(written_.size(), 2U);
  for (int i = 1; i < 8; ++i) {  // ten Pods a second
    auto pods = std::vector<std::string>{};
    for (int p = 0; p <= i; ++p) pods.push_back("p" + std::to_string(p));
    held_by(std::move(pods));
    care_.allocated();
    loop_.advance(100ms);
  }
  loop_.advance(5s);
  EXPECT_LE(written_.size(), 4U);
  EXPECT_NE(written_.back().find("p7"), std::string::npos);
}

TEST_F(GpuNodeCareTest, DevicesThatComeBackAreSeenByLooking) {
  held_by({"p0"});
  loop_.advance(1s);
  held_by({});
  loop_.advance(15s);
  ASSERT_EQ(written_.size(), 2U);
  EXPECT_EQ(written_[1].find("p0"), std::string::npos);
}

TEST_F(GpuNodeCareTest, LoadsAloneAreWrittenOnceAMinute) {
  loop_.advance(1s);
  for (int second = 0; second < 180; ++second) {
    node_->gpus[0].load = std::string(16, '0') + (second % 2 == 0 ? "01" : "02");
    care_.changed();
    loop_.advance(1s);
  }
  EXPECT_GE(written_.size(), 3U);
  EXPECT_LE(written_.size(), 4U);
}

TEST_F(GpuNodeCareTest, AKubeletThatIsAwayChangesNothingOfWhoHoldsWhat) {
  held_by({"p0"});
  loop_.advance(1s);
  silent_ = true;
  loop_.advance(1min);
  EXPECT_EQ(written_.size(), 1U);
  scheduler::quarantine(*node_, 3, "XID 79: GPU has fallen off the bus");
  care_.changed();
  loop_.advance(1s);
  ASSERT_EQ(written_.size(), 2U);
  EXPECT_NE(written_[1].find("p0"), std::string::npos);
}

}  // namespace
}  // namespace gpulet::agent

#include "agent/cordon_care.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "agent/test_reporter.h"
#include "base/file.h"
#include "health/machine.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using health::Scope;
using health::State;
using health::Wish;

// Two GPUs, their machine in the agent's place, and the file.
class CordonCareTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "cordon_care.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    folder_ = path;
    path_ = cordons_file(folder_ + "/state");
    for (unsigned i = 0; i < 2; ++i) {
      inventory::Gpu gpu;
      gpu.index = i;
      gpu.uuid = DeviceUuid("GPU-" + std::to_string(i));
      gpu.pci = {0, 0x10 + i, 0, 0};
      node_.gpus.push_back(gpu);
    }
    machine_.on_snapshot(node_, loop_.now());
    told_.changed = [this] { look(); };
  }
  void TearDown() override {
    care_.reset();
    std::filesystem::remove_all(folder_);
  }

  void start() {
    care_.emplace(loop_, told_, path_, [this](const health::Evidence& evidence) {
      ++taken_;
      machine_.on_evidence(evidence);
      machine_.advance(loop_.now());
      publish();
      look();
    });
    publish();
  }
  void publish() {
    care_->on_health(
        std::make_shared<const health::View>(view_of(machine_, node_, {loop_.now(), loop_.wall_now()})));
  }
  void say(const std::string& gpu, Wish wish, const std::string& words = {}) {
    const auto status = health::change_cordons(path_, loop_.wall_now(), [&](health::Cordons& cordons) {
      cordons[DeviceUuid(gpu)] = {wish, std::chrono::floor<std::chrono::milliseconds>(loop_.wall_now()),
                                  words};
    });
    ASSERT_TRUE(status) << status.error().text();
  }
  State state(const std::string& gpu) const { return machine_.standing({DeviceUuid(gpu)})->state; }

  // Runs the loop until it holds.
  bool comes(const std::function<bool()>& holds) {
    awaited_ = holds;
    const auto late = loop_.after(20s, [this] { loop_.stop(); });
    loop_.post([this] { look(); });
    loop_.run();
    return holds();
  }
  void look() {
    if (awaited_ && awaited_()) loop_.stop();
  }

  EpollLoop loop_;
  std::string folder_, path_;
  Told told_;
  inventory::Snapshot node_;
  health::Machine machine_{{}, health::XidFilter("", "")};
  std::optional<CordonCare> care_;
  std::function<bool()> awaited_;
  std::size_t taken_ = 0;
};

TEST_F(CordonCareTest, FollowsTheFileWhileItRuns) {
  start();
  say("GPU-1", Wish::kCordon, "new riser");
  ASSERT_TRUE(comes([&] { return state("GPU-1") == State::kDraining; }));
  EXPECT_EQ(machine_.standing({DeviceUuid("GPU-1")})->reason, "cordoned: new riser");
  EXPECT_TRUE(offered(state("GPU-0")));
  say("GPU-1", Wish::kUncordon);
  ASSERT_TRUE(comes([&] { return offered(state("GPU-1")); }));
  EXPECT_EQ(taken_, 2u);
  EXPECT_TRUE(told_.texts().empty());
}

TEST_F(CordonCareTest, TakesWhatWasSaidBeforeItsStartAndBeforeTheGpuWasThere) {
  say("GPU-0", Wish::kCordon);
  say("GPU-late", Wish::kCordon);
  start();
  ASSERT_TRUE(comes([&] { return state("GPU-0") == State::kDraining; }));
  node_.gpus[1].uuid = DeviceUuid("GPU-late");
  machine_.on_snapshot(node_, loop_.now());
  publish();
  EXPECT_TRUE(comes([&] { return state("GPU-late") == State::kDraining; }));
}

TEST_F(CordonCareTest, ADamagedFileIsSaidOnceAndChangesNothing) {
  say("GPU-0", Wish::kCordon);
  start();
  ASSERT_TRUE(comes([&] { return state("GPU-0") == State::kDraining; }));
  ASSERT_TRUE(write_file_atomic(path_, "nonsense\n"));
  ASSERT_TRUE(comes([&] { return !told_.texts().empty(); }));
  EXPECT_EQ(told_.reasons()[0], "CordonsUnreadable");
  EXPECT_EQ(told_.texts()[0],
            "CordonsUnreadable: " + path_ + ": line 1 is not 'gpulet-cordons 1'; cordons stay as they were");
  ASSERT_TRUE(write_file_atomic(path_, "nonsense!\n"));
  publish();
  std::filesystem::remove(path_);
  ASSERT_TRUE(comes([&] { return offered(state("GPU-0")); })) << "without the file no cordon is left";
  EXPECT_EQ(told_.texts().size(), 1u);
}

TEST_F(CordonCareTest, WhatIsNotTakenIsNotSaidAgainAndAgain) {
  health::Policy policy;
  policy.effects[health::FaultClass::kCordoned] = health::Effect::kIgnore;
  machine_.set_policy(policy);
  say("GPU-0", Wish::kCordon);
  start();
  ASSERT_TRUE(comes([&] { return taken_ > 0; }));
  publish();
  // The turn after this one has settled what was published.
  bool settled = false;
  const auto later = loop_.after(1ms, [&] {
    settled = true;
    look();
  });
  ASSERT_TRUE(comes([&] { return settled; }));
  EXPECT_EQ(taken_, 1u);
}

}  // namespace
}  // namespace gpulet::agent

#include <gtest/gtest.h>

#include "agent/node/state_file_watcher.h"
#include "agent/node/test_reporter.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;

class StateFileWatcherTest : public testing::Test {
 protected:
  void start_watcher() {
    watcher_.emplace(loop_, reporter_, testing::TempDir() + "state_file_watcher/none",
                     StateFileWatcher::Texts{"NotWatched", "it waits", "Unreadable", "it stays"}, [this] {
                       ++reads_;
                       return result_;
                     });
  }
  ManualLoop loop_;
  RecordingReporter reporter_;
  Status result_;
  int reads_ = 0;
  std::optional<StateFileWatcher> watcher_;
};

TEST_F(StateFileWatcherTest, ReadsAgainAfterAnErrorThatCanPass) {
  result_ = fail(Code::kIo, "cannot read: Input/output error", "f");
  start_watcher();
  EXPECT_EQ(reads_, 1);
  loop_.advance(5min);
  EXPECT_GT(reads_, 5);
  EXPECT_EQ(reporter_.reported_texts(),
            std::vector<std::string>{"Unreadable: f: cannot read: Input/output error; it stays"});
  result_ = {};
  loop_.advance(kStateFileBackoff.max);
  const int reads = reads_;
  loop_.advance(1h);
  EXPECT_EQ(reads_, reads) << "nothing changes, nothing wakes it";
}

TEST_F(StateFileWatcherTest, WaitsForAChangeOfAnInvalidFile) {
  result_ = fail(Code::kInvalidArgument, "line 1 is wrong", "f");
  start_watcher();
  loop_.advance(1h);
  EXPECT_EQ(reads_, 1);
  EXPECT_EQ(loop_.pending_timers(), 0u);
}

}  // namespace
}  // namespace gpulet::agent

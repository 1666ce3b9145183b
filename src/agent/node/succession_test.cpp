#include "agent/node/succession.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "agent/health/operator_interface.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using Steps = std::vector<std::string>;

class SuccessionTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "succession.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
  }
  void TearDown() override {
    for (auto* agent : {&first_, &second_, &third_}) agent->reset();
    std::filesystem::remove_all(directory_);
  }

  struct Instance {
    Instance(Loop& loop, const std::string& directory, bool registers)
        : succession(loop, directory,
                     {.stand_by = [this] { steps.push_back("stand by"); },
                      .register_early =
                          [this, registers] {
                            steps.push_back("register");
                            if (registers) succession.finish_registration();
                          },
                      .serve = [this] { steps.push_back("serve"); }}) {}
    Steps steps;
    Succession succession;
  };

  void start(std::optional<Instance>& agent, bool registers = true) {
    agent.emplace(loop_, directory_, registers);
    agent->succession.begin();
  }
  // Runs the loop until the condition holds.
  template <class Condition>
  bool becomes(Condition condition) {
    const auto limit = loop_.after(20s, [this] { loop_.stop_loop(); });
    std::function<void()> check = [&] {
      if (condition()) return loop_.stop_loop();
      tick_ = loop_.after(1ms, check);
    };
    loop_.post(check);
    loop_.run_loop();
    tick_.reset();
    return condition();
  }
  bool is_locked(const std::string& path) const { return ProcessLock::is_locked(path).value_or(false); }

  EpollLoop loop_;
  Subscription tick_;
  std::string directory_;
  std::optional<Instance> first_, second_, third_;
};

TEST_F(SuccessionTest, OneAgentServesAtOnce) {
  start(first_);
  EXPECT_EQ(first_->steps, Steps{"serve"});
  EXPECT_EQ(first_->succession.owned_path(), presence_path(directory_));
  EXPECT_FALSE(is_locked(standby_path(directory_)));
  bool done = false;
  first_->succession.hand_over([&](bool has_next) { done = !has_next; });
  EXPECT_TRUE(done) << "there is no next one";
}

TEST_F(SuccessionTest, TheNextAgentRegistersBeforeTheFirstEnds) {
  start(first_);
  start(second_, false);
  EXPECT_EQ(second_->steps, Steps{"stand by"});
  bool done = false;
  first_->succession.hand_over([&](bool) { done = true; });
  EXPECT_TRUE(becomes([&] { return second_->steps.size() == 2; }));
  EXPECT_EQ(second_->steps, (Steps{"stand by", "register"}));
  EXPECT_FALSE(done) << "it has not registered yet";
  second_->succession.finish_registration();
  EXPECT_TRUE(becomes([&] { return done; }));
  EXPECT_FALSE(second_->succession.is_serving()) << "the first one still writes";
  first_->succession.end();
  EXPECT_TRUE(becomes([&] { return second_->succession.is_serving(); }));
  EXPECT_EQ(second_->steps, (Steps{"stand by", "register", "serve"}));
}

TEST_F(SuccessionTest, AnAgentThatDiesIsReplacedAtOnce) {
  start(first_);
  start(second_);
  start(third_);
  first_.reset();  // the kernel releases the locks of a killed process in any order
  EXPECT_TRUE(becomes([&] { return second_->succession.is_serving(); }));
  EXPECT_EQ(third_->steps, Steps{"stand by"});
  second_.reset();
  EXPECT_TRUE(becomes([&] { return third_->succession.is_serving(); }));
}

TEST_F(SuccessionTest, AStandbyThatDiesIsNotWaitedFor) {
  start(first_);
  start(second_, false);
  bool done = false;
  first_->succession.hand_over([&](bool) { done = true; });
  EXPECT_TRUE(becomes([&] { return second_->steps.size() == 2; }));
  second_.reset();
  EXPECT_TRUE(becomes([&] { return done; }));
}

TEST_F(SuccessionTest, AnAgentDoesNotWaitLongForTheNext) {
  start(first_);
  start(second_, false);
  bool done = false;
  const auto before = loop_.now();
  first_->succession.hand_over([&](bool) { done = true; });
  EXPECT_TRUE(becomes([&] { return done; }));
  EXPECT_GE(loop_.now() - before, kHandoverLimit);
}

TEST_F(SuccessionTest, WithoutLocksTheAgentServes) {
  Instance none(loop_, "", true), unusable(loop_, "/proc/none", true);
  none.succession.begin();
  unusable.succession.begin();
  EXPECT_EQ(none.steps, Steps{"serve"});
  EXPECT_EQ(unusable.steps, Steps{"serve"});
  EXPECT_EQ(unusable.succession.owned_path(), std::nullopt);
}

}  // namespace
}  // namespace gpulet::agent

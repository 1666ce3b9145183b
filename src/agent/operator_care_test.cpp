#include "agent/operator_care.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "agent/test_reporter.h"
#include "base/manual_loop.h"
#include "health/report.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;

class OperatorCareTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "operator_care.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    folder_ = path;
    care_.emplace(loop_, told_, [this](const health::Evidence& evidence) { taken_.push_back(evidence); }, 1);
  }
  void TearDown() override {
    care_.reset();
    std::filesystem::remove_all(folder_);
  }
  static health::ViewPtr view() {
    health::View view;
    health::DeviceView device;
    device.uuid = device.scope.gpu = DeviceUuid("GPU-0");
    view.devices.push_back(device);
    return std::make_shared<const health::View>(std::move(view));
  }
  bool lives(const std::string& folder) const {
    return Presence::held(presence_file(folder)).value_or(false);
  }

  ManualLoop loop_;
  Told told_;
  std::string folder_;
  std::vector<health::Evidence> taken_;
  std::optional<OperatorCare> care_;
};

TEST_F(OperatorCareTest, IsWhereTheConfigSays) {
  const auto one = folder_ + "/one", two = folder_ + "/two";
  care_->on_health(view());
  care_->apply(one, one + "/health.json");
  loop_.advance(0s);
  EXPECT_TRUE(lives(one));
  EXPECT_TRUE(health::read_report(one + "/health.json")) << "what was known before is written";
  ASSERT_TRUE(health::change_cordons(cordons_file(two), {}, [](health::Cordons& cordons) {
    cordons[DeviceUuid("GPU-0")] = {health::Wish::kCordon, {}, "why"};
  }));
  care_->apply(two, two + "/health.json");
  loop_.advance(0s);
  EXPECT_FALSE(lives(one));
  EXPECT_TRUE(lives(two));
  EXPECT_TRUE(health::read_report(two + "/health.json"));
  ASSERT_EQ(taken_.size(), 1u);
  EXPECT_EQ(std::get<health::OperatorWish>(taken_[0].body).words, "why");
  care_->apply("", "");
  care_->on_health(view());
  loop_.advance(1min);
  EXPECT_FALSE(lives(two));
  EXPECT_EQ(taken_.size(), 1u);
  EXPECT_TRUE(told_.reasons().empty());
}

TEST_F(OperatorCareTest, AnotherAgentIsSaidOnceAndFollowed) {
  auto other = Presence::hold(presence_file(folder_));
  ASSERT_TRUE(other);
  care_->apply(folder_, "");
  loop_.advance(5min);
  EXPECT_EQ(told_.reasons(), std::vector<std::string>{"AnotherAgent"});
  {
    const Presence ended = std::move(*other);
  }
  EXPECT_FALSE(lives(folder_));
  loop_.advance(kPresenceBackoff.longest);
  EXPECT_TRUE(lives(folder_));
  EXPECT_EQ(loop_.pending_timers(), 0u);
}

TEST_F(OperatorCareTest, AFolderThatCannotBeIsSaidOnce) {
  std::ofstream(folder_ + "/file").flush();
  care_->apply(folder_ + "/file", "");
  loop_.advance(5min);
  EXPECT_EQ(std::ranges::count(told_.reasons(), "PresenceNotTold"), 1);
}

}  // namespace
}  // namespace gpulet::agent

#include "health/telling.h"

#include <gtest/gtest.h>

#include "health/test_feed.h"

namespace gpulet::health {
namespace {

inventory::Snapshot told_node() {
  auto snapshot = node();
  unsigned next = 0;
  for (auto& mig : snapshot.gpus[1].mig_devices) mig.uuid = DeviceUuid("MIG-" + std::to_string(next++));
  return snapshot;
}

class Telling : public testing::Test {
 protected:
  View view() const { return view_of(feed.machine, feed.there, {feed.now, {}}); }
  NodeNews news() const { return node_news(view()); }
  Feed feed{{}, XidFilter("", ""), told_node()};
};

TEST_F(Telling, AHealthyNodeIsTrue) {
  const auto all = news();
  EXPECT_EQ(all.severity, Severity::kHealthy);
  EXPECT_EQ(all.healthy, true);
  EXPECT_EQ(all.reason, "GpusHealthy");
  EXPECT_EQ(all.message, "2 GPUs without a fault");
  EXPECT_EQ(node_news(View{}).healthy, std::nullopt);
  EXPECT_EQ(node_news(View{}).reason, "NoGpu");
}

TEST_F(Telling, AFaultIsFalseWithItsReasonAndWhatEndsIt) {
  feed.xid(scope("GPU-0"), 79);
  const auto lost = news();
  EXPECT_EQ(lost.severity, Severity::kLost);
  EXPECT_EQ(lost.healthy, false);
  EXPECT_EQ(lost.reason, "GpuLost");
  const auto comes_back = feed.machine.standing(scope("GPU-0"))->comes_back;
  ASSERT_FALSE(comes_back.empty());
  EXPECT_EQ(lost.message,
            "GPU 0 (GPU-0) is lost: " + feed.reason(scope("GPU-0")) + "; comes back " + comes_back);
  // The same again is the same news: no count and no time is told.
  feed.pass(seconds(5));
  feed.xid(scope("GPU-0"), 79);
  EXPECT_EQ(news().message, lost.message);
}

TEST_F(Telling, TheWorstDecidesAndComesFirst) {
  feed.xid(scope("GPU-0"), 95);
  feed.xid(scope("GPU-1"), 79);
  const auto both = news();
  EXPECT_EQ(both.severity, Severity::kLost);
  const auto lost = both.message.find("GPU 1 (GPU-1) is lost"), out = both.message.find("GPU 0 (GPU-0) is ");
  ASSERT_NE(lost, std::string::npos);
  ASSERT_NE(out, std::string::npos);
  EXPECT_LT(lost, out);
  // The MIG devices of a GPU that is lost say nothing of their own.
  EXPECT_EQ(both.message.find("MIG"), std::string::npos) << both.message;
}

TEST_F(Telling, AnInstanceIsNamedAlone) {
  feed.xid(scope("GPU-1", 1), 95);
  const auto part = news();
  EXPECT_EQ(part.severity, Severity::kWithdrawn);
  EXPECT_EQ(part.reason, "GpuWithdrawn");
  EXPECT_NE(part.message.find("MIG 1:0 (MIG-0) is quarantined"), std::string::npos) << part.message;
  EXPECT_NE(part.message.find("MIG 1:1 (MIG-1) is quarantined"), std::string::npos) << part.message;
  EXPECT_EQ(part.message.find("MIG-2"), std::string::npos) << part.message;
}

TEST_F(Telling, WhatIsFlaggedWorks) {
  feed.tell(scope("GPU-0"), RowRemapReading{.pending = true});
  const auto flagged = news();
  EXPECT_EQ(flagged.severity, Severity::kDegraded);
  EXPECT_EQ(flagged.healthy, true);
  EXPECT_NE(flagged.message.find("GPU 0 (GPU-0) is degraded"), std::string::npos);
}

TEST_F(Telling, AnOperatorsWishIsNoFault) {
  feed.tell(scope("GPU-0"), OperatorWish{Wish::kCordon, "for a look"});
  EXPECT_EQ(news().severity, Severity::kCordoned);
  EXPECT_EQ(news().healthy, true);
  feed.xid(scope("GPU-0"), 95);
  EXPECT_EQ(news().severity, Severity::kWithdrawn);
  EXPECT_EQ(news().healthy, false);
}

TEST_F(Telling, ALongListIsCut) {
  View view;
  for (unsigned i = 0; i < kMaxToldDevices + 4; ++i) {
    DeviceView device;
    device.scope.gpu = device.uuid = DeviceUuid("GPU-" + std::to_string(i));
    device.gpu_index = i;
    device.standing.state = State::kLost;
    view.devices.push_back(device);
  }
  const auto message = node_news(view).message;
  EXPECT_NE(message.find("GPU 15 (GPU-15) is lost. 4 more"), std::string::npos) << message;
}

TEST_F(Telling, WhatIsHeldIsFoundAlsoWhenItsPartIsGone) {
  const auto all = view();
  EXPECT_EQ(standing_for(all, scope("GPU-1", 2, 0))->uuid.str(), "MIG-2");
  EXPECT_EQ(standing_for(all, scope("GPU-1", 7, 0))->uuid.str(), "GPU-1");
  EXPECT_EQ(standing_for(all, scope("GPU-9")), nullptr);
}

TEST_F(Telling, EverySeverityHasAName) {
  for (const auto severity : kSeverities) EXPECT_FALSE(name(severity).empty());
  EXPECT_EQ(name(Severity::kWithdrawn), "withdrawn");
}

}  // namespace
}  // namespace gpulet::health

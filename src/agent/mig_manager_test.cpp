#include "agent/mig_manager.h"

#include "agent/test_mig.h"

namespace gpulet::agent {
namespace {

using mig::states::add;

TEST_F(MigManagerTest, MakesEachGpuAsTheLabelSaysOneAtATime) {
  std::size_t withdrawn_at_once = 0;
  hardware_.on_apply = [&](std::size_t) {
    withdrawn_at_once = std::max(withdrawn_at_once, withdrawn_.size());
  };
  want("all-balanced");
  loop_.advance(std::chrono::seconds(2));
  EXPECT_EQ(devices(0), devices(1));
  EXPECT_EQ(hardware_.state(0).instances.size(), 4u);
  EXPECT_EQ(withdrawn_at_once, 1u);
  EXPECT_EQ(ever_withdrawn_.size(), 2u);
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_EQ(states_, (std::vector<std::string>{"pending", "success"}));
  EXPECT_EQ(events_.count("MigApplied"), 2u);
}

TEST_F(MigManagerTest, WhatIsThereAlreadyIsLeftAlone) {
  want("all-disabled");
  loop_.advance(std::chrono::seconds(2));
  EXPECT_TRUE(hardware_.applied.empty());
  EXPECT_TRUE(ever_withdrawn_.empty());
  EXPECT_EQ(states_, std::vector<std::string>{"success"});
}

TEST_F(MigManagerTest, AGpuThatAPodHoldsWaitsOfferedAndTheOthersChange) {
  holders_ =
      std::map<DeviceId, std::string>{{DeviceId(hardware_.state(0).uuid.str() + "::1"), "default/train"}};
  want("all-1g.10gb");
  loop_.advance(std::chrono::seconds(3));
  EXPECT_FALSE(hardware_.state(0).enabled);
  EXPECT_EQ(hardware_.state(1).instances.size(), 7u);
  EXPECT_EQ(ever_withdrawn_.size(), 1u);
  EXPECT_EQ(states_.back(), "pending");
  EXPECT_EQ(events_.count("MigBlocked"), 1u) << "said once, however often it is tried";
  EXPECT_NE(events_.said.front().second.find("default/train"), std::string::npos);

  holders_ = std::map<DeviceId, std::string>{};
  loop_.advance(kMigBackoff.longest * 2);
  EXPECT_EQ(hardware_.state(0).instances.size(), 7u);
  EXPECT_EQ(states_.back(), "success");
}

TEST_F(MigManagerTest, APodThatCameBeforeTheWithdrawalIsSeen) {
  mig::states::enable(hardware_.gpu(0));
  mig::states::enable(hardware_.gpu(1));
  ASSERT_NE(add(hardware_.gpu(0), "7g.80gb", 0), nullptr);
  const auto uuid = hardware_.state(0).instances[0].compute[0].uuid;
  want("all-1g.10gb");
  // Admitted while the GPU was being withdrawn.
  while (withdrawn_.empty()) loop_.advance(std::chrono::milliseconds(1));
  holders_ = std::map<DeviceId, std::string>{{DeviceId(uuid.str()), "default/late"}};
  loop_.advance(std::chrono::seconds(2));
  ASSERT_EQ(hardware_.state(0).instances.size(), 1u);
  EXPECT_EQ(hardware_.state(0).instances[0].compute[0].uuid, uuid);
  EXPECT_TRUE(withdrawn_.empty());
}

TEST_F(MigManagerTest, AnUnknownLayoutIsRefusedAndNothingTouched) {
  want("all-balancd");
  loop_.advance(std::chrono::minutes(3));
  EXPECT_TRUE(hardware_.applied.empty());
  EXPECT_EQ(states_, std::vector<std::string>{"failed"});
  ASSERT_EQ(events_.count("MigRefused"), 1u);
  EXPECT_NE(events_.said[0].second.find("all-balanced"), std::string::npos) << events_.said[0].second;
}

TEST_F(MigManagerTest, AFailedStepIsTriedAgain) {
  hardware_.fail_next = true;
  want("all-1g.10gb");
  loop_.advance(std::chrono::seconds(1));
  EXPECT_EQ(states_.back(), "failed");
  EXPECT_EQ(hardware_.state(1).instances.size(), 7u);
  loop_.advance(kMigBackoff.longest * 2);
  EXPECT_EQ(hardware_.state(0).instances.size(), 7u);
  EXPECT_EQ(states_.back(), "success");
}

TEST_F(MigManagerTest, WithoutTheKubeletsWordNothingIsTouched) {
  holders_ = fail(Code::kUnavailable, "no kubelet");
  want("all-1g.10gb");
  loop_.advance(std::chrono::seconds(5));
  EXPECT_TRUE(hardware_.applied.empty());
  EXPECT_EQ(states_.back(), "pending");
}

TEST_F(MigManagerTest, AnotherWishMeanwhileComesNext) {
  want("all-1g.10gb");
  while (hardware_.applied.empty()) loop_.advance(std::chrono::milliseconds(1));
  want("all-balanced");
  loop_.advance(std::chrono::seconds(5));
  EXPECT_EQ(hardware_.state(0).instances.size(), 4u);
  EXPECT_EQ(hardware_.state(1).instances.size(), 4u);
  EXPECT_EQ(states_.back(), "success");
}

}  // namespace
}  // namespace gpulet::agent

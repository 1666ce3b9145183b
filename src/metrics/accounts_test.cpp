#include "metrics/accounts.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "metrics/test_pods.h"

namespace gpulet::metrics {
namespace {

using namespace std::chrono_literals;

const DeviceUuid kCharged("GPU-1");

Shares shares(const std::vector<std::pair<PodName, double>>& pods, double rest) {
  Shares all;
  for (const auto& [pod, busy] : pods) all.pods.push_back({{pod, {"main"}, {}}, {}, busy});
  all.rest_busy = rest;
  return all;
}

TEST(Accounts, EnergyFollowsBusyTime) {
  Accounts accounts;
  accounts.add(kCharged, {1000, 800ms}, shares({{kTrain, 60}, {kServe, 0}}, 20));
  const auto& account = accounts.all().at(kCharged);
  EXPECT_EQ(account.pods.at(kTrain), (Charge{750, 600ms}));
  EXPECT_EQ(account.pods.at(kServe), (Charge{0, 0ms}));
  EXPECT_EQ(account.nobody, (Charge{250, 200ms}));
  EXPECT_EQ(account.device, (Charge{1000, 800ms}));
}

TEST(Accounts, AnIdleDeviceIsItsHoldersAlone) {
  Accounts accounts;
  accounts.add(kCharged, {100, 0ms}, shares({{kTrain, 0}}, 0));
  EXPECT_EQ(accounts.all().at(kCharged).pods.at(kTrain), (Charge{100, 0ms}));
  accounts.add(kCharged, {100, 0ms}, shares({{kServe, 0}, {kTrain, 0}}, 0));
  EXPECT_EQ(accounts.all().at(kCharged).pods.at(kTrain), (Charge{100, 0ms}));
  EXPECT_EQ(accounts.all().at(kCharged).nobody, (Charge{100, 0ms}));
  accounts.add(kCharged, {100, 0ms}, shares({}, 0));
  EXPECT_EQ(accounts.all().at(kCharged).nobody, (Charge{200, 0ms}));
}

TEST(Accounts, APodThatHasGoneIsFormer) {
  Accounts accounts;
  accounts.add(kCharged, {100, 10ms}, shares({{kTrain, 50}}, 0));
  accounts.add(kCharged, {100, 10ms}, shares({{kServe, 50}}, 0));
  const auto& account = accounts.all().at(kCharged);
  EXPECT_EQ(account.pods.size(), 1u);
  EXPECT_EQ(account.former, (Charge{100, 10ms}));
  // It comes again: another Pod of that name begins at nothing.
  accounts.add(kCharged, {100, 10ms}, shares({{kTrain, 50}}, 0));
  EXPECT_EQ(account.pods.at(kTrain), (Charge{100, 10ms}));
  EXPECT_EQ(account.former, (Charge{200, 20ms}));
}

TEST(Accounts, WhatIsNotKnownIsNobodys) {
  Accounts accounts;
  auto unknown = shares({{kServe, 10}, {kTrain, 20}}, 30);
  unknown.busy_known = false;
  accounts.add(kCharged, {100, 60ms}, unknown);
  EXPECT_EQ(accounts.all().at(kCharged).nobody, (Charge{100, 60ms}));
  accounts.keep_only({});
  EXPECT_TRUE(accounts.all().empty());
}

RC_GTEST_PROP(AccountsProperties, TheSumIsTheDevices, ()) {
  Accounts accounts;
  std::uint64_t energy = 0;
  std::chrono::nanoseconds busy{};
  for (int round = *rc::gen::inRange(1, 30); round > 0; --round) {
    std::vector<std::pair<PodName, double>> pods;
    for (int i = 0; i < 4; ++i) {
      if (*rc::gen::arbitrary<bool>())
        pods.push_back({{"n", std::to_string(i)}, *rc::gen::inRange(0, 100) / 3.0});
    }
    auto of = shares(pods, *rc::gen::inRange(0, 100));
    of.busy_known = *rc::gen::inRange(0, 5) != 0;
    const Charge device{*rc::gen::inRange<std::uint64_t>(0, 1'000'000),
                        std::chrono::nanoseconds(*rc::gen::inRange(0, 1'000'000'000))};
    energy += device.millijoules;
    busy += device.busy;
    const auto before = accounts.all();
    accounts.add(kCharged, device, of);
    const auto& account = accounts.all().at(kCharged);
    Charge sum = account.nobody;
    sum.millijoules += account.former.millijoules;
    sum.busy += account.former.busy;
    for (const auto& [pod, charge] : account.pods) {
      sum.millijoules += charge.millijoules;
      sum.busy += charge.busy;
      // Counters only rise.
      if (!before.contains(kCharged) || !before.at(kCharged).pods.contains(pod)) continue;
      RC_ASSERT(charge.millijoules >= before.at(kCharged).pods.at(pod).millijoules);
      RC_ASSERT(charge.busy >= before.at(kCharged).pods.at(pod).busy);
    }
    RC_ASSERT(account.pods.size() == pods.size());
    RC_ASSERT(sum.millijoules == energy);
    RC_ASSERT(sum.busy == busy);
    RC_ASSERT(account.device == (Charge{energy, busy}));
  }
}

}  // namespace
}  // namespace gpulet::metrics

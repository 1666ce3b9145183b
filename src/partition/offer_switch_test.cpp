#include "partition/offer_switch.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

#include "partition/resources.h"
#include "partition/test_node.h"

namespace gpulet::partition {
namespace {

using namespace std::chrono_literals;
using config::OfferSide;
using test::gpu;
using test::node;
using enum OfferStage;

const DeviceUuid kGpu("GPU-0");

Time at(Duration since) { return Time{} + 1h + since; }

class OfferSwitchTest : public testing::Test {
 protected:
  void want(OfferSide side, Duration now, bool claims_served = true) {
    switch_.set_wanted({{kGpu, side}}, claims_served, at(now));
  }
  bool read_plugin(Duration began, PluginReading reading = {}) {
    reading.began = at(began);
    return switch_.apply_reading(reading);
  }
  bool read_claims(Duration now,
                   ClaimReading reading = {.published = std::set<DeviceUuid>{}, .holders = {}}) {
    return switch_.apply_reading(reading, at(now));
  }
  OfferStage stage() const { return offer_of(switch_.offers(), kGpu).stage; }
  std::string reason() const { return offer_of(switch_.offers(), kGpu).reason; }

  OfferSwitch switch_;
};

TEST_F(OfferSwitchTest, WithoutClaimsTheDevicePluginOffersAtOnce) {
  want(OfferSide::kDevicePlugin, 0s, false);
  EXPECT_EQ(stage(), kDevicePlugin);
  EXPECT_EQ(reason(), "");
  want(OfferSide::kClaims, 1s, false);
  EXPECT_EQ(stage(), kDevicePlugin) << "nobody would serve the claims";
}

TEST_F(OfferSwitchTest, ANewGpuOfClaimsWaitsForThePodsOfAnEarlierProcess) {
  want(OfferSide::kClaims, 0s);
  EXPECT_EQ(stage(), kEnteringClaims);
  EXPECT_TRUE(read_plugin(1ms));
  EXPECT_EQ(stage(), kClaims);
}

TEST_F(OfferSwitchTest, KnowsSinceWhenAGpuMoves) {
  EXPECT_EQ(switch_.moving_since(kGpu), std::nullopt);
  want(OfferSide::kDevicePlugin, 0s, false);
  EXPECT_EQ(switch_.moving_since(kGpu), std::nullopt);
  want(OfferSide::kClaims, 1min);
  read_plugin(2min, {.holders = {{kGpu, "Pod team/a"}}, .allocatable = {}});
  want(OfferSide::kClaims, 3min);
  EXPECT_EQ(switch_.moving_since(kGpu), at(1min)) << "through every reading";
  read_plugin(4min);
  EXPECT_EQ(stage(), kClaims);
  EXPECT_EQ(switch_.moving_since(kGpu), std::nullopt);
  want(OfferSide::kDevicePlugin, 5min);
  EXPECT_EQ(switch_.moving_since(kGpu), at(5min));
}

TEST_F(OfferSwitchTest, ANewGpuOfClaimsThatIsPublishedStaysPublished) {
  want(OfferSide::kClaims, 0s);
  EXPECT_FALSE(read_claims(1ms, {}));
  EXPECT_FALSE(read_claims(1ms));
  EXPECT_EQ(stage(), kEnteringClaims);
  EXPECT_TRUE(read_claims(2ms, {.published = std::set{kGpu}, .holders = {}}));
  EXPECT_EQ(stage(), kClaims);
}

TEST_F(OfferSwitchTest, ANewGpuThatAPodHoldsStaysListedForThePod) {
  want(OfferSide::kClaims, 0s);
  EXPECT_TRUE(read_plugin(1s, {.holders = {{kGpu, "Pod team/a"}}, .allocatable = {}}));
  EXPECT_EQ(stage(), kLeavingDevicePlugin);
  EXPECT_EQ(reason(), "is offered by claims when Pod team/a ends");
  read_plugin(1s + kPluginSettle - 1ms);
  EXPECT_EQ(stage(), kLeavingDevicePlugin);
  read_plugin(1s + kPluginSettle);
  EXPECT_EQ(stage(), kClaims);
}

TEST_F(OfferSwitchTest, ANewGpuOfTheDevicePluginWaitsForTheSlices) {
  want(OfferSide::kDevicePlugin, 0s);
  EXPECT_EQ(stage(), kLeavingClaims);
  read_claims(1s, {});
  EXPECT_EQ(stage(), kLeavingClaims) << "unknown";
  read_claims(2s);
  EXPECT_EQ(stage(), kDevicePlugin);
}

TEST_F(OfferSwitchTest, ANewGpuMayBeHeldByAPodOfTheDevicePluginUntilTheSlicesShowIt) {
  want(OfferSide::kDevicePlugin, 0s);
  EXPECT_TRUE(offer_of(switch_.offers(), kGpu).may_be_plugins);
  read_claims(1s, {.published = std::nullopt, .holders = {}});
  EXPECT_TRUE(offer_of(switch_.offers(), kGpu).may_be_plugins) << "unknown";
  EXPECT_TRUE(read_claims(2s, {.published = std::nullopt, .holders = {}, .seen = {kGpu}}));
  EXPECT_FALSE(offer_of(switch_.offers(), kGpu).may_be_plugins) << "an earlier process offered it by claims";
  read_claims(3s);
  EXPECT_EQ(stage(), kLeavingClaims) << "a claim may have got it";
  read_claims(3s + kClaimSettle);
  EXPECT_EQ(stage(), kDevicePlugin);
}

TEST_F(OfferSwitchTest, ToClaims) {
  want(OfferSide::kDevicePlugin, 0s, false);
  want(OfferSide::kClaims, 1min);
  EXPECT_EQ(stage(), kLeavingDevicePlugin);
  const struct {
    Duration began;
    PluginReading reading;
    std::string reason;
  } steps[] = {
      {61s,
       {.holders = {{kGpu, "Pod team/a"}}, .allocatable = {kGpu}},
       "is offered by claims when Pod team/a ends"},
      {80s,
       {.holders = {{kGpu, "Pod team/b"}}, .allocatable = {}},
       "is offered by claims when Pod team/b ends"},
      {81s, {.holders = {}, .allocatable = {kGpu}}, "is offered by claims when the kubelet has withdrawn it"},
      {82s,
       {.holders = {}, .allocatable = {}, .node_behind = "the Node shows x"},
       "is offered by claims later: the Node shows x"},
      {60s + kPluginSettle - 1ms, {}, "is offered by claims when no Pod can get it any more"},
  };
  for (const auto& step : steps) {
    read_plugin(step.began, step.reading);
    EXPECT_EQ(stage(), kLeavingDevicePlugin) << step.reason;
    EXPECT_EQ(reason(), step.reason);
  }
  EXPECT_TRUE(read_plugin(60s + kPluginSettle));
  EXPECT_EQ(stage(), kClaims);
  EXPECT_EQ(reason(), "");
}

TEST_F(OfferSwitchTest, ToTheDevicePlugin) {
  want(OfferSide::kClaims, 0s);
  read_plugin(0s);
  want(OfferSide::kDevicePlugin, 60s);
  EXPECT_EQ(stage(), kLeavingClaims);
  const ClaimReading published{.published = std::set{kGpu}, .holders = {}};
  const ClaimReading held{.published = std::set<DeviceUuid>{}, .holders = {{kGpu, "claim team/a"}}};
  read_claims(61s, published);
  EXPECT_EQ(reason(), "is offered by the device plugin when the ResourceSlices are known to lack it");
  read_claims(62s);
  EXPECT_EQ(reason(), "is offered by the device plugin when no claim can get it any more");
  read_claims(80s, held);
  EXPECT_EQ(reason(), "is offered by the device plugin when claim team/a ends");
  read_claims(81s, {});  // a write is pending
  read_claims(82s);
  EXPECT_EQ(stage(), kLeavingClaims) << "it may have been published again";
  read_claims(82s + kClaimSettle - 1ms);
  EXPECT_EQ(stage(), kLeavingClaims);
  EXPECT_TRUE(read_claims(82s + kClaimSettle));
  EXPECT_EQ(stage(), kDevicePlugin);
}

TEST_F(OfferSwitchTest, AMoveThatIsNotWantedAnyMoreEndsAtOnce) {
  want(OfferSide::kDevicePlugin, 0s, false);
  want(OfferSide::kClaims, 1s);
  want(OfferSide::kDevicePlugin, 2s);
  EXPECT_EQ(stage(), kDevicePlugin);
  want(OfferSide::kClaims, 60s);
  read_plugin(60s + kPluginSettle);
  ASSERT_EQ(stage(), kClaims);
  want(OfferSide::kDevicePlugin, 100s);
  want(OfferSide::kClaims, 101s);
  EXPECT_EQ(stage(), kClaims);
  EXPECT_FALSE(read_plugin(102s, {.holders = {}, .allocatable = {kGpu}}));
}

TEST_F(OfferSwitchTest, AReadingOfAnEarlierMoveEndsNone) {
  want(OfferSide::kDevicePlugin, 0s, false);
  want(OfferSide::kClaims, 1s);
  want(OfferSide::kDevicePlugin, 30s);
  want(OfferSide::kClaims, 31s);
  read_plugin(29s);
  EXPECT_EQ(stage(), kLeavingDevicePlugin);
}

TEST(OfferPlan, FollowsTheStages) {
  const auto snapshot = node({gpu(0), gpu(1), gpu(2), gpu(3), gpu(4)});
  const auto config = test::with(config::MigStrategy::kNone);
  const GpuOffers offers = {{DeviceUuid("GPU-0"), {kClaims}},
                            {DeviceUuid("GPU-1"), {kLeavingClaims, "leaves"}},
                            {DeviceUuid("GPU-2"), {kEnteringClaims, "enters"}},
                            {DeviceUuid("GPU-3"), {kLeavingDevicePlugin, "is held"}}};
  const auto plan = plan_resources(snapshot, config, {.labels = {}, .withdrawn = {}, .offers = offers});
  ASSERT_EQ(plan.resources.size(), 1u);
  const auto& devices = plan.resources[0].devices;
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[0].id, DeviceId("GPU-3"));
  EXPECT_EQ(devices[0].health, (inventory::Health{false, "is held"}));
  EXPECT_EQ(devices[1].id, DeviceId("GPU-4"));
  EXPECT_TRUE(devices[1].health.healthy);
  EXPECT_TRUE(plan.notes.empty()) << "nothing is wrong";
}

TEST(OfferPlan, RulesAndTheDefaultDecide) {
  const auto snapshot = node({gpu(0), gpu(1), gpu(2)});
  auto config = test::with(config::MigStrategy::kNone);
  const auto wanted = [&] {
    std::string text;
    for (const auto& [uuid, side] : wanted_sides(snapshot, config, {}))
      text += side == OfferSide::kClaims ? 'c' : 'p';
    return text;
  };
  EXPECT_EQ(wanted(), "ppp");
  config.gpulet.dra.enabled = true;
  EXPECT_EQ(wanted(), "ccc");
  config::PartitionRule rule;
  rule.devices = config::GpuRefs{{1, 1, {}}};
  config.gpulet.partition = {rule};
  EXPECT_EQ(wanted(), "ccc");
  config.gpulet.partition[0].offer = OfferSide::kDevicePlugin;
  EXPECT_EQ(wanted(), "cpc");
  config.gpulet.dra.enabled = false;
  config.gpulet.partition[0].offer = OfferSide::kClaims;
  EXPECT_EQ(wanted(), "pcp");
}

// A kubelet, an API server and a scheduler that see everything late, and a node whose rules change all the
// time.
class MovingNode {
 public:
  void run(int steps) {
    change_rules();
    for (int i = 0; i < steps; ++i) {
      // Rules change about as often as a move takes; Pods come all the time.
      step(*rc::gen::weightedElement<int>(
          {{8, 1}, {3, 2}, {3, 3}, {2, 4}, {2, 5}, {8, 6}, {8, 7}, {5, 8}, {8, 9}, {8, 10}, {5, 11}}));
      now_ += std::chrono::milliseconds(*rc::gen::inRange(0, 300));
      if (now_ >= next_rules_) {
        change_rules();
        next_rules_ = now_ + std::chrono::seconds(*rc::gen::inRange(1, 40));
      }
      check();
    }
    // Nothing holds anything any more.
    pods_.clear();
    records_.clear();
    allocated_.clear();
    for (int i = 0; i < 60; ++i) {
      for (const int what : {5, 6, 7, 8, 9, 10, 11}) {
        step(what);
        check();
      }
      now_ += 1s;
    }
    for (const auto& [uuid, side] : wanted_sides(snapshot_, config_, {}))
      RC_ASSERT(stage(uuid) == (side == OfferSide::kClaims ? kClaims : kDevicePlugin));
  }

 private:
  using Gpus = std::set<DeviceUuid>;
  struct Pod {
    DeviceUuid gpu;
    Time listed;  // by the kubelet from then on
  };

  OfferStage stage(const DeviceUuid& uuid) const { return offer_of(switch_.offers(), uuid).stage; }
  DeviceUuid any_gpu() {
    return snapshot_.gpus[*rc::gen::inRange<std::size_t>(0, snapshot_.gpus.size())].uuid;
  }

  void step(int what) {
    switch (what) {
      case 1:
        return allocate_to_pod();
      case 2:
        return allocate_to_claim();
      case 3:
        return prepare_claim();
      case 4:
        return end_holder();
      case 5:
        return follow();
      case 6:
        in_kubelet_ = offered_.back().second;
        return;
      case 7:
        on_node_ = in_kubelet_.size();
        return;
      case 8:
        return write_slices();
      case 9:
        return begin_reading();
      case 10:
        return end_reading();
      default:
        return read_claims();
    }
  }

  void change_rules() {
    config_.gpulet.dra.enabled = *rc::gen::arbitrary<bool>();
    config_.gpulet.partition.clear();
    for (unsigned i = 0; i < snapshot_.gpus.size(); ++i) {
      config::PartitionRule rule;
      rule.devices = config::GpuRefs{{i, i, {}}};
      rule.offer = *rc::gen::element<std::optional<OfferSide>>(std::nullopt, OfferSide::kClaims,
                                                               OfferSide::kDevicePlugin);
      config_.gpulet.partition.push_back(rule);
    }
    is_served_ |= config_.gpulet.dra.enabled;
    if (!is_served_) {
      for (auto& rule : config_.gpulet.partition) rule.offer.reset();
    }
    follow();
  }

  // As the agent does at every change: the device plugin's list, and what the slices should be.
  void follow() {
    switch_.set_wanted(wanted_sides(snapshot_, config_, {}), is_served_, now_);
    Gpus healthy;
    for (const auto& resource :
         plan_resources(snapshot_, config_, {.labels = {}, .withdrawn = {}, .offers = switch_.offers()})
             .resources) {
      for (const auto& device : resource.devices) {
        if (device.health.healthy) healthy.insert(snapshot_.gpus[device.gpu].uuid);
      }
    }
    offered_.emplace_back(now_, healthy);
    wanted_slices_.clear();
    for (const auto& one : snapshot_.gpus) {
      if (stage(one.uuid) == kClaims) wanted_slices_.insert(one.uuid);
    }
  }

  // The kubelet chooses by its list; the agent answers by an offer of up to two seconds ago.
  void allocate_to_pod() {
    const auto uuid = any_gpu();
    if (!in_kubelet_.contains(uuid) || is_held_by_pod(uuid)) return;
    Gpus answered_from = offered_.back().second;
    for (std::size_t i = 0; i + 1 < offered_.size(); ++i) {
      if (offered_[i + 1].first + 2s >= now_ && *rc::gen::arbitrary<bool>())
        answered_from = offered_[i].second;
    }
    if (!answered_from.contains(uuid)) return;
    pods_.push_back({uuid, now_ + std::chrono::seconds(*rc::gen::inRange(0, 10))});
  }

  // The scheduler chooses by slices of some time ago, and the kubelet prepares some time later.
  void allocate_to_claim() {
    const auto uuid = any_gpu();
    if (slices_.contains(uuid) || *rc::gen::inRange(0, 8) == 0) allocated_.insert(uuid);
  }

  void prepare_claim() {
    const auto uuid = any_gpu();
    if (!allocated_.contains(uuid) || records_.contains(uuid)) return;
    // As ClaimServer withholds them.
    if (stage(uuid) == kClaims || stage(uuid) == kLeavingClaims) records_.insert(uuid);
  }

  void end_holder() {
    const auto uuid = any_gpu();
    if (records_.erase(uuid) != 0) allocated_.erase(uuid);
    std::erase_if(pods_, [&](const Pod& pod) { return pod.gpu == uuid; });
  }

  void write_slices() { slices_ = wanted_slices_; }

  void begin_reading() {
    reading_ = PluginReading{.began = now_, .holders = {}, .allocatable = in_kubelet_};
    for (const auto& pod : pods_) {
      if (pod.listed <= now_) reading_->holders.emplace(pod.gpu, "Pod");
    }
    if (on_node_ > offered_.back().second.size()) reading_->node_behind = "the Node shows more";
  }

  void end_reading() {
    if (!reading_) return;
    if (switch_.apply_reading(*reading_)) follow();
    reading_.reset();
  }

  void read_claims() {
    ClaimReading reading;
    if (slices_ == wanted_slices_) reading.published = slices_;
    for (const auto& uuid : records_) reading.holders.emplace(uuid, "claim");
    if (switch_.apply_reading(reading, now_)) follow();
  }

  bool is_held_by_pod(const DeviceUuid& uuid) const {
    return std::ranges::any_of(pods_, [&](const Pod& pod) { return pod.gpu == uuid; });
  }

  void check() const {
    for (const auto& one : snapshot_.gpus) {
      RC_ASSERT(!(slices_.contains(one.uuid) && offered_.back().second.contains(one.uuid)));
      RC_ASSERT(!(slices_.contains(one.uuid) && in_kubelet_.contains(one.uuid)));
      RC_ASSERT(!(records_.contains(one.uuid) && is_held_by_pod(one.uuid)));
      // Nothing of the other side is left where a side offers it.
      RC_ASSERT(!(stage(one.uuid) == kClaims && is_held_by_pod(one.uuid)));
      RC_ASSERT(!(stage(one.uuid) == kClaims && in_kubelet_.contains(one.uuid)));
      RC_ASSERT(!(stage(one.uuid) == kDevicePlugin && records_.contains(one.uuid)));
    }
  }

  const inventory::Snapshot snapshot_ = node({gpu(0), gpu(1), gpu(2)});
  config::Config config_ = test::with(config::MigStrategy::kNone);
  OfferSwitch switch_;
  Time now_ = at(0s);
  Time next_rules_ = now_;
  bool is_served_ = false;
  std::vector<std::pair<Time, Gpus>> offered_;  // by the device plugin, since when
  Gpus in_kubelet_;
  std::size_t on_node_ = 0;  // allocatable
  std::vector<Pod> pods_;
  Gpus wanted_slices_, slices_;
  Gpus allocated_, records_;
  std::optional<PluginReading> reading_;
};

RC_GTEST_PROP(OfferProperties, NoGpuIsOfferedOrHeldByBothSidesAndEachArrives, ()) { MovingNode().run(600); }

}  // namespace
}  // namespace gpulet::partition

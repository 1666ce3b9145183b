#include "mig/on_demand.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <random>
#include <set>

#include "mig/plan.h"
#include "mig/test_states.h"

namespace gpulet::mig {
namespace {

using namespace std::chrono_literals;
using states::enabled_layout;

constexpr OnDemandLimits kLimits{.max_gpus = 2, .min_interval = 10min, .idle = 10min};
const Time kStart{1h};
const Layout kSevenSmall = enabled_layout({{"1g.10gb", 7}});

// A machine whose first GPUs are managed on demand, with what holds each instance.
class OnDemandNode {
 public:
  explicit OnDemandNode(std::size_t gpus, Layout configured = kSevenSmall)
      : machine_(states::test_machine("hgx-h100")), holders_(gpus) {
    for (std::size_t i = 0; i < gpus; ++i) {
      states::set_mig_mode(machine_->gpus[i]);
      known_.push_back({.state = {}, .configured = configured, .changed_at = std::nullopt});
      apply(i, configured);
    }
  }

  void apply(std::size_t gpu, const Layout& layout) {
    const auto plan = make_plan(state(gpu), layout);
    ASSERT_TRUE(plan) << plan.error().full_message();
    ASSERT_FALSE(plan->is_blocked()) << layout_text(layout);
    EXPECT_EQ(states::carry_out(machine_->gpus[gpu], *plan), "");
  }
  State state(std::size_t gpu) const {
    State state = states::state_of(machine_->gpus[gpu], static_cast<unsigned>(gpu));
    for (auto& instance : state.instances) {
      if (holders_[gpu].contains(instance.id)) instance.holders.push_back("Pod team/holder");
    }
    return state;
  }
  // Holds that many idle devices of the profile. False if there are not so many.
  bool hold(std::size_t gpu, const std::string& profile, unsigned count = 1) {
    const State now = state(gpu);
    for (const auto& instance : now.instances) {
      if (count == 0) break;
      if (find_profile(now, instance.profile)->name != profile || !instance.holders.empty()) continue;
      holders_[gpu].insert(instance.id);
      --count;
    }
    return count == 0;
  }
  void release(std::size_t gpu) { holders_[gpu].clear(); }
  std::set<unsigned>& held(std::size_t gpu) { return holders_[gpu]; }

  std::vector<OnDemandGpu> gpus(const std::vector<DeviceDemand>& demands, Time now) {
    for (std::size_t i = 0; i < known_.size(); ++i) {
      known_[i].state = state(i);
      if (is_needed(known_[i], demands)) known_[i].needed_at = now;
    }
    return known_;
  }
  std::vector<OnDemandChange> decide(const std::vector<DeviceDemand>& demands, Time now,
                                     const OnDemandLimits& limits = kLimits) {
    return decide_changes(gpus(demands, now), demands, limits, now);
  }
  // Decides and carries it out.
  std::vector<OnDemandChange> step(const std::vector<DeviceDemand>& demands, Time now,
                                   const OnDemandLimits& limits = kLimits) {
    auto changes = decide(demands, now, limits);
    for (const auto& change : changes) {
      apply(change.gpu, change.layout);
      known_[change.gpu].changed_at = now;
    }
    return changes;
  }
  std::vector<OnDemandGpu>& known() { return known_; }
  std::size_t size() const { return known_.size(); }

 private:
  std::unique_ptr<sim::Machine> machine_;
  std::vector<std::set<unsigned>> holders_;  // instance ids
  std::vector<OnDemandGpu> known_;
};

TEST(MigOnDemand, GivesUpAsFewIdleDevicesAsPossible) {
  OnDemandNode node(1);
  ASSERT_TRUE(node.hold(0, "1g.10gb", 2));
  const auto changes = node.decide({{"3g.40gb", 1}}, kStart);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].reason, OnDemandReason::kDemand);
  // 3 of 7 compute slices, in one half of the memory: four idle small devices are left beside it.
  EXPECT_EQ(layout_text(changes[0].layout), "4 × 1g.10gb + 1 × 3g.40gb");
}

TEST(MigOnDemand, CutsNothingThatIsThereAlready) {
  OnDemandNode node(1);
  EXPECT_TRUE(node.decide({{"1g.10gb", 7}}, kStart).empty());
  EXPECT_EQ(idle_devices(node.state(0), "1g.10gb"), 7u);
}

TEST(MigOnDemand, KeepsWhatIsInUse) {
  OnDemandNode node(1);
  ASSERT_TRUE(node.hold(0, "1g.10gb", 7));
  EXPECT_TRUE(node.decide({{"1g.20gb", 1}}, kStart).empty());
  const auto gpus = node.gpus({}, kStart);
  const auto none = device_potential(gpus, "1g.20gb", {}, kLimits, kStart);
  EXPECT_EQ(none.count, 0u);
  EXPECT_EQ(none.why_no_more, "GPU 0: 7 × 1g.10gb in use");
}

TEST(MigOnDemand, CutsAtMostMaxGpus) {
  OnDemandNode node(4);
  EXPECT_EQ(node.step({{"7g.80gb", 4}}, kStart).size(), 2u);
  const auto gpus = node.gpus({{"7g.80gb", 4}}, kStart + 1h);
  const auto potential = device_potential(gpus, "7g.80gb", {}, kLimits, kStart + 1h);
  EXPECT_EQ(potential.count, 2u);
  EXPECT_NE(potential.why_no_more.find("GPU 3: maxGpus are cut already"), std::string::npos)
      << potential.why_no_more;
  EXPECT_TRUE(node.step({{"7g.80gb", 4}}, kStart + 1h).empty());
  OnDemandNode off(1);
  EXPECT_TRUE(off.decide({{"3g.40gb", 1}}, kStart, {.max_gpus = 0}).empty());
}

TEST(MigOnDemand, WaitsBetweenTwoChangesOfAGpu) {
  OnDemandNode node(1);
  ASSERT_EQ(node.step({{"3g.40gb", 1}}, kStart).size(), 1u);
  ASSERT_TRUE(node.hold(0, "3g.40gb"));
  EXPECT_TRUE(node.decide({{"2g.20gb", 1}}, kStart + 10min - 1ns).empty());
  EXPECT_EQ(node.decide({{"2g.20gb", 1}}, kStart + 10min).size(), 1u);
}

TEST(MigOnDemand, DevicesThatADemandCountsOnAreNoIdleSpace) {
  OnDemandNode node(1);
  EXPECT_TRUE(node.decide({{"1g.10gb", 7}, {"3g.40gb", 1}}, kStart).empty());
  EXPECT_EQ(node.decide({{"1g.10gb", 4}, {"3g.40gb", 1}}, kStart).size(), 1u);
}

TEST(MigOnDemand, ReturnsWhenNobodyUsesOrWantsIt) {
  OnDemandNode node(1);
  ASSERT_EQ(node.step({{"3g.40gb", 1}}, kStart).size(), 1u);
  ASSERT_TRUE(node.hold(0, "3g.40gb"));
  EXPECT_TRUE(node.step({}, kStart + 1h).empty()) << "in use";
  node.release(0);
  EXPECT_TRUE(node.step({}, kStart + 1h + 10min - 1ns).empty()) << "idle for less than `idle`";
  EXPECT_TRUE(node.step({{"3g.40gb", 1}}, kStart + 1h + 10min - 1ns).empty()) << "wanted again";
  EXPECT_TRUE(node.step({}, kStart + 1h + 15min).empty());
  const auto changes = node.step({}, kStart + 2h);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0], (OnDemandChange{0, kSevenSmall, OnDemandReason::kReturn, ""}));
  EXPECT_TRUE(node.step({}, kStart + 3h).empty()) << "the configured layout is the end";
}

TEST(MigOnDemand, LeavesFaultyGpusAndThoseWithoutMigAlone) {
  OnDemandNode faulty(1);
  faulty.known()[0].usable = false;
  EXPECT_TRUE(faulty.decide({{"3g.40gb", 1}}, kStart).empty());
  auto gpus = OnDemandNode(1).gpus({}, kStart);
  gpus[0].state.enabled = false;
  gpus[0].state.instances.clear();
  const std::vector<DeviceDemand> demands = {{"3g.40gb", 1}};
  EXPECT_TRUE(decide_changes(gpus, demands, kLimits, kStart).empty());
  EXPECT_EQ(device_potential(gpus, "3g.40gb", demands, kLimits, kStart).why_no_more, "GPU 0: MIG is off");
  EXPECT_TRUE(decide_changes(gpus, std::vector<DeviceDemand>{{"9g.999gb", 1}}, kLimits, kStart).empty());
}

TEST(MigOnDemand, PrefersAGpuThatIsCutAlready) {
  OnDemandNode node(3);
  ASSERT_EQ(node.step({{"4g.40gb", 1}}, kStart).size(), 1u);
  const auto changes = node.decide({{"4g.40gb", 1}, {"2g.20gb", 1}}, kStart + 10min);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].gpu, 0u);
}

// What happens at random: Pods come and go, demands change. Each step is checked against the promises.
class MigOnDemandStream : public testing::TestWithParam<unsigned> {};

TEST_P(MigOnDemandStream, KeepsItsPromises) {
  std::mt19937 random(GetParam());
  const auto below = [&](std::size_t limit) { return static_cast<unsigned>(random() % limit); };
  OnDemandNode node(3, enabled_layout({{"1g.10gb", 2}, {"2g.20gb", 1}, {"3g.40gb", 1}}));
  const std::vector<std::string> profiles = {"1g.10gb", "1g.20gb", "2g.20gb",
                                             "3g.40gb", "4g.40gb", "7g.80gb"};
  std::vector<std::optional<Time>> changed(node.size());
  Time now = kStart;
  unsigned made = 0;
  for (int step = 0; step < 60; ++step, now += 1min * (1 + below(8))) {
    std::vector<DeviceDemand> demands;
    for (unsigned i = below(3); i > 0; --i)
      demands.push_back({profiles[below(profiles.size())], 1 + below(2)});
    for (std::size_t gpu = 0; gpu < node.size(); ++gpu) {
      if (below(4) == 0) node.release(gpu);
      if (below(2) == 0) static_cast<void>(node.hold(gpu, profiles[below(profiles.size())]));
    }
    std::vector<State> before;
    for (std::size_t gpu = 0; gpu < node.size(); ++gpu) before.push_back(node.state(gpu));
    std::set<std::size_t> touched;
    for (const auto& change : node.step(demands, now)) {
      ++made;
      ASSERT_TRUE(touched.insert(change.gpu).second) << "two changes of a GPU";
      if (changed[change.gpu]) {
        ASSERT_GE(now - *changed[change.gpu], kLimits.min_interval);
      }
      changed[change.gpu] = now;
      const State after = node.state(change.gpu);
      for (const auto& instance : before[change.gpu].instances) {
        if (instance.holders.empty()) continue;
        ASSERT_NE(std::ranges::find(after.instances, instance), after.instances.end())
            << "an instance in use is not as before";
      }
    }
    unsigned cut = 0;
    for (const auto& gpu : node.gpus(demands, now)) cut += is_cut_on_demand(gpu) ? 1 : 0;
    ASSERT_LE(cut, kLimits.max_gpus);
    for (const auto& demand : demands) {
      const auto gpus = node.gpus(demands, now);
      unsigned idle = 0;
      for (const auto& gpu : gpus) idle += idle_devices(gpu.state, demand.profile);
      ASSERT_GE(device_potential(gpus, demand.profile, demands, kLimits, now).count, idle);
    }
  }
  EXPECT_GT(made, 5u) << "the stream changes something";
  for (std::size_t gpu = 0; gpu < node.size(); ++gpu) node.release(gpu);
  for (int step = 0; step < 3; ++step, now += 10min) node.step({}, now);
  for (const auto& gpu : node.gpus({}, now)) EXPECT_EQ(current_layout(gpu.state), gpu.configured);
}
INSTANTIATE_TEST_SUITE_P(Seeds, MigOnDemandStream, testing::Range(0u, 12u));

// What the potential promises is what a demand gets.
TEST(MigOnDemand, PotentialIsWhatADemandGets) {
  for (unsigned held = 0; held <= 7; ++held) {
    for (const auto* profile : {"1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"}) {
      OnDemandNode node(2);
      ASSERT_TRUE(node.hold(0, "1g.10gb", held));
      const auto potential = device_potential(node.gpus({}, kStart), profile, {}, kLimits, kStart);
      if (potential.count == 0) continue;
      node.step({{profile, potential.count}}, kStart);
      EXPECT_EQ(idle_devices(node.state(0), profile) + idle_devices(node.state(1), profile), potential.count)
          << held << " held, " << profile;
    }
  }
}

}  // namespace
}  // namespace gpulet::mig

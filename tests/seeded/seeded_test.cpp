// A thousand nodes' bad days: each seed drives the agent through some minutes of faults on a clock of its
// own, and after every step what the kubelet sees must hold the invariants below. A failing seed is named;
// run it alone with
//   --gtest_filter='Seeds/*.HoldsItsInvariants/N'  (N = seed / kSeedsPerTest)
#include <gtest/gtest.h>

#include <algorithm>

#include "agent/agent.h"
#include "base/log.h"
#include "kubelet/offer.h"
#include "tests/seeded/seeds.h"
#include "tests/seeded/world.h"

namespace gpulet::seeded {
namespace {

using namespace std::chrono_literals;

constexpr int kStepsPerSeed = 60;
constexpr std::uint64_t kFatalXid = 79;
constexpr std::uint64_t kApplicationXid = 13;  // ignored, as in NVIDIA's plugin

constexpr unsigned kGpuReset = 1;  // NVML field 230

// A driver that nobody tells of a fault is asked every alive_interval; then it is read, and a call may hang.
constexpr Duration kLossNoticed = 10s + 2 * kCallTimeout + 1s;
constexpr Duration kRegisteredAgain = 100ms;
constexpr Duration kPiece = 50ms;  // between two looks at the invariants

class Node {
 public:
  explicit Node(std::uint64_t seed)
      : random_(seed), driver_(loop_, 1 + random_() % 8), kubelet_(loop_, random_) {
    config_.flags.fail_on_init_error = false;
    config_.gpu_resources = {{"*", ResourceName("nvidia.com/gpu")}};
    // Else relapses keep a GPU withdrawn for an hour after all is well.
    config_.gpulet.health.growth = 1;
    replicas_ = random_() % 3 == 0 ? 4u : 1u;
    set_sharing(replicas_);
    agent::Ports ports{.loop = loop_,
                       .driver = driver_,
                       .host = kubelet_,
                       .reporter = reporter_,
                       .pods = nullptr,
                       .files = [](const config::Config&) { return agent::NodeFiles{}; },
                       .daemons = nullptr,
                       .cdi = nullptr,
                       .changed = nullptr};
    agent_.emplace(std::move(ports), config_, seed,
                   [](const Error& error) { ADD_FAILURE() << error.text(); });
    faulty_since_.resize(driver_.gpus.size());
    if (random_() % 4 == 0) driver_.loaded = false;
    if (random_() % 4 == 0) kubelet_.stop();
    agent_->start();
  }

  void random_step() {
    const std::size_t gpu = random_() % driver_.gpus.size();
    switch (random_() % 16) {
      case 0:
        driver_.gpus[gpu].lost = true;
        break;
      case 1:
        driver_.gpus[gpu].hangs = true;
        break;
      case 2:
        mark(gpu);
        break;
      case 3:
        driver_.xid(gpu, kApplicationXid);
        break;
      case 4:
        heal(gpu);
        break;
      case 5:
        driver_.replace(gpu);
        break;
      case 6:
        driver_.gpus[gpu].slow = std::chrono::milliseconds(random_() % 300);
        break;
      case 7:
        driver_.fail_event_wait();
        break;
      case 8:
        driver_.loaded ? driver_.reload_begins() : driver_.reload_ends();
        break;
      case 9:
        kubelet_.running() ? kubelet_.stop() : kubelet_.start();
        break;
      case 10:
        if (kubelet_.running()) {
          kubelet_.stop();
          kubelet_.start();
        }
        break;
      case 11:
        kubelet_.set_mood(static_cast<FakeKubelet::Mood>(random_() % 4));
        break;
      case 12:
        kubelet_.delete_socket(any_resource());
        break;
      case 13:
        kubelet_.drop_stream(any_resource());
        break;
      case 14:
        set_sharing(random_() % 2 == 0 ? 1 : 4);
        agent_->apply(config_);
        break;
      case 15:
        agent_->config_failed(Error(Code::kInvalidArgument, "bad file"));
        break;
    }
  }

  // Lets time pass in small pieces, with the invariants checked after each.
  void pass(Duration time) {
    for (Duration passed{}; passed < time && !testing::Test::HasFailure(); passed += kPiece) {
      loop_.advance(kPiece);
      check();
    }
  }

  void heal_everything() {
    for (std::size_t i = 0; i < driver_.gpus.size(); ++i) {
      heal(i);
      driver_.gpus[i].slow = {};
    }
    driver_.reload_ends();
    kubelet_.set_mood(FakeKubelet::Mood::kAnswers);
    if (!kubelet_.running()) kubelet_.start();
  }

  void expect_all_well() {
    std::set<std::string> offered;
    for (const auto& [name, endpoint] : kubelet_.endpoints()) {
      EXPECT_TRUE(endpoint.watched) << name.str();
      for (const auto& device : endpoint.offer->resource.devices) {
        EXPECT_TRUE(device.health.healthy) << device.id.str() << ": " << device.health.reason;
        offered.insert(device.id.str().substr(0, device.id.str().find("::")));
      }
    }
    EXPECT_EQ(offered.size(), driver_.gpus.size());
    EXPECT_TRUE(agent_->state().driver_answers);
  }

  void expect_nothing_left() {
    agent_.reset();
    loop_.advance(1h);
    EXPECT_EQ(loop_.pending_timers(), 0u);
  }

 private:
  void mark(std::size_t gpu) {
    if (!driver_.loaded || driver_.gpus[gpu].lost) return;  // such a GPU sends nothing
    driver_.gpus[gpu].recovery_action = kGpuReset;
    driver_.xid(gpu, kFatalXid);
    marked_.insert(driver_.gpus[gpu].uuid);
  }

  void heal(std::size_t gpu) {
    driver_.gpus[gpu].lost = driver_.gpus[gpu].hangs = false;
    driver_.gpus[gpu].recovery_action = 0;
    marked_.erase(driver_.gpus[gpu].uuid);
  }

  ResourceName any_resource() const {
    return kubelet_.endpoints().empty() ? ResourceName("nvidia.com/gpu")
                                        : kubelet_.endpoints().begin()->first;
  }

  void set_sharing(unsigned replicas) {
    config_.sharing = {};
    if (replicas < 2) return;
    config_.sharing.strategy = config::SharingStrategy::kTimeSlicing;
    config_.sharing.resources = {
        {.name = ResourceName("nvidia.com/gpu"),
         .rename = random_() % 2 ? std::optional(ResourceName("nvidia.com/gpu.shared")) : std::nullopt,
         .devices = config::AllDevices{},
         .replicas = replicas}};
  }

  void check() {
    check_devices();
    check_faults();
    check_registered();
    for (const auto& [gpu, out] : driver_.out) EXPECT_LE(out, 1u) << gpu.str() << " is asked twice at once";
    EXPECT_LT(loop_.pending_timers(), 400u);
  }

  // Nothing offered twice, under any resource; every id is a GPU that was there when the driver last
  // answered.
  void check_devices() {
    for (const auto& gpu : driver_.gpus) ever_.insert(gpu.uuid.str());
    std::set<std::string> ids;
    for (const auto& [name, endpoint] : kubelet_.endpoints()) {
      for (const auto& device : endpoint.offer->resource.devices) {
        EXPECT_TRUE(ids.insert(device.id.str()).second) << "offered twice: " << device.id.str();
        EXPECT_TRUE(ever_.contains(device.id.str().substr(0, device.id.str().find("::")))) << device.id.str();
        const DeviceId asked[] = {device.id};
        EXPECT_EQ(kubelet::allocate(*endpoint.offer, asked).has_value(), device.health.healthy)
            << device.id.str();
      }
    }
  }

  // A GPU that an XID marked is withdrawn at once; one that is lost or hangs, within kLossNoticed.
  void check_faults() {
    for (std::size_t i = 0; i < driver_.gpus.size(); ++i) {
      const auto& gpu = driver_.gpus[i];
      const bool faulty = gpu.lost || gpu.hangs;
      if (!faulty) faulty_since_[i].reset();
      if (faulty && !faulty_since_[i]) faulty_since_[i] = loop_.now();
      const bool late = faulty && loop_.now() - *faulty_since_[i] > kLossNoticed;
      if (!late && !marked_.contains(gpu.uuid)) continue;
      for (const auto& [name, endpoint] : kubelet_.endpoints()) {
        for (const auto& device : endpoint.offer->resource.devices) {
          if (device.id.str().substr(0, device.id.str().find("::")) != gpu.uuid.str()) continue;
          EXPECT_FALSE(device.health.healthy) << device.id.str() << (late ? " late" : " marked");
        }
      }
    }
  }

  void check_registered() {
    bool all = true;
    for (const auto& [name, endpoint] : kubelet_.endpoints())
      all = all && endpoint.socket && endpoint.watched;
    if (!kubelet_.answers() || all) {
      unregistered_since_.reset();
      return;
    }
    if (!unregistered_since_) unregistered_since_ = loop_.now();
    const Duration bound = kubelet_.answers_since_start()
                               ? kRegisteredAgain + 2 * kPiece
                               : agent::kRegisterBackoff.longest + 2 * kRegisterTimeout;
    EXPECT_LT(loop_.now() - *unregistered_since_, bound) << "not registered again in time";
  }

  Random random_;
  ManualLoop loop_;
  FakeDriver driver_;
  FakeKubelet kubelet_;
  FakeReporter reporter_;
  config::Config config_;
  unsigned replicas_ = 1;
  std::optional<agent::Agent> agent_;
  std::set<DeviceUuid> marked_;
  std::set<std::string> ever_;
  std::vector<std::optional<Time>> faulty_since_;
  std::optional<Time> unregistered_since_;
};

class Seeds : public testing::TestWithParam<std::uint64_t> {};

TEST_P(Seeds, HoldsItsInvariants) {
  log::configure(log::Level::kError, log::Format::kText);  // hours of warnings, else
  for (std::uint64_t seed = GetParam() * kSeedsPerTest; seed < (GetParam() + 1) * kSeedsPerTest; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed * 7919);
    Node node(seed);
    for (int step = 0; step < kStepsPerSeed && !HasFailure(); ++step) {
      node.random_step();
      node.pass(std::chrono::milliseconds(random() % 3000));
    }
    node.heal_everything();
    node.pass(90s);
    node.expect_all_well();
    node.expect_nothing_left();
    ASSERT_FALSE(HasFailure());
  }
}

INSTANTIATE_TEST_SUITE_P(All, Seeds, testing::Range<std::uint64_t>(0, kSeeds / kSeedsPerTest));

}  // namespace
}  // namespace gpulet::seeded

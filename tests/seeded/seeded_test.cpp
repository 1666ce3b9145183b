// A thousand nodes with faults: each seed drives the agent through some minutes of them on a simulated clock,
// and after every step the kubelet's view must hold the invariants below. A failing seed is named; run it
// alone with
//   --gtest_filter='Seeds/*.HoldsItsInvariants/N'  (N = seed / kSeedsPerTest)
#include <gtest/gtest.h>

#include <algorithm>

#include "agent/node/agent.h"
#include "base/log.h"
#include "device_plugin/allocation.h"
#include "tests/seeded/seeds.h"
#include "tests/seeded/world.h"

namespace gpulet::seeded {
namespace {

using namespace std::chrono_literals;

constexpr int kStepsPerSeed = 60;
constexpr std::uint64_t kFatalXid = 79;
constexpr std::uint64_t kApplicationXid = 13;  // ignored, as in NVIDIA's plugin

constexpr unsigned kGpuReset = 1;  // NVML field 230

// A fault without an event is found by a probe every liveness_interval; then the driver is read, and a call
// may hang.
constexpr Duration kLossNoticed = 10s + 2 * kCallTimeout + 1s;
constexpr Duration kRegisteredAgain = 100ms;
constexpr Duration kPiece = 50ms;  // between two checks of the invariants

class FakeNode {
 public:
  explicit FakeNode(std::uint64_t seed)
      : random_(seed), driver_(loop_, 1 + random_() % 8), kubelet_(loop_, random_) {
    config_.flags.fail_on_init_error = false;
    config_.gpu_resources = {{"*", ResourceName("nvidia.com/gpu")}};
    // Otherwise relapses keep a GPU withdrawn for an hour after its recovery.
    config_.gpulet.health.hold_growth_factor = 1;
    replicas_ = random_() % 3 == 0 ? 4u : 1u;
    set_sharing(replicas_);
    agent::AgentPorts ports{.loop = loop_,
                            .driver = driver_,
                            .host = kubelet_,
                            .reporter = reporter_,
                            .list_pods = nullptr,
                            .read_files = [](const config::Config&) { return agent::DriverFiles{}; },
                            .mps_health = nullptr,
                            .cdi_names = nullptr,
                            .changed = nullptr};
    agent_.emplace(std::move(ports), config_, seed,
                   [](const Error& error) { ADD_FAILURE() << error.full_message(); });
    faulty_since_.resize(driver_.gpus.size());
    if (random_() % 4 == 0) driver_.loaded = false;
    if (random_() % 4 == 0) kubelet_.stop_kubelet();
    agent_->start_agent();
  }

  void random_step() {
    const std::size_t gpu = random_() % driver_.gpus.size();
    switch (random_() % 17) {
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
        driver_.raise_xid(gpu, kApplicationXid);
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
        kubelet_.running() ? kubelet_.stop_kubelet() : kubelet_.start_kubelet();
        break;
      case 10:
        if (kubelet_.running()) {
          kubelet_.stop_kubelet();
          kubelet_.start_kubelet();
        }
        break;
      case 11:
        kubelet_.set_behaviour(static_cast<FakeKubelet::Behaviour>(random_() % 4));
        break;
      case 12:
        kubelet_.delete_socket(any_resource());
        break;
      case 13:
        kubelet_.drop_stream(any_resource());
        break;
      case 14:
        set_sharing(random_() % 2 == 0 ? 1 : 4);
        agent_->reconfigure(config_);
        break;
      case 15:
        agent_->reject_config(Error(Code::kInvalidArgument, "bad file"));
        break;
      case 16:
        set_released(!released_);
        break;
    }
  }

  // Lets time pass in small steps and checks the invariants after each.
  void pass_time(Duration time) {
    for (Duration passed{}; passed < time && !testing::Test::HasFailure(); passed += kPiece) {
      loop_.advance(kPiece);
      check_invariants();
    }
  }

  void heal_everything() {
    for (std::size_t i = 0; i < driver_.gpus.size(); ++i) {
      heal(i);
      driver_.gpus[i].slow = {};
    }
    driver_.reload_ends();
    set_released(false);
    kubelet_.set_behaviour(FakeKubelet::Behaviour::kAnswers);
    if (!kubelet_.running()) kubelet_.start_kubelet();
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
    EXPECT_TRUE(agent_->status().driver_answers);
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
    driver_.raise_xid(gpu, kFatalXid);
    marked_.insert(driver_.gpus[gpu].uuid);
  }

  void heal(std::size_t gpu) {
    driver_.gpus[gpu].lost = driver_.gpus[gpu].hangs = false;
    driver_.gpus[gpu].recovery_action = 0;
    marked_.erase(driver_.gpus[gpu].uuid);
  }

  void set_released(bool released) {
    released_ = released;
    agent_->set_driver_release(released ? std::optional<std::string>("driver upgrade") : std::nullopt);
    calls_when_closed_.reset();
  }

  // A driver that the agent has closed on request is not called, and no device is allocatable.
  void check_release() {
    if (!released_) return;
    for (const auto& [name, endpoint] : kubelet_.endpoints()) {
      for (const auto& device : endpoint.offer->resource.devices)
        EXPECT_FALSE(device.health.healthy) << device.id.str();
    }
    if (!driver_.closed) return;
    if (!calls_when_closed_) calls_when_closed_ = driver_.calls;
    EXPECT_EQ(driver_.calls, *calls_when_closed_);
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

  void check_invariants() {
    check_devices();
    check_faults();
    check_release();
    check_registered();
    for (const auto& [gpu, out] : driver_.out) EXPECT_LE(out, 1u) << gpu.str() << " is called twice at once";
    EXPECT_LT(loop_.pending_timers(), 400u);
  }

  // No device is offered twice, under any resource; every id is a GPU of the last snapshot.
  void check_devices() {
    for (const auto& gpu : driver_.gpus) ever_.insert(gpu.uuid.str());
    std::set<std::string> ids;
    for (const auto& [name, endpoint] : kubelet_.endpoints()) {
      for (const auto& device : endpoint.offer->resource.devices) {
        EXPECT_TRUE(ids.insert(device.id.str()).second) << "offered twice: " << device.id.str();
        EXPECT_TRUE(ever_.contains(device.id.str().substr(0, device.id.str().find("::")))) << device.id.str();
        const DeviceId asked[] = {device.id};
        EXPECT_EQ(device_plugin::allocate(*endpoint.offer, asked).has_value(), device.health.healthy)
            << device.id.str();
      }
    }
  }

  // A GPU with an XID is withdrawn immediately, a lost or hanging one within kLossNoticed.
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
    if (!kubelet_.accepts() || all) {
      unregistered_since_.reset();
      return;
    }
    if (!unregistered_since_) unregistered_since_ = loop_.now();
    const Duration bound = kubelet_.answers_since_start()
                               ? kRegisteredAgain + 2 * kPiece
                               : agent::kRegisterBackoff.max + 2 * kRegisterTimeout;
    EXPECT_LT(loop_.now() - *unregistered_since_, bound) << "not registered again in time";
  }

  Random random_;
  ManualLoop loop_;
  FakeDriver driver_;
  FakeKubelet kubelet_;
  FakeReporter reporter_;
  config::Config config_;
  unsigned replicas_ = 1;
  bool released_ = false;
  std::optional<std::size_t> calls_when_closed_;
  std::optional<agent::Agent> agent_;
  std::set<DeviceUuid> marked_;
  std::set<std::string> ever_;
  std::vector<std::optional<Time>> faulty_since_;
  std::optional<Time> unregistered_since_;
};

class Seeds : public testing::TestWithParam<std::uint64_t> {};

TEST_P(Seeds, HoldsItsInvariants) {
  log::configure_logging(log::Level::kError, log::Format::kText);  // there would be hours of warnings
  for (std::uint64_t seed = GetParam() * kSeedsPerTest; seed < (GetParam() + 1) * kSeedsPerTest; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed * 7919);
    FakeNode node(seed);
    for (int step = 0; step < kStepsPerSeed && !HasFailure(); ++step) {
      node.random_step();
      node.pass_time(std::chrono::milliseconds(random() % 3000));
    }
    node.heal_everything();
    node.pass_time(90s);
    node.expect_all_well();
    node.expect_nothing_left();
    ASSERT_FALSE(HasFailure());
  }
}

INSTANTIATE_TEST_SUITE_P(All, Seeds, testing::Range<std::uint64_t>(0, kSeeds / kSeedsPerTest));

}  // namespace
}  // namespace gpulet::seeded

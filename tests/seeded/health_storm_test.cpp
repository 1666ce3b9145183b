// Eight GPUs that fail and recover at random, some shared and some with MIG devices: each seed drives the
// agent through a minute of it. The oracle knows which fault was injected where and when, and nothing of the
// agent's rules. A failing seed is named; run it alone with
//   --gtest_filter='Storm/*.HoldsItsInvariants/N'  (N = seed / kSeedsPerTest)
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "agent/node/agent.h"
#include "base/log.h"
#include "health/evidence/kmsg_parser.h"
#include "tests/seeded/health_world.h"
#include "tests/seeded/seeds.h"

namespace gpulet::seeded {
namespace {

using namespace std::chrono_literals;
using health::Scope;

constexpr int kSteps = 40;

constexpr Duration kWithdrawnWithin = 10ms;
constexpr Duration kHold = 2s, kMaxHold = 16s, kSuspect = 500ms, kAlive = 2s, kRecoveryActionDelay = 1s;
// A GPU that stops responding without an event is probed every kAlive; a hanging call is abandoned.
constexpr Duration kNoticed = kAlive + 2 * kAbandonedAfter + 100ms;
// An unhealthy GPU is polled every kSuspect: once for recovery, once at the end of its hold. Then the agent's
// own steps.
constexpr Duration kSlack = 2 * kSuspect + 200ms;
constexpr unsigned kResetGpu = 1;  // field 230

struct FaultKind {
  std::uint64_t code;
  bool needs_heal;    // else its checks, or its recovery action, return it to service
  bool needs_action;  // the driver reports the action GPU reset meanwhile
  bool needs_reset;   // only a confirmed reset ends it, not the recovery action
};
constexpr FaultKind kGpuXids[] = {{79, true, true, false},
                                  {95, true, true, false},
                                  {48, true, true, false},
                                  {119, true, true, true},
                                  {999, false, false, false}};
constexpr FaultKind kInstanceXids[] = {
    {95, false, false, false}, {119, true, false, true}, {999, false, false, false}};
constexpr std::uint64_t kApplications[] = {13, 31, 43};

// A fault of a part of a GPU that the kubelet does not know to be over.
struct InjectedFault {
  Scope scope;
  std::uint64_t code = 0;  // 0: it stopped responding, without an event
  std::vector<Time> events{};
  Time last{};        // by event or line
  bool open = false;  // waits for heal()
  bool needs_reset = false;
  std::optional<Time> healed{};
  std::optional<Time> good_from{};  // no earlier reading can have been good
};

std::int64_t ms(Time time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

struct Figures {
  std::uint64_t events = 0, withdrawals = 0, returns = 0, relapses = 0;
  Duration slowest{};  // from an event until the kubelet is updated
};
Figures figures;  // NOLINT: of all seeds together, printed at the end

class StormNode {
 public:
  explicit StormNode(std::uint64_t seed)
      : random_(seed), driver_(loop_), kubelet_(loop_, [this](const auto& uuid, bool healthy) {
          healthy ? on_offered(uuid) : on_withdrawn(uuid);
        }) {
    config_.gpu_resources = {{"*", ResourceName("nvidia.com/gpu")}};
    config_.flags.mig_strategy = config::MigStrategy::kMixed;
    auto& policy = config_.gpulet.health;
    policy.recovery_hold = kHold;
    policy.max_recovery_hold = kMaxHold;
    policy.unhealthy_poll_interval = kSuspect;
    policy.liveness_interval = kAlive;
    policy.recovery_action_delay = kRecoveryActionDelay;
    count_percentile();
    for (const auto& gpu : driver_.gpus) {
      if (!gpu.is.mig_enabled) scopes_[gpu.is.uuid.str()] = {gpu.is.uuid};
      for (const auto& mig : gpu.is.mig_devices)
        scopes_[mig.uuid.str()] = {gpu.is.uuid, mig.gpu_instance, mig.compute_instance};
    }
    agent::AgentPorts ports{
        .loop = loop_,
        .driver = driver_,
        .host = kubelet_,
        .reporter = reporter_,
        .list_pods = nullptr,
        .read_files = [](const config::Config&) { return agent::DriverFiles{}; },
        .mps_health = nullptr,
        .cdi_names = nullptr,
        .changed = nullptr,
        .health_store = nullptr,
        .health_changed = [this](const auto& view, const auto& changes) { on_changes(view, changes); }};
    agent_.emplace(std::move(ports), config_, seed,
                   [](const Error& error) { ADD_FAILURE() << error.full_message(); });
    agent_->start_agent();
    agent_->set_kernel_log_status(std::nullopt);
    loop_.advance(1s);
    EXPECT_EQ(kubelet_.devices_of().size(), scopes_.size());
  }

  void random_step() {
    auto& gpu = driver_.gpus[random_number(driver_.gpus.size())];
    switch (random_number(12)) {
      case 0:
      case 1:
      case 2:
        if (!gpu.silent()) inject_fault({gpu.is.uuid}, kGpuXids[random_number(std::size(kGpuXids))]);
        break;
      case 3:
      case 4:
      case 5:
        if (!gpu.silent() && gpu.is.mig_enabled)
          inject_fault(part_of(gpu.is), kInstanceXids[random_number(std::size(kInstanceXids))]);
        break;
      case 6:
        if (!gpu.silent()) stop_responding(gpu, gpu.lost);
        break;
      case 7:
        if (!gpu.silent()) stop_responding(gpu, gpu.hangs);
        break;
      case 8:
        if (!gpu.silent()) application_error(gpu.is);
        break;
      case 9:
        count_percentile();
        agent_->reconfigure(config_);
        break;
      case 10:
        driver_.fail_event_wait();
        break;
      default:
        heal(gpu);
    }
  }

  void pass_time(Duration time) {
    loop_.advance(time);
    check_overdue();
  }

  void heal_everything() {
    for (auto& gpu : driver_.gpus) heal(gpu);
  }

  void expect_all_well() {
    for (const auto& [uuid, healthy] : kubelet_.devices_of()) EXPECT_TRUE(healthy) << uuid;
    for (const auto& [device, state] : states_)
      EXPECT_TRUE(health::is_allocatable(state)) << device.gpu.str();
    for (const auto& [gpu, wounds] : faults_) EXPECT_TRUE(wounds.empty()) << gpu.str();
  }

  void expect_nothing_left() {
    agent_.reset();
    loop_.advance(1h);
    EXPECT_EQ(loop_.pending_timers(), 0u);
  }

 private:
  class SilentReporter final : public agent::Reporter {
    void report_event(Severity, std::string_view, const std::string&) override {}
  };

  std::size_t random_number(std::size_t of) { return random_() % of; }

  Scope part_of(const inventory::Gpu& gpu) {
    const auto& mig = gpu.mig_devices[random_number(gpu.mig_devices.size())];
    return {gpu.uuid, mig.gpu_instance, random_number(2) == 0 ? mig.compute_instance : health::kNoInstance};
  }

  void count_percentile() {
    config_.sharing = {};
    if (random_number(2) == 0) return;
    config_.sharing.strategy = config::SharingStrategy::kTimeSlicing;
    for (const char* name : {"nvidia.com/gpu", "nvidia.com/mig-1g.10gb"}) {
      config_.sharing.resources.push_back({.name = ResourceName(name),
                                           .rename = std::nullopt,
                                           .devices = config::AllDevices{},
                                           .replicas = static_cast<unsigned>(2 + random_number(3))});
    }
  }

  // Faults.

  // An XID, perhaps also reported by the kernel's log a little later.
  void inject_fault(const Scope& scope, const FaultKind& kind) {
    auto& gpu = *std::ranges::find_if(driver_.gpus, [&](const auto& g) { return g.is.uuid == scope.gpu; });
    auto& wounds = faults_[scope.gpu];
    auto found = std::ranges::find_if(
        wounds, [&](const InjectedFault& wound) { return wound.scope == scope && wound.code == kind.code; });
    if (found == wounds.end())
      found = wounds.insert(wounds.end(), InjectedFault{.scope = scope, .code = kind.code});
    found->events.push_back(loop_.now());
    found->last = loop_.now();
    found->open = kind.needs_heal;
    found->needs_reset = kind.needs_reset;
    found->healed.reset();
    found->good_from.reset();
    if (kind.needs_action) gpu.recovery_action = kResetGpu;
    ++figures.events;
    injected_ = loop_.now();
    if (kind.code == 48) {
      driver_.emit_evidence(scope, health::DriverNotice{health::Notice::kDoubleBitEcc});
    } else {
      driver_.emit_evidence(scope, health::XidReport{.code = kind.code});
    }
    if (random_number(2) == 0) {
      loop_.advance(std::chrono::milliseconds(1 + random_number(5)));
      found->last = loop_.now();
      agent_->submit_evidence(health::FaultLine(line_of(gpu.is, scope, kind.code)));
    }
    loop_.advance(kWithdrawnWithin - (loop_.now() - injected_));
    for (const auto& [uuid, device] : scopes_) {
      EXPECT_FALSE(scope.covers(device) && kubelet_.devices_of().at(uuid))
          << uuid << " 10 ms after XID " << kind.code;
    }
  }

  static health::XidLine line_of(const inventory::Gpu& gpu, const Scope& scope, std::uint64_t code) {
    health::XidLine line;
    line.gpu = gpu.pci;
    line.gpu_instance = scope.gpu_instance;
    line.compute_instance = scope.compute_instance;
    line.code = code;
    line.pid = 4711;
    line.process = "python3";
    return line;
  }

  // Errors of a single application: they withdraw nothing, however often they occur.
  void application_error(const inventory::Gpu& gpu) {
    const auto code = kApplications[random_number(std::size(kApplications))];
    driver_.emit_evidence({gpu.uuid}, health::XidReport{.code = code});
    agent_->submit_evidence(health::FaultLine(line_of(gpu, {gpu.uuid}, code)));
  }

  void stop_responding(FaultyDriver::FaultyGpu& gpu, bool& how) {
    how = true;
    faults_[gpu.is.uuid].push_back({.scope = {gpu.is.uuid}, .last = loop_.now(), .open = true});
  }

  void heal(FaultyDriver::FaultyGpu& gpu) {
    auto& wounds = faults_[gpu.is.uuid];
    // An earlier probe may complete later; it counts from when it started.
    const Time good_from = loop_.now() - (gpu.hangs ? kAbandonedAfter : kAnswerTime);
    const Duration seen_within = gpu.silent() ? kNoticed : 2 * kSuspect;
    gpu.lost = gpu.hangs = false;
    gpu.recovery_action = 0;
    if (std::ranges::any_of(wounds,
                            [](const InjectedFault& wound) { return wound.open && wound.needs_reset; }))
      agent_->submit_evidence({{gpu.is.uuid}, loop_.now(), health::ResetDone{}});
    for (auto& wound : wounds) {
      if (!wound.open) continue;
      wound.open = false;
      wound.healed = loop_.now();
      if (loop_.now() - wound.last > seen_within) wound.good_from = good_from;
    }
    // It was not noticed.
    if (!any_unavailable(gpu.is.uuid))
      std::erase_if(wounds, [](const InjectedFault& wound) { return wound.code == 0; });
  }

  // The devices as the kubelet sees them.

  bool any_unavailable(const DeviceUuid& gpu) const {
    return std::ranges::any_of(kubelet_.devices_of(), [&](const auto& device) {
      return !device.second && scopes_.at(device.first).gpu == gpu;
    });
  }

  void on_withdrawn(const std::string& uuid) {
    ++figures.withdrawals;
    const auto& scope = scopes_.at(uuid);
    const auto& wounds = faults_[scope.gpu];
    EXPECT_TRUE(
        std::ranges::any_of(wounds, [&](const InjectedFault& wound) { return wound.scope.covers(scope); }))
        << uuid << " is withdrawn, and nothing was done to it";
    if (std::ranges::any_of(wounds, [&](const InjectedFault& wound) {
          return wound.scope.covers(scope) && wound.code != 0 && wound.events.back() == injected_;
        }))
      figures.slowest = std::max(figures.slowest, loop_.now() - injected_);
    auto& history = histories_[scope.gpu];
    if (history.away) return;
    history.away = true;
    if (history.returned) ++history.relapses, ++figures.relapses;
  }

  Duration hold_of(const DeviceUuid& gpu) const {
    const auto found = histories_.find(gpu);
    const unsigned relapses = found == histories_.end() ? 0 : found->second.relapses;
    return std::min(kMaxHold, kHold * (1u << std::min(relapses, 10u)));
  }

  void on_offered(const std::string& uuid) {
    ++figures.returns;
    const auto& scope = scopes_.at(uuid);
    auto& wounds = faults_[scope.gpu];
    const auto held = hold_of(scope.gpu);
    for (const auto& wound : wounds) {
      if (!wound.scope.covers(scope)) continue;
      EXPECT_FALSE(wound.open) << uuid << " is offered, and was not healed of " << wound.code;
      const Time fresh = wound.code == 0 ? Time() : wound.events.back();
      EXPECT_GE(ms(loop_.now()), ms(std::max(fresh, wound.good_from.value_or(fresh)) + held))
          << uuid << " came back early of " << wound.code;
    }
    std::erase_if(wounds, [&](const InjectedFault& wound) { return wound.scope.covers(scope); });
    // Devices are updated one by one: the GPU has returned when the last one has.
    if (any_unavailable(scope.gpu)) return;
    auto& history = histories_[scope.gpu];
    history.away = false;
    history.returned = true;
  }

  // What has recovered is offered within its window, and what stopped responding is noticed.
  void check_overdue() {
    if (std::ranges::any_of(driver_.gpus, &FaultyDriver::FaultyGpu::hangs)) hung_until_ = loop_.now();
    for (const auto& [gpu, wounds] : faults_) {
      Time due{};
      bool open = false, noticed_late = false;
      for (const auto& wound : wounds) {
        open = open || wound.open;
        noticed_late = noticed_late || (wound.code == 0 && wound.open && loop_.now() - wound.last > kNoticed);
        due = std::max(due, std::max(wound.last + kRecoveryActionDelay, wound.healed.value_or(wound.last)));
        if (wound.code == 0) due = std::max(due, wound.healed.value_or(wound.last) + kAbandonedAfter);
      }
      // The driver is read as a whole: a hanging call of another GPU delays that.
      if (hung_until_ >= due) due += 2 * kAbandonedAfter;
      const bool late = !wounds.empty() && !open && loop_.now() > due + hold_of(gpu) + kSlack;
      for (const auto& [uuid, scope] : scopes_) {
        if (scope.gpu != gpu) continue;
        const bool offered = kubelet_.devices_of().at(uuid);
        EXPECT_FALSE(late && !offered) << uuid << " should be back";
        EXPECT_FALSE(noticed_late && offered) << uuid << " has been silent for long";
      }
    }
  }

  // What other listeners get: each change once, in order, with every event counted.
  void on_changes(const health::HealthViewPtr& view, const std::vector<health::StatusChange>& changes) {
    ASSERT_NE(view, nullptr);
    for (const auto& [device, before, after] : changes) {
      const auto [known, fresh] = states_.try_emplace(device, before.state);
      EXPECT_EQ(health::enum_name(known->second), health::enum_name(before.state)) << "a change was lost";
      EXPECT_TRUE(before.state != after.state || before.reason != after.reason) << "reported twice";
      known->second = after.state;
    }
    for (const auto& [device, before, after] : changes) {
      const auto* now = view->find(device);
      ASSERT_NE(now, nullptr);
      EXPECT_EQ(health::enum_name(now->status.state), health::enum_name(states_.at(device)));
      for (const auto& fault : now->status.faults) check_count(fault);
      // A device that is offered again may have to be read first; a withdrawn one not.
      const auto seen = kubelet_.devices_of().find(now->uuid.str());
      if (seen == kubelet_.devices_of().end() || health::is_allocatable(now->status.state)) continue;
      EXPECT_FALSE(seen->second) << now->uuid.str() << " is withdrawn, and the kubelet does not know";
    }
  }

  void check_count(const health::Fault& fault) {
    if (fault.fault_class > health::FaultClass::kXidUnknown) return;
    std::size_t events = 0;
    for (const auto& wound : faults_[fault.scope.gpu]) {
      const bool mine = wound.code == fault.code && (wound.scope == fault.scope || wound.code == 79);
      if (mine)
        events += static_cast<std::size_t>(
            std::ranges::count_if(wound.events, [&](Time at) { return at >= fault.opened; }));
    }
    EXPECT_EQ(fault.count, events) << "events of XID " << fault.code;
  }

  struct History {
    bool away = false, returned = false;
    unsigned relapses = 0;
  };

  std::mt19937_64 random_;
  ManualLoop loop_;
  FaultyDriver driver_;
  RecordingKubelet kubelet_;
  SilentReporter reporter_;
  config::Config config_;
  std::map<std::string, Scope> scopes_;  // of each device that is offered, by UUID
  std::optional<agent::Agent> agent_;
  std::map<DeviceUuid, std::vector<InjectedFault>> faults_;
  std::map<DeviceUuid, History> histories_;
  std::map<Scope, health::DeviceState> states_;
  Time injected_{}, hung_until_{};
};

class HealthStorm : public testing::TestWithParam<std::uint64_t> {
 protected:
  static void TearDownTestSuite() {
    std::printf(
        "storm: %llu events, %llu withdrawals (the slowest %lld ms after its event), %llu returns, %llu "
        "relapses\n",
        static_cast<unsigned long long>(figures.events), static_cast<unsigned long long>(figures.withdrawals),
        static_cast<long long>(
            std::chrono::duration_cast<std::chrono::milliseconds>(figures.slowest).count()),
        static_cast<unsigned long long>(figures.returns), static_cast<unsigned long long>(figures.relapses));
  }
};

TEST_P(HealthStorm, HoldsItsInvariants) {
  log::configure_logging(log::Level::kError, log::Format::kText);  // there would be hours of warnings
  const auto before = figures;
  for (std::uint64_t seed = GetParam() * kSeedsPerTest; seed < (GetParam() + 1) * kSeedsPerTest; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed * 7919 + 1);
    StormNode node(seed);
    for (int step = 0; step < kSteps && !HasFailure(); ++step) {
      node.random_step();
      node.pass_time(std::chrono::milliseconds(11 + random() % 3000));
    }
    node.heal_everything();
    node.pass_time(kMaxHold + kRecoveryActionDelay + 3 * kAbandonedAfter + kSlack);
    node.expect_all_well();
    node.expect_nothing_left();
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(figures.withdrawals, before.withdrawals);
  EXPECT_GT(figures.relapses, before.relapses);
}

INSTANTIATE_TEST_SUITE_P(Storm, HealthStorm, testing::Range<std::uint64_t>(0, kSeeds / kSeedsPerTest));

}  // namespace
}  // namespace gpulet::seeded

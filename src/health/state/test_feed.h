// For tests: a node of two GPUs, the second cut up, whose machine is fed by a hand-turned clock.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "health/state/state_machine.h"

namespace gpulet::health {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

inline Scope make_scope(const std::string& gpu, std::uint32_t gi = kNoInstance,
                        std::uint32_t ci = kNoInstance) {
  return {DeviceUuid(gpu), gi, ci};
}

// GPU-0 whole; GPU-1 with GI 1 (CI 0 and 1) and GI 2 (CI 0).
inline inventory::Snapshot two_gpu_snapshot(const std::string& driver = "570.124.06") {
  inventory::Snapshot snapshot;
  snapshot.driver.version = driver;
  for (unsigned i = 0; i < 2; ++i) {
    inventory::Gpu gpu;
    gpu.index = i;
    gpu.uuid = DeviceUuid("GPU-" + std::to_string(i));
    gpu.architecture = "hopper";
    gpu.pci = {0, 0x10 + i, 0, 0};
    snapshot.gpus.push_back(gpu);
  }
  auto& cut = snapshot.gpus[1];
  cut.mig_enabled = true;
  const std::pair<unsigned, unsigned> instances[] = {{1, 0}, {1, 1}, {2, 0}};
  for (const auto& [gi, ci] : instances) {
    inventory::MigDevice mig;
    mig.index = static_cast<unsigned>(cut.mig_devices.size());
    mig.gpu_instance = gi;
    mig.compute_instance = ci;
    cut.mig_devices.push_back(mig);
  }
  return snapshot;
}

inline const Scope kGpu = make_scope("GPU-0");  // the whole one
inline const Scope kMigGpu = make_scope("GPU-1");

class HealthFeed {
 public:
  explicit HealthFeed(Policy policy = {}, XidFilter filter = XidFilter("", ""),
                      inventory::Snapshot snapshot = two_gpu_snapshot())
      : machine(std::move(policy), std::move(filter)), there(std::move(snapshot)) {
    machine.apply_snapshot(there, now);
    for (const auto& gpu : there.gpus) {
      feed({gpu.uuid}, SourceNotice{Source::kDriverEvents, std::nullopt});
      feed({gpu.uuid}, SourceNotice{Source::kProbe, "no program for it"});
      add_good_readings({gpu.uuid});
    }
    pass_time(seconds(1));
  }

  // Says it, and ends the moment.
  std::vector<StatusChange> feed(Scope about, EvidenceBody body) {
    auto changes = machine.add_evidence({std::move(about), now, std::move(body)});
    for (auto& change : machine.advance_to(now)) changes.push_back(std::move(change));
    return changes;
  }
  std::vector<StatusChange> add_xid(const Scope& about, std::uint64_t code,
                                    Source source = Source::kDriverEvents,
                                    std::optional<std::uint32_t> pid = {}, std::string owner = {}) {
    return feed(about, XidReport{source, code, pid, std::move(owner)});
  }
  // Everything that a check needs, and all well.
  std::vector<StatusChange> add_good_readings(const Scope& gpu) {
    std::vector<StatusChange> changes;
    const EvidenceBody bodies[] = {HandleReading{},   RecoveryActionReading{},
                                   RowRemapReading{}, EccReading{},
                                   good_links(),      FabricReading{FabricState::kHealthy}};
    for (const auto& body : bodies) {
      for (auto& change : feed({gpu.gpu}, body)) changes.push_back(std::move(change));
    }
    return changes;
  }
  static NvLinkReading good_links(bool second_up = true, std::uint64_t errors = 0) {
    return {{{0, true, errors}, {1, second_up, 0}}};
  }
  void pass_time(Duration time) { now += time; }
  // Polls every GPU once a second, all well, for so long.
  void poll_for(Duration time) {
    for (const Time end = now + time; now < end;) {
      pass_time(seconds(1));
      for (const auto& gpu : there.gpus) add_good_readings({gpu.uuid});
    }
  }
  // Polls all well until the device is offered; how long that took, or -1 s when `limit` came first.
  Duration time_until_allocatable(const Scope& device, Duration limit = std::chrono::hours(3)) {
    const Time start = now;
    while (!is_allocatable(state_of_device(device))) {
      if (now - start > limit) return seconds(-1);
      pass_time(seconds(1));
      add_good_readings(device);
    }
    return now - start;
  }

  DeviceState state_of_device(const Scope& device) const { return machine.device_status(device)->state; }
  std::string reason_of_device(const Scope& device) const { return machine.device_status(device)->reason; }
  // '.' healthy, 'u' unmonitored, 'f' degraded, 'r' recovering, 'd' draining, 'q' quarantined, 'l' lost:
  // GPU-0, GPU-1, then its three MIG devices.
  std::string state_letters() const {
    std::string out;
    const auto add = [&](const Scope& device) {
      out += ".ufrdql"[static_cast<std::size_t>(state_of_device(device))];
    };
    for (const auto& gpu : there.gpus) add({gpu.uuid});
    for (const auto& mig : there.gpus.back().mig_devices) {
      add({there.gpus.back().uuid, mig.gpu_instance, mig.compute_instance});
    }
    return out;
  }
  // The same of the snapshot: '.' healthy, 'x' not.
  std::string health_letters() const {
    const auto snapshot = machine.annotate_health(there);
    std::string out;
    for (const auto& gpu : snapshot.gpus) out += gpu.health.healthy ? '.' : 'x';
    for (const auto& mig : snapshot.gpus.back().mig_devices) out += mig.health.healthy ? '.' : 'x';
    return out;
  }

  HealthStateMachine machine;
  inventory::Snapshot there;
  Time now{std::chrono::hours(1)};
};

}  // namespace gpulet::health

// For tests: a node of two GPUs, the second cut up, whose machine is fed by a hand-turned clock.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "health/machine.h"

namespace gpulet::health {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

inline Scope scope(const std::string& gpu, std::uint32_t gi = kNoInstance, std::uint32_t ci = kNoInstance) {
  return {DeviceUuid(gpu), gi, ci};
}

// GPU-0 whole; GPU-1 with GI 1 (CI 0 and 1) and GI 2 (CI 0).
inline inventory::Snapshot node(const std::string& driver = "570.124.06") {
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

inline const Scope kGpu = scope("GPU-0");  // the whole one
inline const Scope kCut = scope("GPU-1");

class Feed {
 public:
  explicit Feed(Policy policy = {}, XidFilter filter = XidFilter("", ""),
                inventory::Snapshot snapshot = node())
      : machine(std::move(policy), std::move(filter)), there(std::move(snapshot)) {
    machine.on_snapshot(there, now);
    for (const auto& gpu : there.gpus) {
      tell({gpu.uuid}, SourceNotice{Source::kDriverEvents, std::nullopt});
      tell({gpu.uuid}, SourceNotice{Source::kProbe, "no program for it"});
      good({gpu.uuid});
    }
    pass(seconds(1));
  }

  // Says it, and ends the moment.
  std::vector<Change> tell(Scope about, Body body) {
    auto changes = machine.on_evidence({std::move(about), now, std::move(body)});
    for (auto& change : machine.advance(now)) changes.push_back(std::move(change));
    return changes;
  }
  std::vector<Change> xid(const Scope& about, std::uint64_t code, Source source = Source::kDriverEvents,
                          std::optional<std::uint32_t> pid = {}, std::string owner = {}) {
    return tell(about, XidReport{source, code, pid, std::move(owner)});
  }
  // Everything that a check needs, and all well.
  std::vector<Change> good(const Scope& gpu) {
    std::vector<Change> changes;
    const Body bodies[] = {HandleReading{},   RecoveryActionReading{},
                           RowRemapReading{}, EccReading{},
                           links(),           FabricReading{FabricState::kHealthy}};
    for (const auto& body : bodies) {
      for (auto& change : tell({gpu.gpu}, body)) changes.push_back(std::move(change));
    }
    return changes;
  }
  static NvLinkReading links(bool second_up = true, std::uint64_t errors = 0) {
    return {{{0, true, errors}, {1, second_up, 0}}};
  }
  void pass(Duration time) { now += time; }
  // Polls every GPU once a second, all well, for so long.
  void poll_for(Duration time) {
    for (const Time end = now + time; now < end;) {
      pass(seconds(1));
      for (const auto& gpu : there.gpus) good({gpu.uuid});
    }
  }
  // Polls all well until the device is offered; how long that took, or -1 s when `limit` came first.
  Duration until_offered(const Scope& device, Duration limit = std::chrono::hours(3)) {
    const Time start = now;
    while (!offered(state(device))) {
      if (now - start > limit) return seconds(-1);
      pass(seconds(1));
      good(device);
    }
    return now - start;
  }

  State state(const Scope& device) const { return machine.standing(device)->state; }
  std::string reason(const Scope& device) const { return machine.standing(device)->reason; }
  // '.' healthy, 'u' unmonitored, 'f' degraded, 'r' recovering, 'd' draining, 'q' quarantined, 'l' lost:
  // GPU-0, GPU-1, then its three MIG devices.
  std::string picture() const {
    std::string out;
    const auto add = [&](const Scope& device) { out += ".ufrdql"[static_cast<std::size_t>(state(device))]; };
    for (const auto& gpu : there.gpus) add({gpu.uuid});
    for (const auto& mig : there.gpus.back().mig_devices) {
      add({there.gpus.back().uuid, mig.gpu_instance, mig.compute_instance});
    }
    return out;
  }
  // The same of the snapshot: '.' healthy, 'x' not.
  std::string judged() const {
    const auto snapshot = machine.judge(there);
    std::string out;
    for (const auto& gpu : snapshot.gpus) out += gpu.health.healthy ? '.' : 'x';
    for (const auto& mig : snapshot.gpus.back().mig_devices) out += mig.health.healthy ? '.' : 'x';
    return out;
  }

  Machine machine;
  inventory::Snapshot there;
  Time now{std::chrono::hours(1)};
};

}  // namespace gpulet::health

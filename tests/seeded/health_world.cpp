#include "tests/seeded/health_world.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace gpulet::seeded {
namespace {

using health::Reachability;
using health::Source;

inventory::MigDevice mig(unsigned index, const std::string& gpu, const char* profile, unsigned gpu_instance,
                         unsigned compute_instance) {
  inventory::MigDevice device;
  device.index = index;
  device.uuid = DeviceUuid("MIG-" + gpu + "-" + std::to_string(index));
  device.profile = profile;
  device.gpu_instance = gpu_instance;
  device.compute_instance = compute_instance;
  device.placement_start = index;
  device.placement_size = 1;
  return device;
}

inventory::Gpu make_gpu(unsigned index) {
  inventory::Gpu gpu;
  gpu.index = gpu.minor = index;
  gpu.uuid = DeviceUuid("GPU-" + std::to_string(index));
  gpu.model = "NVIDIA H100 80GB HBM3";
  gpu.architecture = "hopper";
  gpu.memory = mebibytes(81559);
  gpu.pci = {0, 0x10 + index, 0, 0};
  gpu.numa_node = index < kWholeGpus ? 0 : 1;
  if (index < kWholeGpus) return gpu;
  gpu.mig_capable = gpu.mig_enabled = true;
  // Two whole GPU instances, and one shared by two compute instances.
  const auto name = gpu.uuid.str();
  gpu.mig_devices = {mig(0, name, "1g.10gb", 1, 0), mig(1, name, "1g.10gb", 2, 0),
                     mig(2, name, "1c.2g.20gb", 3, 0), mig(3, name, "1c.2g.20gb", 3, 1)};
  return gpu;
}

std::string device_of_gpu(const DeviceId& id) { return id.str().substr(0, id.str().find("::")); }

}  // namespace

FaultyDriver::FaultyDriver(ManualLoop& loop) : loop_(loop) {
  for (unsigned i = 0; i < kStormGpus; ++i) gpus.push_back({.is = make_gpu(i)});
}

void FaultyDriver::later(Duration delay, std::function<void()> task) {
  pending_.push_back(loop_.after(delay, std::move(task)));
}

FaultyDriver::FaultyGpu* FaultyDriver::find(const DeviceUuid& uuid) {
  const auto found = std::ranges::find_if(gpus, [&](const auto& gpu) { return gpu.is.uuid == uuid; });
  return found == gpus.end() ? nullptr : &*found;
}

Duration FaultyDriver::answer_time(const DeviceUuid& uuid) {
  const auto* gpu = find(uuid);
  return gpu != nullptr && gpu->hangs ? kAbandonedAfter : kAnswerTime;
}

void FaultyDriver::open_driver(std::function<void(Status)> done) {
  later(kAnswerTime, [this, done = std::move(done)] {
    for (const auto& gpu : gpus)
      emit_evidence({gpu.is.uuid}, health::SourceNotice{Source::kDriverEvents, std::nullopt});
    done({});
  });
}

void FaultyDriver::read_snapshot(std::function<void(Result<inventory::Snapshot>)> done) {
  const bool hangs = std::ranges::any_of(gpus, &FaultyGpu::hangs);
  later(hangs ? kAbandonedAfter : kAnswerTime, [this, done = std::move(done)] {
    inventory::Snapshot snapshot;
    snapshot.generation = ++generation_;
    snapshot.driver = {"570.124.06", 12080};
    for (const auto& gpu : gpus) {
      auto& read = snapshot.gpus.emplace_back(gpu.is);
      if (gpu.lost) read.unreadable = Error(Code::kDeviceLost, "GPU is lost", read.uuid.str());
      if (gpu.hangs)
        read.unreadable = Error(Code::kDeadlineExceeded, "the driver does not respond", read.uuid.str());
    }
    snapshot.pcie.assign(gpus.size() * gpus.size(), inventory::PcieDistance::kNode);
    done(std::move(snapshot));
  });
}

FaultyDriver::Evidence FaultyDriver::complete_probe(const health::Scope& scope, Time started_at,
                                                    bool everything) {
  const auto* gpu = find(scope.gpu);
  if (gpu == nullptr || gpu->lost)
    return {{{scope.gpu}, started_at, health::HandleReading{Reachability::kLost, "GPU is lost"}}};
  if (gpu->hangs)
    return {{{scope.gpu},
             started_at,
             health::HandleReading{Reachability::kSilent, "the driver does not respond"}}};
  if (!scope.is_whole_gpu()) return {{scope, started_at, health::ProcessReading{}}};
  Evidence evidence;
  const auto add = [&](health::EvidenceBody body) {
    evidence.push_back({scope, started_at, std::move(body)});
  };
  add(health::HandleReading{});
  add(health::RecoveryActionReading{gpu->recovery_action});
  if (!everything) return evidence;
  add(health::RowRemapReading{});
  add(health::EccReading{});
  add(health::NvLinkReading{{{0, true, 0}, {1, true, 0}}});
  add(health::FabricReading{});
  add(health::ProcessReading{});
  add(health::SourceNotice{Source::kProbe, "no probe for it"});
  return evidence;
}

void FaultyDriver::probe_gpu(DeviceUuid gpu, std::function<void(Evidence)> done) {
  later(answer_time(gpu), [this, gpu, done = std::move(done), started_at = loop_.now()] {
    done(complete_probe({gpu}, started_at, false));
  });
}

void FaultyDriver::poll_device(health::Scope scope, std::function<void(Evidence)> done) {
  later(answer_time(scope.gpu), [this, scope, done = std::move(done), started_at = loop_.now()] {
    done(complete_probe(scope, started_at, true));
  });
}

void FaultyDriver::emit_evidence(const health::Scope& scope, health::EvidenceBody body) {
  if (events_.evidence) events_.evidence({scope, loop_.now(), std::move(body)});
}

void FaultyDriver::fail_event_wait() {
  if (events_.wait_failed) events_.wait_failed(Error(Code::kIo, "the event wait failed"));
}

Status RecordingKubelet::serve_offer(device_plugin::OfferPtr offer) {
  auto& known = offers_[offer->resource.name];
  EXPECT_FALSE(known && known->resource == offer->resource)
      << "updated twice: " << offer->resource.name.str();
  known = std::move(offer);
  std::map<std::string, bool> now;
  for (const auto& device : known->resource.devices) {
    const auto [entry, fresh] = now.try_emplace(device_of_gpu(device.id), device.health.healthy);
    EXPECT_EQ(entry->second, device.health.healthy) << device.id.str() << " is not as its other shares";
  }
  for (const auto& [uuid, healthy] : now) {
    const auto [entry, fresh] = devices_.try_emplace(uuid, healthy);
    if (fresh ? healthy : entry->second == healthy) continue;
    entry->second = healthy;
    observer_(uuid, healthy);
  }
  return {};
}

void RecordingKubelet::register_resource(const ResourceName& resource, std::function<void(Status)> done) {
  pending_.push_back(loop_.after(std::chrono::milliseconds(1), [this, resource, done = std::move(done)] {
    done({});
    if (events_.watched) events_.watched(resource, true);
  }));
}

}  // namespace gpulet::seeded

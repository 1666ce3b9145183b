#include "tests/seeded/health_world.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace gpulet::seeded {
namespace {

using health::Answer;
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
  // Two whole GPU instances, and one that two compute instances share.
  const auto name = gpu.uuid.str();
  gpu.mig_devices = {mig(0, name, "1g.10gb", 1, 0), mig(1, name, "1g.10gb", 2, 0),
                     mig(2, name, "1c.2g.20gb", 3, 0), mig(3, name, "1c.2g.20gb", 3, 1)};
  return gpu;
}

std::string device_of(const DeviceId& id) { return id.str().substr(0, id.str().find("::")); }

}  // namespace

SickDriver::SickDriver(ManualLoop& loop) : loop_(loop) {
  for (unsigned i = 0; i < kStormGpus; ++i) gpus.push_back({.is = make_gpu(i)});
}

void SickDriver::later(Duration delay, std::function<void()> task) {
  pending_.push_back(loop_.after(delay, std::move(task)));
}

SickDriver::SickGpu* SickDriver::find(const DeviceUuid& uuid) {
  const auto found = std::ranges::find_if(gpus, [&](const auto& gpu) { return gpu.is.uuid == uuid; });
  return found == gpus.end() ? nullptr : &*found;
}

Duration SickDriver::answer_time(const DeviceUuid& uuid) {
  const auto* gpu = find(uuid);
  return gpu != nullptr && gpu->hangs ? kGivenUp : kAnswerTime;
}

void SickDriver::open(std::function<void(Status)> done) {
  later(kAnswerTime, [this, done = std::move(done)] {
    for (const auto& gpu : gpus)
      tell({gpu.is.uuid}, health::SourceNotice{Source::kDriverEvents, std::nullopt});
    done({});
  });
}

void SickDriver::read(std::function<void(Result<inventory::Snapshot>)> done) {
  const bool hangs = std::ranges::any_of(gpus, &SickGpu::hangs);
  later(hangs ? kGivenUp : kAnswerTime, [this, done = std::move(done)] {
    inventory::Snapshot snapshot;
    snapshot.generation = ++generation_;
    snapshot.driver = {"570.124.06", 12080};
    for (const auto& gpu : gpus) {
      auto& read = snapshot.gpus.emplace_back(gpu.is);
      if (gpu.lost) read.unreadable = Error(Code::kDeviceLost, "GPU is lost", read.uuid.str());
      if (gpu.hangs)
        read.unreadable = Error(Code::kDeadlineExceeded, "the driver does not answer", read.uuid.str());
    }
    snapshot.pcie.assign(gpus.size() * gpus.size(), inventory::PcieDistance::kNode);
    done(std::move(snapshot));
  });
}

SickDriver::Evidence SickDriver::answer(const health::Scope& scope, Time asked, bool everything) {
  const auto* gpu = find(scope.gpu);
  if (gpu == nullptr || gpu->lost)
    return {{{scope.gpu}, asked, health::HandleReading{Answer::kLost, "GPU is lost"}}};
  if (gpu->hangs)
    return {{{scope.gpu}, asked, health::HandleReading{Answer::kSilent, "the driver does not answer"}}};
  if (!scope.whole()) return {{scope, asked, health::ProcessReading{}}};
  Evidence said;
  const auto say = [&](health::Body body) { said.push_back({scope, asked, std::move(body)}); };
  say(health::HandleReading{});
  say(health::RecoveryActionReading{gpu->recovery_action});
  if (!everything) return said;
  say(health::RowRemapReading{});
  say(health::EccReading{});
  say(health::NvLinkReading{{{0, true, 0}, {1, true, 0}}});
  say(health::FabricReading{});
  say(health::ProcessReading{});
  say(health::SourceNotice{Source::kProbe, "no program for it"});
  return said;
}

void SickDriver::ask(DeviceUuid gpu, std::function<void(Evidence)> done) {
  later(answer_time(gpu),
        [this, gpu, done = std::move(done), asked = loop_.now()] { done(answer({gpu}, asked, false)); });
}

void SickDriver::poll(health::Scope scope, std::function<void(Evidence)> done) {
  later(answer_time(scope.gpu),
        [this, scope, done = std::move(done), asked = loop_.now()] { done(answer(scope, asked, true)); });
}

void SickDriver::tell(const health::Scope& scope, health::Body body) {
  if (events_.evidence) events_.evidence({scope, loop_.now(), std::move(body)});
}

void SickDriver::fail_event_wait() {
  if (events_.wait_failed) events_.wait_failed(Error(Code::kIo, "the event wait failed"));
}

Status SeeingKubelet::serve(kubelet::OfferPtr offer) {
  auto& known = offers_[offer->resource.name];
  EXPECT_FALSE(known && known->resource == offer->resource) << "told twice of " << offer->resource.name.str();
  known = std::move(offer);
  std::map<std::string, bool> now;
  for (const auto& device : known->resource.devices) {
    const auto [entry, fresh] = now.try_emplace(device_of(device.id), device.health.healthy);
    EXPECT_EQ(entry->second, device.health.healthy) << device.id.str() << " is not as its other shares";
  }
  for (const auto& [uuid, healthy] : now) {
    const auto [entry, fresh] = devices_.try_emplace(uuid, healthy);
    if (fresh ? healthy : entry->second == healthy) continue;
    entry->second = healthy;
    seen_(uuid, healthy);
  }
  return {};
}

void SeeingKubelet::register_resource(const ResourceName& resource, std::function<void(Status)> done) {
  pending_.push_back(loop_.after(std::chrono::milliseconds(1), [this, resource, done = std::move(done)] {
    done({});
    if (events_.watched) events_.watched(resource, true);
  }));
}

}  // namespace gpulet::seeded

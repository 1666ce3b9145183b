#include "tests/seeded/world.h"

#include <algorithm>

namespace gpulet::seeded {

using namespace std::chrono_literals;

FakeDriver::FakeDriver(ManualLoop& loop, std::size_t count) : loop_(loop) {
  for (std::size_t i = 0; i < count; ++i)
    gpus.push_back({.uuid = DeviceUuid("GPU-" + std::to_string(next_uuid_++))});
}

void FakeDriver::later(Duration delay, std::function<void()> task) {
  pending_.push_back(loop_.after(delay, std::move(task)));
}

void FakeDriver::open_driver(std::function<void(Status)> done) {
  ++calls;
  closed = false;
  later(kReadTime, [this, done = std::move(done)] {
    done(loaded ? Status() : fail(Code::kUnavailable, "the driver is not loaded"));
  });
}

void FakeDriver::close_driver(std::function<void(Status)> done) {
  ++calls;
  for (auto& [number, read] : std::exchange(reads_, {}))
    later({}, [read = std::move(read)] { read(fail(Code::kUnavailable, "the driver is being closed")); });
  later(kReadTime, [this, done = std::move(done)] {
    closed = true;
    done({});
  });
}

inventory::Gpu FakeDriver::gpu_of(std::size_t index) const {
  const auto& fake = gpus[index];
  inventory::Gpu gpu;
  gpu.index = static_cast<unsigned>(index);
  gpu.minor = gpu.index;
  gpu.uuid = fake.uuid;
  gpu.model = "NVIDIA H100 80GB HBM3";
  gpu.memory = mebibytes(81559);
  gpu.numa_node = index < gpus.size() / 2 ? 0 : 1;
  gpu.display = fake.display;
  if (fake.lost) gpu.unreadable = Error(Code::kDeviceLost, "GPU is lost", fake.uuid.str());
  if (fake.hangs)
    gpu.unreadable = Error(Code::kDeadlineExceeded, "the driver does not respond", fake.uuid.str());
  return gpu;
}

void FakeDriver::read_snapshot(std::function<void(Result<inventory::Snapshot>)> done) {
  ++calls;
  Duration time = kReadTime;
  for (const auto& gpu : gpus) time += gpu.slow;
  if (std::ranges::any_of(gpus, [](const auto& gpu) { return gpu.hangs; }))
    time = std::max(time, kCallTimeout);
  const auto number = ++next_read_;
  reads_[number] = std::move(done);
  later(time, [this, number] {
    auto read = reads_.extract(number);
    if (!read.empty()) read.mapped()(snapshot_now());
  });
}

Result<inventory::Snapshot> FakeDriver::snapshot_now() {
  if (!loaded) return fail(Code::kUnavailable, "the driver is not loaded");
  inventory::Snapshot snapshot;
  snapshot.generation = ++generation_;
  snapshot.driver = {"570.124.06", 12080};
  for (std::size_t i = 0; i < gpus.size(); ++i) snapshot.gpus.push_back(gpu_of(i));
  snapshot.pcie.assign(gpus.size() * gpus.size(), inventory::PcieDistance::kNode);
  return snapshot;
}

agent::Driver::Evidence FakeDriver::complete_probe(const DeviceUuid& uuid, Time started_at) const {
  using health::Reachability;
  const auto gpu = std::ranges::find(gpus, uuid, &FakeGpu::uuid);
  const auto handle = [&](Reachability answer, const char* error) {
    return Evidence{{{uuid}, started_at, health::HandleReading{answer, error}}};
  };
  if (!loaded) return handle(Reachability::kDriverAway, "the driver is not loaded");
  if (gpu == gpus.end()) return handle(Reachability::kLost, "another card is in its place");
  if (gpu->lost) return handle(Reachability::kLost, "GPU is lost");
  if (gpu->hangs) return handle(Reachability::kSilent, "the driver does not respond");
  auto evidence = handle(Reachability::kReachable, "");
  evidence.push_back({{uuid}, started_at, health::RecoveryActionReading{gpu->recovery_action}});
  evidence.push_back({{uuid}, started_at, health::RowRemapReading{}});
  evidence.push_back({{uuid}, started_at, health::EccReading{}});
  return evidence;
}

void FakeDriver::probe_gpu(DeviceUuid uuid, std::function<void(Evidence)> done) {
  poll_device({uuid}, std::move(done));
}

void FakeDriver::poll_device(health::Scope scope, std::function<void(Evidence)> done) {
  ++calls;
  const auto found = std::ranges::find(gpus, scope.gpu, &FakeGpu::uuid);
  const bool hangs = found != gpus.end() && found->hangs;
  ++out[scope.gpu];
  later(hangs ? kCallTimeout : kReadTime, [this, scope, started_at = loop_.now(), done = std::move(done)] {
    --out[scope.gpu];
    done(complete_probe(scope.gpu, started_at));
  });
}

void FakeDriver::raise_xid(std::size_t gpu, std::uint64_t code) {
  if (!events_.evidence) return;
  events_.evidence({{gpus[gpu].uuid}, loop_.now(), health::XidReport{.code = code}});
}

void FakeDriver::replace(std::size_t gpu) {
  gpus[gpu] = {.uuid = DeviceUuid("GPU-" + std::to_string(next_uuid_++))};
  if (events_.changed) events_.changed();
}

void FakeDriver::fail_event_wait() {
  if (events_.wait_failed) events_.wait_failed(Error(Code::kIo, "the event wait failed"));
}

void FakeDriver::reload_begins() {
  loaded = false;
  if (events_.changed) events_.changed();
}

void FakeKubelet::later(Duration delay, std::function<void()> task) {
  pending_.push_back(loop_.after(delay, std::move(task)));
}

Status FakeKubelet::serve_offer(device_plugin::OfferPtr offer) {
  auto& endpoint = endpoints_[offer->resource.name];
  endpoint.offer = std::move(offer);
  endpoint.socket = true;
  return {};
}

void FakeKubelet::withdraw(const ResourceName& resource) { endpoints_.erase(resource); }

void FakeKubelet::register_resource(const ResourceName& resource, std::function<void(Status)> done) {
  if (!running_) {
    later(1ms, [done = std::move(done)] { done(fail(Code::kUnavailable, "no kubelet listens")); });
    return;
  }
  const auto answer = [this, resource, done, life = life_] {
    if (life != life_) return done(fail(Code::kUnavailable, "the kubelet closed the connection"));
    if (behaviour == Behaviour::kRefuses) return done(fail(Code::kFailedPrecondition, "the kubelet refuses"));
    done({});
    later(1ms, [this, resource, life] {
      const auto it = endpoints_.find(resource);
      if (life != life_ || it == endpoints_.end() || !it->second.socket) return;
      const bool replaced = it->second.watched;
      it->second.watched = true;
      if (replaced && events_.watched) events_.watched(resource, false);
      if (events_.watched) events_.watched(resource, true);
    });
  };
  switch (behaviour) {
    case Behaviour::kAnswers:
    case Behaviour::kRefuses:
      later(1ms, answer);
      break;
    case Behaviour::kLate:
      later(2s, answer);
      break;
    case Behaviour::kNever:
      later(kRegisterTimeout,
            [done] { done(fail(Code::kDeadlineExceeded, "the kubelet does not respond")); });
      break;
  }
}

void FakeKubelet::end_stream(const ResourceName& resource, Endpoint& endpoint) {
  if (!endpoint.watched) return;
  endpoint.watched = false;
  if (events_.watched) events_.watched(resource, false);
}

void FakeKubelet::stop_kubelet() {
  running_ = false;
  ++life_;
  for (auto& [resource, endpoint] : endpoints_) end_stream(resource, endpoint);
}

void FakeKubelet::lose_socket(const ResourceName& resource) {
  const auto it = endpoints_.find(resource);
  if (it == endpoints_.end() || !it->second.socket) return;
  it->second.socket = false;
  end_stream(resource, it->second);
  later(kInotifyDelay, [this, resource] {
    const auto lost = endpoints_.find(resource);
    if (lost != endpoints_.end() && !lost->second.socket && events_.socket_lost)
      events_.socket_lost(resource);
  });
}

void FakeKubelet::start_kubelet() {
  std::vector<ResourceName> all;
  for (const auto& [resource, endpoint] : endpoints_) all.push_back(resource);
  for (const auto& resource : all) lose_socket(resource);
  running_ = true;
  answered_since_start_ = behaviour == Behaviour::kAnswers;
  later(kInotifyDelay, [this] {
    if (running_ && events_.kubelet_started) events_.kubelet_started();
  });
}

void FakeKubelet::delete_socket(const ResourceName& resource) { lose_socket(resource); }

void FakeKubelet::drop_stream(const ResourceName& resource) {
  if (const auto it = endpoints_.find(resource); it != endpoints_.end()) end_stream(resource, it->second);
}

void FakeKubelet::set_behaviour(Behaviour value) {
  behaviour = value;
  answered_since_start_ = answered_since_start_ && behaviour == Behaviour::kAnswers;
}

}  // namespace gpulet::seeded

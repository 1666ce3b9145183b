#include "agent/power/pod_power_index.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "metrics/attribution.h"

namespace gpulet::agent {

void PodPowerIndex::use_gpus(inventory::SnapshotPtr snapshot, std::set<DeviceUuid> gpus) {
  const bool is_new = std::exchange(gpus_, std::move(gpus)) != gpus_;
  const bool is_first = !std::exchange(snapshot_, std::move(snapshot));
  if (!gpus_.empty() && !first_use_) first_use_ = ports_.loop.now();
  if (is_new || is_first) {
    update_awaited();
    refresh();
  }
}

void PodPowerIndex::refresh_soon() {
  // A Pod of this name may be another one.
  for (auto& [name, pod] : pods_) pod.read.reset();
  for (std::size_t i = 0; i < std::size(kPodPowerDelays); ++i)
    after_allocation_[i] = ports_.loop.after(kPodPowerDelays[i], [this] { refresh(); });
}

void PodPowerIndex::refresh() {
  next_.reset();
  is_again_due_ = is_listing_;
  if (is_listing_ || !snapshot_ || gpus_.empty()) return;
  is_listing_ = true;
  ports_.holders([this, alive = lifetime_.watch()](const auto& holders) {
    if (!alive) return;
    is_listing_ = false;
    if (holders) {
      on_holders(*holders);
    } else {
      log::debug("the Pods that ask for power limits are not known", {{"error", holders.error().message()}});
    }
    if (is_again_due_) return refresh();
    if (!holders || !pods_.empty()) next_ = ports_.loop.after(kPodPowerInterval, [this] { refresh(); });
  });
}

std::optional<DeviceUuid> PodPowerIndex::gpu_of(const DeviceId& id) const {
  const auto share = metrics::resolve_device_id(id, *snapshot_);
  if (!share) return std::nullopt;
  for (const auto& gpu : snapshot_->gpus) {
    const bool is_its_mig = std::ranges::find(gpu.mig_devices, share->device, &inventory::MigDevice::uuid) !=
                            gpu.mig_devices.end();
    if ((gpu.uuid == share->device || is_its_mig) && gpus_.contains(gpu.uuid)) return gpu.uuid;
  }
  return std::nullopt;
}

void PodPowerIndex::on_holders(const std::vector<ContainerDevices>& holders) {
  is_listed_ = true;
  std::map<PodName, std::set<DeviceUuid>> held;
  for (const auto& holder : holders) {
    for (const auto& [resource, ids] : holder.devices) {
      for (const auto& id : ids) {
        if (const auto gpu = gpu_of(id)) held[holder.pod].insert(*gpu);
      }
    }
  }
  std::erase_if(pods_, [&](const auto& pod) { return !held.contains(pod.first); });
  for (auto& [name, gpus] : held) {
    const auto [found, is_new] = pods_.try_emplace(name);
    auto& pod = found->second;
    if (is_new) pod.since = ports_.loop.now();
    pod.gpus = gpus;
    if (pod.read && ports_.loop.now() - *pod.read < kPodPowerTtl) continue;
    pod.read = ports_.loop.now();
    ports_.reader.read_pod(name.name_space, name.name,
                           [this, name, alive = lifetime_.watch()](const auto& read) {
                             if (alive) on_pod(name, read);
                           });
  }
  publish_if_changed();
}

void PodPowerIndex::on_pod(const PodName& name, const Result<std::optional<k8s::PodMetadata>>& read) {
  const auto known = pods_.find(name);
  if (known == pods_.end()) return;
  auto& pod = known->second;
  // What was known stays; the next round reads it again.
  if (!read) return pod.read.reset();
  pod.request = {};
  pod.is_known = true;
  pod.pod.reset();
  if (*read) {
    pod.pod = (*read)->pod;
    const auto request = partition::parse_pod_power((*read)->annotations);
    if (request) pod.request = *request;
    const std::string problem = request ? "" : request.error().message();
    if (std::exchange(pod.problem, problem) != problem && !problem.empty())
      ports_.on_invalid((*read)->pod, problem);
  }
  publish_if_changed();
}

void PodPowerIndex::publish_if_changed() {
  Requests requests;
  for (const auto& [name, pod] : pods_) {
    for (const auto& gpu : pod.gpus) requests[gpu].push_back(pod.request);
  }
  const auto before = awaited_;
  update_awaited();
  if (std::exchange(requests_, std::move(requests)) != requests_ || awaited_ != before) ports_.changed();
}

void PodPowerIndex::update_awaited() {
  awaited_.clear();
  end_of_patience_.reset();
  std::optional<Duration> wait;
  const auto now = ports_.loop.now();
  const auto await = [&](Time since, const std::set<DeviceUuid>& gpus) {
    const auto left = since + kPodPowerPatience - now;
    if (left <= Duration::zero()) return;
    wait = std::min(wait.value_or(left), left);
    awaited_.insert(gpus.begin(), gpus.end());
  };
  if (!is_listed_ && first_use_) await(*first_use_, gpus_);
  for (const auto& [name, pod] : pods_) {
    if (!pod.is_known) await(pod.since, pod.gpus);
  }
  if (wait) end_of_patience_ = ports_.loop.after(*wait, [this] { publish_if_changed(); });
}

void PodPowerIndex::report_problem(const DeviceUuid& gpu, const std::string& problem) {
  for (auto& [name, pod] : pods_) {
    const bool asks = pod.pod && pod.gpus.contains(gpu) && pod.request != partition::PodPowerRequest{};
    if (asks && pod.said.insert(problem).second) ports_.on_invalid(*pod.pod, problem);
  }
}

}  // namespace gpulet::agent

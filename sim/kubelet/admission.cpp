// Pods are admitted and removed.
// Source: Kubernetes 1.36, devicemanager/manager.go (devicesToAllocate, filterByAffinity) and topology_hints.go.
#include <algorithm>

#include "sim/kubelet/kubelet_impl.h"
#include "sim/kubelet/numa.h"

namespace gpulet::sim {
namespace {

tl::unexpected<Error> unexpected(const std::string& why) {
  return fail(Code::kFailedPrecondition,
              "UnexpectedAdmissionError: Allocate failed due to " + why + ", which is unexpected");
}

}  // namespace

std::shared_ptr<PluginClient> Kubelet::Impl::client_of(const std::string& resource) const {
  const auto it = clients.find(resource);
  return it == clients.end() ? nullptr : it->second;
}

std::set<std::string> Kubelet::Impl::free_devices(const std::string& resource) const {
  std::set<std::string> free;
  for (const auto& [id, device] : state.resources.at(resource).devices) {
    if (device.healthy) free.insert(id);
  }
  for (const auto& entry : entries) {
    if (entry.resource != resource) continue;
    for (const auto& [node, ids] : entry.devices) {
      for (const auto& id : ids) free.erase(id);
    }
  }
  return free;
}

Result<PodGrant> Kubelet::admit(PodRequest pod) {
  std::lock_guard admitting(impl_->admitting);
  if (pod.uid.empty()) pod.uid = pod.name_space + "/" + pod.name;
  {
    std::lock_guard lock(impl_->mutex);
    if (!impl_->state.running) return fail(Code::kUnavailable, "the kubelet does not run");
    if (const auto it = impl_->state.grants.find(pod.uid); it != impl_->state.grants.end()) return it->second;
  }
  Status status;
  for (const auto& container : pod.containers) {
    status = impl_->admit_container(pod, container);
    if (!status) break;
  }
  std::lock_guard lock(impl_->mutex);
  if (!status) {
    std::erase_if(impl_->entries, [&](const auto& entry) { return entry.pod_uid == pod.uid; });
    return fail(status.error());
  }
  impl_->state.pods[pod.uid] = pod;
  // What the calls gave is put together from the ledger, so that a restart says the same.
  impl_->rebuild_grant(pod);
  impl_->save_checkpoint();
  impl_->changed.notify_all();
  return impl_->state.grants.at(pod.uid);
}

Status Kubelet::remove(const std::string& uid) {
  std::lock_guard admitting(impl_->admitting);
  std::lock_guard lock(impl_->mutex);
  if (impl_->state.pods.erase(uid) == 0) return fail(Code::kNotFound, "no such Pod", uid);
  impl_->state.grants.erase(uid);
  std::erase_if(impl_->entries, [&](const auto& entry) { return entry.pod_uid == uid; });
  impl_->save_checkpoint();
  impl_->changed.notify_all();
  return {};
}

Status Kubelet::Impl::admit_container(const PodRequest& pod, const ContainerRequest& container) {
  NumaDecision decision;
  {
    std::lock_guard lock(mutex);
    std::vector<NumaDemand> demands;
    for (const auto& [name, count] : container.resources) {
      const auto it = state.resources.find(name);
      if (it == state.resources.end()) {
        return fail(Code::kFailedPrecondition, "OutOf" + name + ": Node didn't have enough resource: " + name +
                                                   ", requested: " + std::to_string(count) + ", used: 0, capacity: 0");
      }
      NumaDemand demand;
      demand.request = count;
      const auto free = free_devices(name);
      for (const auto& [id, device] : it->second.devices) {
        demand.all.push_back(device.numa_nodes);
        if (free.contains(id)) demand.available.push_back(device.numa_nodes);
      }
      demands.push_back(std::move(demand));
    }
    decision = decide(settings.topology, demands);
  }
  if (!decision.admit) {
    return fail(Code::kFailedPrecondition,
                "TopologyAffinityError: Resources cannot be allocated with Topology locality");
  }
  for (const auto& [name, count] : container.resources) {
    if (count > 0) GPULET_TRY(allocate(pod, container, name, count, decision.affinity));
  }
  return {};
}

// The devices to take, in the order of taking: aligned ones first, as the plugin prefers among them.
Result<std::vector<std::string>> Kubelet::Impl::choose(std::unique_lock<std::mutex>& lock, const std::string& resource,
                                                       std::size_t count,
                                                       const std::optional<std::set<int>>& affinity) {
  const auto known = state.resources.at(resource);
  if (known.allocatable() == 0) {
    return unexpected("no healthy devices present; cannot allocate unhealthy devices " + resource);
  }
  const auto free = free_devices(resource);
  if (free.size() < count) {
    return unexpected("requested number of devices unavailable for " + resource + ". Requested: " +
                      std::to_string(count) + ", Available: " + std::to_string(free.size()));
  }
  std::vector<std::string> aligned, unaligned, unknown, taken;
  for (const auto& id : free) {
    const auto& nodes = known.devices.at(id).numa_nodes;
    const bool inside = affinity && std::ranges::any_of(nodes, [&](int node) { return affinity->contains(node); });
    (inside ? aligned : nodes.empty() || !affinity ? unknown : unaligned).push_back(id);
  }
  const auto take_from = [&](const std::vector<std::string>& ids) {
    for (const auto& id : ids) {
      if (taken.size() < count && free.contains(id) && std::ranges::count(taken, id) == 0) taken.push_back(id);
    }
    return taken.size() == count;
  };
  const bool aligned_suffice = count < aligned.size();
  if (!aligned_suffice && take_from(aligned)) return taken;
  if (known.preferred_allocation_available) {
    const auto client = client_of(resource);
    const auto must = taken;
    const auto from = aligned_suffice ? aligned : std::vector<std::string>(free.begin(), free.end());
    lock.unlock();
    auto preferred = timed(*this, "GetPreferredAllocation", resource, [&]() -> Result<std::vector<std::string>> {
      if (!client) return fail(Code::kUnavailable, "no plugin");
      return client->preferred(from, must, count);
    });
    lock.lock();
    if (!preferred) {
      return unexpected("device plugin GetPreferredAllocation rpc failed with err: " + preferred.error().message());
    }
    std::erase_if(*preferred, [&](const auto& id) { return std::ranges::count(from, id) == 0; });
    if (take_from(*preferred)) return taken;
  }
  if (take_from(aligned) || take_from(unaligned) || take_from(unknown)) return taken;
  return unexpected("unexpectedly allocated less resources than required. Requested: " + std::to_string(count) +
                    ", Got: " + std::to_string(taken.size()));
}

Status Kubelet::Impl::allocate(const PodRequest& pod, const ContainerRequest& container, const std::string& resource,
                               std::size_t count, const std::optional<std::set<int>>& affinity) {
  std::unique_lock lock(mutex);
  GPULET_TRY_ASSIGN(const auto ids, choose(lock, resource, count, affinity));
  const auto client = client_of(resource);
  if (!client) return unexpected("unknown Device Plugin " + resource);
  const std::uint64_t life = state.starts;
  lock.unlock();
  auto response = timed(*this, "Allocate", resource, [&] { return client->allocate(ids); });
  lock.lock();
  if (!response) return unexpected(response.error().message());
  if (!state.running || state.starts != life) return fail(Code::kUnavailable, "the kubelet ended");
  CheckpointEntry entry{pod.uid, container.name, resource, {}, std::move(*response)};
  const auto& devices = state.resources.at(resource).devices;
  for (const auto& id : ids) {
    const auto it = devices.find(id);
    const bool known = it != devices.end() && !it->second.numa_nodes.empty();
    entry.devices[known ? *it->second.numa_nodes.begin() : -1].push_back(id);
  }
  entries.push_back(std::move(entry));
  return {};
}

}  // namespace gpulet::sim

// Admission and removal of Pods.
// Source: Kubernetes 1.36, devicemanager/manager.go (devicesToAllocate, filterByAffinity) and
// topology_hints.go.
#include "sim/kubelet/admission.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "sim/kubelet/kubelet_impl.h"

namespace gpulet::sim {
namespace {

tl::unexpected<Error> admission_error(const std::string& why) {
  return fail(Code::kFailedPrecondition,
              "UnexpectedAdmissionError: Allocate failed due to " + why + ", which is unexpected");
}

}  // namespace

std::shared_ptr<PluginClient> Kubelet::Impl::find_client(const std::string& resource) const {
  const auto it = clients.find(resource);
  return it == clients.end() ? nullptr : it->second;
}

std::set<std::string> Kubelet::Impl::free_devices(const std::string& resource) const {
  std::set<std::string> free;
  for (const auto& [id, device] : state.resources.at(resource).devices) {
    if (device.healthy) free.insert(id);
  }
  if (const auto it = allocated.find(resource); it != allocated.end()) {
    for (const auto& id : it->second) free.erase(id);
  }
  return free;
}

void Kubelet::Impl::update_allocated() {
  const auto is_gone = [this](const CheckpointEntry& entry) {
    return entry.pod_uid != admitted && !state.pods.contains(entry.pod_uid);
  };
  if (std::erase_if(entries, is_gone) > 0) rebuild_allocated();
}

void Kubelet::Impl::rebuild_allocated() {
  allocated.clear();
  for (const auto& entry : entries) {
    for (const auto& [node, ids] : entry.devices) allocated[entry.resource].insert(ids.begin(), ids.end());
  }
}

Result<PodGrant> Kubelet::admit_pod(PodRequest pod) {
  std::lock_guard admitting(impl_->admitting);
  if (pod.uid.empty()) pod.uid = pod.name_space + "/" + pod.name;
  {
    std::lock_guard lock(impl_->mutex);
    if (!impl_->state.running) return fail(Code::kUnavailable, "the kubelet does not run");
    if (const auto it = impl_->state.grants.find(pod.uid); it != impl_->state.grants.end()) return it->second;
    impl_->update_allocated();  // first, so that an earlier Pod of this uid holds nothing any more
    impl_->admitted = pod.uid;
  }
  Status status;
  for (const auto& container : pod.containers) {
    status = impl_->admit_container(pod, container);
    if (!status) break;
  }
  std::lock_guard lock(impl_->mutex);
  impl_->admitted.clear();
  if (!status) {
    std::erase_if(impl_->entries, [&](const auto& entry) { return entry.pod_uid == pod.uid; });
    impl_->rebuild_allocated();
    return fail(status.error());
  }
  impl_->state.pods[pod.uid] = pod;
  // Built from the entries, as after a restart.
  impl_->rebuild_grant(pod);
  impl_->save_checkpoint();
  impl_->changed.notify_all();
  return impl_->state.grants.at(pod.uid);
}

Status Kubelet::remove_pod(const std::string& uid) {
  std::lock_guard lock(impl_->mutex);
  if (impl_->state.pods.erase(uid) == 0) return fail(Code::kNotFound, "no such Pod", uid);
  impl_->state.grants.erase(uid);
  impl_->changed.notify_all();
  return {};
}

Status Kubelet::Impl::admit_container(const PodRequest& pod, const ContainerRequest& container) {
  NumaDecision decision;
  {
    std::lock_guard lock(mutex);
    update_allocated();
    std::vector<NumaDemand> demands;
    for (const auto& [name, count] : container.resources) {
      const auto it = state.resources.find(name);
      if (it == state.resources.end()) {
        return fail(Code::kFailedPrecondition,
                    "OutOf" + name + ": Node didn't have enough resource: " + name +
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
    decision = decide_numa_affinity(settings.topology, demands);
  }
  if (!decision.admit) {
    return fail(Code::kFailedPrecondition,
                "TopologyAffinityError: Resources cannot be allocated with Topology locality");
  }
  for (const auto& [name, count] : container.resources) {
    if (count > 0) GPULET_TRY(allocate_devices(pod, container, name, count, decision.affinity));
  }
  return {};
}

// The devices to allocate, in order: aligned ones first, among them the preferred ones.
Result<std::vector<std::string>> Kubelet::Impl::choose_devices(std::unique_lock<std::mutex>& lock,
                                                               const std::string& resource, std::size_t count,
                                                               const std::optional<std::set<int>>& affinity) {
  const auto known = state.resources.at(resource);
  if (known.allocatable() == 0) {
    return admission_error("no healthy devices present; cannot allocate unhealthy devices " + resource);
  }
  const auto free = free_devices(resource);
  if (free.size() < count) {
    return admission_error("requested number of devices unavailable for " + resource + ". Requested: " +
                           std::to_string(count) + ", Available: " + std::to_string(free.size()));
  }
  std::vector<std::string> aligned, unaligned, unknown, taken;
  for (const auto& id : free) {
    const auto& nodes = known.devices.at(id).numa_nodes;
    const bool inside =
        affinity && std::ranges::any_of(nodes, [&](int node) { return affinity->contains(node); });
    (inside ? aligned : nodes.empty() || !affinity ? unknown : unaligned).push_back(id);
  }
  const auto take_from = [&](const std::vector<std::string>& ids) {
    for (const auto& id : ids) {
      if (taken.size() < count && free.contains(id) && std::ranges::count(taken, id) == 0)
        taken.push_back(id);
    }
    return taken.size() == count;
  };
  const bool aligned_suffice = count < aligned.size();
  if (!aligned_suffice && take_from(aligned)) return taken;
  if (known.preferred_allocation_available) {
    const auto client = find_client(resource);
    const auto must = taken;
    const auto from = aligned_suffice ? aligned : std::vector<std::string>(free.begin(), free.end());
    lock.unlock();
    auto preferred =
        timed_call(*this, "GetPreferredAllocation", resource, [&]() -> Result<std::vector<std::string>> {
          if (!client) return fail(Code::kUnavailable, "no plugin");
          return client->get_preferred_allocation(from, must, count);
        });
    lock.lock();
    if (!preferred) {
      return admission_error("device plugin GetPreferredAllocation rpc failed with err: " +
                             preferred.error().message());
    }
    std::erase_if(*preferred, [&](const auto& id) { return std::ranges::count(from, id) == 0; });
    if (take_from(*preferred)) return taken;
  }
  if (take_from(aligned) || take_from(unaligned) || take_from(unknown)) return taken;
  return admission_error("unexpectedly allocated less resources than required. Requested: " +
                         std::to_string(count) + ", Got: " + std::to_string(taken.size()));
}

Status Kubelet::Impl::allocate_devices(const PodRequest& pod, const ContainerRequest& container,
                                       const std::string& resource, std::size_t count,
                                       const std::optional<std::set<int>>& affinity) {
  std::unique_lock lock(mutex);
  GPULET_TRY_ASSIGN(const auto ids, choose_devices(lock, resource, count, affinity));
  const auto client = find_client(resource);
  if (!client) return admission_error("unknown Device Plugin " + resource);
  const std::uint64_t life = state.starts;
  allocated[resource].insert(ids.begin(), ids.end());
  lock.unlock();
  auto response = timed_call(*this, "Allocate", resource, [&] { return client->call_allocate(ids); });
  if (settings.allocate_answered) settings.allocate_answered(ids);
  lock.lock();
  if (!response) return admission_error(response.error().message());
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

namespace {

using Mask = std::uint32_t;
struct Hint {
  std::optional<Mask> mask;  // none: any node
  bool preferred = false;
};

bool has_node_in_mask(const std::set<int>& nodes, Mask mask, const std::vector<int>& known) {
  return std::ranges::any_of(nodes, [&](int node) {
    const auto it = std::ranges::find(known, node);
    return it != known.end() && (mask >> (it - known.begin()) & 1u) != 0;
  });
}

std::size_t count_devices_in_mask(const std::vector<std::set<int>>& devices, Mask mask,
                                  const std::vector<int>& known) {
  const auto counts = [&](const auto& nodes) { return has_node_in_mask(nodes, mask, known); };
  return static_cast<std::size_t>(std::ranges::count_if(devices, counts));
}

std::vector<Hint> numa_hints(const NumaDemand& demand, const std::vector<int>& known) {
  if (std::ranges::all_of(demand.all, [](const auto& nodes) { return nodes.empty(); }))
    return {{std::nullopt, true}};
  std::vector<Hint> hints;
  int least = static_cast<int>(known.size());
  for (Mask mask = 1; mask < (Mask{1} << known.size()); ++mask) {
    if (count_devices_in_mask(demand.all, mask, known) >= demand.request)
      least = std::min(least, std::popcount(mask));
    if (count_devices_in_mask(demand.available, mask, known) >= demand.request)
      hints.push_back({mask, false});
  }
  for (auto& hint : hints) hint.preferred = std::popcount(*hint.mask) == least;
  return hints;
}

// Merges one hint per resource: preferred only if all hints are preferred and equal.
Hint merge_hints(const std::vector<Hint>& chosen, Mask every) {
  Hint merged{every, true};
  std::optional<Mask> first;
  for (const auto& hint : chosen) {
    merged.preferred &= hint.preferred;
    if (!hint.mask) continue;
    if (!first) first = hint.mask;
    if (*first != *hint.mask) merged.preferred = false;
    *merged.mask &= *hint.mask;
  }
  return merged;
}

bool is_better_hint(const Hint& a, const Hint& b) {
  if (a.preferred != b.preferred) return a.preferred;
  const int left = std::popcount(*a.mask), right = std::popcount(*b.mask);
  return left != right ? left < right : *a.mask < *b.mask;
}

}  // namespace

NumaDecision decide_numa_affinity(TopologyPolicy policy, const std::vector<NumaDemand>& demands) {
  if (policy == TopologyPolicy::kNone) return {};
  std::set<int> nodes;
  for (const auto& demand : demands) {
    for (const auto& device : demand.all) nodes.insert(device.begin(), device.end());
  }
  if (nodes.empty() || nodes.size() > kMaxNumaNodes) return {};
  const std::vector<int> known(nodes.begin(), nodes.end());
  const Mask every = (Mask{1} << known.size()) - 1;

  std::vector<std::vector<Hint>> hints;
  for (const auto& demand : demands) {
    auto own = numa_hints(demand, known);
    if (policy == TopologyPolicy::kSingleNumaNode) {
      std::erase_if(own, [](const Hint& hint) {
        return !hint.preferred || (hint.mask && std::popcount(*hint.mask) != 1);
      });
    }
    if (own.empty()) own.push_back({std::nullopt, false});
    hints.push_back(std::move(own));
  }
  Hint best{every, false};
  bool found = false;
  std::vector<Hint> chosen;
  const std::function<void(std::size_t)> combine = [&](std::size_t at) {
    if (at < hints.size()) {
      for (const auto& hint : hints[at]) {
        chosen.push_back(hint);
        combine(at + 1);
        chosen.pop_back();
      }
      return;
    }
    const Hint merged = merge_hints(chosen, every);
    if (*merged.mask == 0) return;
    if (!found || is_better_hint(merged, best)) best = merged;
    found = true;
  };
  combine(0);

  NumaDecision decision;
  decision.admit = policy == TopologyPolicy::kBestEffort || best.preferred;
  decision.affinity.emplace();
  for (std::size_t i = 0; i < known.size(); ++i) {
    if ((*best.mask >> i & 1u) != 0) decision.affinity->insert(known[i]);
  }
  return decision;
}

namespace {

using Json = nlohmann::ordered_json;

std::uint64_t checksum_of(const Json& data) { return fnv1a_32(data.dump()); }

}  // namespace

std::string write_checkpoint(const Checkpoint& checkpoint) {
  Json entries = Json::array();
  for (const auto& entry : checkpoint.entries) {
    Json devices = Json::object();
    for (const auto& [node, ids] : entry.devices) devices[std::to_string(node)] = ids;
    entries.push_back({{"PodUID", entry.pod_uid},
                       {"ContainerName", entry.container},
                       {"ResourceName", entry.resource},
                       {"DeviceIDs", std::move(devices)},
                       {"AllocResp", text::encode_base64(entry.allocate_response)}});
  }
  Json registered = Json::object();
  for (const auto& [resource, ids] : checkpoint.registered) registered[resource] = ids;
  Json data{{"PodDeviceEntries", std::move(entries)}, {"RegisteredDevices", std::move(registered)}};
  const std::uint64_t checksum = checksum_of(data);
  return Json{{"Data", std::move(data)}, {"Checksum", checksum}}.dump();
}

Result<Checkpoint> read_checkpoint(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    const Json& data = json.at("Data");
    if (json.at("Checksum").get<std::uint64_t>() != checksum_of(data)) {
      return fail(Code::kInvalidArgument, "the checkpoint's checksum is wrong");
    }
    Checkpoint checkpoint;
    for (const auto& entry : data.at("PodDeviceEntries")) {
      CheckpointEntry out{entry.at("PodUID"), entry.at("ContainerName"), entry.at("ResourceName"), {}, {}};
      for (const auto& [node, ids] : entry.at("DeviceIDs").items()) {
        const bool known = node != "-1";
        const auto number = known ? text::parse_unsigned(node) : std::optional<std::uint64_t>(0);
        if (!number) return fail(Code::kInvalidArgument, "the checkpoint has a NUMA node '" + node + "'");
        out.devices[known ? static_cast<std::int64_t>(*number) : -1] = ids.get<std::vector<std::string>>();
      }
      out.allocate_response = text::decode_base64(entry.at("AllocResp").get<std::string>());
      checkpoint.entries.push_back(std::move(out));
    }
    for (const auto& [resource, ids] : data.at("RegisteredDevices").items()) {
      checkpoint.registered[resource] = ids.get<std::vector<std::string>>();
    }
    return checkpoint;
  } catch (const nlohmann::json::exception& error) {
    return fail(Code::kInvalidArgument, std::string("not a checkpoint: ") + error.what());
  }
}

}  // namespace gpulet::sim

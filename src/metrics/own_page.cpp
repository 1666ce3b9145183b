#include "metrics/own_page.h"

#include <algorithm>
#include <vector>

namespace gpulet::metrics {
namespace {

using enum Exposition::Type;
using Named = std::vector<std::pair<std::string, std::string>>;

constexpr double kMillijoules = 1000;

Exposition::Labels labels(const Named& all) {
  std::vector<Exposition::Label> views;
  for (const auto& [name, value] : all) views.emplace_back(name, value);
  return Exposition::Labels(views);
}

Named with(Named all, const Named& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Named pod_labels(const PodName& pod) { return {{"namespace", pod.name_space}, {"pod", pod.name}}; }

double seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

Named labels_of(const inventory::Gpu& gpu) {
  return {{"gpu", std::to_string(gpu.index)},
          {"UUID", gpu.uuid.str()},
          {"device", "nvidia" + std::to_string(gpu.index)},
          {"modelName", gpu.model}};
}

Named labels_of(const inventory::Gpu& gpu, const inventory::MigDevice& mig) {
  Named all = with(labels_of(gpu), {{"GPU_I_PROFILE", instance_profile(mig.profile)},
                                    {"GPU_I_ID", std::to_string(mig.gpu_instance)}});
  const auto same = std::count_if(gpu.mig_devices.begin(), gpu.mig_devices.end(),
                                  [&](const auto& other) { return other.gpu_instance == mig.gpu_instance; });
  if (same > 1) all.emplace_back("GPU_C_ID", std::to_string(mig.compute_instance));
  return all;
}

class DevicesPage {
 public:
  DevicesPage(Exposition& page, const Holders& holders, const Uses& uses, const Accounts& accounts)
      : page_(page), holders_(holders), uses_(uses), accounts_(accounts) {}

  void add(const inventory::Snapshot& snapshot) {
    for (const auto& gpu : snapshot.gpus) {
      // Of a GPU in MIG mode its parts are used; energy is told of the GPU only.
      add_device(gpu.uuid, labels_of(gpu), true, !gpu.mig_enabled);
      for (const auto& mig : gpu.mig_devices) {
        const Named device = labels_of(gpu, mig);
        page_.add("gpulet_mig_instance", kGauge, "A MIG device and the memory slices that it lies on.",
                  labels(with(device, {{"start", std::to_string(mig.placement_start)},
                                       {"size", std::to_string(mig.placement_size)}})),
                  1);
        add_device(mig.uuid, device, false, true);
      }
    }
  }

 private:
  void add_device(const DeviceUuid& device, const Named& device_labels, bool energy, bool busy) {
    add_holders(device, device_labels);
    add_memory(device, device_labels);
    const auto found = accounts_.all().find(device);
    if (found == accounts_.all().end()) return;
    const auto charge = [&](const PodName& who, const Charge& what) {
      const auto all = labels(with(device_labels, pod_labels(who)));
      if (energy) {
        page_.add("gpulet_pod_gpu_energy_joules_total", kCounter,
                  "Energy that the device used, by the Pod that used it; without a Pod what is nobody's.",
                  all, static_cast<double>(what.millijoules) / kMillijoules);
      }
      if (busy) {
        page_.add(
            "gpulet_pod_gpu_busy_seconds_total", kCounter,
            "Time that the device was busy, by the Pod that it worked for; without a Pod what is nobody's.",
            all, seconds(what.busy));
      }
    };
    for (const auto& [pod, what] : found->second.pods) charge(pod, what);
    charge({}, found->second.nobody);
  }

  void add_holders(const DeviceUuid& device, const Named& device_labels) {
    const auto found = holders_.find(device);
    if (found == holders_.end()) return;
    for (const auto& holder : found->second) {
      for (const auto& held : holder.held) {
        const Named what = {{"resource", held.resource.str()}, {"share", held.share}};
        page_.add("gpulet_device_allocated", kGauge, "A container that holds the device, or a share of it.",
                  labels(with(with(with(device_labels, what), pod_labels(holder.pod)),
                              {{"container", held.container}})),
                  1);
      }
    }
  }

  void add_memory(const DeviceUuid& device, const Named& device_labels) {
    const auto found = uses_.devices.find(device);
    if (found == uses_.devices.end() || !found->second.known) return;
    const auto memory = [&](const PodName& who, Bytes bytes) {
      page_.add("gpulet_pod_gpu_memory_bytes", kGauge,
                "Memory of the device in use, by the Pod that uses it; without a Pod what is nobody's.",
                labels(with(device_labels, pod_labels(who))), bytes.value);
    };
    for (const auto& pod : found->second.pods) memory(pod.holder.pod, pod.memory);
    memory({}, found->second.rest_memory);
  }

  Exposition& page_;
  const Holders& holders_;
  const Uses& uses_;
  const Accounts& accounts_;
};

Named labels_of(const health::DeviceView& device, const inventory::Snapshot& snapshot) {
  const auto* gpu = snapshot.find(device.scope.gpu);
  if (gpu == nullptr)
    return {{"gpu", ""}, {"UUID", device.scope.gpu.str()}, {"device", ""}, {"modelName", ""}};
  for (const auto& mig : gpu->mig_devices) {
    if (mig.gpu_instance == device.scope.gpu_instance &&
        mig.compute_instance == device.scope.compute_instance)
      return labels_of(*gpu, mig);
  }
  return labels_of(*gpu);
}

// Since when it is not offered: since the first of the faults that withdraw it, or since it is in this state.
Time withdrawn_since(const health::Standing& standing) {
  Time since = standing.since;
  for (const auto& fault : standing.faults) {
    if (fault.effect >= health::Effect::kDrain) since = std::min(since, fault.opened);
  }
  return since;
}

}  // namespace

void add_devices(Exposition& page, const inventory::Snapshot& snapshot, const Holders& holders,
                 const Uses& uses, const Accounts& accounts) {
  DevicesPage(page, holders, uses, accounts).add(snapshot);
}

void add_health(Exposition& page, const health::View& view, const inventory::Snapshot& snapshot) {
  for (const auto& device : view.devices) {
    // A MIG device that is gone with its GPU has nothing to be known by.
    if (!device.scope.whole() && snapshot.find(device.scope.gpu) == nullptr) continue;
    const Named name = labels_of(device, snapshot);
    const auto& standing = device.standing;
    const bool offered = health::offered(standing.state);
    page.add("gpulet_device_state", kGauge, "The state that the device is in.",
             labels(with(name, {{"state", std::string(health::name(standing.state))}})), 1);
    page.add("gpulet_device_offered", kGauge, "Whether the device is offered to the kubelet.", labels(name),
             offered ? 1 : 0);
    page.add("gpulet_device_relapses", kGauge, "How often its GPU has failed again soon after its return.",
             labels(name), standing.relapses);
    std::map<std::string, std::uint64_t> classes;
    for (const auto& fault : standing.faults) ++classes[std::string(health::rule_of(fault.fault_class).name)];
    for (const auto& [fault_class, count] : classes) {
      page.add("gpulet_device_faults", kGauge, "Open faults of the device, by class.",
               labels(with(name, {{"class", fault_class}})), count);
    }
    if (offered) continue;
    page.add("gpulet_device_quarantine_seconds", kGauge, "For how long the device has not been offered.",
             labels(name), seconds(view.at.now - withdrawn_since(standing)));
  }
}

void add_agent(Exposition& page, const AgentNumbers& numbers) {
  const auto age = [&](std::string_view name, std::string_view help,
                       const std::optional<std::chrono::nanoseconds>& value) {
    if (value) page.add(name, kGauge, help, {}, seconds(*value));
  };
  page.add("gpulet_driver_calls_total", kCounter, "Calls into the driver.", {}, numbers.driver_calls);
  page.add("gpulet_driver_call_seconds_total", kCounter, "Time spent in the driver.", {},
           seconds(numbers.driver_time));
  page.add("gpulet_driver_calls_hanging", kGauge, "Calls into the driver that have not returned in time.", {},
           numbers.driver_hanging);
  age("gpulet_snapshot_age_seconds", "Age of what is known of the node's GPUs.", numbers.snapshot_age);
  age("gpulet_sample_age_seconds", "Time since a GPU last answered when the GPUs were sampled.",
      numbers.sample_age);
  age("gpulet_pod_resources_age_seconds", "Age of the kubelet's last answer on who holds what.",
      numbers.pod_resources_age);
  page.add("gpulet_pod_resources_errors_total", kCounter,
           "Questions on who holds what that the kubelet did not answer.", {}, numbers.pod_resources_errors);
  age("gpulet_pod_resources_seconds", "Time that the kubelet took for its last answer on who holds what.",
      numbers.pod_resources_time);
  page.add("gpulet_snapshot_generation", kGauge, "Counts what was read of the node's GPUs.", {},
           numbers.snapshot_generation);
  page.add("gpulet_pods_moved_total", kCounter,
           "Pods that the API server was asked to evict from a device with a fault.", {}, numbers.pods_moved);
  if (numbers.rights_missing)
    page.add("gpulet_rights_missing", kGauge,
             "Rights of the API server that the configuration needs and the agent has not.", {},
             *numbers.rights_missing);
  for (const auto& call : numbers.kubelet_calls) {
    const auto add = [&](const char* result, std::uint64_t count) {
      page.add("gpulet_kubelet_calls_total", kCounter, "What the kubelet asked of a resource.",
               {{"resource", call.resource}, {"call", call.call}, {"result", result}}, count);
    };
    add("answered", call.answered);
    add("refused", call.refused);
    page.add("gpulet_kubelet_call_seconds_total", kCounter, "Time until these were answered.",
             {{"resource", call.resource}, {"call", call.call}}, seconds(call.time));
  }
  for (const auto& [resource, score] : numbers.placement_scores) {
    page.add("gpulet_placement_score", kGauge, "Score of the last preferred allocation.",
             {{"resource", resource}}, static_cast<double>(score));
  }
}

}  // namespace gpulet::metrics

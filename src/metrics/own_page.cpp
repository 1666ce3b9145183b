#include "metrics/own_page.h"

#include <algorithm>
#include <string>
#include <vector>

namespace gpulet::metrics {
namespace {

using enum Exposition::Type;
using Named = std::vector<std::pair<std::string, std::string>>;

constexpr double kMilli = 1000;

Exposition::Labels labels(const Named& all) {
  std::vector<Exposition::Label> views;
  for (const auto& [name, value] : all) views.emplace_back(name, value);
  return Exposition::Labels(views);
}

Named with(Named all, const Named& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Who a charge is of: a Pod, Pods that have gone, nobody.
Named holder(const char* kind, const PodName& pod = {}) {
  return {{"holder", kind}, {"namespace", pod.name_space}, {"pod", pod.name}};
}

class Page {
 public:
  Page(Exposition& page, const OwnPage& own) : page_(page), own_(own) {}

  void add() {
    for (const auto& gpu : own_.snapshot.gpus) {
      const Named gpu_labels = {{"gpu", std::to_string(gpu.index)}, {"UUID", gpu.uuid.str()}};
      add_gpu(gpu, gpu_labels);
      // Of a GPU in MIG mode its parts are busy; energy is told of the GPU only.
      add_device(gpu.uuid, gpu_labels, true, !gpu.mig_enabled);
      for (const auto& mig : gpu.mig_devices) {
        const Named device = with(gpu_labels, {{"mig", mig.uuid.str()}, {"profile", mig.profile}});
        page_.add("gpulet_mig_device_info", kGauge, "A MIG device, and the memory slices that it lies on.",
                  labels(with(device, {{"gpu_instance", std::to_string(mig.gpu_instance)},
                                       {"compute_instance", std::to_string(mig.compute_instance)},
                                       {"start", std::to_string(mig.placement_start)},
                                       {"size", std::to_string(mig.placement_size)}})),
                  1);
        add_device(mig.uuid, device, false, true);
      }
    }
  }

 private:
  void add_gpu(const inventory::Gpu& gpu, const Named& gpu_labels) {
    const auto sampled = std::find_if(own_.sample.gpus.begin(), own_.sample.gpus.end(),
                                      [&](const GpuSample& one) { return one.uuid == gpu.uuid; });
    page_.add("gpulet_gpu_up", kGauge, "Whether the driver answers for the GPU.", labels(gpu_labels),
              sampled != own_.sample.gpus.end() && !sampled->failed ? 1 : 0);
  }

  void add_device(const DeviceUuid& device, const Named& device_labels, bool energy, bool busy) {
    add_holders(device, device_labels);
    add_use(device, device_labels);
    add_account(device, device_labels, energy, busy);
  }

  void add_holders(const DeviceUuid& device, const Named& device_labels) {
    const auto found = own_.holders.find(device);
    if (found == own_.holders.end()) return;
    for (const auto& one : found->second) {
      const auto held = [&](const std::string& share) {
        page_.add("gpulet_device_held", kGauge, "A Pod that holds the device, or one share of it.",
                  labels(with(device_labels,
                              {{"share", share}, {"namespace", one.pod.name_space}, {"pod", one.pod.name}})),
                  1);
      };
      if (one.shares.empty()) held("");
      for (const auto& share : one.shares) held(share);
    }
  }

  void add_use(const DeviceUuid& device, const Named& device_labels) {
    const auto found = own_.uses.devices.find(device);
    if (found == own_.uses.devices.end() || !found->second.known) return;
    const auto& shares = found->second;
    const auto memory = [&](const Named& who, Bytes bytes) {
      page_.add("gpulet_memory_used_bytes", kGauge, "Memory of the device in use, by who uses it.",
                labels(with(device_labels, who)), bytes.value);
    };
    for (const auto& pod : shares.pods) memory(holder("pod", pod.holder.pod), pod.memory);
    memory(holder("none"), shares.rest_memory);
  }

  void add_account(const DeviceUuid& device, const Named& device_labels, bool energy, bool busy) {
    const auto found = own_.accounts.all().find(device);
    if (found == own_.accounts.all().end()) return;
    const auto charge = [&](const Named& who, const Charge& what) {
      const auto all = labels(with(device_labels, who));
      if (energy) {
        page_.add("gpulet_energy_joules_total", kCounter, "Energy that the device used, by who used it.", all,
                  static_cast<double>(what.millijoules) / kMilli);
      }
      if (busy) {
        page_.add("gpulet_busy_seconds_total", kCounter, "Time that the device was busy, by who used it.",
                  all, std::chrono::duration<double>(what.busy).count());
      }
    };
    for (const auto& [pod, what] : found->second.pods) charge(holder("pod", pod), what);
    charge(holder("former"), found->second.former);
    charge(holder("none"), found->second.nobody);
  }

  Exposition& page_;
  const OwnPage& own_;
};

}  // namespace

void add_own(Exposition& page, const OwnPage& own) { Page(page, own).add(); }

}  // namespace gpulet::metrics

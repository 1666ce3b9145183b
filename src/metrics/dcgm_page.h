// Renders a sample as dcgm-exporter does, with DCGM's names and labels, so that its dashboards and alerts
// work.
//
// Order of labels: gpu, UUID, pci_bus_id, device, modelName, of a GPU instance GPU_I_PROFILE and GPU_I_ID,
// hostname; then counters of type label and the Pod's labels, by name; then container, namespace, pod,
// pod_uid, vgpu and the metric's own labels (err_code, err_msg, xid_description), by name.
//
// A GPU in MIG mode has a series per GPU instance, with the GPU's value where the instance has none, subject
// to the DeviceFilter. If one Pod holds a device, each series has its labels. If several do, FB_USED,
// GPU_UTIL and GR_ENGINE_ACTIVE have one series per Pod and one for the rest, which add up to the device;
// other metrics have one series without a Pod. GR_ENGINE_ACTIVE, by which OpenCost tells usage, is divided as
// the GPU's busy time. A GPU that did not answer is absent. Source: dcgm-exporter, rendermetrics and
// transformation; docs/metrics.md lists the differences.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "metrics/attribution.h"
#include "metrics/counters.h"
#include "metrics/exposition.h"
#include "metrics/fields.h"

namespace gpulet::metrics {

// No label, "hostname" as on the main branch of dcgm-exporter, "Hostname" as in all of its releases: public
// dashboards and alerts use the latter. Source: facts/monitoring-and-cdi 1.
enum class HostLabel { kNone, kLower, kUpper };

struct PageOptions {
  HostLabel host_label = HostLabel::kUpper;
  std::string hostname;
  bool old_namespace = false;   // uuid, pod_name, pod_namespace, container_name
  bool replace_blanks = false;  // in the model's name, by dashes
  // Repeat the series of a device that several Pods hold for each Pod and share.
  bool virtual_gpus = false;
  DeviceFilter device_filter{};
};

// Further labels of a Pod; empty if not configured or not known.
struct PodDetails {
  std::string uid;
  std::vector<std::pair<std::string, std::string>> labels;  // valid Prometheus names, sorted
};

// The Pods that use the devices of a sample.
struct Attribution {
  std::map<DeviceUuid, PodShares> devices;  // of GPUs and MIG devices; absent: no holder
  std::map<PodName, PodDetails> pods;
};

void add_dcgm_metrics(Exposition& page, const Sample& sample, const Counters& counters,
                      const Attribution& uses, const PageOptions& options);

}  // namespace gpulet::metrics

// A sample as dcgm-exporter would show it: DCGM's names and labels, so that dashboards and alerts made for it
// work.
//
// Labels, in their order: gpu, UUID, pci_bus_id, device, modelName, of a GPU instance GPU_I_PROFILE and
// GPU_I_ID, hostname; then counters of type label and the Pod's own labels, by name; then container,
// namespace, pod, pod_uid, vgpu and what is the metric's own (err_code, err_msg), by name.
//
// A GPU in MIG mode is shown as its GPU instances, each with the GPU's values where it has none of its own,
// unless Shown says otherwise.
// Of a device that one Pod holds, each series has that Pod's labels. Of one that several hold, FB_USED and
// GPU_UTIL have one series for each Pod with its own share and one without a
// Pod for the rest, which add up to the device; all else has one series without a Pod. A GPU that did not
// answer is not on the page.
// Source: dcgm-exporter, rendermetrics and transformation; docs/metrics.md has the
// differences.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "metrics/attribution.h"
#include "metrics/counters.h"
#include "metrics/exposition.h"
#include "metrics/sample.h"
#include "metrics/shown.h"

namespace gpulet::metrics {

enum class HostLabel { kNone, kLower, kUpper };  // "hostname" as now, "Hostname" as before

struct PageOptions {
  HostLabel host_label = HostLabel::kLower;
  std::string hostname;
  bool old_namespace = false;   // uuid, pod_name, pod_namespace, container_name
  bool replace_blanks = false;  // in the model's name, by dashes
  // What belongs to a device that several Pods hold is shown for each of them, once for each share.
  bool virtual_gpus = false;
  Shown shown{};
};

// What is said of a Pod beside its name: empty where it is not wanted or not known.
struct PodFacts {
  std::string uid;
  std::vector<std::pair<std::string, std::string>> labels;  // names as Prometheus takes them, sorted
};

// Who uses the devices of a sample.
struct Uses {
  std::map<DeviceUuid, Shares> devices;  // of GPUs and MIG devices; none: nobody holds it
  std::map<PodName, PodFacts> pods;
};

void add_dcgm(Exposition& page, const Sample& sample, const Counters& counters, const Uses& uses,
              const PageOptions& options);

}  // namespace gpulet::metrics

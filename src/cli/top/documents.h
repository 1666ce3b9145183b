// The agent's documents as `gpulet top` reads them: /api/node, /api/now, /api/use and /api/history
// (agent/observe/page_json.h), as plain values. Pure.
//
// The sender is not trusted: invalid JSON is refused, fields of an unexpected type are left out, and each
// byte of a text that is not printable ASCII becomes '?'.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace gpulet::cli {

// Of a GPU or MIG device; absent if unknown. Bytes, percent, °C, W, MHz, bytes per second, errors. Rates and
// errors are never negative.
struct TopMetrics {
  std::optional<double> util, sm, memory_util, memory, temperature, power, power_limit, sm_clock,
      memory_clock, pcie_rx, pcie_tx, nvlink_rx, nvlink_tx, nvlink, ecc_corrected, ecc_uncorrected;
};
// Both directions, in bytes per second; nullopt if unknown.
std::optional<double> pcie_total(const TopMetrics& now);
std::optional<double> nvlink_total(const TopMetrics& now);

struct TopDevice {
  std::string index;  // "3", of a MIG device "3:1"
  std::string uuid;
  std::string name;  // the model; of a MIG device profile and placement: "3g.40gb @4+4"
  std::string state, reason;
  std::string excluded{};              // of a GPU: "is excluded by the rule at x.yaml:3:5"; empty: it is not
  std::optional<double> memory_total;  // bytes
  TopMetrics now;
  std::vector<std::string> pods;  // "namespace/pod" of its users, sorted
};
struct TopGpu : TopDevice {
  bool mig = false;               // MIG mode
  std::vector<TopDevice> slices;  // MIG devices, by index
};

using TopPodName = std::pair<std::string, std::string>;  // namespace, name
struct TopHolder {
  std::string uuid;  // of the device
  TopPodName pod;
  std::string container;
  bool share = false;  // a share of the device, not all of it
};
struct TopNode {
  std::string name, driver, cuda;
  std::vector<std::string> problems;
  std::vector<std::string> claims;  // what waits: "claim team/a is not prepared: …", "GPU 3 is offered by …"
  std::vector<TopGpu> gpus;         // in the node's order, without metrics and Pods
  std::vector<TopHolder> holders;
  // The grade of memory limits, then those of containers that have a lower one: "memory limit of container
  // main of Pod team/a: none (…)". Empty where the node wants no limits.
  std::vector<std::string> limits;
};
struct TopSample {
  std::int64_t at = 0;                          // milliseconds since 1970
  std::map<std::string, TopMetrics> gpus, mig;  // by UUID
};
struct TopConsumption {
  std::optional<double> memory, busy;  // bytes, percent of the device's time
};
struct TopProcess {
  std::uint64_t pid = 0;
  std::string uuid, name;  // the device, the program
  std::optional<TopPodName> pod;
  TopConsumption used;
};
struct TopUsage {
  std::map<std::pair<std::string, TopPodName>, TopConsumption> pods;  // by device and Pod
  std::vector<TopProcess> processes;                                  // by device, pid
};

// Errors: kInvalidArgument about the document, if it is a different document.
Result<TopNode> parse_top_node(std::string_view text);
Result<TopSample> parse_top_sample(std::string_view text);
Result<TopUsage> parse_top_usage(std::string_view text);
// Oldest first, without invalid samples.
Result<std::vector<TopSample>> parse_top_history(std::string_view text);

}  // namespace gpulet::cli

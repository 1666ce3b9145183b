// The agent's documents as `gpulet top` reads them: /api/node, /api/now, /api/use and /api/history
// (agent/node_page.h), as plain values. Pure.
//
// They come from a process that is not trusted: what is no JSON is refused, what is not of the form is left
// out, and every text is printable ASCII here, '?' for each byte that is not.
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

// Numbers of a GPU or MIG device; what is not known is not there. Bytes, percent, °C, W, MHz.
struct TopNumbers {
  std::optional<double> util, sm, memory_util, memory, temperature, power, power_limit, sm_clock,
      memory_clock;
};

struct TopDevice {
  std::string index;  // "3", of a MIG device "3:1"
  std::string uuid;
  std::string name;  // the model; of a MIG device its profile and where it lies: "3g.40gb @4+4"
  std::string state, reason;
  std::optional<double> memory_total;  // bytes
  TopNumbers now;
  std::vector<std::string> pods;  // "namespace/pod" of those that hold it, sorted
};
struct TopGpu : TopDevice {
  bool mig = false;               // its mode
  std::vector<TopDevice> slices;  // MIG devices, by index
};

using TopPodName = std::pair<std::string, std::string>;  // namespace, name
struct TopHolder {
  std::string uuid;  // of the device
  TopPodName pod;
  std::string container;
  bool share = false;  // of a device, not all of it
};
struct TopNode {
  std::string name, driver, cuda;
  std::vector<std::string> problems;
  std::vector<TopGpu> gpus;  // in the node's order, without numbers and Pods
  std::vector<TopHolder> holders;
};
struct TopNow {
  std::int64_t at = 0;                          // milliseconds since 1970
  std::map<std::string, TopNumbers> gpus, mig;  // by UUID
};
struct TopUsed {
  std::optional<double> memory, busy;  // bytes, percent of the device's time
};
struct TopUser {
  std::uint64_t pid = 0;
  std::string uuid, name;  // the device, the program
  std::optional<TopPodName> pod;
  TopUsed used;
};
struct TopUse {
  std::map<std::pair<std::string, TopPodName>, TopUsed> pods;  // by device and Pod
  std::vector<TopUser> processes;                              // by device, pid
};

// Errors: kInvalidArgument, about the document, for what is no such document at all.
Result<TopNode> parse_top_node(std::string_view text);
Result<TopNow> parse_top_now(std::string_view text);
Result<TopUse> parse_top_use(std::string_view text);
// Oldest first. Samples that are none are left out.
Result<std::vector<TopNow>> parse_top_history(std::string_view text);

}  // namespace gpulet::cli

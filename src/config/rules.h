// `gpulet.partition`: how each GPU of a node is offered, by a list of rules. The first rule that selects a
// GPU decides; one that none selects follows `flags` and `sharing`. Plain values; partition/rules.h applies
// them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/strong.h"

namespace gpulet::config {

enum class MigStrategy { kNone, kSingle, kMixed };

struct AllDevices {
  friend bool operator==(const AllDevices&, const AllDevices&) = default;
};
struct DeviceCount {
  unsigned count = 0;
  friend bool operator==(const DeviceCount&, const DeviceCount&) = default;
};

// "3", "0-3" or "GPU-…": GPUs by the driver's index, or one by its UUID.
struct GpuRef {
  unsigned first = 0, last = 0;
  DeviceUuid uuid;  // set: this one alone counts
  std::string text() const {
    if (!uuid.empty()) return uuid.str();
    return std::to_string(first) + (last != first ? "-" + std::to_string(last) : "");
  }
  friend bool operator==(const GpuRef&, const GpuRef&) = default;
};
using GpuRefs = std::vector<GpuRef>;
// All that no earlier rule took and that the rule's other conditions let through, the first so many of them,
// or these.
using GpuSelection = std::variant<AllDevices, DeviceCount, GpuRefs>;

// The rule's node label: present, or present with this value.
struct NodeLabel {
  std::string key;
  std::optional<std::string> value;
  friend bool operator==(const NodeLabel&, const NodeLabel&) = default;
};

// One GPU, one device. Named as `resources.gpus` names it unless `name` is set; "<that>" below.
struct Whole {
  std::optional<ResourceName> name;
  friend bool operator==(const Whole&, const Whole&) = default;
};

// Every GPU as `replicas` shares. Named <that>.shared unless `name` is set.
struct TimeSlicing {
  std::optional<ResourceName> name;
  unsigned replicas = 0;
  bool fail_requests_greater_than_one = false;
  friend bool operator==(const TimeSlicing&, const TimeSlicing&) = default;
};

// What one share may have of its GPU, in percent.
struct MpsShare {
  unsigned memory = 0, threads = 0;
  friend auto operator<=>(const MpsShare&, const MpsShare&) = default;
};
struct NamedMpsShare {
  MpsShare size;
  std::optional<ResourceName> name;
  friend bool operator==(const NamedMpsShare&, const NamedMpsShare&) = default;
};

// Exactly one of `replicas` (equal shares, limited as NVIDIA limits them: all memory and threads divided by
// it) and `shares`. Shares of one size are one resource, <that>.shared unless `name` is set. Shares of
// several sizes are one resource a size: the share's own name, or `name` (<that>.mps unless set) and
// "-<memory>", with "-<threads>" behind it where that differs.
struct Mps {
  std::optional<ResourceName> name;
  unsigned replicas = 0;
  std::vector<NamedMpsShare> shares;
  bool fail_requests_greater_than_one = true;
  friend bool operator==(const Mps&, const Mps&) = default;
};

inline constexpr std::string_view kMpsSuffix = ".mps";
// Whether all shares have one size, and so are one resource.
inline bool equal_shares(const Mps& mps) {
  for (const auto& share : mps.shares) {
    if (share.size != mps.shares.front().size) return false;
  }
  return true;
}
// "-60", or "-60-30" where threads differ from memory.
inline std::string share_suffix(const MpsShare& size) {
  return "-" + std::to_string(size.memory) +
         (size.threads == size.memory ? "" : "-" + std::to_string(size.threads));
}

// Exactly one of `layout` (a name of the layout file, or a derived one) and `devices` (count by profile).
// Named as the strategy names MIG devices (single: nvidia.com/gpu; mixed: mig-<profile>; `resources.mig`
// first) unless `name` is set.
struct Mig {
  std::optional<ResourceName> name;
  std::string layout;
  std::map<std::string, unsigned> devices;
  MigStrategy strategy = MigStrategy::kMixed;  // never none
  friend bool operator==(const Mig&, const Mig&) = default;
};

struct PartitionRule {
  GpuSelection devices = AllDevices{};
  std::optional<std::string> model;  // a pattern as resources.gpus[].pattern
  std::optional<NodeLabel> node_label;
  std::variant<Whole, TimeSlicing, Mps, Mig> how;
  std::string place;  // "file:line:column"; for notes, and no part of what the rule says
  friend bool operator==(const PartitionRule& a, const PartitionRule& b) {
    return a.devices == b.devices && a.model == b.model && a.node_label == b.node_label && a.how == b.how;
  }
};

// `gpulet.mig`.
struct MigSettings {
  bool manage = true;       // false by default when called by NVIDIA's name: its MIG manager may be there
  std::string config_file;  // mig-parted's; empty: layouts are derived from what the hardware says
  std::string hooks_file;   // mig-parted's; empty: none
  bool drain = false;       // evict Pods that hold what must go, or a GPU whose mode must change
  friend bool operator==(const MigSettings&, const MigSettings&) = default;
};

// `gpulet.mps`.
struct MpsSettings {
  bool manage = true;  // run the control daemons here; false by default when called by NVIDIA's name
  friend bool operator==(const MpsSettings&, const MpsSettings&) = default;
};

// `gpulet.cdi`.
struct CdiSettings {
  std::string spec_dir = "/var/run/cdi";  // where specs are written, for Allocate by a cdi-* strategy
  // A host folder, seen here by the same path, where the agent puts gpulet-hook, which specs then name
  // instead of flags.plugin.nvidiaCTKPath; empty: nothing is put anywhere.
  std::string hook_dir;
  friend bool operator==(const CdiSettings&, const CdiSettings&) = default;
};

// Which file of a folder is this node's config, by a label of the node; from flags and environment alone,
// since it chooses the file. Names are those of NVIDIA's config-manager.
enum class FallbackStrategy { kNamed, kSingle, kEmpty };
struct NodeConfig {
  std::string folder;  // --config-file-srcdir; empty: no node's own config
  std::string label = "nvidia.com/device-plugin.config";
  std::string default_config;               // a name in the folder, for a node without the label
  std::vector<FallbackStrategy> fallbacks;  // in this order, where there is neither label nor default
  friend bool operator==(const NodeConfig&, const NodeConfig&) = default;
};

}  // namespace gpulet::config

// A CDI document as plain values: what a container engine adds to a container for each device.
// Fields and their order are those of CDI's own types (cncf-tags/container-device-interface,
// specs-go, 1.1.0). An empty text, list or option is not written.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpulet::cdi {

struct NodeEdit {
  std::string path;
  std::string host_path = {};  // only if it differs from `path`; 0.5.0
  std::string type = {};       // "b", "c", "u" or "p"
  std::int64_t major = 0;      // 0: not written, the engine reads the host's node
  std::int64_t minor = 0;
  std::optional<std::uint32_t> file_mode = {};
  std::string permissions = {};  // of "rwm", or "none"
  std::optional<std::uint32_t> uid = {}, gid = {};
  friend auto operator<=>(const NodeEdit&, const NodeEdit&) = default;
};

struct MountEdit {
  std::string host_path;
  std::string container_path;
  std::vector<std::string> options = {};
  std::string type = {};  // 0.4.0
  friend auto operator<=>(const MountEdit&, const MountEdit&) = default;
};

struct HookEdit {
  std::string hook_name;  // "createContainer"
  std::string path;
  std::vector<std::string> args = {};
  // Never empty in what gpulet writes: a hook without one inherits the image's.
  std::vector<std::string> env = {};
  std::optional<std::int64_t> timeout = {};
  friend auto operator<=>(const HookEdit&, const HookEdit&) = default;
};

struct NetDeviceEdit {  // 1.1.0
  std::string host_interface_name;
  std::string name;
  friend auto operator<=>(const NetDeviceEdit&, const NetDeviceEdit&) = default;
};

struct IntelRdt {  // 0.7.0
  std::string clos_id = {};
  std::string l3_cache_schema = {};
  std::string mem_bw_schema = {};
  bool enable_cmt = false, enable_mbm = false;  // up to 1.0.0
  std::vector<std::string> schemata = {};       // 1.1.0
  bool enable_monitoring = false;               // 1.1.0
  friend auto operator<=>(const IntelRdt&, const IntelRdt&) = default;
};

struct ContainerEdits {
  std::vector<std::string> env = {};
  std::vector<NodeEdit> device_nodes = {};
  std::vector<NetDeviceEdit> net_devices = {};
  std::vector<HookEdit> hooks = {};
  std::vector<MountEdit> mounts = {};
  std::optional<IntelRdt> intel_rdt = {};
  std::vector<std::uint32_t> additional_gids = {};  // 0.7.0
  bool empty() const { return *this == ContainerEdits{}; }
  friend bool operator==(const ContainerEdits&, const ContainerEdits&) = default;
};

using Annotations = std::map<std::string, std::string>;  // 0.6.0

struct Device {
  std::string name;
  Annotations annotations = {};
  ContainerEdits edits = {};
  friend bool operator==(const Device&, const Device&) = default;
};

struct Spec {
  std::string version;  // "0.5.0"
  std::string kind;     // "nvidia.com/gpu"
  Annotations annotations = {};
  std::vector<Device> devices = {};
  ContainerEdits edits = {};  // for every container with a device of this document
  friend bool operator==(const Spec&, const Spec&) = default;
};

// Every version of the CDI, ascending.
const std::vector<std::string>& known_versions();
// The index of `version` in known_versions(); nullopt for an unknown one.
std::optional<std::size_t> version_rank(std::string_view version);
// The lowest version that has everything in the document: 0.3.0, or 0.4.0 for a mount type, 0.5.0
// for a host path or a name that begins with a digit, 0.6.0 for annotations or a dot in the class,
// 0.7.0 for additional groups or RDT, 1.1.0 for net devices or RDT's schemata. Ignores
// `spec.version`.
std::string minimum_version(const Spec& spec);

// Appends `more` to `edits`, as CDI does.
void append_edits(ContainerEdits& edits, const ContainerEdits& more);

// Sorts as NVIDIA does and removes duplicates: devices by name, nodes and mounts by the depth of
// their path and then by the path, groups ascending; environment and hooks keep their order.
// Removes from the devices what the document's own edits have, except from a device that would be
// left empty. Sets the version.
void canonicalize_spec(Spec& spec);

// The document's bytes: the same for equal values, with a newline at the end. YAML begins with
// "---" and indents by four; JSON is one line. Source: nvidia-ctk 1.19, whose output Go's encoders
// make.
std::string to_json(const Spec& spec);
std::string to_yaml(const Spec& spec);

}  // namespace gpulet::cdi

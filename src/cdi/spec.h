// A CDI document as plain values: what a container engine is to add to a container for each device. Fields
// and their order are those of the CDI's own types (cncf-tags/container-device-interface, specs-go, 1.1.0);
// an empty text, list or option is a field that is not written.
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
  std::string host_path = {};  // only where it is not `path`; 0.5.0
  std::string type = {};       // "b", "c", "u" or "p"
  std::int64_t major = 0;      // 0: not written, the engine looks at the host's node
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
  // Never empty in what we write: a hook without one inherits the image's.
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
  bool enable_cmt = false, enable_mbm = false;  // until 1.0.0
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

// Every version that there has been, ascending.
const std::vector<std::string>& known_versions();
// The place of `version` in known_versions(); nullopt for another one.
std::optional<std::size_t> version_rank(std::string_view version);
// The lowest version that has all that the document uses: 0.3.0, or 0.4.0 for a mount's type, 0.5.0 for a
// host path or a name that begins with a digit, 0.6.0 for annotations or a dot in the class, 0.7.0 for
// additional groups or RDT, 1.1.0 for net devices or RDT's schemata. `spec.version` is not looked at.
std::string minimum_version(const Spec& spec);

// `more` behind what is in `edits`, as CDI does it.
void append(ContainerEdits& edits, const ContainerEdits& more);

// NVIDIA's order, and each thing once: devices by name, nodes and mounts by the depth of their path and then
// by the path, groups ascending; environment and hooks stay as they were found. What is in the document's own
// edits is taken from its devices', except from one that would be left with none. Sets the version.
void put_in_order(Spec& spec);

// The document's bytes: the same for equal values, with a newline at the end. YAML begins with "---" and is
// indented by four; JSON is on one line. Source: the forms of nvidia-ctk 1.19, which Go's encoders make.
std::string to_json(const Spec& spec);
std::string to_yaml(const Spec& spec);

}  // namespace gpulet::cdi

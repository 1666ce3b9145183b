// A CDI document as plain values: what a container engine adds to a container for each device.
// Fields and their order are those of CDI's own types (cncf-tags/container-device-interface,
// specs-go, 1.1.0). An empty text, list or option is not written. The parser is in spec_parser.cpp.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "config/yaml.h"

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

// Parses CDI documents strictly and reports every problem with line and field. The rules are those
// of CDI's schema (schema.json, defs.json) and Go library, which every engine uses: names, kinds,
// versions and what each needs, types of all fields, no unknown fields.

// The characters of a CDI name: "nvidia.com/gpu=0" is vendor/class=device. Source: CDI's parser.go.
// Vendor and class: letters, digits, '_', '-' and '.'; a letter first, and a letter or digit last. Errors:
// kInvalidArgument.
Status check_vendor(std::string_view vendor);
Status check_class(std::string_view device_class);
// Device: letters, digits, '_', '-', '.' and ':'; a letter or digit first and last. Errors: kInvalidArgument.
Status check_device_name(std::string_view name);

// "nvidia.com/gpu=0".
std::string qualified_name(std::string_view kind, std::string_view device);

struct SpecProblem {
  std::string file;
  config::yaml::Position position;  // line 0: the whole file
  std::string field;                // "devices[0].containerEdits.deviceNodes[1].path"
  std::string message;
  // "nvidia.yaml:12:7: devices[0].name: …".
  std::string problem_text() const;
};

struct ReadSpec {
  std::optional<Spec> spec;  // if there is no problem
  std::vector<SpecProblem> problems;
};

// JSON or YAML, at most config::yaml::kMaxTextBytes.
ReadSpec read_spec(std::string_view text, const std::string& file);

// Rewrites the paths of a document for another root, like nvidia-ctk's `cdi transform root` and its
// library (nvcdi/transform/root), whose rules these are.

// Which paths change: the host's files, or what the container sees.
enum class PathSide { kHost, kContainer };
// "host" or "container". Errors: kInvalidArgument.
Result<PathSide> parse_path_side(std::string_view text);

// Replaces the directory `from` by `to` in every path of that side that is `from` or below it
// ("/run/driver2" is not below "/run/driver"). Host: mounts, nodes (which get a host path if it now
// differs), programs of hooks, and arguments of hooks that run outside the container. Container:
// mounts, nodes, arguments of hooks inside. A hook's ldconfig is the host's wherever the hook runs.
// Raises the version if the document needs it. Errors: kInvalidArgument if `from` or `to` is not
// absolute.
Status transform_root(Spec& spec, const std::string& from, const std::string& to, PathSide side);

}  // namespace gpulet::cdi

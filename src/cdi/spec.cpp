#include "cdi/spec.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "base/yaml_writer.h"
#include "cdi/root.h"

namespace gpulet::cdi {
namespace {

bool any_edits(const Spec& spec, const std::function<bool(const ContainerEdits&)>& holds) {
  return holds(spec.edits) ||
         std::ranges::any_of(spec.devices, [&](const Device& device) { return holds(device.edits); });
}

bool needs_0_4(const Spec& spec) {
  return any_edits(spec, [](const ContainerEdits& edits) {
    return std::ranges::any_of(edits.mounts, [](const MountEdit& mount) { return !mount.type.empty(); });
  });
}

bool needs_0_5(const Spec& spec) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  return std::ranges::any_of(
             spec.devices,
             [&](const Device& device) { return !device.name.empty() && !is_letter(device.name.front()); }) ||
         any_edits(spec, [](const ContainerEdits& edits) {
           return std::ranges::any_of(edits.device_nodes,
                                      [](const NodeEdit& node) { return !node.host_path.empty(); });
         });
}

bool needs_0_6(const Spec& spec) {
  const auto slash = spec.kind.find('/');
  return !spec.annotations.empty() || std::ranges::any_of(spec.devices, [](const Device& device) {
    return !device.annotations.empty();
  }) || (slash != std::string::npos && slash > 0 && spec.kind.find('.', slash) != std::string::npos);
}

bool needs_0_7(const Spec& spec) {
  return any_edits(spec, [](const ContainerEdits& edits) {
    return edits.intel_rdt.has_value() || !edits.additional_gids.empty();
  });
}

bool needs_1_1(const Spec& spec) {
  return any_edits(spec, [](const ContainerEdits& edits) {
    return !edits.net_devices.empty() ||
           (edits.intel_rdt && (!edits.intel_rdt->schemata.empty() || edits.intel_rdt->enable_monitoring));
  });
}

// Keeps the first of equal items in its place.
template <class T>
void drop_repeated(std::vector<T>& values) {
  std::vector<T> kept;
  kept.reserve(values.size());
  for (auto& value : values) {
    if (std::ranges::find(kept, value) == kept.end()) kept.push_back(std::move(value));
  }
  values = std::move(kept);
}

template <class T>
void sort_and_drop_repeated(std::vector<T>& values) {
  std::ranges::sort(values);
  values.erase(std::ranges::unique(values).begin(), values.end());
}

auto depth(const std::string& path) { return std::ranges::count(normalize_path(path), '/'); }

// Sorts by depth and path, and equal paths by everything else, so that the order is unique.
template <class T>
void sort_by_path(std::vector<T>& values, std::string T::* path) {
  struct Keyed {
    std::ptrdiff_t depth;
    T value;
  };
  std::vector<Keyed> keyed;
  keyed.reserve(values.size());
  for (auto& value : values) {
    const auto its_depth = depth(value.*path);
    keyed.push_back({its_depth, std::move(value)});
  }
  std::ranges::sort(keyed, [path](const Keyed& a, const Keyed& b) {
    if (a.depth != b.depth) return a.depth < b.depth;
    if (a.value.*path != b.value.*path) return a.value.*path < b.value.*path;
    return a.value < b.value;
  });
  values.clear();
  for (auto& entry : keyed) {
    if (values.empty() || values.back() != entry.value) values.push_back(std::move(entry.value));
  }
}

void sort_edits(ContainerEdits& edits) {
  drop_repeated(edits.env);
  drop_repeated(edits.net_devices);
  drop_repeated(edits.hooks);
  sort_by_path(edits.device_nodes, &NodeEdit::path);
  sort_by_path(edits.mounts, &MountEdit::container_path);
  sort_and_drop_repeated(edits.additional_gids);
}

template <class T>
void remove_edits(std::vector<T>& values, const std::vector<T>& common) {
  if (common.empty()) return;
  std::erase_if(values, [&](const T& value) { return std::ranges::find(common, value) != common.end(); });
}

ContainerEdits without(ContainerEdits edits, const ContainerEdits& common) {
  remove_edits(edits.env, common.env);
  remove_edits(edits.device_nodes, common.device_nodes);
  remove_edits(edits.net_devices, common.net_devices);
  remove_edits(edits.hooks, common.hooks);
  remove_edits(edits.mounts, common.mounts);
  remove_edits(edits.additional_gids, common.additional_gids);
  if (edits.intel_rdt == common.intel_rdt) edits.intel_rdt.reset();
  return edits;
}

template <class T>
void append_missing(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

const std::vector<std::string>& known_versions() {
  static const std::vector<std::string> kVersions{"0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0",
                                                  "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"};
  return kVersions;
}

std::optional<std::size_t> version_rank(std::string_view version) {
  const auto& versions = known_versions();
  const auto found = std::ranges::find(versions, version);
  if (found == versions.end()) return std::nullopt;
  return static_cast<std::size_t>(found - versions.begin());
}

std::string minimum_version(const Spec& spec) {
  if (needs_1_1(spec)) return "1.1.0";
  if (needs_0_7(spec)) return "0.7.0";
  if (needs_0_6(spec)) return "0.6.0";
  if (needs_0_5(spec)) return "0.5.0";
  return needs_0_4(spec) ? "0.4.0" : "0.3.0";
}

void append_edits(ContainerEdits& edits, const ContainerEdits& more) {
  append_missing(edits.env, more.env);
  append_missing(edits.device_nodes, more.device_nodes);
  append_missing(edits.net_devices, more.net_devices);
  append_missing(edits.hooks, more.hooks);
  append_missing(edits.mounts, more.mounts);
  append_missing(edits.additional_gids, more.additional_gids);
  if (more.intel_rdt) edits.intel_rdt = more.intel_rdt;
}

void canonicalize_spec(Spec& spec) {
  sort_edits(spec.edits);
  for (auto& device : spec.devices) {
    sort_edits(device.edits);
    auto rest = without(device.edits, spec.edits);
    if (!rest.empty()) device.edits = std::move(rest);
  }
  std::ranges::stable_sort(spec.devices, {}, &Device::name);
  spec.version = minimum_version(spec);
}

// JSON and YAML are written from one tree, so that both have the same fields.

namespace {

// The members that a spec may have; empty ones are left out.
struct Value : YamlNode {
  static YamlNode number(std::int64_t value) { return bare(std::to_string(value)); }

  void put_member(const char* key, YamlNode value) { add(key, std::move(value)); }
  void put_text(const char* key, const std::string& value) {
    if (!value.empty()) put_member(key, text(value));
  }
  void put_number(const char* key, std::int64_t value) {
    if (value != 0) put_member(key, number(value));
  }
  template <class T>
  void put_optional(const char* key, const std::optional<T>& value) {
    if (value) put_member(key, number(static_cast<std::int64_t>(*value)));
  }
  void put_flag(const char* key, bool value) {
    if (value) put_member(key, bare("true"));
  }
  template <class T, class Make>
  void put_list(const char* key, const std::vector<T>& values, Make make) {
    if (values.empty()) return;
    auto made = list();
    for (const auto& value : values) made.items.push_back(make(value));
    put_member(key, std::move(made));
  }
  void put_texts(const char* key, const std::vector<std::string>& values) {
    put_list(key, values, [](const std::string& value) { return text(value); });
  }
  void put_annotations(const Annotations& annotations) {
    if (annotations.empty()) return;
    YamlNode map;
    for (const auto& [key, value] : annotations) map.add(key, text(value));
    put_member("annotations", std::move(map));
  }
};

Value node_value(const NodeEdit& node) {
  Value value;
  value.put_member("path", Value::text(node.path));
  value.put_text("hostPath", node.host_path);
  value.put_text("type", node.type);
  value.put_number("major", node.major);
  value.put_number("minor", node.minor);
  value.put_optional("fileMode", node.file_mode);
  value.put_text("permissions", node.permissions);
  value.put_optional("uid", node.uid);
  value.put_optional("gid", node.gid);
  return value;
}

Value net_device_value(const NetDeviceEdit& device) {
  Value value;
  value.put_member("hostInterfaceName", Value::text(device.host_interface_name));
  value.put_member("name", Value::text(device.name));
  return value;
}

Value hook_value(const HookEdit& hook) {
  Value value;
  value.put_member("hookName", Value::text(hook.hook_name));
  value.put_member("path", Value::text(hook.path));
  value.put_texts("args", hook.args);
  value.put_texts("env", hook.env);
  value.put_optional("timeout", hook.timeout);
  return value;
}

Value mount_value(const MountEdit& mount) {
  Value value;
  value.put_member("hostPath", Value::text(mount.host_path));
  value.put_member("containerPath", Value::text(mount.container_path));
  value.put_texts("options", mount.options);
  value.put_text("type", mount.type);
  return value;
}

Value rdt_value(const IntelRdt& rdt) {
  Value value;
  value.put_text("closID", rdt.clos_id);
  value.put_text("l3CacheSchema", rdt.l3_cache_schema);
  value.put_text("memBwSchema", rdt.mem_bw_schema);
  value.put_texts("schemata", rdt.schemata);
  value.put_flag("enableMonitoring", rdt.enable_monitoring);
  value.put_flag("enableCMT", rdt.enable_cmt);
  value.put_flag("enableMBM", rdt.enable_mbm);
  return value;
}

Value edits_value(const ContainerEdits& edits) {
  Value value;
  value.put_texts("env", edits.env);
  value.put_list("deviceNodes", edits.device_nodes, node_value);
  value.put_list("netDevices", edits.net_devices, net_device_value);
  value.put_list("hooks", edits.hooks, hook_value);
  value.put_list("mounts", edits.mounts, mount_value);
  if (edits.intel_rdt) value.put_member("intelRdt", rdt_value(*edits.intel_rdt));
  value.put_list("additionalGids", edits.additional_gids,
                 [](std::uint32_t gid) { return Value::number(gid); });
  return value;
}

// `always`: Go's JSON has the document's edits even if empty, its YAML does not.
Value spec_value(const Spec& spec, bool always) {
  Value value;
  value.put_member("cdiVersion", Value::text(spec.version));
  value.put_member("kind", Value::text(spec.kind));
  value.put_annotations(spec.annotations);
  auto devices = YamlNode::list();
  for (const auto& device : spec.devices) {
    Value entry;
    entry.put_member("name", Value::text(device.name));
    entry.put_annotations(device.annotations);
    entry.put_member("containerEdits", edits_value(device.edits));
    devices.items.push_back(std::move(entry));
  }
  value.put_member("devices", std::move(devices));
  if (always || !spec.edits.empty()) value.put_member("containerEdits", edits_value(spec.edits));
  return value;
}

// Go's JSON also escapes <, > and &.
void put_quoted(std::string_view text, std::string& out) {
  for (const char c : quoted_text(text)) {
    if (c == '<' || c == '>' || c == '&') {
      out += "\\u" + hex_text(static_cast<unsigned char>(c), 4);
    } else {
      out += c;
    }
  }
}

void put_json(const YamlNode& value, std::string& out) {
  switch (value.kind) {
    case YamlNode::Kind::kText:
      return put_quoted(value.scalar, out);
    case YamlNode::Kind::kBare:
      out += value.scalar;
      return;
    case YamlNode::Kind::kList:
      out += '[';
      for (std::size_t i = 0; i < value.items.size(); ++i) {
        if (i > 0) out += ',';
        put_json(value.items[i], out);
      }
      out += ']';
      return;
    case YamlNode::Kind::kMapping:
      out += '{';
      for (std::size_t i = 0; i < value.members.size(); ++i) {
        if (i > 0) out += ',';
        put_quoted(value.members[i].first, out);
        out += ':';
        put_json(value.members[i].second, out);
      }
      out += '}';
      return;
  }
}

}  // namespace

std::string to_json(const Spec& spec) {
  std::string out;
  put_json(spec_value(spec, true), out);
  out += '\n';
  return out;
}

std::string to_yaml(const Spec& spec) {
  return "---\n" + write_yaml(spec_value(spec, false), 4);  // indented as Go's encoder
}

namespace {

constexpr std::string_view kLdconfigFlag = "--ldconfig-path";

// Without trailing slashes: "/" becomes "".
Result<std::string> without_trailing_slash(std::string_view path) {
  if (!text::starts_with(path, "/")) {
    return fail(Code::kInvalidArgument, "'" + std::string(path) + "' is not an absolute path");
  }
  while (!path.empty() && path.back() == '/') path.remove_suffix(1);
  return std::string(path);
}

class Transform {
 public:
  Transform(std::string from, std::string to, PathSide side)
      : from_(std::move(from)), to_(std::move(to)), side_(side) {}

  void transform_paths(ContainerEdits& edits) const {
    for (auto& node : edits.device_nodes) transform_paths(node);
    for (auto& mount : edits.mounts)
      replace_prefix(transform_host_path() ? mount.host_path : mount.container_path);
    for (auto& hook : edits.hooks) transform_paths(hook);
  }

 private:
  bool transform_host_path() const { return side_ == PathSide::kHost; }

  void replace_prefix(std::string& path) const {
    if (!path.starts_with(from_)) return;
    const std::string_view rest = std::string_view(path).substr(from_.size());
    if (path.empty() || (!rest.empty() && rest.front() != '/')) return;
    std::string made = to_ + std::string(rest);
    path = made.empty() ? "/" : std::move(made);
  }

  void transform_paths(NodeEdit& node) const {
    // An unset host path equals the container's, and must stay what it was.
    std::string on_host = node.host_path.empty() ? node.path : node.host_path;
    replace_prefix(transform_host_path() ? on_host : node.path);
    node.host_path = on_host == node.path ? std::string() : std::move(on_host);
  }

  // "/path", "/target::/link", "--flag=/path".
  void replace_argument(std::string& argument) const {
    std::string before;
    if (text::starts_with(argument, "--")) {
      const auto equals = argument.find('=');
      if (equals == std::string::npos) return;
      before = argument.substr(0, equals + 1);
      argument.erase(0, equals + 1);
    }
    if (const auto mark = argument.find("::"); mark != std::string::npos) {
      std::string target = argument.substr(0, mark);
      replace_prefix(target);
      before += target + "::";
      argument.erase(0, mark + 2);
    }
    replace_prefix(argument);
    argument.insert(0, before);
  }

  void transform_paths(HookEdit& hook) const {
    const bool runs_inside = hook.hook_name == "startContainer";
    const bool named_inside = runs_inside || hook.hook_name == "createContainer";
    if (runs_inside != transform_host_path()) replace_prefix(hook.path);
    bool of_ldconfig = false;  // this argument is that flag's value
    for (std::size_t i = 1; i < hook.args.size(); ++i) {
      auto& argument = hook.args[i];
      const bool on_host =
          of_ldconfig || !named_inside || text::starts_with(argument, std::string(kLdconfigFlag) + "=");
      of_ldconfig = argument == kLdconfigFlag;
      if (on_host == transform_host_path()) replace_argument(argument);
    }
  }

  std::string from_, to_;
  PathSide side_;
};

}  // namespace

Result<PathSide> parse_path_side(std::string_view text) {
  if (text == "host") return PathSide::kHost;
  if (text == "container") return PathSide::kContainer;
  return fail(Code::kInvalidArgument,
              "unknown value '" + std::string(text) + "'; expected host or container");
}

Status transform_root(Spec& spec, const std::string& from, const std::string& to, PathSide side) {
  GPULET_TRY_ASSIGN(const std::string old_root, without_trailing_slash(from));
  GPULET_TRY_ASSIGN(const std::string new_root, without_trailing_slash(to));
  const Transform transform(old_root, new_root, side);
  transform.transform_paths(spec.edits);
  for (auto& device : spec.devices) transform.transform_paths(device.edits);
  const auto least = minimum_version(spec);
  if (version_rank(spec.version) < version_rank(least)) spec.version = least;
  return {};
}

}  // namespace gpulet::cdi

#include "mig/layout_file.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>

#include "base/file.h"
#include "base/text.h"
#include "base/yaml_writer.h"
#include "config/field_reader.h"
#include "config/sections.h"
#include "config/values.h"
#include "config/yaml.h"
#include "mig/layout.h"

namespace gpulet::mig {
namespace {

using config::expected_but_found;
using config::Problems;
using config::yaml::Node;
using Kind = Node::Kind;

constexpr unsigned kMaxDevices = 1'000'000;  // limit of indices and counts
constexpr std::size_t kMaxSuggestions = 8;

const std::vector<std::string> kFileKeys = {"version", "mig-configs"};
const std::vector<std::string> kEntryKeys = {"device-filter", "devices", "mig-enabled", "mig-devices"};

// The values of a mapping in the order of `keys`; null for absent ones. Unknown keys are problems.
std::vector<const Node*> read_value(const Node& node, const std::string& path,
                                    const std::vector<std::string>& keys, Problems& problems) {
  std::vector<const Node*> values(keys.size());
  for (const auto& entry : node.entries) {
    const auto known = std::ranges::find(keys, entry.key);
    if (known != keys.end()) {
      values[static_cast<std::size_t>(known - keys.begin())] = &entry.value;
      continue;
    }
    const auto close = text::nearest(entry.key, keys);
    problems.add_error(
        entry.position, path,
        "unknown field '" + entry.key.substr(0, 64) + "'" +
            (close ? "; did you mean " + *close + "?" : "; known here: " + text::join(keys, ", ")));
  }
  return values;
}

bool is_text(const Node& node) { return node.kind == Kind::kScalar; }

std::optional<unsigned> read_count(const Node& node, const std::string& field, Problems& problems) {
  const bool plain = is_text(node) && node.plain;
  const auto value = plain ? text::parse_unsigned(node.scalar) : std::nullopt;
  if (value && *value <= kMaxDevices) return static_cast<unsigned>(*value);
  const std::string most = std::to_string(kMaxDevices);
  problems.add_error(node.position, field, expected_but_found("a whole number from 0 to " + most, node));
  return std::nullopt;
}

std::optional<std::uint32_t> parse_pci_id(std::string_view text) {
  if (!text::starts_with(text, "0x") && !text::starts_with(text, "0X")) return std::nullopt;
  std::uint32_t value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data() + 2, end, value, 16);
  if (error != std::errc() || at != end) return std::nullopt;
  return value;
}

// "0xDDDDVVVV" or "0xDDDDVVVV:0xSSSSssss".
std::optional<DeviceFilter> filter_of(std::string_view text) {
  const auto parts = text::split(text, ':');
  if (parts.empty() || parts.size() > 2) return std::nullopt;
  const auto device = parse_pci_id(parts[0]);
  const auto subsystem = parts.size() == 2 ? parse_pci_id(parts[1]) : std::nullopt;
  if (!device || (parts.size() == 2 && !subsystem)) return std::nullopt;
  return DeviceFilter{*device, subsystem};
}

std::vector<DeviceFilter> read_filters(const Node& node, const std::string& field, Problems& problems) {
  std::vector<DeviceFilter> filters;
  const auto read = [&](const Node& item) {
    const auto filter = is_text(item) ? filter_of(item.scalar) : std::nullopt;
    if (filter) {
      filters.push_back(*filter);
    } else {
      problems.add_error(item.position, field,
                         expected_but_found("PCI ids such as 0x233010DE or 0x233010DE:0x16C110DE", item));
    }
  };
  if (node.kind != Kind::kSequence) {
    read(node);
  } else {
    for (const auto& item : node.items) read(item);
    if (node.items.empty()) {
      problems.add_error(node.position, field, "an empty list matches no GPU; leave it out to match all");
    }
  }
  return filters;
}

std::optional<std::vector<unsigned>> read_indices(const Node& node, const std::string& field,
                                                  Problems& problems) {
  if (is_text(node) && node.scalar == "all") return std::nullopt;
  std::vector<unsigned> indices;
  if (node.kind != Kind::kSequence) {
    problems.add_error(node.position, field, expected_but_found("all or a list of indices", node));
    return indices;
  }
  for (const auto& item : node.items) {
    if (const auto index = read_count(item, field, problems)) indices.push_back(*index);
  }
  return indices;
}

std::map<std::string, unsigned> read_devices(const Node& node, const std::string& field, Problems& problems) {
  std::map<std::string, unsigned> devices;
  if (node.kind != Kind::kMapping) {
    problems.add_error(node.position, field, expected_but_found("a mapping of profiles and counts", node));
    return devices;
  }
  bool some = node.entries.empty();
  for (const auto& [key, position, value] : node.entries) {
    const auto name = parse_profile_name(key);
    if (!name) problems.add_error(position, field, name.error().message());
    const auto count = read_count(value, field + "." + key, problems);
    some = some || !count || *count != 0;
    // "2c.2g.20gb" and "2g.20gb" are the same.
    if (name && count && *count != 0) devices[name->canonical_name()] += *count;
  }
  if (!some) problems.add_error(node.position, field, "every count is 0; use {} for no instances");
  return devices;
}

LayoutEntry read_entry(const Node& node, const std::string& path, Problems& problems) {
  LayoutEntry entry;
  if (node.kind != Kind::kMapping) {
    problems.add_error(node.position, path,
                       expected_but_found("a mapping with devices and mig-enabled", node));
    return entry;
  }
  const auto values = read_value(node, path, kEntryKeys, problems);
  const auto [filter, indices, enabled, devices] = std::tuple(values[0], values[1], values[2], values[3]);
  if (filter != nullptr && filter->kind != Kind::kNull) {
    entry.filters = read_filters(*filter, path + ".device-filter", problems);
  }
  if (indices == nullptr) {
    problems.add_error(node.position, path, "devices is missing; expected all or a list of indices");
  } else {
    entry.indices = read_indices(*indices, path + ".devices", problems);
  }
  std::optional<bool> mode;
  if (enabled == nullptr) {
    problems.add_error(node.position, path, "mig-enabled is missing; expected true or false");
  } else {
    if (is_text(*enabled) && enabled->plain) mode = config::parse_yaml_bool(enabled->scalar);
    if (!mode) {
      problems.add_error(enabled->position, path + ".mig-enabled",
                         expected_but_found("true or false", *enabled));
    }
  }
  const bool given = devices != nullptr && devices->kind != Kind::kNull;
  if (given) entry.layout.devices = read_devices(*devices, path + ".mig-devices", problems);
  if (mode == true && !given) {
    problems.add_error(node.position, path,
                       "mig-devices is missing although mig-enabled is true; use {} for no instances");
  }
  if (mode == false && given && !devices->entries.empty()) {
    problems.add_error(devices->position, path + ".mig-devices", "has devices while mig-enabled is false");
  }
  entry.layout.enabled = mode.value_or(false);
  return entry;
}

void read_configs(const Node& node, LayoutFile& file, Problems& problems) {
  const std::string field = "mig-configs";
  if (node.kind != Kind::kMapping || node.entries.empty()) {
    problems.add_error(node.position, field,
                       node.kind == Kind::kMapping ? "is empty; expected at least one config"
                                                   : expected_but_found("a mapping of named configs", node));
    return;
  }
  for (const auto& [name, position, list] : node.entries) {
    const std::string path = field + "." + name;
    if (list.kind != Kind::kSequence || list.items.empty()) {
      problems.add_error(list.position, path,
                         list.kind == Kind::kSequence ? "is empty; expected at least one entry"
                                                      : expected_but_found("a list of entries", list));
      continue;
    }
    LayoutFile::Config config{name, {}};
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      config.entries.push_back(read_entry(list.items[i], path + "[" + std::to_string(i) + "]", problems));
      config.entries.back().location = config::yaml::position_text(file.path, list.items[i].position);
    }
    file.configs.push_back(std::move(config));
  }
}

void read_file_node(const config::yaml::Document& document, LayoutFile& file, Problems& problems) {
  const Node& root = document.root;
  for (const auto& twice : document.duplicates) {
    problems.add_error(twice.position, twice.key.substr(0, 64),
                       "is given twice, first at " + config::yaml::position_text(file.path, twice.first));
  }
  if (document.second) problems.add_error(*document.second, "", "a second document; expected one");
  if (root.kind != Kind::kMapping) {
    const config::yaml::Position start{std::max(root.position.line, 1u), std::max(root.position.column, 1u)};
    problems.add_error(start, "", expected_but_found("a mapping with version and mig-configs", root));
    return;
  }
  const auto values = read_value(root, "", kFileKeys, problems);
  const auto [version, configs] = std::tuple(values[0], values[1]);
  if (version == nullptr) {
    problems.add_error(root.position, "", "version is missing; expected version: v1");
  } else if (!is_text(*version) || version->scalar != "v1") {
    problems.add_error(version->position, "version", expected_but_found("v1", *version));
  }
  if (configs != nullptr) read_configs(*configs, file, problems);
}

bool applies_to(const LayoutEntry& entry, const State& gpu) {
  if (entry.indices && std::ranges::find(*entry.indices, gpu.index) == entry.indices->end()) return false;
  return entry.filters.empty() || std::ranges::any_of(entry.filters, [&](const DeviceFilter& filter) {
           return filter.device == gpu.pci_device_id &&
                  filter.subsystem.value_or(gpu.pci_subsystem_id) == gpu.pci_subsystem_id;
         });
}

// Length of the common prefix.
std::size_t common_prefix_length(std::string_view a, std::string_view b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

Result<LayoutFile> parse_layout_file(std::string_view text, const std::string& path) {
  GPULET_TRY_ASSIGN(const auto document, config::yaml::parse_yaml(text, path));
  Problems problems(path, false);
  LayoutFile file;
  file.path = path;
  read_file_node(document, file, problems);
  const auto errors = problems.take_errors();
  if (!errors.empty()) return fail(errors.front());
  return file;
}

Result<LayoutFile> load_layout_file(const std::string& path) {
  GPULET_TRY_ASSIGN(const auto text, read_file(path, config::yaml::kMaxTextBytes));
  return parse_layout_file(text, path);
}

Result<std::optional<LocatedLayout>> layout_of(const LayoutFile& file, std::string_view config,
                                               const State& gpu) {
  const auto named = std::ranges::find(file.configs, config, &LayoutFile::Config::name);
  if (named == file.configs.end()) {
    std::vector<std::string> names;
    for (const auto& other : file.configs) names.push_back(other.name);
    return fail(unknown_config(config, file.path, std::move(names)));
  }
  std::optional<LocatedLayout> layout;
  for (const auto& entry : named->entries) {
    if (applies_to(entry, gpu)) layout = {entry.layout, entry.location};
  }
  return layout;
}

Error unknown_config(std::string_view config, const std::string& where, std::vector<std::string> names) {
  const std::string shown(config.substr(0, 64));
  std::string message = "no config '" + shown + "' in " + where;
  if (names.empty()) return Error(Code::kNotFound, message + ", which has none");
  const auto close = text::nearest(config, names);
  if (close) message += "; did you mean " + *close + "?";
  std::ranges::stable_sort(names, [&](const auto& a, const auto& b) {
    return std::pair(b == close, common_prefix_length(b, config)) <
           std::pair(a == close, common_prefix_length(a, config));
  });
  const bool more = names.size() > kMaxSuggestions;
  if (more) names.resize(kMaxSuggestions);
  message +=
      std::string(close ? " Available: " : "; available: ") + text::join(names, ", ") + (more ? ", ..." : "");
  return Error(Code::kNotFound, message);
}

Result<std::vector<std::optional<LocatedLayout>>> named_layouts(const LayoutFile* file, std::string_view name,
                                                                std::span<const State> gpus) {
  std::vector<std::optional<LocatedLayout>> all(gpus.size());
  if (file == nullptr) {
    GPULET_TRY_ASSIGN(auto layouts, derived_layouts(name, gpus));
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      if (layouts[i]) all[i] = {std::move(*layouts[i]), {}};
    }
    return all;
  }
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    GPULET_TRY_ASSIGN(all[i], layout_of(*file, name, gpus[i]));
  }
  return all;
}

Result<std::vector<std::optional<LocatedLayout>>> named_layouts(const std::string& path,
                                                                std::string_view name,
                                                                std::span<const State> gpus) {
  if (path.empty()) return named_layouts(nullptr, name, gpus);
  GPULET_TRY_ASSIGN(const auto file, load_layout_file(path));
  return named_layouts(&file, name, gpus);
}

namespace {

std::string pci_id_text(std::uint32_t id) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08X", id);
  return text;
}

Status holds_only(const State& gpu, const Layout& layout) {
  for (const auto& [name, count] : layout.devices) {
    if (parse_profile_name(name)) continue;
    return fail(Code::kUnsupported, describe_gpu(gpu) + " has a MIG device without a profile name: " + name);
  }
  return {};
}

}  // namespace

Result<LayoutFile> export_layouts(const std::string& name, std::span<const State> gpus, bool whole) {
  LayoutFile file{{}, {{name, {}}}};
  auto& entries = file.configs.front().entries;
  std::map<std::uint32_t, unsigned> kinds;                // how many GPUs of each
  std::vector<std::map<std::uint32_t, unsigned>> covers;  // the same for each entry
  for (const auto& gpu : gpus) {
    const Layout layout = current_layout(gpu);
    GPULET_TRY(holds_only(gpu, layout));
    ++kinds[gpu.pci_device_id];
    auto entry = std::ranges::find(entries, layout, &LayoutEntry::layout);
    if (entry == entries.end()) {
      entry = entries.insert(entry, LayoutEntry{{}, std::vector<unsigned>{}, layout, {}});
      covers.emplace_back();
    }
    entry->indices->push_back(gpu.index);
    ++covers[static_cast<std::size_t>(entry - entries.begin())][gpu.pci_device_id];
  }
  for (std::size_t i = 0; whole && i < entries.size(); ++i) {
    const bool every =
        std::ranges::all_of(covers[i], [&](const auto& kind) { return kinds[kind.first] == kind.second; });
    if (!every) continue;
    entries[i].indices.reset();
    if (entries.size() == 1) continue;
    for (const auto& [kind, count] : covers[i]) entries[i].filters.push_back({kind, std::nullopt});
  }
  return file;
}

std::string filter_text(const DeviceFilter& filter) {
  return pci_id_text(filter.device) + (filter.subsystem ? ":" + pci_id_text(*filter.subsystem) : "");
}

std::string to_yaml(const LayoutFile& file) {
  YamlNode configs;
  for (const auto& config : file.configs) {
    auto& list = configs.add(config.name, YamlNode::list());
    for (const auto& entry : config.entries) {
      YamlNode item;
      if (!entry.filters.empty()) {
        auto& filters = item.add("device-filter", YamlNode::list());
        filters.flow = true;
        for (const auto& filter : entry.filters) filters.items.push_back(YamlNode::text(filter_text(filter)));
      }
      auto& devices = item.add("devices", entry.indices ? YamlNode::list() : YamlNode::text("all"));
      devices.flow = true;
      for (const auto index : entry.indices.value_or(std::vector<unsigned>{}))
        devices.items.push_back(YamlNode::bare(std::to_string(index)));
      item.add("mig-enabled", YamlNode::bare(entry.layout.enabled ? "true" : "false"));
      auto& profiles = item.add("mig-devices", {});
      for (const auto& [profile, count] : entry.layout.devices)
        profiles.add(profile, YamlNode::bare(std::to_string(count)));
      list.items.push_back(std::move(item));
    }
  }
  YamlNode root;
  root.add("version", YamlNode::text("v1"));
  if (!file.configs.empty()) root.add("mig-configs", std::move(configs));
  return write_yaml(root);
}

}  // namespace gpulet::mig

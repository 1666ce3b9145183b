#include "mig/layout_file.h"

#include <algorithm>
#include <charconv>

#include "base/file.h"
#include "base/text.h"
#include "config/problems.h"
#include "config/sections.h"
#include "config/values.h"
#include "config/yaml.h"

namespace gpulet::mig {
namespace {

using config::found_instead;
using config::Problems;
using config::yaml::Node;
using Kind = Node::Kind;

constexpr unsigned kMostDevices = 1'000'000;  // indices and counts beyond are no numbers of this world
constexpr std::size_t kNamesShown = 8;

const std::vector<std::string> kFileKeys = {"version", "mig-configs"};
const std::vector<std::string> kEntryKeys = {"device-filter", "devices", "mig-enabled", "mig-devices"};

// The values of a mapping, in the order of `keys`; null for what is absent. Unknown keys are problems.
std::vector<const Node*> take(const Node& node, const std::string& path, const std::vector<std::string>& keys,
                              Problems& problems) {
  std::vector<const Node*> values(keys.size());
  for (const auto& entry : node.entries) {
    const auto known = std::ranges::find(keys, entry.key);
    if (known != keys.end()) {
      values[static_cast<std::size_t>(known - keys.begin())] = &entry.value;
      continue;
    }
    const auto close = text::nearest(entry.key, keys);
    problems.error(
        entry.position, path,
        "unknown field '" + entry.key.substr(0, 64) + "'" +
            (close ? "; did you mean " + *close + "?" : "; known here: " + text::join(keys, ", ")));
  }
  return values;
}

bool is_text(const Node& node) { return node.kind == Kind::kScalar; }

std::optional<unsigned> number(const Node& node, const std::string& field, Problems& problems) {
  const bool plain = is_text(node) && node.plain;
  const auto value = plain ? text::parse_unsigned(node.scalar) : std::nullopt;
  if (value && *value <= kMostDevices) return static_cast<unsigned>(*value);
  const std::string most = std::to_string(kMostDevices);
  problems.error(node.position, field, found_instead("a whole number from 0 to " + most, node));
  return std::nullopt;
}

std::optional<std::uint32_t> hexadecimal(std::string_view text) {
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
  const auto device = hexadecimal(parts[0]);
  const auto subsystem = parts.size() == 2 ? hexadecimal(parts[1]) : std::nullopt;
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
      problems.error(item.position, field,
                     found_instead("PCI ids as 0x233010DE or 0x233010DE:0x16C110DE", item));
    }
  };
  if (node.kind != Kind::kSequence) {
    read(node);
  } else {
    for (const auto& item : node.items) read(item);
    if (node.items.empty()) {
      problems.error(node.position, field, "an empty list is about no GPU: leave it out for all");
    }
  }
  return filters;
}

std::optional<std::vector<unsigned>> read_indices(const Node& node, const std::string& field,
                                                  Problems& problems) {
  if (is_text(node) && node.scalar == "all") return std::nullopt;
  std::vector<unsigned> indices;
  if (node.kind != Kind::kSequence) {
    problems.error(node.position, field, found_instead("all or a list of indices", node));
    return indices;
  }
  for (const auto& item : node.items) {
    if (const auto index = number(item, field, problems)) indices.push_back(*index);
  }
  return indices;
}

std::map<std::string, unsigned> read_devices(const Node& node, const std::string& field, Problems& problems) {
  std::map<std::string, unsigned> devices;
  if (node.kind != Kind::kMapping) {
    problems.error(node.position, field, found_instead("a mapping of profiles and counts", node));
    return devices;
  }
  bool some = node.entries.empty();
  for (const auto& [key, position, value] : node.entries) {
    const auto name = parse_profile_name(key);
    if (!name) problems.error(position, field, name.error().message());
    const auto count = number(value, field + "." + key, problems);
    some = some || !count || *count != 0;
    // "2c.2g.20gb" and "2g.20gb" are one.
    if (name && count && *count != 0) devices[name->str()] += *count;
  }
  if (!some) problems.error(node.position, field, "every count is 0; {} would do for no instances");
  return devices;
}

LayoutEntry read_entry(const Node& node, const std::string& path, Problems& problems) {
  LayoutEntry entry;
  if (node.kind != Kind::kMapping) {
    problems.error(node.position, path, found_instead("a mapping with devices and mig-enabled", node));
    return entry;
  }
  const auto values = take(node, path, kEntryKeys, problems);
  const auto [filter, indices, enabled, devices] = std::tuple(values[0], values[1], values[2], values[3]);
  if (filter != nullptr && filter->kind != Kind::kNull) {
    entry.filters = read_filters(*filter, path + ".device-filter", problems);
  }
  if (indices == nullptr) {
    problems.error(node.position, path, "devices is missing; all or a list of indices would do");
  } else {
    entry.indices = read_indices(*indices, path + ".devices", problems);
  }
  std::optional<bool> mode;
  if (enabled == nullptr) {
    problems.error(node.position, path, "mig-enabled is missing; true or false would do");
  } else {
    if (is_text(*enabled) && enabled->plain) mode = config::parse_yaml_bool(enabled->scalar);
    if (!mode) {
      problems.error(enabled->position, path + ".mig-enabled", found_instead("true or false", *enabled));
    }
  }
  const bool given = devices != nullptr && devices->kind != Kind::kNull;
  if (given) entry.layout.devices = read_devices(*devices, path + ".mig-devices", problems);
  if (mode == true && !given) {
    problems.error(node.position, path,
                   "mig-devices is missing, as mig-enabled is true; {} would do for no instances");
  }
  if (mode == false && given && !devices->entries.empty()) {
    problems.error(devices->position, path + ".mig-devices", "has devices while mig-enabled is false");
  }
  entry.layout.enabled = mode.value_or(false);
  return entry;
}

void read_configs(const Node& node, LayoutFile& file, Problems& problems) {
  const std::string field = "mig-configs";
  if (node.kind != Kind::kMapping || node.entries.empty()) {
    problems.error(node.position, field,
                   node.kind == Kind::kMapping ? "is empty; at least one config would do"
                                               : found_instead("a mapping of named configs", node));
    return;
  }
  for (const auto& [name, position, list] : node.entries) {
    const std::string path = field + "." + name;
    if (list.kind != Kind::kSequence || list.items.empty()) {
      problems.error(list.position, path,
                     list.kind == Kind::kSequence ? "is empty; at least one entry would do"
                                                  : found_instead("a list of entries", list));
      continue;
    }
    LayoutFile::Config config{name, {}};
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      config.entries.push_back(read_entry(list.items[i], path + "[" + std::to_string(i) + "]", problems));
      config.entries.back().place = config::yaml::place(file.path, list.items[i].position);
    }
    file.configs.push_back(std::move(config));
  }
}

void read_file_node(const config::yaml::Document& document, LayoutFile& file, Problems& problems) {
  const Node& root = document.root;
  for (const auto& twice : document.duplicates) {
    problems.error(twice.position, twice.key.substr(0, 64),
                   "is given twice, first at " + config::yaml::place(file.path, twice.first));
  }
  if (document.second) problems.error(*document.second, "", "a second document; one would do");
  if (root.kind != Kind::kMapping) {
    const config::yaml::Position start{std::max(root.position.line, 1u), std::max(root.position.column, 1u)};
    problems.error(start, "", found_instead("a mapping with version and mig-configs", root));
    return;
  }
  const auto values = take(root, "", kFileKeys, problems);
  const auto [version, configs] = std::tuple(values[0], values[1]);
  if (version == nullptr) {
    problems.error(root.position, "", "version is missing; version: v1 would do");
  } else if (!is_text(*version) || version->scalar != "v1") {
    problems.error(version->position, "version", found_instead("v1", *version));
  }
  if (configs != nullptr) read_configs(*configs, file, problems);
}

bool about(const LayoutEntry& entry, const State& gpu) {
  if (entry.indices && std::ranges::find(*entry.indices, gpu.index) == entry.indices->end()) return false;
  return entry.filters.empty() || std::ranges::any_of(entry.filters, [&](const DeviceFilter& filter) {
           return filter.device == gpu.pci_device_id &&
                  filter.subsystem.value_or(gpu.pci_subsystem_id) == gpu.pci_subsystem_id;
         });
}

// How many characters are the same from the front.
std::size_t common(std::string_view a, std::string_view b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

Result<LayoutFile> parse_layout_file(std::string_view text, const std::string& path) {
  GPULET_TRY_ASSIGN(const auto document, config::yaml::parse(text, path));
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

Result<std::optional<LayoutAt>> layout_of(const LayoutFile& file, std::string_view config, const State& gpu) {
  const auto named = std::ranges::find(file.configs, config, &LayoutFile::Config::name);
  if (named == file.configs.end()) {
    std::vector<std::string> names;
    for (const auto& other : file.configs) names.push_back(other.name);
    return fail(unknown_config(config, file.path, std::move(names)));
  }
  std::optional<LayoutAt> layout;
  for (const auto& entry : named->entries) {
    if (about(entry, gpu)) layout = {entry.layout, entry.place};
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
    return std::pair(b == close, common(b, config)) < std::pair(a == close, common(a, config));
  });
  const bool more = names.size() > kNamesShown;
  if (more) names.resize(kNamesShown);
  message +=
      std::string(close ? " There are " : "; there are ") + text::join(names, ", ") + (more ? ", ..." : "");
  return Error(Code::kNotFound, message);
}

}  // namespace gpulet::mig

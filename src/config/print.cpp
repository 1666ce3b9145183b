#include "config/print.h"

#include <algorithm>
#include <cctype>

#include "base/text.h"
#include "config/values.h"

namespace gpulet::config {
namespace {

// The v1 form as a tree, in the order of print; a scalar is already in a form that YAML and JSON share.
struct Item {
  std::string key;     // empty in a list
  std::string scalar;  // empty for a mapping or a list
  std::string origin;
  bool list = false;
  std::vector<Item> children;
};

std::string quoted(const std::string& text) {
  constexpr const char* kHex = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (code < 0x20 || code == 0x7f) {
      out += {'\\', 'u', '0', '0', kHex[code >> 4], kHex[code & 15]};
    } else {
      out += c;
    }
  }
  return out + '"';
}

// In YAML a text of plain letters needs no quotes, unless it could be read as something else.
bool plain_in_yaml(const std::string& text) {
  if (text.empty() || parse_yaml_bool(text) || text::lower(text) == "null") return false;
  if (std::isalpha(static_cast<unsigned char>(text.front())) == 0 && text.front() != '/') return false;
  return std::ranges::all_of(text, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '/' || c == '.' || c == '-' || c == '_';
  });
}

Item scalar(std::string key, std::string text, std::string origin = {}) {
  return {.key = std::move(key),
          .scalar = std::move(text),
          .origin = std::move(origin),
          .list = false,
          .children = {}};
}
Item text_item(std::string key, const std::string& text, std::string origin = {}) {
  return scalar(std::move(key), quoted(text), std::move(origin));
}
Item group(std::string key, bool list = false, std::string origin = {}) {
  return {.key = std::move(key), .scalar = {}, .origin = std::move(origin), .list = list, .children = {}};
}

// A duration of our own in its shortest form; every other text as it is.
std::string shown(const Setting& setting, const std::string& text) {
  if (setting.kind != Kind::kDuration) return text;
  const auto duration = parse_duration(text);
  return duration ? format_duration(*duration) : text;
}

Item item_of(std::string key, const Setting& setting, const Given& given) {
  if (const auto* flag = std::get_if<bool>(&given.value))
    return scalar(std::move(key), *flag ? "true" : "false", given.origin);
  if (const auto* text = std::get_if<std::string>(&given.value)) {
    if (setting.kind == Kind::kUnsigned) return scalar(std::move(key), *text, given.origin);
    return text_item(std::move(key), shown(setting, *text), given.origin);
  }
  Item list = group(std::move(key), true, given.origin);
  for (const auto& text : std::get<std::vector<std::string>>(given.value)) {
    list.children.push_back(setting.kind == Kind::kUnsigneds ? scalar("", text) : text_item("", text));
  }
  return list;
}

Item& child(Item& parent, const std::string& key) {
  const auto found = std::ranges::find(parent.children, key, &Item::key);
  if (found != parent.children.end()) return *found;
  return parent.children.emplace_back(group(key));
}

void add_setting(Item& root, const Setting& setting, const Given& given) {
  auto segments = text::split(setting.path, '.');
  const std::string key = std::move(segments.back());
  segments.pop_back();
  Item* section = &root;
  for (const auto& segment : segments) section = &child(*section, segment);
  section->children.push_back(item_of(key, setting, given));
}

Item patterns_item(std::string key, const std::vector<ResourcePattern>& patterns) {
  Item list = group(std::move(key), true);
  for (const auto& pattern : patterns) {
    Item& item = list.children.emplace_back(group(""));
    item.children = {text_item("pattern", pattern.pattern), text_item("name", pattern.name.str())};
  }
  return list;
}

Item devices_item(const DeviceSelection& devices) {
  if (const auto* count = std::get_if<DeviceCount>(&devices))
    return scalar("devices", std::to_string(count->count));
  const auto* refs = std::get_if<DeviceRefs>(&devices);
  if (!refs) return text_item("devices", "all");
  Item list = group("devices", true);
  for (const auto& ref : *refs) list.children.push_back(text_item("", ref));
  return list;
}

Item sharing_item(const Sharing& sharing, const std::string& origin) {
  const bool mps = sharing.strategy == SharingStrategy::kMps;
  Item strategy = group(mps ? "mps" : "timeSlicing", false, origin);
  strategy.children.push_back(
      scalar("failRequestsGreaterThanOne", sharing.fail_requests_greater_than_one ? "true" : "false"));
  Item list = group("resources", true);
  for (const auto& resource : sharing.resources) {
    Item& item = list.children.emplace_back(group(""));
    item.children.push_back(text_item("name", resource.name.str()));
    if (resource.rename) item.children.push_back(text_item("rename", resource.rename->str()));
    item.children.push_back(devices_item(resource.devices));
    item.children.push_back(scalar("replicas", std::to_string(resource.replicas)));
  }
  strategy.children.push_back(std::move(list));
  Item section = group("sharing");
  section.children.push_back(std::move(strategy));
  return section;
}

Item boolean(std::string key, bool value) { return scalar(std::move(key), value ? "true" : "false"); }
Item number(std::string key, unsigned value) { return scalar(std::move(key), std::to_string(value)); }

void add_name(Item& item, const std::optional<ResourceName>& name) {
  if (name) item.children.push_back(text_item("name", name->str()));
}

Item how_item(const Whole& whole) {
  Item item = group("whole");
  add_name(item, whole.name);
  return item;
}

Item how_item(const TimeSlicing& slicing) {
  Item item = group("timeSlicing");
  add_name(item, slicing.name);
  item.children.push_back(number("replicas", slicing.replicas));
  item.children.push_back(boolean("failRequestsGreaterThanOne", slicing.fail_requests_greater_than_one));
  return item;
}

Item how_item(const Mps& mps) {
  Item item = group("mps");
  add_name(item, mps.name);
  if (mps.shares.empty()) item.children.push_back(number("replicas", mps.replicas));
  Item shares = group("shares", true);
  for (const auto& share : mps.shares) {
    Item& one = shares.children.emplace_back(group(""));
    one.children = {number("memory", share.size.memory), number("threads", share.size.threads)};
    add_name(one, share.name);
  }
  if (!mps.shares.empty()) item.children.push_back(std::move(shares));
  item.children.push_back(boolean("failRequestsGreaterThanOne", mps.fail_requests_greater_than_one));
  return item;
}

Item how_item(const Mig& mig) {
  Item item = group("mig");
  add_name(item, mig.name);
  if (!mig.layout.empty()) item.children.push_back(text_item("layout", mig.layout));
  Item devices = group("devices");
  for (const auto& [profile, count] : mig.devices) devices.children.push_back(number(profile, count));
  if (mig.layout.empty()) item.children.push_back(std::move(devices));
  item.children.push_back(text_item("strategy", mig.strategy == MigStrategy::kSingle ? "single" : "mixed"));
  return item;
}

Item gpus_item(const GpuSelection& gpus) {
  if (const auto* count = std::get_if<DeviceCount>(&gpus)) return number("devices", count->count);
  const auto* refs = std::get_if<GpuRefs>(&gpus);
  if (!refs) return text_item("devices", "all");
  Item list = group("devices", true);
  for (const auto& ref : *refs) list.children.push_back(text_item("", ref.text()));
  return list;
}

Item partition_item(const std::vector<PartitionRule>& rules, const std::string& origin) {
  Item list = group("partition", true, origin);
  for (const auto& rule : rules) {
    Item& item = list.children.emplace_back(group("", false, "file " + rule.place));
    item.children.push_back(gpus_item(rule.devices));
    if (rule.model) item.children.push_back(text_item("model", *rule.model));
    if (const auto& label = rule.node_label) {
      item.children.push_back(text_item("nodeLabel", label->key + (label->value ? "=" + *label->value : "")));
    }
    item.children.push_back(std::visit([](const auto& how) { return how_item(how); }, rule.how));
    item.children.back().origin = item.origin;
  }
  return list;
}

Item tree_of(const Loaded& loaded) {
  Item root = group("");
  root.children.push_back(text_item("version", "v1"));
  bool listed = false;
  for (std::size_t i = 0; i < settings().size(); ++i) {
    const auto& setting = settings()[i];
    if (!listed && text::starts_with(setting.path, "imex.")) {
      listed = true;
      if (!loaded.resources_origin.empty()) {
        Item& resources = root.children.emplace_back(group("resources", false, loaded.resources_origin));
        if (!loaded.given_gpu_resources.empty()) {
          resources.children.push_back(patterns_item("gpus", loaded.given_gpu_resources));
        }
        if (!loaded.config.mig_resources.empty()) {
          resources.children.push_back(patterns_item("mig", loaded.config.mig_resources));
        }
      }
      if (loaded.config.sharing.strategy != SharingStrategy::kNone) {
        root.children.push_back(sharing_item(loaded.config.sharing, loaded.sharing_origin));
      }
    }
    if (!setting.path.empty() && loaded.values[i]) add_setting(root, setting, *loaded.values[i]);
  }
  if (!loaded.config.gpulet.partition.empty()) {
    auto list = partition_item(loaded.config.gpulet.partition, loaded.partition_origin);
    child(root, "gpulet").children.push_back(std::move(list));
  }
  return root;
}

// A file's name may hold anything; a comment is one line.
std::string comment(const Item& item) {
  if (item.origin.empty()) return "\n";
  std::string origin = item.origin;
  std::ranges::replace_if(origin, [](char c) { return static_cast<unsigned char>(c) < 0x20; }, '?');
  return "  # from " + origin + "\n";
}

std::string yaml_scalar(const std::string& scalar) {
  if (scalar.empty() || scalar.front() != '"') return scalar;
  const std::string inside = scalar.substr(1, scalar.size() - 2);
  return plain_in_yaml(inside) ? inside : scalar;
}

bool flow(const Item& item) {
  return item.list && std::ranges::all_of(item.children, [](const Item& c) { return !c.scalar.empty(); });
}

void write_yaml(const Item& item, const std::string& indent, std::string& out) {
  for (const auto& part : item.children) {
    std::string lead = indent;
    if (item.list) lead += "- ";
    if (!part.key.empty()) lead += part.key + ":";
    if (!part.scalar.empty()) {
      out += lead + " " + yaml_scalar(part.scalar) + comment(part);
    } else if (flow(part)) {
      out += lead + " [";
      for (std::size_t i = 0; i < part.children.size(); ++i) {
        out += (i > 0 ? ", " : "") + yaml_scalar(part.children[i].scalar);
      }
      out += "]" + comment(part);
    } else if (item.list) {
      std::string inner;
      write_yaml(part, indent + "  ", inner);
      out += lead + inner.substr(std::min(inner.size(), lead.size()));
    } else if (part.children.empty()) {
      out += lead + " {}" + comment(part);
    } else {
      out += lead + comment(part);
      write_yaml(part, indent + "  ", out);
    }
  }
}

void write_json(const Item& item, const std::string& indent, std::string& out) {
  if (!item.scalar.empty()) {
    out += item.scalar;
    return;
  }
  if (item.children.empty()) {
    out += item.list ? "[]" : "{}";
    return;
  }
  const bool inline_list = flow(item);
  const std::string inner = indent + "  ";
  out += item.list ? "[" : "{";
  for (std::size_t i = 0; i < item.children.size(); ++i) {
    out += i > 0 ? (inline_list ? ", " : ",") : "";
    if (!inline_list) out += "\n" + inner;
    if (!item.list) out += quoted(item.children[i].key) + ": ";
    write_json(item.children[i], inner, out);
  }
  if (!inline_list) out += "\n" + indent;
  out += item.list ? "]" : "}";
}

void collect_origins(const Item& item, const std::string& path, Item& origins) {
  for (std::size_t i = 0; i < item.children.size(); ++i) {
    const auto& part = item.children[i];
    std::string below = path.empty() ? part.key : path + "." + part.key;
    if (item.list) below = path + "[" + std::to_string(i) + "]";
    if (!part.origin.empty() && part.origin != item.origin) {
      origins.children.push_back(text_item(below, part.origin));
    }
    collect_origins(part, below, origins);
  }
}

}  // namespace

std::string print_yaml(const Loaded& loaded) {
  std::string out;
  write_yaml(tree_of(loaded), "", out);
  return out;
}

std::string print_json(const Loaded& loaded) {
  Item config = tree_of(loaded);
  config.key = "config";
  Item origins = group("origins");
  collect_origins(config, "", origins);
  Item whole = group("");
  whole.children = {std::move(config), std::move(origins)};
  std::string out;
  write_json(whole, "", out);
  return out + "\n";
}

}  // namespace gpulet::config

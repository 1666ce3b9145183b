#include "config/load.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "base/yaml_writer.h"

namespace gpulet::config {
namespace {

// The v1 form is a tree; the comment of a node is its origin.

YamlNode text_node(std::string text, std::string origin = {}) {
  auto node = YamlNode::text(std::move(text));
  node.comment = std::move(origin);
  return node;
}
YamlNode bare_node(std::string text, std::string origin = {}) {
  auto node = YamlNode::bare(std::move(text));
  node.comment = std::move(origin);
  return node;
}
YamlNode bool_node(bool value) { return YamlNode::bare(value ? "true" : "false"); }
YamlNode number_node(unsigned value) { return YamlNode::bare(std::to_string(value)); }
YamlNode scalar_list(std::string origin = {}) {
  auto node = YamlNode::list();
  node.flow = true;
  node.comment = std::move(origin);
  return node;
}

// Durations in their shortest form.
std::string value_text(const Setting& setting, const std::string& text) {
  if (setting.kind != Kind::kDuration) return text;
  const auto duration = parse_duration(text);
  return duration ? format_duration(*duration) : text;
}

YamlNode value_node(const Setting& setting, const EffectiveValue& given) {
  if (const auto* flag = std::get_if<bool>(&given.value))
    return bare_node(*flag ? "true" : "false", given.origin);
  if (const auto* text = std::get_if<std::string>(&given.value)) {
    if (setting.kind == Kind::kUnsigned) return bare_node(*text, given.origin);
    return text_node(value_text(setting, *text), given.origin);
  }
  auto list = scalar_list(given.origin);
  for (const auto& text : std::get<std::vector<std::string>>(given.value))
    list.items.push_back(setting.kind == Kind::kUnsigneds ? YamlNode::bare(text) : YamlNode::text(text));
  return list;
}

// The member `key` of a mapping, added if it is missing.
YamlNode& member(YamlNode& parent, const std::string& key) {
  const auto found = std::ranges::find(parent.members, key, &std::pair<std::string, YamlNode>::first);
  return found != parent.members.end() ? found->second : parent.add(key, {});
}

void add_setting(YamlNode& root, const Setting& setting, const EffectiveValue& given) {
  auto segments = text::split(setting.path, '.');
  const std::string key = std::move(segments.back());
  segments.pop_back();
  YamlNode* section = &root;
  for (const auto& segment : segments) section = &member(*section, segment);
  section->add(key, value_node(setting, given));
}

YamlNode patterns_node(const std::vector<ResourcePattern>& patterns) {
  auto list = YamlNode::list();
  for (const auto& pattern : patterns) {
    auto& item = list.items.emplace_back();
    item.add("pattern", YamlNode::text(pattern.pattern));
    item.add("name", YamlNode::text(pattern.name.str()));
  }
  return list;
}

YamlNode devices_node(const DeviceSelection& devices) {
  if (const auto* count = std::get_if<DeviceCount>(&devices)) return number_node(count->count);
  const auto* refs = std::get_if<DeviceRefs>(&devices);
  if (!refs) return YamlNode::text("all");
  auto list = scalar_list();
  for (const auto& ref : *refs) list.items.push_back(YamlNode::text(ref));
  return list;
}

YamlNode sharing_node(const Sharing& sharing, const std::string& origin) {
  YamlNode strategy;
  strategy.comment = origin;
  strategy.add("failRequestsGreaterThanOne", bool_node(sharing.fail_requests_greater_than_one));
  auto& list = strategy.add("resources", YamlNode::list());
  for (const auto& resource : sharing.resources) {
    auto& item = list.items.emplace_back();
    item.add("name", YamlNode::text(resource.name.str()));
    if (resource.rename) item.add("rename", YamlNode::text(resource.rename->str()));
    item.add("devices", devices_node(resource.devices));
    item.add("replicas", number_node(resource.replicas));
  }
  YamlNode section;
  section.add(sharing.strategy == SharingStrategy::kMps ? "mps" : "timeSlicing", std::move(strategy));
  return section;
}

void add_name(YamlNode& node, const std::optional<ResourceName>& name) {
  if (name) node.add("name", YamlNode::text(name->str()));
}

void add_shares_on(YamlNode& node, placement::SharesOn where) {
  if (where != placement::SharesOn::kAnyGpu)
    node.add("sharesOn", YamlNode::text(std::string(placement::shares_on_name(where))));
}

using Member = std::pair<std::string, YamlNode>;

YamlNode shares_node(const ConsumableShares& shares) {
  if (shares.limit == ShareLimit::kCount) return number_node(shares.count);
  return YamlNode::text(shares.limit == ShareLimit::kMemory ? "memory" : "unlimited");
}

Member mode_member(const Whole& whole) {
  YamlNode node;
  add_name(node, whole.name);
  if (whole.consumable_shares) node.add("consumableShares", shares_node(*whole.consumable_shares));
  return {"whole", std::move(node)};
}

Member mode_member(const TimeSlicing& slicing) {
  YamlNode node;
  add_name(node, slicing.name);
  node.add("replicas", number_node(slicing.replicas));
  node.add("failRequestsGreaterThanOne", bool_node(slicing.fail_requests_greater_than_one));
  add_shares_on(node, slicing.shares_on);
  return {"timeSlicing", std::move(node)};
}

Member mode_member(const Mps& mps) {
  YamlNode node;
  add_name(node, mps.name);
  if (mps.shares.empty()) {
    node.add("replicas", number_node(mps.replicas));
    node.add("memoryLimit", bool_node(mps.memory_limit));
    node.add("smPartitions", bool_node(mps.sm_partitions));
  } else {
    auto& shares = node.add("shares", YamlNode::list());
    for (const auto& share : mps.shares) {
      auto& item = shares.items.emplace_back();
      item.add("memory", number_node(share.size.memory));
      item.add("threads", number_node(share.size.threads));
      add_name(item, share.name);
    }
  }
  node.add("failRequestsGreaterThanOne", bool_node(mps.fail_requests_greater_than_one));
  add_shares_on(node, mps.shares_on);
  return {"mps", std::move(node)};
}

Member mode_member(const Mig& mig) {
  YamlNode node;
  add_name(node, mig.name);
  if (mig.layout.empty()) {
    auto& devices = node.add("devices", {});
    for (const auto& [profile, count] : mig.devices) devices.add(profile, number_node(count));
  } else {
    node.add("layout", YamlNode::text(mig.layout));
  }
  node.add("strategy", YamlNode::text(mig.strategy == MigStrategy::kSingle ? "single" : "mixed"));
  if (mig.on_demand) node.add("onDemand", bool_node(true));
  return {"mig", std::move(node)};
}

Member mode_member(const DynamicMig& dynamic) {
  YamlNode node;
  auto& profiles = node.add("profiles", scalar_list());
  for (const auto& profile : dynamic.profiles) profiles.items.push_back(YamlNode::text(profile));
  return {"dynamicMig", std::move(node)};
}

Member mode_member(const Exclude&) { return {"exclude", bool_node(true)}; }

YamlNode gpus_node(const GpuSelection& gpus) {
  if (const auto* count = std::get_if<DeviceCount>(&gpus)) return number_node(count->count);
  const auto* refs = std::get_if<GpuRefs>(&gpus);
  if (!refs) return YamlNode::text("all");
  auto list = scalar_list();
  for (const auto& ref : *refs) list.items.push_back(YamlNode::text(ref.ref_text()));
  return list;
}

YamlNode partition_node(const std::vector<PartitionRule>& rules, const std::string& origin) {
  auto list = YamlNode::list();
  list.comment = origin;
  for (const auto& rule : rules) {
    auto& item = list.items.emplace_back();
    item.comment = "file " + rule.position;
    item.add("devices", gpus_node(rule.devices));
    if (rule.model) item.add("model", YamlNode::text(*rule.model));
    if (const auto& label = rule.node_label)
      item.add("nodeLabel", YamlNode::text(label->key + (label->value ? "=" + *label->value : "")));
    if (rule.display) item.add("display", bool_node(*rule.display));
    if (rule.offer)
      item.add("offer", YamlNode::text(rule.offer == OfferSide::kClaims ? "claims" : "devicePlugin"));
    auto [key, mode] = std::visit([](const auto& one) { return mode_member(one); }, rule.mode);
    item.add(key, std::move(mode)).comment = item.comment;
  }
  return list;
}

YamlNode config_node(const LoadedConfig& loaded) {
  YamlNode root;
  root.add("version", YamlNode::text("v1"));
  bool listed = false;
  for (std::size_t i = 0; i < settings().size(); ++i) {
    const auto& setting = settings()[i];
    if (!listed && text::starts_with(setting.path, "imex.")) {
      listed = true;
      if (!loaded.resources_origin.empty()) {
        auto& resources = root.add("resources", {});
        resources.comment = loaded.resources_origin;
        if (!loaded.given_gpu_resources.empty())
          resources.add("gpus", patterns_node(loaded.given_gpu_resources));
        if (!loaded.config.mig_resources.empty())
          resources.add("mig", patterns_node(loaded.config.mig_resources));
      }
      if (loaded.config.sharing.strategy != SharingStrategy::kNone)
        root.add("sharing", sharing_node(loaded.config.sharing, loaded.sharing_origin));
    }
    if (!setting.path.empty() && loaded.values[i]) add_setting(root, setting, *loaded.values[i]);
  }
  const auto& rules = loaded.config.gpulet.partition;
  if (!rules.empty()) member(root, "gpulet").add("partition", partition_node(rules, loaded.partition_origin));
  const auto& power = loaded.config.gpulet.power;
  if (power != PowerSettings{}) member(root, "gpulet").add("power", power_node(power, gpus_node));
  return root;
}

// "flags.migStrategy" → "env MIG_STRATEGY", for each node whose origin is not its parent's.
void collect_origins(const YamlNode& node, const std::string& path, YamlNode& origins) {
  const auto collect = [&](const YamlNode& part, const std::string& below) {
    if (!part.comment.empty() && part.comment != node.comment)
      origins.add(below, YamlNode::text(part.comment));
    collect_origins(part, below, origins);
  };
  for (const auto& [key, part] : node.members) collect(part, path.empty() ? key : path + "." + key);
  for (std::size_t i = 0; i < node.items.size(); ++i)
    collect(node.items[i], path + "[" + std::to_string(i) + "]");
}

void mark_origins(YamlNode& node) {
  if (!node.comment.empty()) node.comment = "from " + node.comment;
  for (auto& [key, part] : node.members) mark_origins(part);
  for (auto& item : node.items) mark_origins(item);
}

void write_json(const YamlNode& node, const std::string& indent, std::string& out) {
  const bool list = node.kind == YamlNode::Kind::kList;
  if (node.is_scalar()) {
    out += node.kind == YamlNode::Kind::kText ? quoted_text(node.scalar) : node.scalar;
  } else if (node.items.empty() && node.members.empty()) {
    out += list ? "[]" : "{}";
  } else if (node.flow) {
    for (std::size_t i = 0; i < node.items.size(); ++i) {
      out += i == 0 ? "[" : ", ";
      write_json(node.items[i], indent, out);
    }
    out += "]";
  } else {
    const std::string inner = indent + "  ";
    out += list ? "[" : "{";
    std::string separator = "\n" + inner;
    const auto begin_part = [&] { out += std::exchange(separator, ",\n" + inner); };
    for (const auto& item : node.items) {
      begin_part();
      write_json(item, inner, out);
    }
    for (const auto& [key, part] : node.members) {
      begin_part();
      out += quoted_text(key) + ": ";
      write_json(part, inner, out);
    }
    out += "\n" + indent + (list ? "]" : "}");
  }
}

}  // namespace

std::string print_yaml(const LoadedConfig& loaded) {
  auto root = config_node(loaded);
  mark_origins(root);
  return write_yaml(root);
}

std::string print_json(const LoadedConfig& loaded) {
  YamlNode config = config_node(loaded), origins;
  collect_origins(config, "", origins);
  YamlNode document;
  document.add("config", std::move(config));
  document.add("origins", std::move(origins));
  std::string out;
  write_json(document, "", out);
  return out + "\n";
}

}  // namespace gpulet::config

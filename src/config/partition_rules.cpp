#include "config/partition_rules.h"

#include <algorithm>

#include "base/text.h"
#include "base/yaml_writer.h"
#include "config/field_reader.h"
#include "config/values.h"

namespace gpulet::config {
namespace {

using NodeKind = yaml::Node::Kind;
using yaml::Node;

std::string item_path(const std::string& list, std::size_t index) {
  return list + "[" + std::to_string(index) + "]";
}

std::optional<std::uint64_t> plain_number(const Node& node) {
  return node.kind == NodeKind::kScalar && node.plain ? parse_whole_number(node.scalar) : std::nullopt;
}

// A number from 1 to `most`, with its unit: "percent".
std::optional<unsigned> read_number(const Node& node, const std::string& field, unsigned most,
                                    const char* what, Problems& problems) {
  const auto number = plain_number(node);
  if (number && *number >= 1 && *number <= most) return static_cast<unsigned>(*number);
  const std::string wanted = std::string(what) + " between 1 and " + std::to_string(most);
  problems.add_error(node.position, field, expected_but_found(wanted, node));
  return std::nullopt;
}

// "3", "0-3", "GPU-…", "0000:1b:00.0".
std::optional<GpuRef> parse_gpu_ref(const std::string& text) {
  GpuRef ref;
  if (const auto pci = inventory::PciAddress::from_text(text)) {
    ref.pci = *pci;
    return ref;
  }
  if (text::starts_with(text, "GPU-")) {
    if (!is_hexadecimal_uuid(text.substr(4))) return std::nullopt;
    ref.uuid = DeviceUuid(text);
    return ref;
  }
  const auto dash = text.find('-');
  const auto first = text::parse_unsigned(text.substr(0, dash));
  const auto last = dash == std::string::npos ? first : text::parse_unsigned(text.substr(dash + 1));
  if (!first || !last || *last > kMaxGpuIndex || *first > *last) return std::nullopt;
  ref.first = static_cast<unsigned>(*first);
  ref.last = static_cast<unsigned>(*last);
  return ref;
}

// What is wrong with an entry of the list.
std::string ref_problem(const Node& item) {
  if (item.kind == NodeKind::kScalar) {
    const auto& text = item.scalar;
    const std::string found = ", found '" + text.substr(0, 64) + "'";
    if (text::starts_with(text, "GPU-"))
      return "expected a UUID such as GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0" + found;
    const auto colons = std::ranges::count(text, ':');
    if (colons > 1 || (colons == 1 && text.find('.') != std::string::npos))
      return "expected a PCI address such as 0000:1b:00.0" + found;
    if (colons == 1 || text::starts_with(text, "MIG-"))
      return "a rule selects whole GPUs, not a MIG device: " + text.substr(0, 64);
  }
  return expected_but_found("an index, a range such as 0-3, GPU-… or a PCI address", item);
}

std::optional<GpuSelection> read_gpu_list(const Node& node, const std::string& field, Problems& problems) {
  GpuRefs refs;
  for (const auto& item : node.items) {
    const auto ref = item.kind == NodeKind::kScalar ? parse_gpu_ref(item.scalar) : std::nullopt;
    if (!ref) {
      problems.add_error(item.position, field, ref_problem(item));
      return std::nullopt;
    }
    refs.push_back(*ref);
  }
  if (refs.empty()) {
    problems.add_error(node.position, field, "an empty list of devices; omit devices or list at least one");
    return std::nullopt;
  }
  return refs;
}

const std::vector<std::string> kModes = {"whole", "timeSlicing", "mps", "mig", "dynamicMig", "exclude"};

class RuleReader {
 public:
  RuleReader(const Node& node, const std::string& path, Problems& problems)
      : node_(node), fields_(node, path, known_keys(), problems), path_(path), problems_(problems) {}

  PartitionRule read_rule() {
    PartitionRule rule;
    rule.position = yaml::position_text(problems_.file_path(), node_.position);
    if (const auto* node = fields_["devices"]) {
      if (auto devices = read_gpu_selection(*node, fields_.field_path("devices"), problems_))
        rule.devices = std::move(*devices);
    }
    if (const auto* node = fields_["model"])
      rule.model = read_text(*node, fields_.field_path("model"), problems_);
    if (const auto* node = fields_["nodeLabel"]) read_label(*node, rule);
    if (const auto* node = fields_["display"])
      rule.display = read_bool(*node, fields_.field_path("display"), problems_);
    read_mode(rule);
    if (const auto* node = fields_["offer"]) read_offer(*node, rule);
    return rule;
  }

 private:
  static std::vector<std::string> known_keys() {
    std::vector<std::string> keys = {"devices", "model", "nodeLabel", "display", "offer"};
    keys.insert(keys.end(), kModes.begin(), kModes.end());
    return keys;
  }

  void add_rule_error(const Node& node, const std::string& field, const std::string& message) {
    problems_.add_error(node.position, field, message);
  }

  void read_label(const Node& node, PartitionRule& rule) {
    const auto text = read_text(node, fields_.field_path("nodeLabel"), problems_);
    if (!text) return;
    rule.node_label = parse_node_label(*text);
    if (!rule.node_label) {
      add_rule_error(node, fields_.field_path("nodeLabel"),
                     "'" + text->substr(0, 64) + "' is not a label; expected key or key=value");
    }
  }

  void read_offer(const Node& node, PartitionRule& rule) {
    const std::string field = fields_.field_path("offer");
    const auto text = read_text(node, field, problems_);
    if (!text) return;
    if (*text == "devicePlugin") {
      rule.offer = OfferSide::kDevicePlugin;
    } else if (*text == "claims") {
      rule.offer = OfferSide::kClaims;
    } else {
      return add_rule_error(node, field, "expected claims or devicePlugin, found " + quoted_text(*text));
    }
    if (std::holds_alternative<Exclude>(rule.mode)) {
      add_rule_error(node, field, "an excluded GPU is offered by nothing; expected no offer");
    } else if (rule.offer == OfferSide::kClaims && !std::holds_alternative<Whole>(rule.mode) &&
               !std::holds_alternative<Mig>(rule.mode) && !std::holds_alternative<DynamicMig>(rule.mode)) {
      add_rule_error(node, field,
                     "claims have whole GPUs and MIG devices; expected whole, mig or dynamicMig in the rule");
    } else if (const auto key = claims_only_key(rule);
               rule.offer == OfferSide::kDevicePlugin && !key.empty()) {
      add_rule_error(node, field,
                     std::string(key) + " is for claims; expected claims, found \"devicePlugin\"");
    } else if (const auto* mig = std::get_if<Mig>(&rule.mode);
               rule.offer == OfferSide::kClaims && mig != nullptr && mig->on_demand) {
      add_rule_error(node, field, "mig.onDemand is for Pods without claims; expected devicePlugin");
    }
  }

  void read_mode(PartitionRule& rule) {
    // `whole:` without a value means `whole: {}`.
    std::vector<const yaml::Entry*> given;
    for (const auto& entry : node_.entries) {
      if (std::ranges::count(kModes, entry.key) != 0) given.push_back(&entry);
    }
    if (given.empty())
      return add_rule_error(node_, path_,
                            "expected one of whole, timeSlicing, mps, mig, dynamicMig and exclude");
    if (given.size() > 1) {
      return problems_.add_error(
          given[1]->position, path_,
          given[1]->key + " together with " + given[0]->key + ": a rule has exactly one of them");
    }
    const auto& [key, position, node] = *given.front();
    const std::string field = fields_.field_path(key);
    if (node.kind == NodeKind::kNull && key != "whole") {
      problems_.add_error(position, field, "no value");
    } else if (key == "exclude") {
      const auto value = read_bool(node, field, problems_);
      if (value && !*value) add_rule_error(node, field, expected_but_found("true", node));
      rule.mode = Exclude{};
    } else if (node.kind == NodeKind::kNull ||
               expect_kind(NodeKind::kMapping, "a mapping", node, field, problems_)) {
      if (key == "whole") read_whole(node, field, rule);
      if (key == "timeSlicing") read_slicing(node, field, rule);
      if (key == "mps") read_mps(node, field, rule);
      if (key == "mig") read_mig(node, field, rule);
      if (key == "dynamicMig") read_dynamic_mig(node, field, rule);
    }
  }

  std::optional<ResourceName> name_in(const MappingReader& fields) {
    const auto* node = fields["name"];
    return node ? read_name(*node, fields.field_path("name"), problems_) : std::nullopt;
  }

  void read_whole(const Node& node, const std::string& field, PartitionRule& rule) {
    const MappingReader fields(node, field, {"name", "consumableShares"}, problems_);
    Whole whole{name_in(fields)};
    if (const auto* value = fields["consumableShares"])
      whole.consumable_shares = read_consumable_shares(*value, fields.field_path("consumableShares"));
    rule.mode = std::move(whole);
  }

  // The values of NVIDIA's DRA driver, --consumable-shares.
  std::optional<ConsumableShares> read_consumable_shares(const Node& node, const std::string& field) {
    const std::string text = node.kind == NodeKind::kScalar ? node.scalar : "";
    if (text == "disabled") return std::nullopt;
    if (text == "unlimited") return ConsumableShares{ShareLimit::kUnlimited};
    if (text == "memory") return ConsumableShares{ShareLimit::kMemory};
    const auto count = plain_number(node);
    if (count && *count >= 1 && *count <= kMaxConsumableShares)
      return ConsumableShares{ShareLimit::kCount, static_cast<unsigned>(*count)};
    add_rule_error(node, field,
                   expected_but_found("disabled, unlimited, memory or a count of shares between 1 and " +
                                          std::to_string(kMaxConsumableShares),
                                      node));
    return std::nullopt;
  }

  void read_slicing(const Node& node, const std::string& field, PartitionRule& rule) {
    const MappingReader fields(node, field, {"name", "replicas", "failRequestsGreaterThanOne", "sharesOn"},
                               problems_);
    TimeSlicing slicing;
    slicing.name = name_in(fields);
    if (const auto* replicas = fields["replicas"]) {
      slicing.replicas = read_replicas(*replicas, fields.field_path("replicas"), problems_).value_or(0);
    } else {
      add_rule_error(node, field, "no replicas specified");
    }
    if (const auto* value = fields["failRequestsGreaterThanOne"]) {
      slicing.fail_requests_greater_than_one =
          read_bool(*value, fields.field_path("failRequestsGreaterThanOne"), problems_).value_or(false);
    }
    read_shares_on(fields, slicing);
    rule.mode = std::move(slicing);
  }

  void read_mps(const Node& node, const std::string& field, PartitionRule& rule) {
    const MappingReader fields(node, field,
                               {"name", "replicas", "memoryLimit", "smPartitions", "shares",
                                "failRequestsGreaterThanOne", "sharesOn"},
                               problems_);
    Mps mps;
    mps.name = name_in(fields);
    const auto* replicas = fields["replicas"];
    const auto* shares = fields["shares"];
    if (!replicas == !shares) {
      add_rule_error(node, field,
                     replicas ? "both replicas and shares are set; shares implies the number"
                              : "expected one of replicas and shares");
    } else if (shares) {
      read_shares(*shares, fields.field_path("shares"), mps);
    } else if (const auto count = read_replicas(*replicas, fields.field_path("replicas"), problems_, 1)) {
      mps.replicas = *count;
      check_clients(*replicas, fields.field_path("replicas"), *count);
    }
    if (const auto* value = fields["memoryLimit"]) {
      if (shares) add_rule_error(*value, fields.field_path("memoryLimit"), "shares have their own memory");
      mps.memory_limit = read_bool(*value, fields.field_path("memoryLimit"), problems_).value_or(true);
    }
    if (const auto* value = fields["failRequestsGreaterThanOne"]) {
      mps.fail_requests_greater_than_one =
          read_bool(*value, fields.field_path("failRequestsGreaterThanOne"), problems_).value_or(true);
    }
    read_shares_on(fields, mps);
    if (const auto* value = fields["smPartitions"]) read_sm_partitions(*value, fields, mps);
    rule.mode = std::move(mps);
  }

  void read_sm_partitions(const Node& node, const MappingReader& fields, Mps& mps) {
    const auto field = fields.field_path("smPartitions");
    mps.sm_partitions = read_bool(node, field, problems_).value_or(false);
    if (!mps.sm_partitions) return;
    if (fields["shares"])
      return add_rule_error(node, field, "shares may differ, and SM partitions are equal: set replicas");
    if (!mps.fail_requests_greater_than_one)
      add_rule_error(node, field, "a container has one SM partition, and so one share");
  }

  // It says where two shares of a container are, which are thus allowed.
  template <class Mode>
  void read_shares_on(const MappingReader& fields, Mode& mode) {
    const auto* node = fields["sharesOn"];
    if (!node) return;
    const std::string field = fields.field_path("sharesOn");
    const auto text = read_text(*node, field, problems_);
    if (!text) return;
    const auto where = placement::parse_shares_on(*text);
    if (!where)
      return add_rule_error(*node, field, "expected oneGPU or differentGPUs, found " + quoted_text(*text));
    if (fields["failRequestsGreaterThanOne"] && mode.fail_requests_greater_than_one)
      return add_rule_error(*node, field, "failRequestsGreaterThanOne is true: a container has one share");
    mode.shares_on = *where;
    mode.fail_requests_greater_than_one = false;
  }

  void check_clients(const Node& node, const std::string& field, std::size_t count) {
    if (count <= kMaxMpsClients) return;
    add_rule_error(node, field,
                   "MPS serves at most " + std::to_string(kMaxMpsClients) + " clients on a GPU, not " +
                       std::to_string(count));
  }

  void read_shares(const Node& node, const std::string& field, Mps& mps) {
    if (!expect_kind(NodeKind::kSequence, "a list of percentages", node, field, problems_)) return;
    if (node.items.empty()) return add_rule_error(node, field, "an empty list of shares");
    check_clients(node, field, node.items.size());
    bool good = true;
    unsigned memory = 0;
    for (std::size_t i = 0; i < node.items.size(); ++i) {
      const auto share = read_share(node.items[i], item_path(field, i));
      good = good && share;
      if (!share) continue;
      memory += share->size.memory;
      mps.shares.push_back(*share);
    }
    if (good && memory > 100) {
      add_rule_error(node, field,
                     "the memory of the shares adds up to " + std::to_string(memory) +
                         " percent of a GPU; the maximum is 100");
    }
  }

  std::optional<NamedMpsShare> read_share(const Node& node, const std::string& field) {
    NamedMpsShare share;
    if (node.kind != NodeKind::kMapping) {
      const auto percent = read_number(node, field, 100, "a percentage", problems_);
      if (!percent) return std::nullopt;
      share.size = {*percent, *percent};
      return share;
    }
    const MappingReader fields(node, field, {"memory", "threads", "name"}, problems_);
    if (!fields["memory"]) {
      add_rule_error(node, field, "no memory specified (percent of the GPU's)");
      return std::nullopt;
    }
    const auto memory =
        read_number(*fields["memory"], fields.field_path("memory"), 100, "a percentage", problems_);
    auto threads = memory;
    if (const auto* value = fields["threads"]) {
      threads = read_number(*value, fields.field_path("threads"), 100, "a percentage", problems_);
    }
    share.name = name_in(fields);
    if (!memory || !threads) return std::nullopt;
    share.size = {*memory, *threads};
    return share;
  }

  void read_mig(const Node& node, const std::string& field, PartitionRule& rule) {
    const MappingReader fields(node, field, {"name", "layout", "devices", "strategy", "onDemand"}, problems_);
    Mig mig;
    mig.name = name_in(fields);
    const auto* layout = fields["layout"];
    const auto* devices = fields["devices"];
    if (!layout == !devices) {
      add_rule_error(node, field,
                     layout ? "both layout and devices are set" : "expected one of layout and devices");
    } else if (layout) {
      mig.layout = read_text(*layout, fields.field_path("layout"), problems_).value_or("-");
      if (mig.layout.empty()) add_rule_error(*layout, fields.field_path("layout"), "expected a layout name");
    } else {
      read_profiles(*devices, fields.field_path("devices"), mig);
    }
    if (const auto* value = fields["strategy"]) {
      const auto text = read_text(*value, fields.field_path("strategy"), problems_);
      if (text && *text != "mixed" && *text != "single") {
        add_rule_error(*value, fields.field_path("strategy"),
                       "unknown MIG strategy: " + text->substr(0, 64) + " (expected mixed or single)");
      }
      if (text && *text == "single") mig.strategy = MigStrategy::kSingle;
    }
    const auto profiles = std::ranges::count_if(mig.devices, [](const auto& d) { return d.second > 0; });
    if (profiles > 1 && (mig.name || mig.strategy == MigStrategy::kSingle)) {
      add_rule_error(*devices, fields.field_path("devices"),
                     "more than one profile for one resource; use strategy mixed without a name");
    }
    if (const auto* value = fields["onDemand"]) {
      const std::string path = fields.field_path("onDemand");
      mig.on_demand = read_bool(*value, path, problems_).value_or(false);
      if (mig.on_demand && (mig.name || mig.strategy == MigStrategy::kSingle)) {
        add_rule_error(*value, path,
                       "a Pod that waits asks for the resource of its profile; use strategy mixed without a "
                       "name");
      }
    }
    rule.mode = std::move(mig);
  }

  void read_dynamic_mig(const Node& node, const std::string& field, PartitionRule& rule) {
    const MappingReader fields(node, field, {"profiles"}, problems_);
    DynamicMig dynamic;
    const auto* profiles = fields["profiles"];
    const std::string list = fields.field_path("profiles");
    if (profiles == nullptr) {
      add_rule_error(node, field, "no profiles specified; expected a list such as [1g.10gb, 3g.40gb]");
    } else if (expect_kind(NodeKind::kSequence, "a list of MIG profiles", *profiles, list, problems_)) {
      if (profiles->items.empty()) add_rule_error(*profiles, list, "an empty list; expected at least one");
      for (std::size_t i = 0; i < profiles->items.size(); ++i)
        add_profile(profiles->items[i], item_path(list, i), dynamic);
    }
    rule.mode = std::move(dynamic);
  }

  // A compute instance that is smaller than its GPU instance would need another one beside it.
  void add_profile(const Node& node, const std::string& field, DynamicMig& dynamic) {
    const auto profile = read_text(node, field, problems_);
    if (!profile) return;
    if (!is_mig_profile_name(*profile) || profile->find("c.") != std::string::npos) {
      return add_rule_error(node, field,
                            "'" + profile->substr(0, 64) +
                                "' is not the MIG profile of a GPU instance such as 1g.10gb or 1g.10gb+me");
    }
    if (std::ranges::count(dynamic.profiles, *profile) != 0)
      return add_rule_error(node, field, *profile + " is listed twice");
    dynamic.profiles.push_back(*profile);
  }

  void read_profiles(const Node& node, const std::string& field, Mig& mig) {
    if (!expect_kind(NodeKind::kMapping, "a mapping of profiles to counts", node, field, problems_)) return;
    constexpr unsigned kMost = 64;  // more than any GPU has slices
    unsigned sum = 0;
    for (const auto& [profile, position, value] : node.entries) {
      if (!is_mig_profile_name(profile)) {
        problems_.add_error(
            position, field,
            "'" + profile.substr(0, 64) + "' is not a MIG profile such as 1g.10gb, 1g.10gb+me or 1c.2g.20gb");
        return;
      }
      const auto count = plain_number(value);
      if (!count || *count > kMost) {
        return add_rule_error(value, field + "." + profile,
                              expected_but_found("a count of at most " + std::to_string(kMost), value));
      }
      mig.devices[profile] = static_cast<unsigned>(*count);
      sum += mig.devices[profile];
    }
    if (sum == 0) add_rule_error(node, field, "no MIG device requested; expected at least one");
  }

  const Node& node_;
  MappingReader fields_;
  std::string path_;
  Problems& problems_;
};

}  // namespace

std::optional<GpuSelection> read_gpu_selection(const Node& node, const std::string& field,
                                               Problems& problems) {
  if (node.kind == NodeKind::kSequence) return read_gpu_list(node, field, problems);
  if (node.kind == NodeKind::kScalar && node.scalar == "all") return AllDevices{};
  const auto count = plain_number(node);
  if (count && *count >= 1 && *count <= kMaxGpuIndex + 1) return DeviceCount{static_cast<unsigned>(*count)};
  if (node.kind == NodeKind::kScalar && !count && parse_gpu_ref(node.scalar)) {
    problems.add_error(node.position, field, "expected a list: [" + node.scalar + "]");
  } else {
    problems.add_error(node.position, field,
                       expected_but_found("all, a count of GPUs (at least 1) or a list", node));
  }
  return std::nullopt;
}

std::string_view claims_only_key(const PartitionRule& rule) {
  if (std::holds_alternative<DynamicMig>(rule.mode)) return "dynamicMig";
  const auto* whole = std::get_if<Whole>(&rule.mode);
  return whole != nullptr && whole->consumable_shares ? "consumableShares" : "";
}

std::vector<PartitionRule> read_partition(const Node& node, Problems& problems) {
  const std::string section = "gpulet.partition";
  std::vector<PartitionRule> rules;
  if (node.kind == NodeKind::kNull ||
      !expect_kind(NodeKind::kSequence, "a list of rules", node, section, problems)) {
    return rules;
  }
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    const std::string path = item_path(section, i);
    if (!expect_kind(NodeKind::kMapping, "a rule", node.items[i], path, problems)) continue;
    rules.push_back(RuleReader(node.items[i], path, problems).read_rule());
  }
  return rules;
}

}  // namespace gpulet::config

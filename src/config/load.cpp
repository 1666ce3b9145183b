#include "config/load.h"

#include <unistd.h>

#include <algorithm>

#include "base/dns_name.h"
#include "base/file.h"
#include "base/text.h"
#include "base/yaml_writer.h"
#include "config/field_reader.h"
#include "config/partition_rules.h"
#include "config/sections.h"
#include "config/yaml.h"

namespace gpulet::config {
namespace {

using NodeKind = yaml::Node::Kind;

// The directory of NVIDIA's chart.

// The valid keys of a section: the next segment of every path below it.
std::vector<std::string> keys_below(const std::string& section) {
  std::vector<std::string> keys;
  if (section.empty()) keys = {"version"};
  const std::string prefix = section.empty() ? "" : section + ".";
  for (const auto& setting : settings()) {
    if (setting.path.empty() || !text::starts_with(setting.path, prefix)) continue;
    const auto rest = setting.path.substr(prefix.size());
    std::string key(rest.substr(0, rest.find('.')));
    if (std::ranges::count(keys, key) == 0) keys.push_back(std::move(key));
  }
  if (section.empty()) keys.insert(keys.end(), {"resources", "sharing"});
  if (section == "gpulet") keys.insert(keys.end(), {"partition", "power"});
  return keys;
}

class Loader {
 public:
  explicit Loader(const Sources& sources) : sources_(sources), problems_(sources.file_path, sources.drop_in) {
    checked_.loaded.values.resize(settings().size());
  }

  CheckResult load_all() {
    if (!sources_.file_path.empty()) read_file();
    for (const auto& [flag, values] : sources_.flags) {
      if (!find_setting_by_flag(flag)) problems_.add_error("flag --" + flag, "unknown flag");
    }
    for (std::size_t i = 0; i < settings().size(); ++i) resolve(i);
    derive_defaults();
    check_together();
    checked_.loaded.warnings = problems_.take_warnings();
    checked_.errors = problems_.take_errors();
    return std::move(checked_);
  }

 private:
  Config& loaded_config() { return checked_.loaded.config; }
  std::optional<EffectiveValue>& effective_value(std::string_view path) {
    return checked_.loaded.values[static_cast<std::size_t>(find_setting_by_path(path) - settings().data())];
  }

  void read_file() {
    auto document = yaml::parse_yaml(sources_.file_content, sources_.file_path);
    if (!document) {
      problems_.add_error(document.error().subject(), document.error().message());
      return;
    }
    for (const auto& doubled : document->duplicates) {
      problems_.add_lenient(
          doubled.position, "",
          "'" + doubled.key.substr(0, 64) + "' is already set at line " + std::to_string(doubled.first.line));
    }
    if (document->second)
      problems_.add_lenient(*document->second, "", "a second document; only the first is read");
    if (document->root.kind == NodeKind::kNull) return;
    if (document->root.kind != NodeKind::kMapping) {
      problems_.add_error(document->root.position, "",
                          expected_but_found("a mapping with version, flags…", document->root));
      return;
    }
    read_section(document->root, "");
  }

  void read_section(const yaml::Node& node, const std::string& section) {
    const auto keys = keys_below(section);
    for (const auto& entry : node.entries) {
      const std::string key(match_key(entry, section, keys, true, problems_));
      if (key.empty()) continue;
      const std::string path = section.empty() ? key : section + "." + key;
      if (path == "version") {
        read_version(entry.value);
      } else if (path == "resources") {
        auto names = read_resources(entry.value, problems_);
        loaded_config().gpu_resources = std::move(names.gpus);
        loaded_config().mig_resources = std::move(names.mig);
        checked_.loaded.resources_origin = origin_of(entry.value);
      } else if (path == "sharing") {
        loaded_config().sharing = read_sharing(entry.value, problems_);
        checked_.loaded.sharing_origin = origin_of(entry.value);
      } else if (path == "gpulet.partition") {
        loaded_config().gpulet.partition = read_partition(entry.value, problems_);
        checked_.loaded.partition_origin = origin_of(entry.value);
      } else if (path == "gpulet.power") {
        loaded_config().gpulet.power = read_power(entry.value, problems_);
      } else if (const auto* setting = find_setting_by_path(path)) {
        read_setting(*setting, entry.value);
      } else if (entry.value.kind == NodeKind::kMapping) {
        read_section(entry.value, path);
      } else if (entry.value.kind != NodeKind::kNull) {
        problems_.add_error(entry.value.position, path, expected_but_found("a mapping", entry.value));
      }
    }
  }

  std::string origin_of(const yaml::Node& node) const {
    return "file " + yaml::position_text(sources_.file_path, node.position);
  }

  void read_version(const yaml::Node& node) {
    const bool empty =
        node.kind == NodeKind::kNull || (node.kind == NodeKind::kScalar && node.scalar.empty());
    if (empty || (node.kind == NodeKind::kScalar && node.scalar == "v1")) return;
    problems_.add_error(node.position, "version",
                        node.kind == NodeKind::kScalar
                            ? "unknown version: " + node.scalar.substr(0, 64) + " (expected v1)"
                            : expected_but_found("v1", node));
  }

  void read_setting(const Setting& setting, const yaml::Node& node) {
    if (node.kind == NodeKind::kNull) return;
    auto value = value_from_node(setting, node);
    auto problem =
        value ? value_error(setting, *value, sources_.discovery) : std::optional(value.error().message());
    if (problem && problems_.drop_in() && is_empty_list_strategy(setting, value)) {
      problems_.add_warning(node.position, std::string(setting.path),
                            "the list is empty: containers get only what passDeviceSpecs gives them");
      problem.reset();
    }
    if (problem) {
      problems_.add_error(node.position, std::string(setting.path), *problem);
    } else {
      effective_value(setting.path) = EffectiveValue{std::move(*value), origin_of(node)};
    }
  }

  // NVIDIA's parser takes the list, and gives containers their GPUs in no way.
  static bool is_empty_list_strategy(const Setting& setting, const Result<Value>& value) {
    const auto* items = value ? std::get_if<std::vector<std::string>>(&*value) : nullptr;
    return setting.path == "flags.plugin.deviceListStrategy" && items != nullptr && items->empty();
  }

  // Flags and environment override the file; the default applies last.
  void resolve(std::size_t index) {
    const auto& setting = settings()[index];
    auto& given = checked_.loaded.values[index];
    if (!read_flag(setting, given)) read_environment(setting, given);
    if (!given && setting.default_text) {
      std::vector<std::string> texts;
      texts.emplace_back(*setting.default_text);
      if (auto value = value_from_text(setting, texts)) given = EffectiveValue{std::move(*value), "default"};
    }
    if (given && setting.assign) setting.assign(loaded_config(), given->value);
  }

  bool read_flag(const Setting& setting, std::optional<EffectiveValue>& given) {
    if (setting.flag.empty()) return false;
    std::vector<std::string_view> names = {setting.flag};
    names.insert(names.end(), setting.flag_aliases.begin(), setting.flag_aliases.end());
    for (const auto name : names) {
      const auto found = sources_.flags.find(name);
      if (found == sources_.flags.end()) continue;
      auto values = found->second;
      if (setting.kind == Kind::kBool && (values.empty() || values.back().empty())) values = {"true"};
      store_value(setting, values, "flag --" + std::string(name), given);
      return true;
    }
    return false;
  }

  void read_environment(const Setting& setting, std::optional<EffectiveValue>& given) {
    for (const auto name : setting.environment) {
      // NVIDIA's feature discovery has its own variables for shared settings: GFD_MIG_STRATEGY.
      for (const bool own : {true, false}) {
        if (own && !sources_.discovery) continue;
        const std::string variable = (own ? "GFD_" : "") + std::string(name);
        const auto found = sources_.environment.find(variable);
        if (found == sources_.environment.end()) continue;
        return store_value(setting, {found->second}, "env " + variable, given);
      }
    }
  }

  void store_value(const Setting& setting, const std::vector<std::string>& texts, const std::string& origin,
                   std::optional<EffectiveValue>& given) {
    auto value = value_from_text(setting, texts);
    const auto problem =
        value ? value_error(setting, *value, sources_.discovery) : std::optional(value.error().message());
    if (problem) {
      problems_.add_error(origin, *problem);
    } else {
      given = EffectiveValue{std::move(*value), origin};
    }
  }

  // Defaults that come from other values.
  void derive_defaults() {
    auto& dev_root = effective_value("flags.nvidiaDevRoot");
    if (!dev_root || std::get<std::string>(dev_root->value).empty()) {
      loaded_config().flags.nvidia_dev_root = loaded_config().flags.nvidia_driver_root;
      dev_root = EffectiveValue{loaded_config().flags.nvidia_driver_root, "default, the driver root"};
    }
    auto& socket = effective_value("gpulet.kubeletSocket");
    if (!socket)
      socket = EffectiveValue{loaded_config().device_plugin_dir() + "/kubelet.sock",
                              "default, below gpulet.kubeletDir"};
    // Under NVIDIA's program name, the agent leaves MIG and MPS to NVIDIA's other programs.
    const bool manage = !sources_.drop_in;
    for (auto [path, field] : {std::pair("gpulet.mig.manage", &loaded_config().gpulet.mig.manage),
                               std::pair("gpulet.mps.manage", &loaded_config().gpulet.mps.manage)}) {
      auto& given = effective_value(path);
      if (given) continue;
      *field = manage;
      given = EffectiveValue{manage, manage ? "default" : "default, as a drop-in"};
    }
    auto& outputs = effective_value("gpulet.labels.outputs");
    if (!outputs) {
      const char* where = sources_.discovery
                              ? (loaded_config().flags.use_node_feature_api ? "node-feature" : "file")
                              : (sources_.drop_in ? "none" : "node");
      outputs = EffectiveValue{std::vector<std::string>{where},
                               sources_.drop_in ? "default, as a drop-in" : "default"};
      find_setting_by_path("gpulet.labels.outputs")->assign(loaded_config(), outputs->value);
    }
    auto& mps_root = effective_value("flags.mpsRoot");
    const bool rules_share = std::ranges::any_of(loaded_config().gpulet.partition, [](const auto& rule) {
      return std::holds_alternative<Mps>(rule.mode);
    });
    if (rules_share && loaded_config().flags.mps_root.empty()) {
      loaded_config().flags.mps_root = kDefaultMpsRoot;
      mps_root = EffectiveValue{loaded_config().flags.mps_root, "default, with rules that use MPS"};
    }
    checked_.loaded.given_gpu_resources = loaded_config().gpu_resources;
    loaded_config().gpu_resources.push_back({"*", ResourceName("nvidia.com/gpu")});
  }

  // Rules between settings.
  void check_together() {
    check_partition(loaded_config(), checked_.loaded.sharing_origin, problems_);
    const auto& outputs = loaded_config().gpulet.labels.outputs;
    if (!sources_.discovery && loaded_config().gfd.output_file.empty() &&
        std::ranges::count(outputs, LabelOutput::kFile) != 0) {
      problems_.add_error(effective_value("gpulet.labels.outputs")->origin,
                          "gpulet.labels.outputs: output file requires flags.gfd.outputFile");
    }
    // Unhealthy nodes are counted by the label.
    if (loaded_config().gpulet.faults.max_unhealthy_nodes_percent > 0 &&
        !loaded_config().gpulet.faults.label) {
      problems_.add_error(
          effective_value("gpulet.faults.eviction.maxUnhealthyNodesPercent")->origin,
          "gpulet.faults.eviction.maxUnhealthyNodesPercent counts nodes by their label; it requires "
          "gpulet.faults.label");
    }
    check_startup_taint(loaded_config().gpulet.startup_taint);
    check_rebalance(loaded_config().gpulet);
    check_reboot_request(loaded_config().gpulet.repair.reboot_request);
    check_driver_limits(loaded_config());
    if (loaded_config().sharing.strategy != SharingStrategy::kMps) return;
    const std::string& about = checked_.loaded.sharing_origin;
    const std::string place = text::starts_with(about, "file ") ? about.substr(5) : about;
    if (loaded_config().flags.mps_root.empty() && !sources_.discovery) {
      problems_.add_error(place, "sharing.mps: using MPS requires --mps-root to be specified");
    }
    // gpulet supports MPS on MIG devices (partition/resources.h); under NVIDIA's program name its rule
    // applies.
    if (sources_.drop_in && loaded_config().flags.mig_strategy == MigStrategy::kMixed) {
      problems_.add_error(place, "sharing.mps: using --mig-strategy=mixed is not supported with MPS (" +
                                     effective_value("flags.migStrategy")->origin + ")");
    }
  }

  // A key as the API server takes one, and none that somebody else sets and removes.
  void check_startup_taint(const std::string& key) {
    if (key.empty()) return;
    const auto& origin = effective_value("gpulet.startupTaint")->origin;
    const std::string expected = ", expected the key of a taint of its own such as \"gpulet.io/not-ready\"";
    if (!is_qualified_name(key)) {
      problems_.add_error(origin, "gpulet.startupTaint is " + quoted_text(key) + expected);
    } else if (key == health::kFaultTaint || key.starts_with("node.kubernetes.io/")) {
      problems_.add_error(origin, "gpulet.startupTaint is " + key + ", which has another meaning" + expected);
    }
  }

  void check_reboot_request(const repair::RebootRequestPolicy& request) {
    const std::string path = "gpulet.repair.rebootRequest.";
    if (const auto& key = request.annotation; !key.empty() && !is_qualified_name(key)) {
      problems_.add_error(effective_value(path + "annotation")->origin,
                          path + "annotation is " + quoted_text(key) +
                              ", expected the key of an annotation such as \"gpulet.io/reboot-required\"");
    }
    if (const auto& file = request.sentinel_file; !file.empty() && !file.starts_with('/')) {
      problems_.add_error(effective_value(path + "sentinelFile")->origin,
                          path + "sentinelFile is " + quoted_text(file) + ", expected an absolute path");
    }
  }

  // It is decided by the metrics' samples, and a Pod that was moved goes where the load says.
  void check_rebalance(const GpuletSettings& own) {
    if (!own.rebalance.enabled) return;
    const auto& origin = effective_value("gpulet.rebalance.enabled")->origin;
    if (!own.metrics.enabled || own.metrics.interval.count() == 0) {
      problems_.add_error(origin, "gpulet.rebalance.enabled requires gpulet.metrics.enabled and an interval");
    } else if (own.rebalance.hot_for < own.metrics.interval) {
      problems_.add_error(origin, "gpulet.rebalance.hotFor is " + format_duration(own.rebalance.hot_for) +
                                      ", expected at least gpulet.metrics.interval, which is " +
                                      format_duration(own.metrics.interval));
    }
    if (own.placement_load == PlacementLoad::kIgnore) {
      problems_.add_error(origin, "gpulet.rebalance.enabled requires gpulet.placementLoad: prefer or strict");
    }
  }

  // The limits are set by a hook that only CDI specs name: a container that gets its devices in another way
  // would start without.
  void check_driver_limits(const Config& config) {
    if (!config.gpulet.fraction.driver_limits || sources_.exporter || sources_.discovery) return;
    const auto& origin = effective_value("gpulet.fraction.driverLimits")->origin;
    const auto is_cdi = [](DeviceListStrategy strategy) {
      return strategy == DeviceListStrategy::kCdiAnnotations || strategy == DeviceListStrategy::kCdiCri;
    };
    if (!std::ranges::all_of(config.flags.device_list_strategy, is_cdi)) {
      problems_.add_error(origin,
                          "gpulet.fraction.driverLimits requires flags.plugin.deviceListStrategy to be "
                          "cdi-annotations or cdi-cri only: other containers would start without a limit");
    }
    if (config.flags.pass_device_specs) {
      problems_.add_error(origin,
                          "gpulet.fraction.driverLimits requires flags.plugin.passDeviceSpecs: false");
    }
    const auto hook = text::base_name(config.flags.nvidia_cdi_hook_path);
    if (config.gpulet.cdi.hook_dir.empty() && hook != "gpulet-hook") {
      problems_.add_error(origin,
                          "gpulet.fraction.driverLimits requires gpulet.cdi.hookDir, or gpulet-hook as "
                          "flags.plugin.nvidiaCTKPath, found " +
                              quoted_text(config.flags.nvidia_cdi_hook_path));
    }
  }

  const Sources& sources_;
  Problems problems_;
  CheckResult checked_;
};

}  // namespace

CheckResult check_config(const Sources& sources) { return Loader(sources).load_all(); }

Result<LoadedConfig> load(const Sources& sources) {
  auto checked = check_config(sources);
  if (checked.errors.empty()) return std::move(checked.loaded);
  Error first = checked.errors.front();
  if (checked.errors.size() == 1) return fail(std::move(first));
  return fail(
      first.code(),
      first.message() + " (and " + std::to_string(checked.errors.size() - 1) + " more: gpulet config check)",
      first.subject());
}

Status read_config_file(Sources& sources) {
  const Setting& setting = *find_setting_by_flag("config-file");
  std::string path;
  if (const auto flag = sources.flags.find(setting.flag); flag != sources.flags.end()) {
    path = flag->second.empty() ? "" : flag->second.back();
  } else {
    for (const char* prefix : {"", "GFD_"}) {  // the last that is set counts
      if (*prefix != '\0' && !sources.discovery) continue;
      const auto given = sources.environment.find(prefix + std::string(setting.environment[0]));
      if (given != sources.environment.end()) path = given->second;
    }
  }
  sources.file_path = path;
  sources.file_content.clear();
  if (path.empty()) return {};
  auto content = read_file(path, yaml::kMaxTextBytes);
  if (!content) return fail(content.error().with_context("error opening config file"));
  sources.file_content = std::move(*content);
  return {};
}

std::map<std::string, std::string, std::less<>> process_environment() {
  std::map<std::string, std::string, std::less<>> variables;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text(*entry);
    const auto equals = text.find('=');
    if (equals != std::string_view::npos && equals > 0) {
      variables.emplace(std::string(text.substr(0, equals)), std::string(text.substr(equals + 1)));
    }
  }
  return variables;
}

}  // namespace gpulet::config

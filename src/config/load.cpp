#include "config/load.h"

#include <unistd.h>

#include <algorithm>

#include "base/file.h"
#include "base/text.h"
#include "config/partition_section.h"
#include "config/readings.h"
#include "config/sections.h"
#include "config/yaml.h"

namespace gpulet::config {
namespace {

using NodeKind = yaml::Node::Kind;

// Where NVIDIA's chart puts it.
constexpr const char* kDefaultMpsRoot = "/run/nvidia/mps";

// What may stand in a section: the next segments of every path that begins with it.
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
  if (section == "gpulet") keys.emplace_back("partition");
  return keys;
}

class Loader {
 public:
  explicit Loader(const Sources& sources) : sources_(sources), problems_(sources.file_path, sources.drop_in) {
    checked_.loaded.values.resize(settings().size());
  }

  Checked run() {
    if (!sources_.file_path.empty()) read_file();
    for (const auto& [flag, values] : sources_.flags) {
      if (!setting_of_flag(flag)) problems_.error("flag --" + flag, "unknown flag");
    }
    for (std::size_t i = 0; i < settings().size(); ++i) resolve(i);
    derive();
    check_together();
    checked_.loaded.warnings = problems_.take_warnings();
    checked_.errors = problems_.take_errors();
    return std::move(checked_);
  }

 private:
  Config& config() { return checked_.loaded.config; }
  std::optional<Given>& value_of(std::string_view path) {
    return checked_.loaded.values[static_cast<std::size_t>(setting_of_path(path) - settings().data())];
  }

  void read_file() {
    auto document = yaml::parse(sources_.file_content, sources_.file_path);
    if (!document) {
      problems_.error(document.error().about(), document.error().message());
      return;
    }
    for (const auto& doubled : document->duplicates) {
      problems_.lenient(doubled.position, "",
                        "'" + doubled.key.substr(0, 64) + "' is already given at line " +
                            std::to_string(doubled.first.line));
    }
    if (document->second)
      problems_.lenient(*document->second, "", "a second document: only the first one is read");
    if (document->root.kind == NodeKind::kNull) return;
    if (document->root.kind != NodeKind::kMapping) {
      problems_.error(document->root.position, "",
                      found_instead("a mapping with version, flags…", document->root));
      return;
    }
    read_section(document->root, "");
  }

  void read_section(const yaml::Node& node, const std::string& section) {
    const auto keys = keys_below(section);
    for (const auto& entry : node.entries) {
      const std::string key(known_key(entry, section, keys, true, problems_));
      if (key.empty()) continue;
      const std::string path = section.empty() ? key : section + "." + key;
      if (path == "version") {
        read_version(entry.value);
      } else if (path == "resources") {
        auto names = read_resources(entry.value, problems_);
        config().gpu_resources = std::move(names.gpus);
        config().mig_resources = std::move(names.mig);
        checked_.loaded.resources_origin = origin_of(entry.value);
      } else if (path == "sharing") {
        config().sharing = read_sharing(entry.value, problems_);
        checked_.loaded.sharing_origin = origin_of(entry.value);
      } else if (path == "gpulet.partition") {
        config().gpulet.partition = read_partition(entry.value, problems_);
        checked_.loaded.partition_origin = origin_of(entry.value);
      } else if (const auto* setting = setting_of_path(path)) {
        read_setting(*setting, entry.value);
      } else if (entry.value.kind == NodeKind::kMapping) {
        read_section(entry.value, path);
      } else if (entry.value.kind != NodeKind::kNull) {
        problems_.error(entry.value.position, path, found_instead("a mapping", entry.value));
      }
    }
  }

  std::string origin_of(const yaml::Node& node) const {
    return "file " + yaml::place(sources_.file_path, node.position);
  }

  void read_version(const yaml::Node& node) {
    const bool empty =
        node.kind == NodeKind::kNull || (node.kind == NodeKind::kScalar && node.scalar.empty());
    if (empty || (node.kind == NodeKind::kScalar && node.scalar == "v1")) return;
    problems_.error(node.position, "version",
                    node.kind == NodeKind::kScalar
                        ? "unknown version: " + node.scalar.substr(0, 64) + " (v1 would do)"
                        : found_instead("v1", node));
  }

  void read_setting(const Setting& setting, const yaml::Node& node) {
    if (node.kind == NodeKind::kNull) return;
    auto value = from_node(setting, node);
    const auto problem = value ? value_error(setting, *value) : std::optional(value.error().message());
    if (problem) {
      problems_.error(node.position, std::string(setting.path), *problem);
    } else {
      value_of(setting.path) = Given{std::move(*value), origin_of(node)};
    }
  }

  // Flags and environment over what the file said, the default below all.
  void resolve(std::size_t index) {
    const auto& setting = settings()[index];
    auto& given = checked_.loaded.values[index];
    if (!take_flag(setting, given)) take_environment(setting, given);
    if (!given && setting.default_text) {
      std::vector<std::string> texts;
      texts.emplace_back(*setting.default_text);
      if (auto value = from_text(setting, texts)) given = Given{std::move(*value), "default"};
    }
    if (given && setting.assign) setting.assign(config(), given->value);
  }

  bool take_flag(const Setting& setting, std::optional<Given>& given) {
    if (setting.flag.empty()) return false;
    std::vector<std::string_view> names = {setting.flag};
    names.insert(names.end(), setting.flag_aliases.begin(), setting.flag_aliases.end());
    for (const auto name : names) {
      const auto found = sources_.flags.find(name);
      if (found == sources_.flags.end()) continue;
      auto values = found->second;
      if (setting.kind == Kind::kBool && (values.empty() || values.back().empty())) values = {"true"};
      take(setting, values, "flag --" + std::string(name), given);
      return true;
    }
    return false;
  }

  void take_environment(const Setting& setting, std::optional<Given>& given) {
    for (const auto name : setting.environment) {
      // NVIDIA's feature discovery has a name of its own for what it shares with the plugin:
      // GFD_MIG_STRATEGY.
      for (const bool own : {true, false}) {
        if (own && !sources_.discovery) continue;
        const std::string variable = (own ? "GFD_" : "") + std::string(name);
        const auto found = sources_.environment.find(variable);
        if (found == sources_.environment.end()) continue;
        return take(setting, {found->second}, "env " + variable, given);
      }
    }
  }

  void take(const Setting& setting, const std::vector<std::string>& texts, const std::string& origin,
            std::optional<Given>& given) {
    auto value = from_text(setting, texts);
    const auto problem = value ? value_error(setting, *value) : std::optional(value.error().message());
    if (problem) {
      problems_.error(origin, *problem);
    } else {
      given = Given{std::move(*value), origin};
    }
  }

  // Defaults that come from other values.
  void derive() {
    auto& dev_root = value_of("flags.nvidiaDevRoot");
    if (!dev_root || std::get<std::string>(dev_root->value).empty()) {
      config().flags.nvidia_dev_root = config().flags.nvidia_driver_root;
      dev_root = Given{config().flags.nvidia_driver_root, "default, the driver root"};
    }
    auto& socket = value_of("gpulet.kubeletSocket");
    if (!socket)
      socket = Given{config().device_plugin_dir() + "/kubelet.sock", "default, below gpulet.kubeletDir"};
    // Called by NVIDIA's name, the agent leaves to NVIDIA's other programs what they do beside its plugin.
    const bool manage = !sources_.drop_in;
    for (auto [path, field] : {std::pair("gpulet.mig.manage", &config().gpulet.mig.manage),
                               std::pair("gpulet.mps.manage", &config().gpulet.mps.manage)}) {
      auto& given = value_of(path);
      if (given) continue;
      *field = manage;
      given = Given{manage, manage ? "default" : "default, as a drop-in"};
    }
    auto& outputs = value_of("gpulet.labels.outputs");
    if (!outputs) {
      const char* where = sources_.discovery ? (config().flags.use_node_feature_api ? "node-feature" : "file")
                                             : (sources_.drop_in ? "none" : "node");
      outputs =
          Given{std::vector<std::string>{where}, sources_.drop_in ? "default, as a drop-in" : "default"};
      setting_of_path("gpulet.labels.outputs")->assign(config(), outputs->value);
    }
    auto& mps_root = value_of("flags.mpsRoot");
    const bool rules_share = std::ranges::any_of(
        config().gpulet.partition, [](const auto& rule) { return std::holds_alternative<Mps>(rule.how); });
    if (rules_share && config().flags.mps_root.empty()) {
      config().flags.mps_root = kDefaultMpsRoot;
      mps_root = Given{config().flags.mps_root, "default, with rules that use MPS"};
    }
    checked_.loaded.given_gpu_resources = config().gpu_resources;
    config().gpu_resources.push_back({"*", ResourceName("nvidia.com/gpu")});
  }

  // Rules between settings.
  void check_together() {
    check_partition(config(), checked_.loaded.sharing_origin, problems_);
    const auto& outputs = config().gpulet.labels.outputs;
    if (!sources_.discovery && config().gfd.output_file.empty() &&
        std::ranges::count(outputs, LabelOutput::kFile) != 0) {
      problems_.error(value_of("gpulet.labels.outputs")->origin,
                      "gpulet.labels.outputs: a file needs its name in flags.gfd.outputFile");
    }
    // The label is what broken nodes are counted by.
    if (config().gpulet.faults.cluster_percent > 0 && !config().gpulet.faults.label) {
      problems_.error(value_of("gpulet.faults.moving.clusterPercent")->origin,
                      "gpulet.faults.moving.clusterPercent counts nodes by their label, which "
                      "gpulet.faults.label: false takes away");
    }
    if (config().sharing.strategy != SharingStrategy::kMps) return;
    const std::string& about = checked_.loaded.sharing_origin;
    const std::string place = text::starts_with(about, "file ") ? about.substr(5) : about;
    if (config().flags.mps_root.empty() && !sources_.discovery) {
      problems_.error(place, "sharing.mps: using MPS requires --mps-root to be specified");
    }
    // MIG devices are served too (partition/sharing.h); by NVIDIA's name, its own word counts.
    if (sources_.drop_in && config().flags.mig_strategy == MigStrategy::kMixed) {
      problems_.error(place, "sharing.mps: using --mig-strategy=mixed is not supported with MPS (" +
                                 value_of("flags.migStrategy")->origin + ")");
    }
  }

  const Sources& sources_;
  Problems problems_;
  Checked checked_;
};

}  // namespace

Checked check(const Sources& sources) { return Loader(sources).run(); }

Result<Loaded> load(const Sources& sources) {
  auto checked = check(sources);
  if (checked.errors.empty()) return std::move(checked.loaded);
  Error first = checked.errors.front();
  if (checked.errors.size() == 1) return fail(std::move(first));
  return fail(
      first.code(),
      first.message() + " (and " + std::to_string(checked.errors.size() - 1) + " more: gpulet config check)",
      first.about());
}

Status read_config_file(Sources& sources) {
  const Setting& setting = *setting_of_flag("config-file");
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
  if (!content) return fail(content.error().with("error opening config file"));
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

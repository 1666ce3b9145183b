#include "migrate/report.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/text.h"
#include "config/exporter_options.h"
#include "config/load.h"
#include "metrics/counters.h"
#include "migrate/components.h"

namespace gpulet::migrate {
namespace {

// Flags of gpu-feature-discovery and config-manager outside the settings table.
constexpr std::array<std::string_view, 15> kOtherFlags = {
    "kubeconfig",        "node-name",  "namespace",          "pod-name", "kube-api-qps",
    "kube-api-burst",    "oneshot",    "config-file-dst",    "signal",   "send-signal",
    "process-to-signal", "node-label", "config-file-srcdir", "version",  "help"};

const config::Setting* find_setting_by_variable(std::string_view name) {
  for (const auto& setting : config::settings()) {
    if (std::ranges::count(setting.environment, name) != 0) return &setting;
  }
  return nullptr;
}

// Its path in the config file, or its help text.
std::string setting_description(const config::Setting& setting) {
  return std::string(setting.path.empty() ? setting.help : setting.path);
}

std::string config_value_text(const config::Value& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) return text::join(*texts, ",");
  return std::get<std::string>(value);
}

std::string device_selection_text(const config::DeviceSelection& devices) {
  if (const auto* count = std::get_if<config::DeviceCount>(&devices)) return std::to_string(count->count);
  if (const auto* refs = std::get_if<config::DeviceRefs>(&devices)) return text::join(*refs, ",");
  return "all";
}

class SettingsEvaluator {
 public:
  explicit SettingsEvaluator(const Facts& facts) : facts_(facts) {}

  SettingsReport evaluate() {
    // The plugin first: a config file is evaluated with the settings of the first program that reads it.
    for (const Component part :
         {Component::kDevicePlugin, Component::kFeatureDiscovery, Component::kMpsControlDaemon,
          Component::kConfigManager, Component::kDcgmExporter}) {
      for (const auto& program : facts_.programs) {
        // An init container has the settings of the container next to it.
        if (program.component != part || program.is_init_container || program.is_gpulet) continue;
        if (part == Component::kConfigManager) {
          evaluate_config_manager(program);
        } else if (part == Component::kDcgmExporter) {
          evaluate_exporter(program);
        } else {
          evaluate_plugin(program);
        }
      }
    }
    config::Sources nobodys;
    nobodys.drop_in = true;
    for (const auto& file : facts_.configs) evaluate_config_file(file, nobodys);
    for (const auto& release : facts_.releases) add_release_values(release);
    for (const auto& setting : result_.settings) {
      if (setting.outcome != Outcome::kLost && setting.outcome != Outcome::kWrong) continue;
      result_.decisions.push_back(setting.source + ": " + setting.name + (setting.name.empty() ? "" : ": ") +
                                  setting.note);
    }
    return std::move(result_);
  }

 private:
  MigratedSetting& add_setting(const std::string& source, std::string name, std::string value,
                               Outcome outcome, std::string note = {}) {
    result_.settings.push_back({.source = source,
                                .name = std::move(name),
                                .value = std::move(value),
                                .outcome = outcome,
                                .note = std::move(note)});
    return result_.settings.back();
  }

  // From the settings table; mark_rejected adds the parser's errors later.
  void add_known_setting(const std::string& source, const config::Setting& setting, const std::string& name,
                         const std::string& value) {
    if (!setting.assign) {
      add_setting(source, name, value, Outcome::kNeedless, "accepted, without effect");
      return;
    }
    auto& row = add_setting(source, name, value, Outcome::kCarries, setting_description(setting));
    if (!setting.environment.empty()) row.variable = std::string(setting.environment.front()) + "=" + value;
  }

  // Marks the rows from `first` on that caused an error of the parser.
  void mark_rejected(const std::string& source, const std::vector<Error>& errors, std::size_t first) {
    for (const auto& error : errors) {
      bool found = false;
      for (std::size_t i = first; i < result_.settings.size(); ++i) {
        auto& row = result_.settings[i];
        if (error.subject() != "env " + row.name && error.subject() != "flag " + row.name) continue;
        row.outcome = Outcome::kWrong;
        row.note = error.message();
        row.variable.clear();
        found = true;
      }
      if (!found) add_setting(source, error.subject(), "", Outcome::kWrong, error.message());
    }
  }

  void add_variables(const Program& program) {
    for (const auto& [name, value] : program.environment) {
      const auto* setting = find_setting_by_variable(name);
      if (setting == nullptr && program.component == Component::kFeatureDiscovery &&
          name.starts_with("GFD_")) {
        setting = find_setting_by_variable(name.substr(4));
      }
      if (setting != nullptr) {
        add_known_setting(program.location(), *setting, name, value);
      } else if (name.starts_with("NVIDIA_")) {
        add_setting(program.location(), name, value, Outcome::kNeedless,
                    "for NVIDIA's container runtime, which still uses it");
      } else if (is_known_variable(program.component, name)) {
        add_setting(program.location(), name, value, Outcome::kCarries, "means the same");
      } else {
        add_setting(program.location(), name, "", Outcome::kNeedless, "not a setting of NVIDIA's programs");
      }
    }
    for (const auto& variable : program.external_variables) {
      add_setting(program.location(), variable, "", Outcome::kCarries, "its value was not read");
    }
  }

  void evaluate_plugin(const Program& program) {
    config::Sources sources;
    sources.drop_in = true;
    sources.discovery = program.component == Component::kFeatureDiscovery;
    const std::size_t first = result_.settings.size();
    for (const auto& [name, values] : parse_flags(program.component, program.arguments).flags) {
      const std::string value = text::join(values, ",");
      if (const auto* setting = config::find_setting_by_flag(name)) {
        add_known_setting(program.location(), *setting, "--" + name, value);
        sources.flags[name] = values;
      } else if (std::ranges::count(kOtherFlags, name) != 0) {
        add_setting(program.location(), "--" + name, value, Outcome::kCarries, "means the same");
      } else {
        add_setting(program.location(), "--" + name, "", Outcome::kWrong,
                    "gpulet's program has no such flag and does not start with it; remove it");
      }
    }
    add_variables(program);
    for (const auto& [name, value] : program.environment) {
      if (is_known_variable(program.component, name)) sources.environment[name] = value;
    }
    // Not set by the user: the daemon has its own directory for it.
    if (program.component == Component::kMpsControlDaemon)
      sources.environment.try_emplace("MPS_ROOT", "/mps");
    const auto checked = config::check_config(sources);
    mark_rejected(program.location(), checked.errors, first);
    note_config(checked.loaded.config);
    for (const auto& file : program.configs) evaluate_config_file(file, sources);
  }

  void note_config(const config::Config& config) {
    using Strategy = config::DeviceListStrategy;
    result_.traits.cdi =
        result_.traits.cdi || std::ranges::any_of(config.flags.device_list_strategy, [](Strategy strategy) {
          return strategy == Strategy::kCdiAnnotations || strategy == Strategy::kCdiCri;
        });
    result_.traits.mps = result_.traits.mps || config.sharing.strategy == config::SharingStrategy::kMps;
    result_.traits.time_slicing =
        result_.traits.time_slicing || config.sharing.strategy == config::SharingStrategy::kTimeSlicing;
  }

  // Each file once, with the settings of the first program that reads it.
  void evaluate_config_file(const NamedText& file, config::Sources sources) {
    if (!evaluated_files_.insert(file.name).second) return;
    const auto before = config::check_config(sources).errors.size();
    sources.file_path = file.name;
    sources.file_content = file.text;
    const auto checked = config::check_config(sources);
    for (std::size_t i = 0; i < checked.errors.size(); ++i) {
      if (checked.errors[i].subject().find(file.name) == std::string::npos && i < before) continue;
      add_setting(file.name, checked.errors[i].subject(), "", Outcome::kWrong, checked.errors[i].message());
    }
    for (const auto& warning : checked.loaded.warnings) {
      result_.traits.unknown_keys = true;
      add_setting(file.name, "", "", Outcome::kDiffers, warning);
    }
    note_config(checked.loaded.config);
    add_file_values(file, checked.loaded);
    check_as_agent(file, std::move(sources), checked.errors.empty());
  }

  void add_file_values(const NamedText& file, const config::LoadedConfig& loaded) {
    const auto settings = config::settings();
    for (std::size_t i = 0; i < settings.size(); ++i) {
      const auto& given = loaded.values[i];
      if (!given || !given->origin.starts_with("file ")) continue;
      const bool works = static_cast<bool>(settings[i].assign);
      add_setting(file.name, std::string(settings[i].path), config_value_text(given->value),
                  works ? Outcome::kCarries : Outcome::kNeedless, works ? "" : "accepted, without effect");
    }
    for (const auto* patterns : {&loaded.given_gpu_resources, &loaded.config.mig_resources}) {
      for (const auto& pattern : *patterns) {
        result_.traits.dormant = true;
        add_setting(file.name, "resources", pattern.pattern + " → " + pattern.name.str(), Outcome::kDiffers,
                    "takes effect; NVIDIA's plugin ignores it");
      }
    }
    const auto& sharing = loaded.config.sharing;
    const std::string section =
        sharing.strategy == config::SharingStrategy::kMps ? "sharing.mps" : "sharing.timeSlicing";
    for (const auto& resource : sharing.resources) {
      add_setting(file.name, section, resource.name.str() + " × " + std::to_string(resource.replicas),
                  Outcome::kCarries);
      if (resource.rename && resource.rename->str() != resource.name.str() + ".shared") {
        add_dormant_setting(file, section + ".rename", resource.rename->str());
      }
      if (!std::holds_alternative<config::AllDevices>(resource.devices)) {
        add_dormant_setting(file, section + ".devices", device_selection_text(resource.devices));
      }
    }
  }

  void add_dormant_setting(const NamedText& file, const std::string& name, const std::string& value) {
    result_.traits.dormant = true;
    add_setting(file.name, name, value, Outcome::kDiffers,
                "takes effect; NVIDIA's plugin resets it with a warning");
  }

  // Under its own name the agent is stricter.
  void check_as_agent(const NamedText& file, config::Sources sources, bool fine) {
    if (!fine) return;
    sources.drop_in = sources.discovery = false;
    const auto errors = config::check_config(sources).errors;
    if (errors.empty()) return;
    result_.decisions.push_back(file.name + ": `gpulet agent` rejects what NVIDIA's program ignores: " +
                                errors.front().full_message());
  }

  void evaluate_config_manager(const Program& program) {
    for (const auto& [name, values] : parse_flags(program.component, program.arguments).flags) {
      const bool known =
          std::ranges::count(kOtherFlags, name) != 0 || config::find_setting_by_flag(name) != nullptr;
      add_setting(program.location(), "--" + name, text::join(values, ","),
                  known ? Outcome::kCarries : Outcome::kWrong,
                  known ? "means the same"
                        : "gpulet's program has no such flag and does not start with it; remove it");
    }
    add_variables(program);
    config::Sources sources;
    sources.drop_in = true;
    for (const auto& file : program.configs) evaluate_config_file(file, sources);
  }

  void add_exporter_value(const Program& program, const config::ExporterOption& option,
                          const std::string& name, const std::string& value) {
    if (option.flag == "collectors" && add_image_counters(program, name, value)) return;
    const auto* setting = find_setting_by_variable(option.variable);
    if (setting == nullptr) {
      add_setting(program.location(), name, value, option.lost ? Outcome::kLost : Outcome::kNeedless,
                  std::string(option.note));
      return;
    }
    auto& row =
        add_setting(program.location(), name, value, Outcome::kCarries, setting_description(*setting));
    if (option.flag == "collectors") row.note += "; mount the same ConfigMap there";
    row.variable = std::string(option.variable) + "=" + value;
    config::Sources sources;
    sources.environment[std::string(option.variable)] = value;
    const auto errors = config::check_config(sources).errors;
    if (errors.empty()) return;
    row.outcome = Outcome::kWrong;
    row.note = errors.front().message();
    row.variable.clear();
  }

  // A counters file outside ConfigMaps is in dcgm-exporter's image: gpulet has those of NVIDIA's image.
  bool add_image_counters(const Program& program, const std::string& name, const std::string& value) {
    if (!program.counters.empty() || !program.config_maps.empty()) return false;
    if (metrics::builtin_counters(value)) {
      add_setting(program.location(), name, value, Outcome::kCarries, "built in").variable =
          "DCGM_EXPORTER_COLLECTORS=" + value;
    } else {
      add_setting(program.location(), name, value, Outcome::kLost,
                  "a file in the image only; put it into a ConfigMap (key metrics) and set "
                  "GPULET_METRICS_COUNTERS_CONFIG_MAP");
    }
    return true;
  }

  void evaluate_exporter(const Program& program) {
    for (const auto& [name, values] : parse_flags(program.component, program.arguments).flags) {
      const std::string flag = (name.size() == 1 ? "-" : "--") + name, value = text::join(values, ",");
      if (const auto* option = config::find_exporter_flag(name)) {
        add_exporter_value(program, *option, flag, value);
      } else {
        add_setting(program.location(), flag, "", Outcome::kLost, "not a flag of dcgm-exporter 4.8");
      }
    }
    Program others = program;
    for (const auto& [name, value] : program.environment) {
      const auto* option = config::find_exporter_variable(name);
      if (option == nullptr) continue;
      add_exporter_value(program, *option, name, value);
      others.environment.erase(name);
    }
    add_variables(others);
    for (const auto& file : program.counters) {
      if (!evaluated_files_.insert(file.name).second) continue;
      const auto counters = metrics::parse_counters(file.text, file.name);
      if (!counters) {
        add_setting(file.name, "", "", Outcome::kWrong, counters.error().full_message());
        continue;
      }
      add_setting(file.name, "counters", std::to_string(counters->all.size()), Outcome::kCarries);
      for (const auto& row : counters->unserved) add_setting(file.name, "counters", "", Outcome::kLost, row);
    }
  }

  void add_release_values(const HelmRelease& release) {
    const std::string source = "release " + release.name_space + "/" + release.name;
    for (const auto& [name, value] : release.values) {
      add_setting(source, name, value, Outcome::kCarries, "gpulet's chart accepts NVIDIA's value names");
    }
    for (const auto& name : release.other_names) {
      add_setting(source, name, "", Outcome::kNeedless, "not a program setting; its value was not read");
    }
  }

  const Facts& facts_;
  SettingsReport result_;
  std::set<std::string> evaluated_files_;
};

}  // namespace

SettingsReport evaluate_settings(const Facts& facts) { return SettingsEvaluator(facts).evaluate(); }

namespace {

struct DifferenceContext {
  ConfigTraits traits;
  bool plugin = false, discovery = false, mps = false, manager = false, exporter = false, toolkit = false;
};

struct DifferenceRule {
  bool (*holds)(const DifferenceContext&);
  std::string_view what, page;
};

bool replaces_plugin(const DifferenceContext& seen) { return seen.plugin; }
bool uses_cdi(const DifferenceContext& seen) { return seen.traits.cdi || seen.toolkit; }

constexpr std::array<DifferenceRule, 16> kRules{{
    {replaces_plugin,
     "an invalid request gets a code and one line; NVIDIA's plugin returns Unknown, or nothing",
     "0002-refuse-bad-requests-with-a-status-code.md"},
    {replaces_plugin, "an unhealthy device is not allocated; NVIDIA's plugin allocates it",
     "0003-refuse-to-allocate-unhealthy-devices.md"},
    {replaces_plugin,
     "a fault marks every share of the GPU and ends when health checks pass; NVIDIA's plugin marks one share "
     "until it restarts",
     "0004-withdraw-the-whole-gpu-on-a-fault.md"},
    {replaces_plugin, "a kubelet restart, a config change or a lost GPU restarts nothing",
     "0005-keep-running-instead-of-restarting.md"},
    {replaces_plugin,
     "placement picks the best linked set exactly and sees NVSwitch, so it may choose other GPUs",
     "0006-exact-nvswitch-aware-placement.md"},
    {[](const DifferenceContext& seen) { return seen.traits.unknown_keys; },
     "an unknown key is a warning under NVIDIA's name, and an error for `gpulet agent`",
     "0007-reject-unknown-config-keys.md"},
    {[](const DifferenceContext& seen) { return seen.traits.dormant; },
     "resources, rename and devices of the config file take effect: names and counts of resources change",
     "0008-implement-resources-rename-and-devices.md"},
    {[](const DifferenceContext& seen) { return seen.plugin || seen.exporter; },
     "port 9400 serves health, readiness, metrics and a page, by an unprivileged process",
     "0009-serve-http-from-an-unprivileged-child.md"},
    {[](const DifferenceContext& seen) { return seen.mps; }, "MPS also shares MIG devices",
     "0013-support-mps-on-mig-devices.md"},
    {[](const DifferenceContext& seen) { return seen.mps; },
     "MPS control daemons are watched, see only their own GPUs, and stop with the agent's Pod",
     "0014-supervise-mps-daemons.md"},
    {[](const DifferenceContext& seen) { return seen.manager; },
     "a node label that names no config falls back; config-manager exits. Changes of a ConfigMap apply at "
     "once",
     "0015-fall-back-on-unknown-config-labels.md"},
    {uses_cdi, "one static hook sets up a container, instead of five runs of nvidia-cdi-hook",
     "0016-one-static-hook-for-untrusted-images.md"},
    {uses_cdi, "CDI specs use version 0.5.0 at most, without the groups of /dev/dri",
     "0017-write-cdi-specs-for-older-engines.md"},
    {uses_cdi, "a container's loader cache is built on a read-only view of it",
     "0018-run-ldconfig-read-only.md"},
    {[](const DifferenceContext& seen) { return seen.exporter; },
     "memory and utilization of a shared GPU are divided by process and add up to the device",
     "0019-attribute-shared-gpu-usage-per-process.md"},
    {[](const DifferenceContext& seen) { return seen.discovery; },
     "labels stay when the program stops, and nodes with several models follow one rule",
     "0021-keep-labels-after-exit.md"},
}};

}  // namespace

std::vector<Difference> find_differences(const Facts& facts, const ConfigTraits& met) {
  const auto runs = [&](Component part) {
    return std::ranges::any_of(facts.programs,
                               [&](const auto& program) { return program.component == part; });
  };
  const auto lies = [&](Component part) {
    return std::ranges::any_of(facts.traces, [&](const auto& trace) { return trace.component == part; });
  };
  DifferenceContext seen{.traits = met};
  // A CDI spec may be a leftover; a socket is not.
  const bool socket = std::ranges::any_of(facts.traces, [](const auto& trace) {
    return trace.component == Component::kDevicePlugin && trace.path.ends_with(".sock");
  });
  seen.plugin = runs(Component::kDevicePlugin) || runs(Component::kCloudPlugin) || socket;
  seen.discovery = runs(Component::kFeatureDiscovery) || lies(Component::kFeatureDiscovery);
  seen.mps = met.mps;
  seen.manager = runs(Component::kConfigManager);
  seen.exporter = runs(Component::kDcgmExporter) || lies(Component::kDcgmExporter);
  seen.toolkit = runs(Component::kContainerToolkit) || lies(Component::kContainerToolkit);
  std::vector<Difference> differences;
  for (const auto& rule : kRules) {
    if (rule.holds(seen))
      differences.push_back({std::string(rule.what), "docs/adr/" + std::string(rule.page)});
  }
  return differences;
}

}  // namespace gpulet::migrate

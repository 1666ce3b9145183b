#include "migrate/settings.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/text.h"
#include "config/load.h"
#include "metrics/counters.h"
#include "migrate/arguments.h"
#include "migrate/exporter.h"
#include "migrate/parts.h"

namespace gpulet::migrate {
namespace {

// Flags of gpu-feature-discovery and config-manager that are no settings of the table.
constexpr std::array<std::string_view, 15> kOtherFlags = {
    "kubeconfig",        "node-name",  "namespace",          "pod-name", "kube-api-qps",
    "kube-api-burst",    "oneshot",    "config-file-dst",    "signal",   "send-signal",
    "process-to-signal", "node-label", "config-file-srcdir", "version",  "help"};

const config::Setting* setting_of_variable(std::string_view name) {
  for (const auto& setting : config::settings()) {
    if (std::ranges::count(setting.environment, name) != 0) return &setting;
  }
  return nullptr;
}

// Its place in the config file, or what it is.
std::string meaning(const config::Setting& setting) {
  return std::string(setting.path.empty() ? setting.help : setting.path);
}

std::string value_text(const config::Value& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) return text::join(*texts, ",");
  return std::get<std::string>(value);
}

std::string text_of(const config::DeviceSelection& devices) {
  if (const auto* count = std::get_if<config::DeviceCount>(&devices)) return std::to_string(count->count);
  if (const auto* refs = std::get_if<config::DeviceRefs>(&devices)) return text::join(*refs, ",");
  return "all";
}

class Judge {
 public:
  explicit Judge(const Facts& facts) : facts_(facts) {}

  JudgedSettings run() {
    // The plugin first: a config file is judged with the settings of who is met with it first.
    for (const Part part : {Part::kDevicePlugin, Part::kFeatureDiscovery, Part::kMpsControlDaemon,
                            Part::kConfigManager, Part::kDcgmExporter}) {
      for (const auto& program : facts_.programs) {
        // An init container's are those of the container beside it.
        if (program.part != part || program.initial || program.ours) continue;
        if (part == Part::kConfigManager) {
          manager(program);
        } else if (part == Part::kDcgmExporter) {
          exporter(program);
        } else {
          plugin(program);
        }
      }
    }
    config::Sources nobodys;
    nobodys.drop_in = true;
    for (const auto& file : facts_.configs) config_file(file, nobodys);
    for (const auto& release : facts_.releases) chart(release);
    for (const auto& setting : judged_.settings) {
      if (setting.fate != Fate::kLost && setting.fate != Fate::kWrong) continue;
      judged_.decide.push_back(setting.of + ": " + setting.name + (setting.name.empty() ? "" : ": ") +
                               setting.note);
    }
    return std::move(judged_);
  }

 private:
  Setting& add(const std::string& of, std::string name, std::string value, Fate fate, std::string note = {}) {
    judged_.settings.push_back({.of = of,
                                .name = std::move(name),
                                .value = std::move(value),
                                .fate = fate,
                                .note = std::move(note)});
    return judged_.settings.back();
  }

  // By the table of settings; what its reader says of a value is put in afterwards (blame).
  void add_known(const std::string& of, const config::Setting& setting, const std::string& name,
                 const std::string& value) {
    if (!setting.assign) {
      add(of, name, value, Fate::kNeedless, "taken, without an effect here");
      return;
    }
    auto& row = add(of, name, value, Fate::kCarries, meaning(setting));
    if (!setting.environment.empty()) row.variable = std::string(setting.environment.front()) + "=" + value;
  }

  // What the reader refuses, at the rows from `first` on that gave it.
  void blame(const std::string& of, const std::vector<Error>& errors, std::size_t first) {
    for (const auto& error : errors) {
      bool found = false;
      for (std::size_t i = first; i < judged_.settings.size(); ++i) {
        auto& row = judged_.settings[i];
        if (error.about() != "env " + row.name && error.about() != "flag " + row.name) continue;
        row.fate = Fate::kWrong;
        row.note = error.message();
        row.variable.clear();
        found = true;
      }
      if (!found) add(of, error.about(), "", Fate::kWrong, error.message());
    }
  }

  void variables(const Program& program) {
    for (const auto& [name, value] : program.environment) {
      const auto* setting = setting_of_variable(name);
      if (setting == nullptr && program.part == Part::kFeatureDiscovery && name.starts_with("GFD_")) {
        setting = setting_of_variable(name.substr(4));
      }
      if (setting != nullptr) {
        add_known(program.where(), *setting, name, value);
      } else if (name.starts_with("NVIDIA_")) {
        add(program.where(), name, value, Fate::kNeedless,
            "for NVIDIA's container runtime, which goes by it as before");
      } else if (known_variable(program.part, name)) {
        add(program.where(), name, value, Fate::kCarries, "means the same");
      } else {
        add(program.where(), name, "", Fate::kNeedless, "no setting of NVIDIA's");
      }
    }
    for (const auto& variable : program.elsewhere) {
      add(program.where(), variable, "", Fate::kCarries, "its value was not looked at");
    }
  }

  void plugin(const Program& program) {
    config::Sources sources;
    sources.drop_in = true;
    sources.discovery = program.part == Part::kFeatureDiscovery;
    const std::size_t first = judged_.settings.size();
    for (const auto& [name, values] : read_flags(program.part, program.arguments).flags) {
      const std::string value = text::join(values, ",");
      if (const auto* setting = config::setting_of_flag(name)) {
        add_known(program.where(), *setting, "--" + name, value);
        sources.flags[name] = values;
      } else if (std::ranges::count(kOtherFlags, name) != 0) {
        add(program.where(), "--" + name, value, Fate::kCarries, "means the same");
      } else {
        add(program.where(), "--" + name, "", Fate::kWrong,
            "gpulet's program has no such flag and does not start with it: take it away");
      }
    }
    variables(program);
    for (const auto& [name, value] : program.environment) {
      if (known_variable(program.part, name)) sources.environment[name] = value;
    }
    // Told by nobody: it has a place of its own for it.
    if (program.part == Part::kMpsControlDaemon) sources.environment.try_emplace("MPS_ROOT", "/mps");
    const auto checked = config::check(sources);
    blame(program.where(), checked.errors, first);
    meet(checked.loaded.config);
    for (const auto& file : program.configs) config_file(file, sources);
  }

  void meet(const config::Config& config) {
    using Strategy = config::DeviceListStrategy;
    judged_.met.cdi =
        judged_.met.cdi || std::ranges::any_of(config.flags.device_list_strategy, [](Strategy strategy) {
          return strategy == Strategy::kCdiAnnotations || strategy == Strategy::kCdiCri;
        });
    judged_.met.mps = judged_.met.mps || config.sharing.strategy == config::SharingStrategy::kMps;
    judged_.met.time_slicing =
        judged_.met.time_slicing || config.sharing.strategy == config::SharingStrategy::kTimeSlicing;
  }

  // Each once, with the settings of the program that was met with it first.
  void config_file(const NamedText& file, config::Sources sources) {
    if (!judged_files_.insert(file.name).second) return;
    const auto before = config::check(sources).errors.size();
    sources.file_path = file.name;
    sources.file_content = file.text;
    const auto checked = config::check(sources);
    for (std::size_t i = 0; i < checked.errors.size(); ++i) {
      if (checked.errors[i].about().find(file.name) == std::string::npos && i < before) continue;
      add(file.name, checked.errors[i].about(), "", Fate::kWrong, checked.errors[i].message());
    }
    for (const auto& warning : checked.loaded.warnings) {
      judged_.met.unknown_keys = true;
      add(file.name, "", "", Fate::kDiffers, warning);
    }
    meet(checked.loaded.config);
    file_values(file, checked.loaded);
    as_agent(file, std::move(sources), checked.errors.empty());
  }

  void file_values(const NamedText& file, const config::Loaded& loaded) {
    const auto settings = config::settings();
    for (std::size_t i = 0; i < settings.size(); ++i) {
      const auto& given = loaded.values[i];
      if (!given || !given->origin.starts_with("file ")) continue;
      const bool works = static_cast<bool>(settings[i].assign);
      add(file.name, std::string(settings[i].path), value_text(given->value),
          works ? Fate::kCarries : Fate::kNeedless, works ? "" : "taken, without an effect here");
    }
    for (const auto* patterns : {&loaded.given_gpu_resources, &loaded.config.mig_resources}) {
      for (const auto& pattern : *patterns) {
        judged_.met.dormant = true;
        add(file.name, "resources", pattern.pattern + " → " + pattern.name.str(), Fate::kDiffers,
            "in force here; NVIDIA's plugin reads it and goes on without it");
      }
    }
    const auto& sharing = loaded.config.sharing;
    const std::string section =
        sharing.strategy == config::SharingStrategy::kMps ? "sharing.mps" : "sharing.timeSlicing";
    for (const auto& resource : sharing.resources) {
      add(file.name, section, resource.name.str() + " × " + std::to_string(resource.replicas),
          Fate::kCarries);
      if (resource.rename && resource.rename->str() != resource.name.str() + ".shared") {
        dormant(file, section + ".rename", resource.rename->str());
      }
      if (!std::holds_alternative<config::AllDevices>(resource.devices)) {
        dormant(file, section + ".devices", text_of(resource.devices));
      }
    }
  }

  void dormant(const NamedText& file, const std::string& name, const std::string& value) {
    judged_.met.dormant = true;
    add(file.name, name, value, Fate::kDiffers, "in force here; NVIDIA's plugin resets it with a warning");
  }

  // Under its own name the agent is stricter.
  void as_agent(const NamedText& file, config::Sources sources, bool fine) {
    if (!fine) return;
    sources.drop_in = sources.discovery = false;
    const auto errors = config::check(sources).errors;
    if (errors.empty()) return;
    judged_.decide.push_back(
        file.name + ": `gpulet agent` refuses what NVIDIA's program passes over: " + errors.front().text());
  }

  void manager(const Program& program) {
    for (const auto& [name, values] : read_flags(program.part, program.arguments).flags) {
      const bool known =
          std::ranges::count(kOtherFlags, name) != 0 || config::setting_of_flag(name) != nullptr;
      add(program.where(), "--" + name, text::join(values, ","), known ? Fate::kCarries : Fate::kWrong,
          known ? "means the same"
                : "gpulet's program has no such flag and does not start with it: take it away");
    }
    variables(program);
    config::Sources sources;
    sources.drop_in = true;
    for (const auto& file : program.configs) config_file(file, sources);
  }

  void exporter_value(const Program& program, const ExporterOption& option, const std::string& name,
                      const std::string& value) {
    if (option.flag == "collectors" && counters_of_image(program, name, value)) return;
    const auto* setting = setting_of_variable(option.variable);
    if (setting == nullptr) {
      add(program.where(), name, value, option.lost ? Fate::kLost : Fate::kNeedless,
          std::string(option.note));
      return;
    }
    auto& row = add(program.where(), name, value, Fate::kCarries, meaning(*setting));
    if (option.flag == "collectors") row.note += "; mount the same ConfigMap there";
    row.variable = std::string(option.variable) + "=" + value;
    config::Sources sources;
    sources.environment[std::string(option.variable)] = value;
    const auto errors = config::check(sources).errors;
    if (errors.empty()) return;
    row.fate = Fate::kWrong;
    row.note = errors.front().message();
    row.variable.clear();
  }

  // A list of counters that no ConfigMap gives lies in dcgm-exporter's image, which gpulet's is not.
  bool counters_of_image(const Program& program, const std::string& name, const std::string& value) {
    if (!program.counters.empty() || !program.maps.empty()) return false;
    if (text::base_name(value) == "default-counters.csv") {
      add(program.where(), name, value, Fate::kNeedless, "what the agent serves by default");
    } else {
      add(program.where(), name, value, Fate::kLost,
          "a file that is in no ConfigMap: put it into one (key metrics), and name that by "
          "GPULET_METRICS_COUNTERS_CONFIG_MAP");
    }
    return true;
  }

  void exporter(const Program& program) {
    for (const auto& [name, values] : read_flags(program.part, program.arguments).flags) {
      const std::string flag = (name.size() == 1 ? "-" : "--") + name, value = text::join(values, ",");
      if (const auto* option = exporter_flag(name)) {
        exporter_value(program, *option, flag, value);
      } else {
        add(program.where(), flag, "", Fate::kLost, "no flag of dcgm-exporter 4.5");
      }
    }
    Program others = program;
    for (const auto& [name, value] : program.environment) {
      const auto* option = exporter_variable(name);
      if (option == nullptr) continue;
      exporter_value(program, *option, name, value);
      others.environment.erase(name);
    }
    variables(others);
    for (const auto& file : program.counters) {
      if (!judged_files_.insert(file.name).second) continue;
      const auto counters = metrics::parse_counters(file.text, file.name);
      if (!counters) {
        add(file.name, "", "", Fate::kWrong, counters.error().text());
        continue;
      }
      add(file.name, "counters", std::to_string(counters->all.size()), Fate::kCarries);
      for (const auto& row : counters->left_out) add(file.name, "counters", "", Fate::kLost, row);
    }
  }

  void chart(const Release& release) {
    const std::string of = "release " + release.name_space + "/" + release.name;
    for (const auto& [name, value] : release.values) {
      add(of, name, value, Fate::kCarries, "gpulet's chart takes NVIDIA's values by their names");
    }
    for (const auto& name : release.others) {
      add(of, name, "", Fate::kNeedless, "no setting of a program; its value was not looked at");
    }
  }

  const Facts& facts_;
  JudgedSettings judged_;
  std::set<std::string> judged_files_;
};

}  // namespace

JudgedSettings judge_settings(const Facts& facts) { return Judge(facts).run(); }

}  // namespace gpulet::migrate

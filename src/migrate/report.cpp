#include "migrate/report.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "migrate/components.h"

namespace gpulet::migrate {
namespace {

std::string describe_found(const Program& program) {
  std::string what = program.image;
  if (program.is_gpulet) what += what.empty() ? "gpulet, under that name" : ", gpulet under that name";
  if (program.installed == Installed::kByOperator) what += ", installed by the GPU operator";
  if (!program.release.empty()) {
    what += ", release " + program.release_namespace + "/" + program.release;
    if (!program.chart.empty()) what += " of " + program.chart;
  }
  return what.starts_with(", ") ? what.substr(2) : what;
}

std::string describe_found(const ClusterPolicy& policy) {
  std::string what;
  for (const auto& [field, value] : policy.fields) what += (what.empty() ? "" : ", ") + field + "=" + value;
  return what;
}

void add_found(const Facts& facts, Report& report) {
  for (const auto& program : facts.programs) {
    if (!program.is_init_container)
      report.found.push_back({program.component, program.location(), describe_found(program)});
  }
  for (const auto& policy : facts.policies) {
    report.found.push_back({Component::kOperator, "ClusterPolicy " + policy.name, describe_found(policy)});
  }
  for (const auto& trace : facts.traces) report.found.push_back({trace.component, trace.path, trace.what});
  for (const auto& engine : facts.engines) {
    if (engine.nvidia_runtime.empty()) continue;
    report.found.push_back(
        {Component::kContainerToolkit, engine.nvidia_runtime, "NVIDIA's runtime in " + engine.title});
  }
  std::ranges::stable_sort(report.found, {}, &FoundComponent::component);
}

// Node labels that both NVIDIA's programs and the agent follow.
void add_node_labels(const Facts& facts, Report& report) {
  for (const auto& node : facts.nodes) {
    for (const auto& [name, value] : node.labels) {
      if (name.starts_with("nvidia.com/gpu.deploy.")) continue;
      report.settings.push_back({.source = "node " + node.name,
                                 .name = name,
                                 .value = value,
                                 .outcome = Outcome::kCarries,
                                 .note = "the agent follows it too"});
    }
  }
}

}  // namespace

std::string Program::workload_name() const {
  return kind + " " + (name_space.empty() ? "" : name_space + "/") + name;
}

std::string Program::location() const {
  if (container.empty()) return workload_name();
  return workload_name() + (is_init_container ? ", init container " : ", container ") + container;
}

std::string_view json_key(Outcome outcome) {
  switch (outcome) {
    case Outcome::kCarries:
      return "carries";
    case Outcome::kNeedless:
      return "needless";
    case Outcome::kDiffers:
      return "differs";
    case Outcome::kLost:
      return "lost";
    case Outcome::kWrong:
      return "wrong";
  }
  return "";
}

std::string_view display_title(Outcome outcome) {
  switch (outcome) {
    case Outcome::kCarries:
      return "carries over";
    case Outcome::kNeedless:
      return "not needed";
    case Outcome::kDiffers:
      return "differs";
    case Outcome::kLost:
      return "no counterpart";
    case Outcome::kWrong:
      return "rejected";
  }
  return "";
}

Report build_report(const Facts& facts) {
  Report report{.location = facts.location};
  add_found(facts, report);
  auto evaluated = evaluate_settings(facts);
  report.settings = std::move(evaluated.settings);
  add_node_labels(facts, report);
  report.differences = find_differences(facts, evaluated.traits);
  auto steps = plan_steps(facts, report.settings);
  report.decisions = std::move(evaluated.decisions);
  report.decisions.insert(report.decisions.end(), steps.decisions.begin(), steps.decisions.end());
  report.next_steps = std::move(steps.next);
  report.rollback_steps = std::move(steps.rollback);
  if (!report.decisions.empty())
    report.next_steps.insert(report.next_steps.begin(), "Resolve the decisions above.");
  report.unread = facts.unread;
  return report;
}

namespace {

// Placeholders for the image in the user's registry: the variant for NVIDIA's objects. NVIDIA's runtime gives
// a container the driver if its NVIDIA_VISIBLE_DEVICES asks for GPUs, which most of NVIDIA's manifests leave
// to the image's own variables.
constexpr std::string_view kRepository = "REGISTRY/gpulet";
constexpr std::string_view kTag = "VERSION-operator";

bool is_replaced_by_image(Component part) {
  return part == Component::kDevicePlugin || part == Component::kFeatureDiscovery ||
         part == Component::kMpsControlDaemon || part == Component::kConfigManager;
}

// {"name":"…","image":"…","command":["…"]}, with a command if the container uses the image's own.
std::string container_patch(const Program& program) {
  std::string patch = "{\"name\":\"" + program.container + "\",\"image\":\"" + std::string(kRepository) +
                      ":" + std::string(kTag) + "\"";
  if (!program.has_command) {
    patch += ",\"command\":[\"";
    patch += program.component == Component::kDevicePlugin ? "nvidia-device-plugin"
                                                           : std::string(json_key(program.component));
    patch += "\"]";
  }
  return patch + "}";
}

class StepsBuilder {
 public:
  StepsBuilder(const Facts& facts, const std::vector<MigratedSetting>& settings)
      : facts_(facts), settings_(settings) {
    for (const auto& program : facts.programs) {
      if (!program.is_gpulet && program.component != Component::kAgent)
        workloads_[program.workload_name()].push_back(&program);
    }
  }

  MigrationSteps build() {
    add_decisions();
    facts_.is_cluster ? add_cluster_steps() : add_node_steps();
    return std::move(steps_);
  }

 private:
  void add_next(std::string step) { steps_.next.push_back(std::move(step)); }
  void add_rollback(std::string step) { steps_.rollback.push_back(std::move(step)); }
  bool has_component(Component part) const {
    return std::ranges::any_of(facts_.programs,
                               [&](const auto& program) { return program.component == part; });
  }

  // Problems that no step solves by itself.
  void add_decisions() {
    if (facts_.platform)
      steps_.decisions.push_back(inventory::platform_text(*facts_.platform) + "; " +
                                 inventory::platform_advice(*facts_.platform));
    for (const auto& program : facts_.programs) {
      if (program.runs_in_shell && program.installed != Installed::kByOperator &&
          is_replaced_by_image(program.component)) {
        steps_.decisions.push_back(program.location() +
                                   ": runs through a shell, which gpulet's image does not have; use the "
                                   "program itself as the command");
      }
      if (program.host_network && program.component == Component::kDevicePlugin &&
          has_component(Component::kDcgmExporter)) {
        steps_.decisions.push_back(program.location() +
                                   ": with hostNetwork it uses the node's port 9400, as dcgm-exporter may; "
                                   "set GPULET_LISTEN to another port");
      }
    }
    check_plugin_conflict();
  }

  // Plugins on the same nodes conflict. Selectors of a cloud's plugin or of gpulet's manifest often match
  // the same nodes in different words.
  void check_plugin_conflict() {
    std::map<std::string, std::vector<std::string>> by_nodes;
    std::vector<std::string> all;
    for (const auto& program : facts_.programs) {
      const bool plugin = program.component == Component::kDevicePlugin ||
                          program.component == Component::kCloudPlugin ||
                          program.component == Component::kAgent;
      if (program.is_init_container || !plugin) continue;
      all.push_back(program.workload_name());
      by_nodes[program.nodes].push_back(program.workload_name());
    }
    const auto say = [this](const std::vector<std::string>& plugins) {
      steps_.decisions.push_back(
          "more than one device plugin: " + text::join(plugins, ", ") +
          "; only one may offer nvidia.com/gpu on a node: separate them by node labels, or remove one");
    };
    if (has_component(Component::kCloudPlugin) ||
        (has_component(Component::kAgent) && has_component(Component::kDevicePlugin)))
      return say(all);
    for (const auto& [nodes, plugins] : by_nodes) {
      if (plugins.size() > 1) say(plugins);
    }
  }

  void add_cluster_steps() {
    if (workloads_.empty() && facts_.policies.empty()) return;
    add_next(
        "On a GPU node of each kind: `gpulet runtime check`. Where it reports fit, use CDI (cdi-cri) without "
        "NVIDIA's runtime; elsewhere keep DEVICE_LIST_STRATEGY.");
    for (const auto& policy : facts_.policies) add_operator_steps(policy);
    std::set<std::string> releases;
    for (const auto& [name, programs] : workloads_) {
      const Program& first = *programs.front();
      if (!std::ranges::any_of(programs,
                               [](const auto* one) { return is_replaced_by_image(one->component); }))
        continue;
      if (first.installed == Installed::kByOperator) continue;
      if (first.installed == Installed::kByChart) {
        if (releases.insert(first.release_namespace + "/" + first.release).second) add_chart_steps(first);
      } else {
        add_manifest_steps(name, programs);
      }
    }
    add_compare_step();
    add_agent_step();
  }

  void add_chart_steps(const Program& program) {
    constexpr std::string_view kChart = "nvidia-device-plugin-";
    std::string revision, version;
    if (program.chart.starts_with(kChart)) version = program.chart.substr(kChart.size());
    for (const auto& release : facts_.releases) {
      if (release.name != program.release || release.name_space != program.release_namespace) continue;
      revision = release.revision;
      version = release.version;
    }
    const std::string space = " -n " + program.release_namespace;
    add_next("Change only the image: `helm upgrade " + program.release + " NVIDIA-CHART" + space +
             (version.empty() ? "" : " --version " + version) + " --reuse-values --set image.repository=" +
             std::string(kRepository) + " --set image.tag=" + std::string(kTag) + "`");
    add_rollback(
        "`helm rollback " + program.release + " " + (revision.empty() ? "REVISION" : revision) + space + "`" +
        (revision.empty() ? " (`helm history " + program.release + space + "` lists revisions)" : ""));
  }

  void add_manifest_steps(const std::string& name, const std::vector<const Program*>& programs) {
    std::string containers, initial;
    for (const auto* program : programs) {
      if (!is_replaced_by_image(program->component)) continue;
      auto& list = program->is_init_container ? initial : containers;
      list += (list.empty() ? "" : ",") + container_patch(*program);
    }
    const auto& first = *programs.front();
    std::string spec = containers.empty() ? "" : "\"containers\":[" + containers + "]";
    if (!initial.empty()) spec += (spec.empty() ? "" : ",") + ("\"initContainers\":[" + initial + "]");
    std::string kind = first.kind;
    std::ranges::transform(kind, kind.begin(), [](char c) {
      return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    });
    const std::string object = kind + "/" + first.name;
    add_next("Change only the image of " + name + ": `kubectl -n " + first.name_space + " patch " + object +
             " -p '{\"spec\":{\"template\":{\"spec\":{" + spec + "}}}}'`");
    add_rollback("`kubectl -n " + first.name_space + " rollout undo " + object + "`");
  }

  void add_operator_steps(const ClusterPolicy& policy) {
    // gpulet replaces these; the operator keeps the driver, the toolkit and the validator.
    const std::string operand_image =
        R"(:{"repository":"REGISTRY","image":"gpulet","version":")" + std::string(kTag) + "\"}";
    std::string image, off, on;
    for (const char* part : {"devicePlugin", "gfd", "dcgmExporter", "migManager"}) {
      const auto enabled = policy.fields.find(std::string(part) + ".enabled");
      if (enabled != policy.fields.end() && enabled->second == "false") continue;
      image += (image.empty() ? "" : ",") + ("\"" + std::string(part) + "\"" + operand_image);
      off += (off.empty() ? "" : ",") + ("\"" + std::string(part) + "\":{\"enabled\":false}");
      on += (on.empty() ? "" : ",") + ("\"" + std::string(part) + "\":{\"enabled\":true}");
    }
    const std::string command =
        "`kubectl patch clusterpolicies.nvidia.com " + policy.name + " --type merge -p '{\"spec\":{";
    if (!off.empty()) {
      const auto engine = policy.fields.find("dcgm.enabled");
      if (engine != policy.fields.end() && engine->second == "true") image += R"(,"dcgm":{"enabled":false})";
      add_next("Change only the image of the operator's Pods: " + command + image +
               "}}'`; with Helm set the same values, or its next upgrade undoes this.");
      add_rollback(
          "The same patch with the repository, image and version of now: `kubectl get "
          "clusterpolicies.nvidia.com " +
          policy.name + " -o yaml`");
      add_next("Or one agent: keep the driver and the toolkit in the operator, turn off the rest: " +
               command + off +
               "}}'`; with Helm set the same values (devicePlugin.enabled=false, …), or its next upgrade "
               "undoes this.");
      add_rollback("After gpulet is removed: " + command + on + "}}'`");
    }
    if (const auto layouts = policy.fields.find("migManager.config.name"); layouts != policy.fields.end()) {
      add_next("MIG layouts: mount ConfigMap " + layouts->second +
               " and set MIG_PARTED_CONFIG_FILE to the file; the label nvidia.com/mig.config selects one as "
               "before.");
    }
    const auto driver = policy.fields.find("driver.enabled");
    if (driver == policy.fields.end() || driver->second != "false") {
      add_next(
          "The driver runs in the operator's container: set gpulet's driver root to /run/nvidia/driver "
          "(NVIDIA_DRIVER_ROOT, and the hostPath that it mounts).");
    }
  }

  void add_compare_step() {
    std::map<std::string, std::set<std::string>> counts;  // "nvidia.com/gpu=8", nodes
    for (const auto& node : facts_.nodes) {
      for (const auto& [resource, count] : node.resources) counts[resource + "=" + count].insert(node.name);
    }
    std::string now;
    for (const auto& [count, nodes] : counts) {
      now += (now.empty() ? "" : ", ") + count + " on " + std::to_string(nodes.size()) +
             (nodes.size() == 1 ? " node" : " nodes");
    }
    add_next(
        "Compare what nodes offer: `kubectl get nodes -o custom-columns=NODE:.metadata.name,"
        "GPUS:.status.allocatable.nvidia\\.com/gpu`" +
        (now.empty() ? "." : "; currently " + now + "."));
  }

  void add_agent_step() {
    const std::string settings_text = agent_variables();
    const std::string goes = replaced_workloads();
    add_next("One agent for everything: gpulet's chart or deploy/static/gpulet.yaml" +
             (settings_text.empty() ? std::string() : ", with the variables " + settings_text) + "." +
             (goes.empty()
                  ? std::string()
                  : " Remove what it replaces (" + goes +
                        ") first, so that no node has two device plugins; running Pods keep their GPUs."));
    add_rollback(
        "Remove gpulet's objects, then apply the previous ones. Labels stay (docs/labels.md): `kubectl label "
        "node NODE KEY-` for those under gpulet.io/.");
    if (has_component(Component::kDcgmExporter)) {
      add_next(
          "Point Prometheus at gpulet's port 9400 (deploy/prometheus), compare dashboards, then remove "
          "dcgm-exporter.");
    }
  }

  // "A=1 B=2", and "A=1|2" if programs have different values.
  std::string agent_variables() const {
    std::map<std::string, std::set<std::string>> values;
    for (const auto& setting : settings_) {
      if (setting.outcome != Outcome::kCarries || setting.variable.empty()) continue;
      const auto equals = setting.variable.find('=');
      values[setting.variable.substr(0, equals)].insert(setting.variable.substr(equals + 1));
    }
    // config-manager's link, which the agent does not need.
    if (values.contains("CONFIG_FILE_SRCDIR")) values.erase("CONFIG_FILE");
    std::string settings_text;
    for (const auto& [name, all] : values) {
      settings_text += (settings_text.empty() ? "" : " ") + name + "=" +
                       text::join(std::vector<std::string>(all.begin(), all.end()), "|");
    }
    return settings_text;
  }

  std::string replaced_workloads() const {
    std::string names;
    for (const auto& [name, programs] : workloads_) {
      const bool goes = std::ranges::any_of(programs, [](const auto* one) {
        if (one->installed == Installed::kByOperator) return false;  // the operator removes its own
        return is_replaced_by_image(one->component) || one->component == Component::kMigManager ||
               one->component == Component::kDcgmExporter;
      });
      if (goes) names += (names.empty() ? "" : ", ") + name;
    }
    return names;
  }

  void add_node_steps() {
    for (const auto& engine : facts_.engines) {
      if (!engine.cdi_ready) add_next(engine.title + " does not support CDI yet: " + engine.fix);
    }
    if (has_component(Component::kDevicePlugin) || has_component(Component::kFeatureDiscovery) ||
        has_component(Component::kDcgmExporter)) {
      add_next(
          "To find the workloads of these processes and their commands: `gpulet migrate check --cluster`.");
    }
    for (const auto& trace : facts_.traces) {
      if (!trace.path.ends_with(".service")) continue;
      const std::string unit(text::base_name(trace.path));
      if (trace.component != Component::kMigManager && trace.component != Component::kDcgmExporter &&
          trace.component != Component::kHostEngine) {
        continue;
      }
      add_next("After gpulet runs here: `systemctl disable --now " + unit + "`");
      add_rollback("`systemctl enable --now " + unit + "`");
    }
    const bool of_nvidia = std::ranges::any_of(
        facts_.engines, [](const auto& engine) { return !engine.nvidia_runtime.empty(); });
    if (of_nvidia) {
      add_next(
          "NVIDIA's container runtime may stay: gpulet needs it with envvar and volume-mounts, not with a "
          "cdi-* strategy.");
    }
    if (std::ranges::any_of(facts_.engines, [](const auto& engine) { return !engine.cdi_ready; })) {
      add_rollback("`gpulet runtime configure --remove` for each engine that was configured.");
    }
  }

  const Facts& facts_;
  const std::vector<MigratedSetting>& settings_;
  std::map<std::string, std::vector<const Program*>> workloads_;
  MigrationSteps steps_;
};

}  // namespace

MigrationSteps plan_steps(const Facts& facts, const std::vector<MigratedSetting>& settings) {
  return StepsBuilder(facts, settings).build();
}

}  // namespace gpulet::migrate

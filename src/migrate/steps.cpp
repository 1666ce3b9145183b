#include "migrate/steps.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "migrate/parts.h"

namespace gpulet::migrate {
namespace {

// As an operator has it once the image is in a registry of theirs.
constexpr const char* kImage = "REGISTRY/gpulet:VERSION";

bool replaced_by_image(Part part) {
  return part == Part::kDevicePlugin || part == Part::kFeatureDiscovery || part == Part::kMpsControlDaemon ||
         part == Part::kConfigManager;
}

// {"name":"…","image":"…","command":["…"]}, with the command where the image's own would run.
std::string container_patch(const Program& program) {
  std::string patch = "{\"name\":\"" + program.container + "\",\"image\":\"" + kImage + "\"";
  if (!program.has_command) {
    patch += ",\"command\":[\"";
    patch += program.part == Part::kDevicePlugin ? "nvidia-device-plugin" : std::string(key(program.part));
    patch += "\"]";
  }
  return patch + "}";
}

class Maker {
 public:
  Maker(const Facts& facts, const std::vector<Setting>& settings) : facts_(facts), settings_(settings) {
    for (const auto& program : facts.programs) {
      if (!program.ours && program.part != Part::kAgent) workloads_[program.workload()].push_back(&program);
    }
  }

  Steps run() {
    dangers();
    facts_.of_cluster ? cluster() : node();
    return std::move(steps_);
  }

 private:
  void next(std::string step) { steps_.next.push_back(std::move(step)); }
  void back(std::string step) { steps_.back.push_back(std::move(step)); }
  bool runs(Part part) const {
    return std::ranges::any_of(facts_.programs, [&](const auto& program) { return program.part == part; });
  }

  // What no step cures by itself.
  void dangers() {
    for (const auto& program : facts_.programs) {
      if (program.through_shell && program.installed != Installed::kByOperator &&
          replaced_by_image(program.part)) {
        steps_.decide.push_back(
            program.where() +
            ": runs through a shell, which gpulet's image does not have: give the program "
            "itself as the command");
      }
      if (program.host_network && program.part == Part::kDevicePlugin && runs(Part::kDcgmExporter)) {
        steps_.decide.push_back(
            program.where() +
            ": with hostNetwork its port 9400 is the node's, which dcgm-exporter may have "
            "too: set GPULET_LISTEN to another");
      }
    }
    two_plugins();
  }

  // Those of the same nodes get in each other's way; what a cloud or gpulet's own manifest selects is often
  // said in other words than what it meets.
  void two_plugins() {
    std::map<std::string, std::vector<std::string>> by_nodes;
    std::vector<std::string> all;
    for (const auto& program : facts_.programs) {
      const bool plugin = program.part == Part::kDevicePlugin || program.part == Part::kCloudPlugin ||
                          program.part == Part::kAgent;
      if (program.initial || !plugin) continue;
      all.push_back(program.workload());
      by_nodes[program.nodes].push_back(program.workload());
    }
    const auto say = [this](const std::vector<std::string>& plugins) {
      steps_.decide.push_back(
          "more than one device plugin: " + text::join(plugins, ", ") +
          "; on one node only one may offer nvidia.com/gpu: keep them apart by node labels, or "
          "take one away");
    };
    if (runs(Part::kCloudPlugin) || (runs(Part::kAgent) && runs(Part::kDevicePlugin))) return say(all);
    for (const auto& [nodes, plugins] : by_nodes) {
      if (plugins.size() > 1) say(plugins);
    }
  }

  void cluster() {
    if (workloads_.empty() && facts_.policies.empty()) return;
    next(
        "On a GPU node of each kind: `gpulet runtime check`. Where it says fit, GPUs can come by CDI "
        "(cdi-cri) "
        "without NVIDIA's runtime; elsewhere leave DEVICE_LIST_STRATEGY as it is.");
    for (const auto& policy : facts_.policies) operator_steps(policy);
    std::set<std::string> releases;
    for (const auto& [name, programs] : workloads_) {
      const Program& first = *programs.front();
      if (!std::ranges::any_of(programs, [](const auto* one) { return replaced_by_image(one->part); }))
        continue;
      if (first.installed == Installed::kByOperator) continue;
      if (first.installed == Installed::kByChart) {
        if (releases.insert(first.release_namespace + "/" + first.release).second) chart_steps(first);
      } else {
        manifest_steps(name, programs);
      }
    }
    check_step();
    agent_step();
  }

  void chart_steps(const Program& program) {
    constexpr std::string_view kChart = "nvidia-device-plugin-";
    std::string revision, version;
    if (program.chart.starts_with(kChart)) version = program.chart.substr(kChart.size());
    for (const auto& release : facts_.releases) {
      if (release.name != program.release || release.name_space != program.release_namespace) continue;
      revision = release.revision;
      version = release.version;
    }
    const std::string space = " -n " + program.release_namespace;
    next("The image alone: `helm upgrade " + program.release + " NVIDIA-CHART" + space +
         (version.empty() ? "" : " --version " + version) +
         " --reuse-values --set image.repository=REGISTRY/gpulet --set image.tag=VERSION`");
    back("`helm rollback " + program.release + " " + (revision.empty() ? "REVISION" : revision) + space +
         "`" +
         (revision.empty() ? " (`helm history " + program.release + space + "` says which was before)" : ""));
  }

  void manifest_steps(const std::string& name, const std::vector<const Program*>& programs) {
    std::string containers, initial;
    for (const auto* program : programs) {
      if (!replaced_by_image(program->part)) continue;
      auto& list = program->initial ? initial : containers;
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
    next("The image alone, of " + name + ": `kubectl -n " + first.name_space + " patch " + object +
         " -p '{\"spec\":{\"template\":{\"spec\":{" + spec + "}}}}'`");
    back("`kubectl -n " + first.name_space + " rollout undo " + object + "`");
  }

  void operator_steps(const Policy& policy) {
    // What gpulet takes over; the driver, the toolkit and the validator stay the operator's.
    std::string off, on;
    for (const char* part : {"devicePlugin", "gfd", "dcgmExporter", "migManager"}) {
      const auto enabled = policy.fields.find(std::string(part) + ".enabled");
      if (enabled != policy.fields.end() && enabled->second == "false") continue;
      off += (off.empty() ? "" : ",") + ("\"" + std::string(part) + "\":{\"enabled\":false}");
      on += (on.empty() ? "" : ",") + ("\"" + std::string(part) + "\":{\"enabled\":true}");
    }
    const std::string command =
        "`kubectl patch clusterpolicies.nvidia.com " + policy.name + " --type merge -p '{\"spec\":{";
    if (!off.empty()) {
      next("The operator keeps the driver and the toolkit, and lets go of the rest: " + command + off +
           "}}'`; with Helm the same by its values (devicePlugin.enabled=false, …), or its next upgrade "
           "undoes it.");
      back("Once gpulet is gone: " + command + on + "}}'`");
    }
    if (const auto layouts = policy.fields.find("migManager.config.name"); layouts != policy.fields.end()) {
      next("Its MIG layouts: mount ConfigMap " + layouts->second +
           " and name the file by MIG_PARTED_CONFIG_FILE; the label nvidia.com/mig.config picks one as "
           "before.");
    }
    const auto driver = policy.fields.find("driver.enabled");
    if (driver == policy.fields.end() || driver->second != "false") {
      next(
          "The driver is in the operator's container: gpulet's driver root is /run/nvidia/driver "
          "(NVIDIA_DRIVER_ROOT, and the hostPath that it mounts).");
    }
  }

  void check_step() {
    std::map<std::string, std::set<std::string>> counts;  // "nvidia.com/gpu=8", nodes
    for (const auto& node : facts_.nodes) {
      for (const auto& [resource, count] : node.resources) counts[resource + "=" + count].insert(node.name);
    }
    std::string now;
    for (const auto& [count, nodes] : counts) {
      now += (now.empty() ? "" : ", ") + count + " on " + std::to_string(nodes.size()) +
             (nodes.size() == 1 ? " node" : " nodes");
    }
    next(
        "Compare what nodes offer: `kubectl get nodes -o custom-columns=NODE:.metadata.name,"
        "GPUS:.status.allocatable.nvidia\\.com/gpu`" +
        (now.empty() ? "." : "; now " + now + "."));
  }

  void agent_step() {
    const std::string told = variables();
    const std::string goes = replaced();
    next("One agent for all of it: gpulet's own chart or deploy/static/gpulet.yaml" +
         (told.empty() ? std::string() : ", its environment with " + told) + "." +
         (goes.empty()
              ? std::string()
              : " Take away what it replaces (" + goes +
                    ") before it, so that no node has two device plugins; running Pods keep their GPUs."));
    back(
        "Take gpulet's objects away, then apply what was there. Labels stay (docs/labels.md): "
        "`kubectl label node NODE KEY-` for those under gpulet.io/.");
    if (runs(Part::kDcgmExporter)) {
      next(
          "Point Prometheus at gpulet's port 9400 (deploy/prometheus), compare a dashboard, then take "
          "dcgm-exporter "
          "away.");
    }
  }

  // "A=1 B=2", and where programs were told different things, "A=1|2".
  std::string variables() const {
    std::map<std::string, std::set<std::string>> values;
    for (const auto& setting : settings_) {
      if (setting.fate != Fate::kCarries || setting.variable.empty()) continue;
      const auto equals = setting.variable.find('=');
      values[setting.variable.substr(0, equals)].insert(setting.variable.substr(equals + 1));
    }
    // It is what config-manager links, which the agent does not need.
    if (values.contains("CONFIG_FILE_SRCDIR")) values.erase("CONFIG_FILE");
    std::string told;
    for (const auto& [name, all] : values) {
      told += (told.empty() ? "" : " ") + name + "=" +
              text::join(std::vector<std::string>(all.begin(), all.end()), "|");
    }
    return told;
  }

  std::string replaced() const {
    std::string names;
    for (const auto& [name, programs] : workloads_) {
      const bool goes = std::ranges::any_of(programs, [](const auto* one) {
        if (one->installed == Installed::kByOperator) return false;  // the operator takes its own away
        return replaced_by_image(one->part) || one->part == Part::kMigManager ||
               one->part == Part::kDcgmExporter;
      });
      if (goes) names += (names.empty() ? "" : ", ") + name;
    }
    return names;
  }

  void node() {
    for (const auto& engine : facts_.engines) {
      if (!engine.fit) next(engine.title + " does not read CDI yet: " + engine.remedy);
    }
    if (runs(Part::kDevicePlugin) || runs(Part::kFeatureDiscovery) || runs(Part::kDcgmExporter)) {
      next("Which workloads these processes are of, and their commands: `gpulet migrate check --cluster`.");
    }
    for (const auto& trace : facts_.traces) {
      if (!trace.path.ends_with(".service")) continue;
      const std::string unit(text::base_name(trace.path));
      if (trace.part != Part::kMigManager && trace.part != Part::kDcgmExporter &&
          trace.part != Part::kHostEngine) {
        continue;
      }
      next("Once gpulet runs here: `systemctl disable --now " + unit + "`");
      back("`systemctl enable --now " + unit + "`");
    }
    const bool of_nvidia = std::ranges::any_of(
        facts_.engines, [](const auto& engine) { return !engine.nvidia_runtime.empty(); });
    if (of_nvidia) {
      next(
          "NVIDIA's container runtime may stay: with a strategy cdi-* gpulet does not need it, with envvar "
          "and "
          "volume-mounts it does.");
    }
    if (std::ranges::any_of(facts_.engines, [](const auto& engine) { return !engine.fit; })) {
      back("`gpulet runtime configure --remove` for each engine that was set up.");
    }
  }

  const Facts& facts_;
  const std::vector<Setting>& settings_;
  std::map<std::string, std::vector<const Program*>> workloads_;
  Steps steps_;
};

}  // namespace

Steps steps_of(const Facts& facts, const std::vector<Setting>& settings) {
  return Maker(facts, settings).run();
}

}  // namespace gpulet::migrate

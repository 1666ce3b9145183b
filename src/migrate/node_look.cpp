#include "migrate/node_look.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/file.h"
#include "base/text.h"
#include "migrate/arguments.h"
#include "migrate/parts.h"
#include "runtimes/configure.h"
#include "runtimes/json_text.h"
#include "runtimes/toml.h"

namespace gpulet::migrate {
namespace {

constexpr std::size_t kMaxWordsBytes = 256u << 10;  // of a command line, or an environment
constexpr std::size_t kMostConfigs = 100;           // of a folder

struct Sign {
  Part part;
  std::string_view pattern, what;
};
// What programs leave on a node. The folder of device plugins is a constant of the kubelet, wherever its own
// root is.
constexpr std::array<Sign, 25> kSigns{{
    {Part::kDevicePlugin, "/var/lib/kubelet/device-plugins/nvidia-*.sock",
     "socket of the device plugin that runs, NVIDIA's or gpulet's"},
    {Part::kDevicePlugin, "/var/run/cdi/k8s.device-plugin.nvidia.com-*.json", "CDI spec of a device plugin"},
    {Part::kFeatureDiscovery, "/etc/kubernetes/node-feature-discovery/features.d/gfd", "labels for NFD"},
    {Part::kMpsControlDaemon, "/run/nvidia/mps", "pipes and logs of MPS"},
    {Part::kMigManager, "/etc/nvidia-mig-manager/config.yaml",
     "MIG layouts: gpulet.mig.configFile takes the file"},
    {Part::kMigManager, "/etc/nvidia-mig-manager/hooks.yaml",
     "its hooks: gpulet.mig.hooksFile takes the file"},
    {Part::kMigManager, "/etc/systemd/system/nvidia-mig-manager.service", "a service"},
    {Part::kMigManager, "/usr/lib/systemd/system/nvidia-mig-manager.service", "a service"},
    {Part::kDcgmExporter, "/etc/dcgm-exporter/*.csv",
     "lists of counters: gpulet.metrics.countersFile takes one"},
    {Part::kDcgmExporter, "/etc/systemd/system/dcgm-exporter.service", "a service"},
    {Part::kDcgmExporter, "/usr/lib/systemd/system/dcgm-exporter.service", "a service"},
    {Part::kDcgmExporter, "/usr/lib/systemd/system/nvidia-dcgm-exporter.service", "a service"},
    {Part::kHostEngine, "/usr/lib/systemd/system/nvidia-dcgm.service", "a service"},
    {Part::kContainerToolkit, "/usr/bin/nvidia-container-runtime", "NVIDIA's runtime"},
    {Part::kContainerToolkit, "/usr/bin/nvidia-ctk", "its command"},
    {Part::kContainerToolkit, "/usr/local/nvidia/toolkit/nvidia-container-runtime",
     "NVIDIA's runtime, by the operator"},
    {Part::kContainerToolkit, "/etc/nvidia-container-runtime/config.toml", "its settings"},
    {Part::kContainerToolkit, "/etc/cdi/nvidia*.yaml", "CDI spec, which nothing keeps fresh"},
    {Part::kContainerToolkit, "/var/run/cdi/nvidia*.yaml", "CDI spec of nvidia-ctk"},
    {Part::kContainerToolkit, "/var/run/cdi/management.nvidia.com-*.yaml",
     "CDI spec for the operator's own Pods"},
    {Part::kContainerToolkit, "/etc/systemd/system/nvidia-cdi-refresh.service", "makes the CDI spec anew"},
    {Part::kContainerToolkit, "/usr/lib/systemd/system/nvidia-cdi-refresh.service",
     "makes the CDI spec anew"},
    {Part::kOperator, "/run/nvidia/validations", "its validator's files"},
    {Part::kDriver, "/run/nvidia/driver/usr", "the root of a driver container"},
    {Part::kDriver, "/home/kubernetes/bin/nvidia", "the driver as GKE installs it"},
}};

struct EngineFiles {
  runtimes::Engine engine;
  std::string_view pattern;
};
// Where runtimes are set up, by engine and distribution.
constexpr std::array<EngineFiles, 12> kEngineFiles{{
    {runtimes::Engine::kContainerd, "/etc/containerd/config.toml"},
    {runtimes::Engine::kContainerd, "/etc/containerd/conf.d/*.toml"},
    {runtimes::Engine::kContainerd, "/etc/cri/conf.d/*.toml"},
    {runtimes::Engine::kContainerd, "/etc/k0s/containerd.d/*.toml"},
    {runtimes::Engine::kContainerd, "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"},
    {runtimes::Engine::kContainerd, "/var/lib/rancher/rke2/agent/etc/containerd/config.toml"},
    {runtimes::Engine::kContainerd, "/var/snap/microk8s/current/args/containerd.toml"},
    {runtimes::Engine::kCrio, "/etc/crio/crio.conf"},
    {runtimes::Engine::kCrio, "/etc/crio/conf.d/*"},
    {runtimes::Engine::kCrio, "/etc/crio/crio.conf.d/*"},
    {runtimes::Engine::kPodman, "/etc/containers/containers.conf"},
    {runtimes::Engine::kDocker, "/etc/docker/daemon.json"},
}};

bool names_runtime(const std::vector<std::string>& path) {
  for (std::size_t i = 0; i + 1 < path.size(); ++i) {
    if (path[i] == "runtimes" && path[i + 1] == "nvidia") return true;
  }
  return false;
}

bool sets_nvidia_up(runtimes::Engine engine, const std::string& text, const std::string& path) {
  if (engine == runtimes::Engine::kDocker) {
    const auto document = runtimes::json::parse(text, path);
    const auto* all = document ? document->find("runtimes") : nullptr;
    return all != nullptr && all->find("nvidia") != nullptr;
  }
  const auto document = runtimes::toml::parse(text, path);
  return document && (std::ranges::any_of(document->tables,
                                          [](const auto& table) { return names_runtime(table.path); }) ||
                      std::ranges::any_of(document->entries,
                                          [](const auto& entry) { return names_runtime(entry.path); }));
}

std::vector<std::string> words(const std::string& text) {
  auto all = text::split(text, '\0');
  if (!all.empty() && all.back().empty()) all.pop_back();
  return all;
}

class LookAtNode {
 public:
  LookAtNode(std::string root, RootDirectory files, runtimes::Host host)
      : root_(std::move(root)), files_(std::move(files)), host_(std::move(host)) {}

  Facts run() {
    facts_.place = root_;
    if (auto numbers = files_.list("/proc")) {
      std::ranges::sort(*numbers, {}, [](const auto& name) {
        return std::pair(text::parse_unsigned(name).value_or(0), name);
      });
      for (const auto& number : *numbers) {
        if (text::parse_unsigned(number)) process(number);
      }
    } else {
      facts_.not_read.push_back("processes: " + numbers.error().text());
    }
    for (const auto& sign : kSigns) {
      for (auto& path : host_.glob(std::string(sign.pattern))) {
        facts_.traces.push_back({sign.part, std::move(path), std::string(sign.what)});
      }
    }
    engines();
    return std::move(facts_);
  }

 private:
  void process(const std::string& number) {
    const std::string folder = "/proc/" + number;
    const auto line = files_.read(folder + "/cmdline", kMaxWordsBytes);
    if (!line) return;  // it has ended
    auto argv = words(*line);
    const auto part = argv.empty() ? std::nullopt : part_of_program(argv.front());
    if (!part) return;
    if (*part == Part::kAgent && (argv.size() < 2 || argv[1] != "agent")) return;
    Program program;
    program.part = *part;
    program.kind = "process";
    program.name = number;
    program.installed = Installed::kOnHost;
    program.arguments.assign(argv.begin() + 1, argv.end());
    char target[PATH_MAX];
    const auto size = ::readlink((files_.path() + folder + "/exe").c_str(), target, sizeof target);
    const std::string_view program_file(target, size > 0 ? static_cast<std::size_t>(size) : 0);
    program.ours = *part != Part::kAgent && text::base_name(program_file) == "gpulet";
    environment(folder, program);
    if (!program.ours) files_of(folder, program);
    facts_.programs.push_back(std::move(program));
  }

  void environment(const std::string& folder, Program& program) {
    const auto text = files_.read(folder + "/environ", kMaxWordsBytes);
    if (!text) {
      facts_.not_read.push_back(
          "the variables of process " + program.name + ", as " +
          (text.error().code() == Code::kPermissionDenied ? "only root may" : text.error().message()));
      return;
    }
    for (const auto& word : words(*text)) {
      const auto equals = word.find('=');
      if (equals == std::string::npos || !known_variable(program.part, word.substr(0, equals))) continue;
      program.environment[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }

  static std::string told(const Program& program, const std::vector<std::string>& flags,
                          const char* variable) {
    const auto given = read_flags(program.part, program.arguments).flags;
    for (const auto& flag : flags) {
      if (const auto found = given.find(flag); found != given.end()) return found->second.back();
    }
    const auto found = program.environment.find(variable);
    return found == program.environment.end() ? "" : found->second;
  }

  // In the process's own root folder, which may be a container's: regular files alone, and none that makes us
  // wait (runtimes::Host).
  void files_of(const std::string& folder, Program& program) {
    const std::string root = files_.path() + folder + "/root";
    const auto own = runtimes::Host::open({.root = root, .inside = false});
    const auto folders = RootDirectory::open(root);
    if (!own || !folders) return;
    const auto add = [&](const std::string& path, std::vector<NamedText>& to) {
      if (path.empty()) return;
      const auto text = own->read(path);
      if (text && *text) {
        to.push_back({path + " of " + program.where(), **text});
      } else {
        facts_.not_read.push_back(path + " of " + program.where() + ": " +
                                  (text ? "is not there" : text.error().message()));
      }
    };
    if (program.part == Part::kDcgmExporter) {
      return add(told(program, {"f", "collectors"}, "DCGM_EXPORTER_COLLECTORS"), program.counters);
    }
    add(told(program, {"config-file"}, "CONFIG_FILE"), program.configs);
    const auto source = told(program, {"config-file-srcdir"}, "CONFIG_FILE_SRCDIR");
    if (source.empty()) return;
    const auto names = folders->list(source);
    for (std::size_t i = 0; names && i < std::min(names->size(), kMostConfigs); ++i) {
      if (!(*names)[i].starts_with('.')) add(source + "/" + (*names)[i], program.configs);
    }
  }

  void engines() {
    for (const auto& report : runtimes::check(host_)) {
      EngineFacts engine{.title = std::string(runtimes::facts(report.engine).title), .fit = report.fit()};
      if (!report.distribution.empty()) engine.title += " of " + report.distribution;
      if (report.version) engine.title += " " + report.version->str();
      for (const auto& finding : report.findings) {
        if (!finding.fit && engine.remedy.empty()) engine.remedy = finding.say + "; " + finding.remedy;
      }
      for (const auto& files : kEngineFiles) {
        if (files.engine != report.engine || !engine.nvidia_runtime.empty()) continue;
        for (const auto& path : host_.glob(std::string(files.pattern))) {
          const auto text = host_.read(path);
          if (text && *text && sets_nvidia_up(report.engine, **text, path)) engine.nvidia_runtime = path;
        }
      }
      facts_.engines.push_back(std::move(engine));
    }
  }

  std::string root_;
  RootDirectory files_;
  runtimes::Host host_;
  Facts facts_;
};

}  // namespace

Result<Facts> look_at_node(const std::string& root) {
  GPULET_TRY_ASSIGN(auto files, RootDirectory::open(root));
  GPULET_TRY_ASSIGN(auto host, runtimes::Host::open({.root = root, .inside = root == "/"}));
  return LookAtNode(root, std::move(files), std::move(host)).run();
}

}  // namespace gpulet::migrate

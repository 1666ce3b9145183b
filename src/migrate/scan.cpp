#include "migrate/scan.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <set>

#include "base/dns_name.h"
#include "base/file.h"
#include "base/text.h"
#include "inventory/platform.h"
#include "k8s/blocking_reader.h"
#include "k8s/objects.h"
#include "migrate/components.h"
#include "runtimes/configure.h"
#include "runtimes/docker.h"
#include "runtimes/toml.h"

namespace gpulet::migrate {
namespace {

class ClusterScanner {
 public:
  ClusterScanner(const k8s::ClientConfig& access, Duration limit) : access_(access), reader_(access, limit) {}

  Result<Facts> scan() {
    facts_.is_cluster = true;
    facts_.location = access_.host;
    const auto add = [this](const char* kind) {
      return [this, kind](std::string_view object) {
        for (auto& program : parse_workload(object, kind)) facts_.programs.push_back(std::move(program));
      };
    };
    GPULET_TRY(reader_.list_objects("/apis/apps/v1/daemonsets", "list on daemonsets.apps", add("DaemonSet")));
    list_optional("/apis/apps/v1/deployments", "list on deployments.apps", add("Deployment"));
    list_optional("/apis/nvidia.com/v1/clusterpolicies", "list on clusterpolicies.nvidia.com",
                  [this](std::string_view object) {
                    if (auto policy = parse_cluster_policy(object))
                      facts_.policies.push_back(std::move(*policy));
                  });
    list_optional("/api/v1/nodes", "list on nodes", [this](std::string_view object) {
      if (auto node = parse_node(object)) facts_.nodes.push_back(std::move(*node));
    });
    read_config_maps();
    read_helm_releases();
    return std::move(facts_);
  }

 private:
  // A missing collection is empty; a denied one is reported.
  void list_optional(const std::string& path, const std::string& right,
                     const std::function<void(std::string_view)>& item) {
    if (const auto listed = reader_.list_objects(path, right, item); !listed)
      facts_.unread.push_back(listed.error().full_message());
  }

  void read_config_maps() {
    std::set<ConfigMapRef> needed;
    for (const auto& program : facts_.programs)
      needed.insert(program.config_maps.begin(), program.config_maps.end());
    for (const auto& map : needed) {
      if (!is_dns_label(map.name_space) || !is_dns_subdomain(map.name)) continue;
      const std::string name = map.name_space + "/" + map.name;
      const auto read = reader_.get_object("/api/v1/namespaces/" + map.name_space + "/configmaps/" + map.name,
                                           "get on configmaps in " + map.name_space);
      if (!read) {
        facts_.unread.push_back("configmap " + name + ": " + read.error().full_message());
      } else if (!*read) {
        facts_.unread.push_back("configmap " + name + " is used by a program but does not exist");
      } else {
        attach_config_map(facts_.programs, map, config_map_data(**read));
      }
    }
  }

  // Only the Secrets of releases that programs found here belong to.
  void read_helm_releases() {
    std::set<std::pair<std::string, std::string>> needed;
    for (const auto& program : facts_.programs) {
      if (program.installed == Installed::kByChart)
        needed.emplace(program.release_namespace, program.release);
    }
    for (const auto& [name_space, name] : needed) {
      if (!is_dns_label(name_space) || !is_dns_subdomain(name)) continue;
      const auto listed = reader_.list_objects(
          "/api/v1/namespaces/" + name_space +
              "/secrets?labelSelector=" + k8s::encode_query_value("owner=helm,status=deployed,name=" + name),
          "list on secrets in " + name_space, [&](std::string_view secret) {
            auto release = parse_helm_release(secret);
            if (release) {
              facts_.releases.push_back(std::move(*release));
            } else {
              facts_.unread.push_back("release " + name_space + "/" + name + ": " +
                                      release.error().full_message());
            }
          });
      // The rendered objects contain the values too, so nothing is lost without this permission.
      if (!listed && listed.error().code() != Code::kPermissionDenied) {
        facts_.unread.push_back("release " + name_space + "/" + name + ": " + listed.error().full_message());
      }
    }
  }

  const k8s::ClientConfig& access_;
  k8s::BlockingReader reader_;
  Facts facts_;
};

}  // namespace

Result<Facts> scan_cluster(const k8s::ClientConfig& access, Duration limit) {
  return ClusterScanner(access, limit).scan();
}

namespace {

constexpr std::size_t kMaxProcFileBytes = 256u << 10;  // of a command line or an environment
constexpr std::size_t kMaxConfigFiles = 100;           // per directory

struct TracePattern {
  Component component;
  std::string_view pattern, what;
};
// What programs leave on a node. The kubelet's directory for device plugins is constant, whatever its root
// is.
constexpr std::array<TracePattern, 25> kTracePatterns{{
    {Component::kDevicePlugin, "/var/lib/kubelet/device-plugins/nvidia-*.sock",
     "socket of the running device plugin, NVIDIA's or gpulet's"},
    {Component::kDevicePlugin, "/var/run/cdi/k8s.device-plugin.nvidia.com-*.json",
     "CDI spec of a device plugin"},
    {Component::kFeatureDiscovery, "/etc/kubernetes/node-feature-discovery/features.d/gfd", "labels for NFD"},
    {Component::kMpsControlDaemon, "/run/nvidia/mps", "pipes and logs of MPS"},
    {Component::kMigManager, "/etc/nvidia-mig-manager/config.yaml",
     "MIG layouts; gpulet.mig.configFile accepts this file"},
    {Component::kMigManager, "/etc/nvidia-mig-manager/hooks.yaml",
     "MIG hooks; gpulet.mig.hooksFile accepts this file"},
    {Component::kMigManager, "/etc/systemd/system/nvidia-mig-manager.service", "systemd service"},
    {Component::kMigManager, "/usr/lib/systemd/system/nvidia-mig-manager.service", "systemd service"},
    {Component::kDcgmExporter, "/etc/dcgm-exporter/*.csv",
     "counter lists; gpulet.metrics.countersFile accepts one"},
    {Component::kDcgmExporter, "/etc/systemd/system/dcgm-exporter.service", "systemd service"},
    {Component::kDcgmExporter, "/usr/lib/systemd/system/dcgm-exporter.service", "systemd service"},
    {Component::kDcgmExporter, "/usr/lib/systemd/system/nvidia-dcgm-exporter.service", "systemd service"},
    {Component::kHostEngine, "/usr/lib/systemd/system/nvidia-dcgm.service", "systemd service"},
    {Component::kContainerToolkit, "/usr/bin/nvidia-container-runtime", "NVIDIA's runtime"},
    {Component::kContainerToolkit, "/usr/bin/nvidia-ctk", "its CLI"},
    {Component::kContainerToolkit, "/usr/local/nvidia/toolkit/nvidia-container-runtime",
     "NVIDIA's runtime, by the operator"},
    {Component::kContainerToolkit, "/etc/nvidia-container-runtime/config.toml", "its config"},
    {Component::kContainerToolkit, "/etc/cdi/nvidia*.yaml", "CDI spec that nothing updates"},
    {Component::kContainerToolkit, "/var/run/cdi/nvidia*.yaml", "CDI spec of nvidia-ctk"},
    {Component::kContainerToolkit, "/var/run/cdi/management.nvidia.com-*.yaml",
     "CDI spec for the operator's own Pods"},
    {Component::kContainerToolkit, "/etc/systemd/system/nvidia-cdi-refresh.service",
     "regenerates the CDI spec"},
    {Component::kContainerToolkit, "/usr/lib/systemd/system/nvidia-cdi-refresh.service",
     "regenerates the CDI spec"},
    {Component::kOperator, "/run/nvidia/validations", "the validator's files"},
    {Component::kDriver, "/run/nvidia/driver/usr", "root of a driver container"},
    {Component::kDriver, "/home/kubernetes/bin/nvidia", "driver installed by GKE"},
}};

struct EngineConfigPattern {
  runtimes::Engine engine;
  std::string_view pattern;
};
// Where runtimes are configured, by engine and distribution.
constexpr std::array<EngineConfigPattern, 12> kEngineConfigPatterns{{
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

bool names_nvidia_runtime(const std::vector<std::string>& path) {
  for (std::size_t i = 0; i + 1 < path.size(); ++i) {
    if (path[i] == "runtimes" && path[i + 1] == "nvidia") return true;
  }
  return false;
}

bool configures_nvidia_runtime(runtimes::Engine engine, const std::string& text, const std::string& path) {
  if (engine == runtimes::Engine::kDocker) {
    const auto document = runtimes::json::parse_json_text(text, path);
    const auto* all = document ? document->find("runtimes") : nullptr;
    return all != nullptr && all->find("nvidia") != nullptr;
  }
  const auto document = runtimes::toml::parse_toml(text, path);
  return document &&
         (std::ranges::any_of(document->tables,
                              [](const auto& table) { return names_nvidia_runtime(table.path); }) ||
          std::ranges::any_of(document->entries,
                              [](const auto& entry) { return names_nvidia_runtime(entry.path); }));
}

std::vector<std::string> split_at_nul(const std::string& text) {
  auto all = text::split(text, '\0');
  if (!all.empty() && all.back().empty()) all.pop_back();
  return all;
}

class NodeScanner {
 public:
  NodeScanner(std::string root, RootDirectory files, runtimes::Host host)
      : root_(std::move(root)), files_(std::move(files)), host_(std::move(host)) {}

  Facts scan() {
    facts_.location = root_;
    facts_.platform = inventory::find_unserved_platform({root_});
    if (auto numbers = files_.list_directory("/proc")) {
      std::ranges::sort(*numbers, {}, [](const auto& name) {
        return std::pair(text::parse_unsigned(name).value_or(0), name);
      });
      for (const auto& number : *numbers) {
        if (text::parse_unsigned(number)) scan_process(number);
      }
    } else {
      facts_.unread.push_back("processes: " + numbers.error().full_message());
    }
    for (const auto& sign : kTracePatterns) {
      for (auto& path : host_.glob(std::string(sign.pattern))) {
        facts_.traces.push_back({sign.component, std::move(path), std::string(sign.what)});
      }
    }
    scan_engines();
    return std::move(facts_);
  }

 private:
  void scan_process(const std::string& number) {
    const std::string directory = "/proc/" + number;
    const auto line = files_.read_text_file(directory + "/cmdline", kMaxProcFileBytes);
    if (!line) return;  // the process has exited
    auto argv = split_at_nul(*line);
    const auto part = argv.empty() ? std::nullopt : component_of_program(argv.front());
    if (!part) return;
    if (*part == Component::kAgent && (argv.size() < 2 || argv[1] != "agent")) return;
    Program program;
    program.component = *part;
    program.kind = "process";
    program.name = number;
    program.installed = Installed::kOnHost;
    program.arguments.assign(argv.begin() + 1, argv.end());
    char target[PATH_MAX];
    const auto size = ::readlink((files_.root_path() + directory + "/exe").c_str(), target, sizeof target);
    const std::string_view program_file(target, size > 0 ? static_cast<std::size_t>(size) : 0);
    program.is_gpulet = *part != Component::kAgent && text::base_name(program_file) == "gpulet";
    read_process_environment(directory, program);
    if (!program.is_gpulet) read_process_files(directory, program);
    facts_.programs.push_back(std::move(program));
  }

  void read_process_environment(const std::string& directory, Program& program) {
    const auto text = files_.read_text_file(directory + "/environ", kMaxProcFileBytes);
    if (!text) {
      facts_.unread.push_back("variables of process " + program.name + ": " +
                              (text.error().code() == Code::kPermissionDenied ? "only root can read them"
                                                                              : text.error().message()));
      return;
    }
    for (const auto& word : split_at_nul(*text)) {
      const auto equals = word.find('=');
      if (equals == std::string::npos || !is_known_variable(program.component, word.substr(0, equals)))
        continue;
      program.environment[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }

  // Below the process's own root, which may be a container's: only regular files, and none that blocks
  // (runtimes::Host).
  void read_process_files(const std::string& directory, Program& program) {
    const std::string root = files_.root_path() + directory + "/root";
    const auto own = runtimes::Host::open_host({.root = root, .is_own_root = false});
    const auto root_directory = RootDirectory::open_root(root);
    if (!own || !root_directory) return;
    const auto add = [&](const std::string& path, std::vector<NamedText>& to) {
      if (path.empty()) return;
      const auto text = own->read_settings(path);
      if (text && *text) {
        to.push_back({path + " of " + program.location(), **text});
      } else {
        facts_.unread.push_back(path + " of " + program.location() + ": " +
                                (text ? "does not exist" : text.error().message()));
      }
    };
    if (program.component == Component::kDcgmExporter) {
      return add(given_value(program, {"f", "collectors"}, "DCGM_EXPORTER_COLLECTORS"), program.counters);
    }
    add(given_value(program, {"config-file"}, "CONFIG_FILE"), program.configs);
    const auto source = given_value(program, {"config-file-srcdir"}, "CONFIG_FILE_SRCDIR");
    if (source.empty()) return;
    const auto names = root_directory->list_directory(source);
    for (std::size_t i = 0; names && i < std::min(names->size(), kMaxConfigFiles); ++i) {
      if (!(*names)[i].starts_with('.')) add(source + "/" + (*names)[i], program.configs);
    }
  }

  void scan_engines() {
    for (const auto& report : runtimes::check_engines(host_)) {
      EngineFacts engine{.title = std::string(runtimes::engine_facts(report.engine).title),
                         .cdi_ready = report.is_ready()};
      if (!report.distribution.empty()) engine.title += " of " + report.distribution;
      if (report.version) engine.title += " " + report.version->str();
      for (const auto& finding : report.findings) {
        if (!finding.is_met && engine.fix.empty()) engine.fix = finding.detail + "; " + finding.advice;
      }
      for (const auto& files : kEngineConfigPatterns) {
        if (files.engine != report.engine || !engine.nvidia_runtime.empty()) continue;
        for (const auto& path : host_.glob(std::string(files.pattern))) {
          const auto text = host_.read_settings(path);
          if (text && *text && configures_nvidia_runtime(report.engine, **text, path))
            engine.nvidia_runtime = path;
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

Result<Facts> scan_node(const std::string& root) {
  GPULET_TRY_ASSIGN(auto files, RootDirectory::open_root(root));
  GPULET_TRY_ASSIGN(auto host, runtimes::Host::open_host({.root = root, .is_own_root = root == "/"}));
  return NodeScanner(root, std::move(files), std::move(host)).scan();
}

}  // namespace gpulet::migrate

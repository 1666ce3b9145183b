#include "base/json.h"
#include "migrate/scan.h"

#include <algorithm>
#include <array>
#include <set>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "http/access_gate.h"
#include "http/message.h"
#include "k8s/objects.h"
#include "migrate/components.h"

namespace gpulet::migrate {
namespace {

using nlohmann::json;

constexpr std::array<const char*, 17> kPolicyFields = {"operator.defaultRuntime",
                                                       "driver.enabled",
                                                       "toolkit.enabled",
                                                       "devicePlugin.enabled",
                                                       "devicePlugin.config.name",
                                                       "devicePlugin.config.default",
                                                       "devicePlugin.mps.root",
                                                       "gfd.enabled",
                                                       "dcgm.enabled",
                                                       "dcgmExporter.enabled",
                                                       "dcgmExporter.config.name",
                                                       "migManager.enabled",
                                                       "migManager.config.name",
                                                       "mig.strategy",
                                                       "cdi.enabled",
                                                       "cdi.default",
                                                       "hostPaths.driverInstallDir"};
constexpr std::array<std::string_view, 4> kNodeLabels = {"nvidia.com/device-plugin.config",
                                                         "nvidia.com/mig.config", "nvidia.com/mps.capable",
                                                         "nvidia.com/gpu.deploy.device-plugin"};

std::vector<std::string> string_list(const json& list) {
  std::vector<std::string> all;
  if (!list.is_array()) return all;
  for (const auto& one : list) all.push_back(json_text(one));
  return all;
}

// "NAME from secret x, key y": never the value.
std::string variable_source(const std::string& name, const json& from) {
  for (const auto& [field, kind] :
       {std::pair("secretKeyRef", "secret"), std::pair("configMapKeyRef", "configmap")}) {
    const json& reference = json_member(from, field);
    if (!reference.is_object()) continue;
    return name + " from " + kind + " " + json_text(json_member(reference, "name")) + ", key " +
           json_text(json_member(reference, "key"));
  }
  return {};
}

void read_environment(const json& container, Program& program) {
  const json& variables = json_member(container, "env");
  if (variables.is_array()) {
    for (const auto& variable : variables) {
      const std::string name = json_text(json_member(variable, "name"));
      const json& from = json_member(variable, "valueFrom");
      if (from.is_object()) {
        // A field reference, such as the node's name, needs no mention.
        if (auto source = variable_source(name, from); !source.empty())
          program.external_variables.push_back(std::move(source));
      } else {
        program.environment[name] =
            is_known_variable(program.component, name) ? json_text(json_member(variable, "value")) : "";
      }
    }
  }
  const json& whole = json_member(container, "envFrom");
  if (!whole.is_array()) return;
  for (const auto& from : whole) {
    for (const auto& [field, kind] :
         {std::pair("secretRef", "secret "), std::pair("configMapRef", "configmap ")}) {
      const auto name = json_text(json_member(json_member(from, field), "name"));
      if (!name.empty()) program.external_variables.push_back("all of " + (kind + name));
    }
  }
}

// The ConfigMap of a Pod volume; empty for other kinds of volume.
std::string config_map_of_volume(const json& volumes, const std::string& name) {
  if (!volumes.is_array()) return {};
  for (const auto& volume : volumes) {
    if (json_text(json_member(volume, "name")) == name)
      return json_text(json_member(json_member(volume, "configMap"), "name"));
  }
  return {};
}

struct ConfigPath {
  std::string path;
  ConfigMapRef::Content content;
};

// The files and directories from which the containers of a Pod read configs and counters.
std::vector<ConfigPath> find_config_paths(const std::vector<Program>& programs) {
  std::vector<ConfigPath> config_paths;
  const auto add_path = [&](std::string path, ConfigMapRef::Content content) {
    if (!path.empty()) config_paths.push_back({std::move(path), content});
  };
  for (const auto& program : programs) {
    if (program.component == Component::kDcgmExporter) {
      add_path(given_value(program, {"f", "collectors"}, "DCGM_EXPORTER_COLLECTORS"),
               ConfigMapRef::Content::kCounters);
    } else {
      add_path(given_value(program, {"config-file"}, "CONFIG_FILE"), ConfigMapRef::Content::kConfigs);
      add_path(given_value(program, {"config-file-srcdir"}, "CONFIG_FILE_SRCDIR"),
               ConfigMapRef::Content::kConfigs);
    }
  }
  return config_paths;
}

// A ConfigMap mount provides a path if it is mounted there or above.
void find_config_maps(const json& container, const json& volumes, const std::vector<ConfigPath>& config_paths,
                      Program& program) {
  const json& mounts = json_member(container, "volumeMounts");
  if (!mounts.is_array()) return;
  for (const auto& mount : mounts) {
    const std::string map = config_map_of_volume(volumes, json_text(json_member(mount, "name")));
    if (map.empty()) continue;
    const std::string path = json_text(json_member(mount, "mountPath")),
                      part = json_text(json_member(mount, "subPath"));
    for (const auto& config_path : config_paths) {
      if (config_path.path != path && !config_path.path.starts_with(path + "/")) continue;
      const bool one = config_path.path !=
                       path;  // a file in the directory; else the directory, or the one file of subPath
      ConfigMapRef found{.name_space = program.name_space,
                         .name = map,
                         .key = one ? config_path.path.substr(path.size() + 1) : part,
                         .content = config_path.content};
      if (std::ranges::count(program.config_maps, found) == 0)
        program.config_maps.push_back(std::move(found));
    }
  }
}

void add_counters_config_map(Program& program) {
  if (program.component != Component::kDcgmExporter) return;
  const auto parts =
      text::split(given_value(program, {"m", "configmap-data"}, "DCGM_EXPORTER_CONFIGMAP_DATA"), ':');
  if (parts.size() != 2) return;
  program.config_maps.push_back({.name_space = parts[0],
                                 .name = parts[1],
                                 .key = "metrics",
                                 .content = ConfigMapRef::Content::kCounters});
}

bool is_owned_by_cluster_policy(const json& metadata) {
  const json& owners = json_member(metadata, "ownerReferences");
  return owners.is_array() && std::ranges::any_of(owners, [](const auto& owner) {
           return json_text(json_member(owner, "kind")) == "ClusterPolicy";
         });
}

// What all containers of a workload have in common.
Program workload_program(const json& object, const std::string& kind) {
  const json& metadata = json_member(object, "metadata");
  Program program;
  program.kind = kind;
  program.name_space = json_text(json_member(metadata, "namespace"));
  program.name = json_text(json_member(metadata, "name"));
  const auto annotations = k8s::json_text_map(metadata, "annotations");
  const auto labels = k8s::json_text_map(metadata, "labels");
  const auto text = [](const auto& map, const char* key) {
    const auto found = map.find(key);
    return found == map.end() ? std::string() : found->second;
  };
  program.release = text(annotations, "meta.helm.sh/release-name");
  program.release_namespace = text(annotations, "meta.helm.sh/release-namespace");
  program.chart = text(labels, "helm.sh/chart");
  if (!program.release.empty()) program.installed = Installed::kByChart;
  if (is_owned_by_cluster_policy(metadata)) program.installed = Installed::kByOperator;
  return program;
}

}  // namespace

std::vector<Program> parse_workload(std::string_view text, const std::string& kind) {
  const json object = parse_json(text);
  const json& pod = json_member(json_member(json_member(object, "spec"), "template"), "spec");
  const Program common = workload_program(object, kind);
  std::vector<Program> programs;
  std::vector<const json*> containers;
  for (const auto& [field, initial] : {std::pair("initContainers", true), std::pair("containers", false)}) {
    const json& list = json_member(pod, field);
    if (!list.is_array()) continue;
    for (const auto& container : list) {
      Program program = common;
      program.is_init_container = initial;
      program.container = json_text(json_member(container, "name"));
      program.image = json_text(json_member(container, "image"));
      const auto command = string_list(json_member(container, "command"));
      const auto arguments = string_list(json_member(container, "args"));
      const auto part =
          component_of_container({program.container, program.image, command, arguments, initial});
      if (!part) continue;
      program.component = *part;
      program.is_gpulet = *part != Component::kAgent && image_name(program.image) == "gpulet";
      program.has_command = !command.empty();
      program.runs_in_shell = !command.empty() && is_shell(command.front());
      for (const char* which : {"nodeSelector", "affinity"}) {
        if (const json& choice = json_member(pod, which); choice.is_object()) program.nodes += choice.dump();
      }
      program.host_network = json_member(pod, "hostNetwork") == json(true);
      if (!program.runs_in_shell) {
        if (!command.empty()) program.arguments.assign(command.begin() + 1, command.end());
        program.arguments.insert(program.arguments.end(), arguments.begin(), arguments.end());
      }
      read_environment(container, program);
      programs.push_back(std::move(program));
      containers.push_back(&container);
    }
  }
  const auto config_paths = find_config_paths(programs);
  for (std::size_t i = 0; i < programs.size(); ++i) {
    find_config_maps(*containers[i], json_member(pod, "volumes"), config_paths, programs[i]);
    add_counters_config_map(programs[i]);
  }
  return programs;
}

std::optional<ClusterPolicy> parse_cluster_policy(std::string_view text) {
  const json object = parse_json(text);
  ClusterPolicy policy{.name = json_text(json_member(json_member(object, "metadata"), "name")), .fields = {}};
  if (policy.name.empty()) return std::nullopt;
  for (const char* field : kPolicyFields) {
    const json* value = &json_member(object, "spec");
    for (const auto& step : text::split(field, '.')) value = &json_member(*value, step.c_str());
    if (value->is_boolean()) policy.fields[field] = value->get<bool>() ? "true" : "false";
    if (value->is_string() && !json_text(*value).empty()) policy.fields[field] = json_text(*value);
  }
  return policy;
}

std::optional<NodeFacts> parse_node(std::string_view text) {
  const json object = parse_json(text);
  NodeFacts node{
      .name = json_text(json_member(json_member(object, "metadata"), "name")), .labels = {}, .resources = {}};
  const auto labels = k8s::json_text_map(json_member(object, "metadata"), "labels");
  for (const auto name : kNodeLabels) {
    if (const auto found = labels.find(std::string(name)); found != labels.end()) node.labels.insert(*found);
  }
  const json& allocatable = json_member(json_member(object, "status"), "allocatable");
  if (allocatable.is_object()) {
    for (const auto& [name, count] : allocatable.items()) {
      if (name.starts_with("nvidia.com/")) node.resources[name] = json_text(count);
    }
  }
  if (node.labels.empty() && node.resources.empty()) return std::nullopt;
  return node;
}

std::map<std::string, std::string> config_map_data(std::string_view text) {
  return k8s::json_text_map(parse_json(text), "data");
}

void attach_config_map(std::vector<Program>& programs, const ConfigMapRef& map,
                       const std::map<std::string, std::string>& data) {
  for (auto& program : programs) {
    if (std::ranges::count(program.config_maps, map) == 0) continue;
    auto& files = map.content == ConfigMapRef::Content::kConfigs ? program.configs : program.counters;
    for (const auto& [key, text] : data) {
      if (!map.key.empty() && key != map.key) continue;
      files.push_back({"configmap " + map.name_space + "/" + map.name + ", key " + key, text});
    }
  }
}

namespace {

using nlohmann::json;

// Values of NVIDIA's chart (nvidia-device-plugin) that are settings without free text. Source:
// k8s-device-plugin v0.20.0, deployments/helm/nvidia-device-plugin/values.yaml.
constexpr std::array<std::string_view, 26> kKnownValues = {"config.name",
                                                           "config.default",
                                                           "config.fallbackStrategies",
                                                           "compatWithCPUManager",
                                                           "migStrategy",
                                                           "failOnInitError",
                                                           "deviceListStrategy",
                                                           "deviceIDStrategy",
                                                           "deviceDiscoveryStrategy",
                                                           "nvidiaDriverRoot",
                                                           "nvidiaDevRoot",
                                                           "nvidiaDriverCapabilities",
                                                           "logVerbosity",
                                                           "gdrcopyEnabled",
                                                           "gdsEnabled",
                                                           "mofedEnabled",
                                                           "runtimeClassName",
                                                           "priorityClassName",
                                                           "devicePlugin.enabled",
                                                           "devicePlugin.enableHostNetwork",
                                                           "gfd.enabled",
                                                           "mps.root",
                                                           "mps.enableHostPID",
                                                           "mps.enableHostNetwork",
                                                           "cdi.nvidiaHookPath",
                                                           "cdi.featureFlags"};

std::string value_string(const json& value) {
  if (value.is_string()) return json_text(value);
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_number()) return value.dump();
  if (value.is_array() && std::ranges::all_of(value, [](const auto& one) { return one.is_string(); })) {
    std::string all;
    for (const auto& one : value) all += (all.empty() ? "" : ",") + json_text(one);
    return all;
  }
  return {};
}

// Each leaf by its path; a list is a leaf.
void collect_helm_values(const json& values, const std::string& path, HelmRelease& release) {
  for (const auto& [key, value] : values.items()) {
    const std::string name = path.empty() ? key : path + "." + key;
    if (value.is_object() && !value.empty()) {
      // The keys of a config map are free text.
      if (name == "config.map") {
        release.other_names.push_back(name);
      } else {
        collect_helm_values(value, name, release);
      }
    } else if (std::ranges::count(kKnownValues, name) != 0) {
      release.values.emplace_back(name, value_string(value));
    } else {
      release.other_names.push_back(name);
    }
  }
}

}  // namespace

Result<HelmRelease> parse_helm_release(std::string_view secret) {
  const json object = parse_json(secret);
  const auto no_release = [](const char* why) { return fail(Code::kInvalidArgument, why); };
  if (json_text(json_member(object, "type")) != "helm.sh/release.v1")
    return no_release("is not a Helm release");
  const std::string packed = text::decode_base64(
      text::decode_base64(json_text(json_member(json_member(object, "data"), "release"))));
  const std::string text = http::gunzip(packed, kMaxReleaseBytes);
  if (text.empty()) return no_release("is not gzip, or exceeds 32 MiB unpacked");
  const json release = parse_json(text);
  const json& chart = json_member(json_member(release, "chart"), "metadata");
  HelmRelease made{.name = json_text(json_member(release, "name")),
                   .name_space = json_text(json_member(release, "namespace")),
                   .chart = json_text(json_member(chart, "name")),
                   .version = json_text(json_member(chart, "version")),
                   .revision = {},
                   .values = {},
                   .other_names = {}};
  const json& revision = json_member(release, "version");
  if (revision.is_number_unsigned()) made.revision = std::to_string(revision.get<unsigned>());
  if (made.name.empty() || made.chart.empty()) return no_release("has neither a name nor a chart");
  const json& values = json_member(release, "config");
  if (values.is_object()) collect_helm_values(values, "", made);
  return made;
}

}  // namespace gpulet::migrate

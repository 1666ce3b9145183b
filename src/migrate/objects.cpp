#include "migrate/objects.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"
#include "cluster/objects.h"
#include "migrate/arguments.h"
#include "migrate/parts.h"

namespace gpulet::migrate {
namespace {

using cluster::member;
using cluster::text_of;
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

std::vector<std::string> texts(const json& list) {
  std::vector<std::string> all;
  if (!list.is_array()) return all;
  for (const auto& one : list) all.push_back(text_of(one));
  return all;
}

// "NAME from secret x, key y": never the value.
std::string source_of(const std::string& name, const json& from) {
  for (const auto& [field, kind] :
       {std::pair("secretKeyRef", "secret"), std::pair("configMapKeyRef", "configmap")}) {
    const json& reference = member(from, field);
    if (!reference.is_object()) continue;
    return name + " from " + kind + " " + text_of(member(reference, "name")) + ", key " +
           text_of(member(reference, "key"));
  }
  return {};
}

void read_environment(const json& container, Program& program) {
  const json& variables = member(container, "env");
  if (variables.is_array()) {
    for (const auto& variable : variables) {
      const std::string name = text_of(member(variable, "name"));
      const json& from = member(variable, "valueFrom");
      if (from.is_object()) {
        // A field of the Pod itself, its node's name say, needs no word.
        if (auto source = source_of(name, from); !source.empty())
          program.elsewhere.push_back(std::move(source));
      } else {
        program.environment[name] =
            known_variable(program.part, name) ? text_of(member(variable, "value")) : "";
      }
    }
  }
  const json& whole = member(container, "envFrom");
  if (!whole.is_array()) return;
  for (const auto& from : whole) {
    for (const auto& [field, kind] :
         {std::pair("secretRef", "secret "), std::pair("configMapRef", "configmap ")}) {
      const auto name = text_of(member(member(from, field), "name"));
      if (!name.empty()) program.elsewhere.push_back("all of " + (kind + name));
    }
  }
}

// The ConfigMap behind a volume of the Pod; empty for another kind of volume.
std::string map_of_volume(const json& volumes, const std::string& name) {
  if (!volumes.is_array()) return {};
  for (const auto& volume : volumes) {
    if (text_of(member(volume, "name")) == name) return text_of(member(member(volume, "configMap"), "name"));
  }
  return {};
}

std::string given(const Program& program, const std::vector<std::string>& flags, const char* variable) {
  const auto read = read_flags(program.part, program.arguments).flags;
  for (const auto& flag : flags) {
    if (const auto found = read.find(flag); found != read.end()) return found->second.back();
  }
  const auto found = program.environment.find(variable);
  return found == program.environment.end() ? "" : found->second;
}

struct Wanted {
  std::string path;
  MapRef::Holds holds;
};

// Which files and folders the containers of a Pod read configs and counters from.
std::vector<Wanted> wanted_paths(const std::vector<Program>& programs) {
  std::vector<Wanted> wanted;
  const auto want = [&](std::string path, MapRef::Holds holds) {
    if (!path.empty()) wanted.push_back({std::move(path), holds});
  };
  for (const auto& program : programs) {
    if (program.part == Part::kDcgmExporter) {
      want(given(program, {"f", "collectors"}, "DCGM_EXPORTER_COLLECTORS"), MapRef::Holds::kCounters);
    } else {
      want(given(program, {"config-file"}, "CONFIG_FILE"), MapRef::Holds::kConfigs);
      want(given(program, {"config-file-srcdir"}, "CONFIG_FILE_SRCDIR"), MapRef::Holds::kConfigs);
    }
  }
  return wanted;
}

// A mount of a ConfigMap holds a wanted path when it is that path, or a folder above it.
void read_maps(const json& container, const json& volumes, const std::vector<Wanted>& wanted,
               Program& program) {
  const json& mounts = member(container, "volumeMounts");
  if (!mounts.is_array()) return;
  for (const auto& mount : mounts) {
    const std::string map = map_of_volume(volumes, text_of(member(mount, "name")));
    if (map.empty()) continue;
    const std::string path = text_of(member(mount, "mountPath")), part = text_of(member(mount, "subPath"));
    for (const auto& want : wanted) {
      if (want.path != path && !want.path.starts_with(path + "/")) continue;
      const bool one =
          want.path != path;  // a file of the folder; else the folder, or the one file of subPath
      MapRef found{.name_space = program.name_space,
                   .name = map,
                   .key = one ? want.path.substr(path.size() + 1) : part,
                   .holds = want.holds};
      if (std::ranges::count(program.maps, found) == 0) program.maps.push_back(std::move(found));
    }
  }
}

void read_counters_map(Program& program) {
  if (program.part != Part::kDcgmExporter) return;
  const auto parts =
      text::split(given(program, {"m", "configmap-data"}, "DCGM_EXPORTER_CONFIGMAP_DATA"), ':');
  if (parts.size() != 2) return;
  program.maps.push_back(
      {.name_space = parts[0], .name = parts[1], .key = "metrics", .holds = MapRef::Holds::kCounters});
}

bool owned_by_policy(const json& metadata) {
  const json& owners = member(metadata, "ownerReferences");
  return owners.is_array() && std::ranges::any_of(owners, [](const auto& owner) {
           return text_of(member(owner, "kind")) == "ClusterPolicy";
         });
}

// What all containers of a workload have in common.
Program program_of(const json& object, const std::string& kind) {
  const json& metadata = member(object, "metadata");
  Program program;
  program.kind = kind;
  program.name_space = text_of(member(metadata, "namespace"));
  program.name = text_of(member(metadata, "name"));
  const auto annotations = cluster::texts_of(metadata, "annotations");
  const auto labels = cluster::texts_of(metadata, "labels");
  const auto text = [](const auto& map, const char* key) {
    const auto found = map.find(key);
    return found == map.end() ? std::string() : found->second;
  };
  program.release = text(annotations, "meta.helm.sh/release-name");
  program.release_namespace = text(annotations, "meta.helm.sh/release-namespace");
  program.chart = text(labels, "helm.sh/chart");
  if (!program.release.empty()) program.installed = Installed::kByChart;
  if (owned_by_policy(metadata)) program.installed = Installed::kByOperator;
  return program;
}

}  // namespace

std::vector<Program> programs_of(std::string_view text, const std::string& kind) {
  const json object = json::parse(text, nullptr, false);
  const json& pod = member(member(member(object, "spec"), "template"), "spec");
  const Program common = program_of(object, kind);
  std::vector<Program> programs;
  std::vector<const json*> containers;
  for (const auto& [field, initial] : {std::pair("initContainers", true), std::pair("containers", false)}) {
    const json& list = member(pod, field);
    if (!list.is_array()) continue;
    for (const auto& container : list) {
      Program program = common;
      program.initial = initial;
      program.container = text_of(member(container, "name"));
      program.image = text_of(member(container, "image"));
      const auto command = texts(member(container, "command"));
      const auto arguments = texts(member(container, "args"));
      const auto part = part_of_container({program.container, program.image, command, arguments, initial});
      if (!part) continue;
      program.part = *part;
      program.ours = *part != Part::kAgent && image_name(program.image) == "gpulet";
      program.has_command = !command.empty();
      program.through_shell = !command.empty() && is_shell(command.front());
      for (const char* which : {"nodeSelector", "affinity"}) {
        if (const json& choice = member(pod, which); choice.is_object()) program.nodes += choice.dump();
      }
      program.host_network = member(pod, "hostNetwork") == json(true);
      if (!program.through_shell) {
        if (!command.empty()) program.arguments.assign(command.begin() + 1, command.end());
        program.arguments.insert(program.arguments.end(), arguments.begin(), arguments.end());
      }
      read_environment(container, program);
      programs.push_back(std::move(program));
      containers.push_back(&container);
    }
  }
  const auto wanted = wanted_paths(programs);
  for (std::size_t i = 0; i < programs.size(); ++i) {
    read_maps(*containers[i], member(pod, "volumes"), wanted, programs[i]);
    read_counters_map(programs[i]);
  }
  return programs;
}

std::optional<Policy> policy_of(std::string_view text) {
  const json object = json::parse(text, nullptr, false);
  Policy policy{.name = text_of(member(member(object, "metadata"), "name")), .fields = {}};
  if (policy.name.empty()) return std::nullopt;
  for (const char* field : kPolicyFields) {
    const json* value = &member(object, "spec");
    for (const auto& step : text::split(field, '.')) value = &member(*value, step.c_str());
    if (value->is_boolean()) policy.fields[field] = value->get<bool>() ? "true" : "false";
    if (value->is_string() && !text_of(*value).empty()) policy.fields[field] = text_of(*value);
  }
  return policy;
}

std::optional<NodeFacts> node_of(std::string_view text) {
  const json object = json::parse(text, nullptr, false);
  NodeFacts node{.name = text_of(member(member(object, "metadata"), "name")), .labels = {}, .resources = {}};
  const auto labels = cluster::texts_of(member(object, "metadata"), "labels");
  for (const auto name : kNodeLabels) {
    if (const auto found = labels.find(std::string(name)); found != labels.end()) node.labels.insert(*found);
  }
  const json& allocatable = member(member(object, "status"), "allocatable");
  if (allocatable.is_object()) {
    for (const auto& [name, count] : allocatable.items()) {
      if (name.starts_with("nvidia.com/")) node.resources[name] = text_of(count);
    }
  }
  if (node.labels.empty() && node.resources.empty()) return std::nullopt;
  return node;
}

std::map<std::string, std::string> data_of(std::string_view text) {
  return cluster::texts_of(json::parse(text, nullptr, false), "data");
}

void fill(std::vector<Program>& programs, const MapRef& map, const std::map<std::string, std::string>& data) {
  for (auto& program : programs) {
    if (std::ranges::count(program.maps, map) == 0) continue;
    auto& files = map.holds == MapRef::Holds::kConfigs ? program.configs : program.counters;
    for (const auto& [key, text] : data) {
      if (!map.key.empty() && key != map.key) continue;
      files.push_back({"configmap " + map.name_space + "/" + map.name + ", key " + key, text});
    }
  }
}

}  // namespace gpulet::migrate

#include "migrate/components.h"

#include <algorithm>
#include <array>

#include "base/text.h"
#include "config/exporter_options.h"
#include "config/schema.h"

namespace gpulet::migrate {
namespace {

struct ComponentInfo {
  Component component;
  std::string_view key, title;
};
constexpr std::array<ComponentInfo, 13> kComponents{{
    {Component::kDevicePlugin, "device-plugin", "device plugin"},
    {Component::kFeatureDiscovery, "gpu-feature-discovery", "GPU feature discovery"},
    {Component::kMpsControlDaemon, "mps-control-daemon", "MPS control daemon"},
    {Component::kConfigManager, "config-manager", "config manager"},
    {Component::kMigManager, "mig-manager", "MIG manager"},
    {Component::kDcgmExporter, "dcgm-exporter", "dcgm-exporter"},
    {Component::kHostEngine, "dcgm", "DCGM host engine"},
    {Component::kContainerToolkit, "container-toolkit", "container toolkit"},
    {Component::kOperator, "gpu-operator", "GPU operator"},
    {Component::kValidator, "operator-validator", "the operator's validator"},
    {Component::kDriver, "driver", "driver container"},
    {Component::kCloudPlugin, "cloud-device-plugin", "a cloud's own device plugin"},
    {Component::kAgent, "gpulet", "gpulet agent"},
}};

struct NamedComponent {
  std::string_view name;
  Component component;
};
// Programs by executable name.
constexpr std::array<NamedComponent, 15> kPrograms{{
    {"nvidia-device-plugin", Component::kDevicePlugin},
    {"gpu-feature-discovery", Component::kFeatureDiscovery},
    {"mps-control-daemon", Component::kMpsControlDaemon},
    {"config-manager", Component::kConfigManager},
    {"nvidia-mig-manager", Component::kMigManager},
    {"dcgm-exporter", Component::kDcgmExporter},
    {"nv-hostengine", Component::kHostEngine},
    {"nvidia-toolkit", Component::kContainerToolkit},
    {"nvidia-ctk-installer", Component::kContainerToolkit},
    {"gpu-operator", Component::kOperator},
    {"nvidia-validator", Component::kValidator},
    {"nvidia-driver", Component::kDriver},
    {"nvidia-gpu-device-plugin", Component::kCloudPlugin},
    {"nvidia_gpu_device_plugin", Component::kCloudPlugin},
    {"gpulet", Component::kAgent},
}};
// Images by the last part of their name; for an image with several programs the command decides first.
constexpr std::array<NamedComponent, 13> kImages{{
    {"k8s-device-plugin", Component::kDevicePlugin},
    {"gpu-feature-discovery", Component::kFeatureDiscovery},
    {"k8s-mig-manager", Component::kMigManager},
    {"dcgm-exporter", Component::kDcgmExporter},
    {"dcgm", Component::kHostEngine},
    {"container-toolkit", Component::kContainerToolkit},
    {"gpu-operator", Component::kOperator},
    {"gpu-operator-validator", Component::kValidator},
    {"nvidia-driver", Component::kDriver},
    {"nvidia-gpu-device-plugin", Component::kCloudPlugin},
    {"gke-nvidia-gpu-device-plugin", Component::kCloudPlugin},
    {"nvidia_gpu_device_plugin", Component::kCloudPlugin},
    {"gpulet", Component::kAgent},
}};

template <class Table>
std::optional<Component> find_component(const Table& table, std::string_view name) {
  const auto found = std::ranges::find(table, name, &NamedComponent::name);
  return found == table.end() ? std::nullopt : std::optional(found->component);
}

const ComponentInfo& component_info(Component part) {
  return *std::ranges::find(kComponents, part, &ComponentInfo::component);
}

}  // namespace

std::string_view json_key(Component part) { return component_info(part).key; }
std::string_view display_title(Component part) { return component_info(part).title; }

std::string image_name(std::string_view image) {
  image = image.substr(0, image.find('@'));
  image = text::base_name(image);
  return std::string(image.substr(0, image.find(':')));
}

bool is_shell(std::string_view command) {
  const auto name = text::base_name(command);
  return name == "sh" || name == "bash" || name == "ash";
}

std::optional<Component> component_of_program(std::string_view argv0) {
  return find_component(kPrograms, text::base_name(argv0));
}

std::optional<Component> component_of_container(const ContainerFacts& container) {
  const auto of_image = find_component(kImages, image_name(container.image));
  const auto& command = container.command;
  if (!command.empty() && is_shell(command.front())) {
    if (container.is_init_container) return std::nullopt;  // it only waits for something
    std::string_view name = container.name;
    if (name.ends_with("-ctr")) name.remove_suffix(4);
    const auto named = component_of_program(name);
    return named ? named : of_image;
  }
  // gpulet's image runs an agent only without another command.
  const auto& words = command.empty() ? container.arguments : command;
  const auto named = words.empty() ? std::nullopt : component_of_program(words.front());
  if (named && *named != Component::kAgent) return named;
  if (named || of_image == Component::kAgent) {
    const auto& rest = container.arguments;
    return rest.empty() || rest.front() == "agent" ? std::optional(Component::kAgent) : std::nullopt;
  }
  if (!of_image && container.name == "nvidia-driver-ctr")
    return Component::kDriver;  // of an image named "driver"
  return of_image;
}

namespace {

bool is_switch(Component part, std::string_view name) {
  if (part == Component::kDcgmExporter) {
    const auto* option = config::find_exporter_flag(name);
    return option != nullptr && option->is_switch;
  }
  if (part == Component::kConfigManager) return name == "oneshot" || name == "send-signal";
  const auto* setting = config::find_setting_by_flag(name);
  return setting != nullptr && setting->kind == config::Kind::kBool;
}

// Variables outside the settings table that the programs read.
constexpr std::array<std::string_view, 17> kOtherVariables = {"NODE_NAME",
                                                              "NAMESPACE",
                                                              "POD_NAME",
                                                              "KUBECONFIG",
                                                              "ONESHOT",
                                                              "CONFIG_FILE_DST",
                                                              "SEND_SIGNAL",
                                                              "SIGNAL",
                                                              "PROCESS_TO_SIGNAL",
                                                              "KUBE_API_QPS",
                                                              "KUBE_API_BURST",
                                                              "NVIDIA_VISIBLE_DEVICES",
                                                              "NVIDIA_DRIVER_CAPABILITIES",
                                                              "NVIDIA_MIG_MONITOR_DEVICES",
                                                              "NVIDIA_MIG_CONFIG_DEVICES",
                                                              "NVIDIA_DISABLE_REQUIRE",
                                                              "WITH_SHUTDOWN_HOST_GPU_CLIENTS"};

}  // namespace

ParsedFlags parse_flags(Component part, const std::vector<std::string>& arguments) {
  ParsedFlags given;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string_view word = arguments[i];
    if (word.size() < 2 || word[0] != '-') {
      given.positional.emplace_back(word);
      continue;
    }
    word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
    const auto equals = word.find('=');
    const std::string name(word.substr(0, equals));
    auto& values = given.flags[name];
    if (equals != std::string_view::npos) {
      values.emplace_back(word.substr(equals + 1));
    } else if (is_switch(part, name)) {
      values.emplace_back("true");
    } else if (i + 1 < arguments.size() && !arguments[i + 1].starts_with('-')) {
      values.push_back(arguments[++i]);
    } else {
      values.emplace_back();
    }
  }
  return given;
}

bool is_known_variable(Component part, std::string_view name) {
  if (std::ranges::count(kOtherVariables, name) != 0) return true;
  if (part == Component::kDcgmExporter && config::find_exporter_variable(name) != nullptr) return true;
  const std::string_view plain =
      part == Component::kFeatureDiscovery && name.starts_with("GFD_") ? name.substr(4) : name;
  return std::ranges::any_of(config::settings(), [&](const auto& setting) {
    return std::ranges::count(setting.environment, name) != 0 ||
           std::ranges::count(setting.environment, plain) != 0;
  });
}

std::string given_value(const Program& program, const std::vector<std::string>& flags, const char* variable) {
  const auto read = parse_flags(program.component, program.arguments).flags;
  for (const auto& flag : flags) {
    if (const auto found = read.find(flag); found != read.end()) return found->second.back();
  }
  const auto found = program.environment.find(variable);
  return found == program.environment.end() ? "" : found->second;
}

}  // namespace gpulet::migrate

#include "migrate/parts.h"

#include <algorithm>
#include <array>

#include "base/text.h"

namespace gpulet::migrate {
namespace {

struct PartFacts {
  Part part;
  std::string_view key, title;
};
constexpr std::array<PartFacts, 13> kParts{{
    {Part::kDevicePlugin, "device-plugin", "device plugin"},
    {Part::kFeatureDiscovery, "gpu-feature-discovery", "GPU feature discovery"},
    {Part::kMpsControlDaemon, "mps-control-daemon", "MPS control daemon"},
    {Part::kConfigManager, "config-manager", "config manager"},
    {Part::kMigManager, "mig-manager", "MIG manager"},
    {Part::kDcgmExporter, "dcgm-exporter", "dcgm-exporter"},
    {Part::kHostEngine, "dcgm", "DCGM host engine"},
    {Part::kContainerToolkit, "container-toolkit", "container toolkit"},
    {Part::kOperator, "gpu-operator", "GPU operator"},
    {Part::kValidator, "operator-validator", "the operator's validator"},
    {Part::kDriver, "driver", "driver container"},
    {Part::kCloudPlugin, "cloud-device-plugin", "a cloud's own device plugin"},
    {Part::kAgent, "gpulet", "gpulet agent"},
}};

struct Named {
  std::string_view name;
  Part part;
};
// Programs by their own names.
constexpr std::array<Named, 15> kPrograms{{
    {"nvidia-device-plugin", Part::kDevicePlugin},
    {"gpu-feature-discovery", Part::kFeatureDiscovery},
    {"mps-control-daemon", Part::kMpsControlDaemon},
    {"config-manager", Part::kConfigManager},
    {"nvidia-mig-manager", Part::kMigManager},
    {"dcgm-exporter", Part::kDcgmExporter},
    {"nv-hostengine", Part::kHostEngine},
    {"nvidia-toolkit", Part::kContainerToolkit},
    {"nvidia-ctk-installer", Part::kContainerToolkit},
    {"gpu-operator", Part::kOperator},
    {"nvidia-validator", Part::kValidator},
    {"nvidia-driver", Part::kDriver},
    {"nvidia-gpu-device-plugin", Part::kCloudPlugin},
    {"nvidia_gpu_device_plugin", Part::kCloudPlugin},
    {"gpulet", Part::kAgent},
}};
// Images by the last part of their names; that of several programs is decided by the command first.
constexpr std::array<Named, 13> kImages{{
    {"k8s-device-plugin", Part::kDevicePlugin},
    {"gpu-feature-discovery", Part::kFeatureDiscovery},
    {"k8s-mig-manager", Part::kMigManager},
    {"dcgm-exporter", Part::kDcgmExporter},
    {"dcgm", Part::kHostEngine},
    {"container-toolkit", Part::kContainerToolkit},
    {"gpu-operator", Part::kOperator},
    {"gpu-operator-validator", Part::kValidator},
    {"nvidia-driver", Part::kDriver},
    {"nvidia-gpu-device-plugin", Part::kCloudPlugin},
    {"gke-nvidia-gpu-device-plugin", Part::kCloudPlugin},
    {"nvidia_gpu_device_plugin", Part::kCloudPlugin},
    {"gpulet", Part::kAgent},
}};

template <class Table>
std::optional<Part> find(const Table& table, std::string_view name) {
  const auto found = std::ranges::find(table, name, &Named::name);
  return found == table.end() ? std::nullopt : std::optional(found->part);
}

const PartFacts& facts(Part part) { return *std::ranges::find(kParts, part, &PartFacts::part); }

}  // namespace

std::string_view key(Part part) { return facts(part).key; }
std::string_view title(Part part) { return facts(part).title; }

std::string image_name(std::string_view image) {
  image = image.substr(0, image.find('@'));
  image = text::base_name(image);
  return std::string(image.substr(0, image.find(':')));
}

bool is_shell(std::string_view command) {
  const auto name = text::base_name(command);
  return name == "sh" || name == "bash" || name == "ash";
}

std::optional<Part> part_of_program(std::string_view argv0) {
  return find(kPrograms, text::base_name(argv0));
}

std::optional<Part> part_of_container(const ContainerFacts& container) {
  const auto of_image = find(kImages, image_name(container.image));
  const auto& command = container.command;
  if (!command.empty() && is_shell(command.front())) {
    if (container.initial) return std::nullopt;  // it waits for something
    std::string_view name = container.name;
    if (name.ends_with("-ctr")) name.remove_suffix(4);
    const auto named = part_of_program(name);
    return named ? named : of_image;
  }
  // The image's own program is an agent only where nothing else of it is asked for.
  const auto& words = command.empty() ? container.arguments : command;
  const auto named = words.empty() ? std::nullopt : part_of_program(words.front());
  if (named && *named != Part::kAgent) return named;
  if (named || of_image == Part::kAgent) {
    const auto& rest = container.arguments;
    return rest.empty() || rest.front() == "agent" ? std::optional(Part::kAgent) : std::nullopt;
  }
  if (!of_image && container.name == "nvidia-driver-ctr") return Part::kDriver;  // of an image "driver"
  return of_image;
}

}  // namespace gpulet::migrate

// Which of NVIDIA's programs something is: by the name of the image and the command of a container, or by
// argv[0] of a process.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "migrate/facts.h"

namespace gpulet::migrate {

std::string_view key(Part part);    // "device-plugin": in JSON
std::string_view title(Part part);  // "device plugin"

// "k8s-device-plugin" of "registry.example/nvidia/k8s-device-plugin:v0.17.1@sha256:…".
std::string image_name(std::string_view image);

struct ContainerFacts {
  std::string name, image;
  std::vector<std::string> command{}, arguments{};
  bool initial = false;
};
// nullopt for what is none of them. Mirrors may call an image otherwise, so the command decides before it; of
// the device plugin's image, which holds several programs, the plugin runs where nothing names another.
std::optional<Part> part_of_container(const ContainerFacts& container);
std::optional<Part> part_of_program(std::string_view argv0);

// Whether `command` runs a shell, which gpulet's image does not have.
bool is_shell(std::string_view command);

}  // namespace gpulet::migrate

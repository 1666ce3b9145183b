// The components of NVIDIA's stack: how they are recognized, and their flags and variables. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "migrate/facts.h"

namespace gpulet::migrate {

// Recognizes components by the image name and command of a container, or by argv[0] of a process.

std::string_view json_key(Component part);       // "device-plugin": in JSON
std::string_view display_title(Component part);  // "device plugin"

// "k8s-device-plugin" of "registry.example/nvidia/k8s-device-plugin:v0.17.1@sha256:…".
std::string image_name(std::string_view image);

struct ContainerFacts {
  std::string name, image;
  std::vector<std::string> command{}, arguments{};
  bool is_init_container = false;
};
// nullopt for other containers. Mirrors may rename an image, so the command wins; the device plugin's image,
// which has several programs, runs the plugin unless the command names another.
std::optional<Component> component_of_container(const ContainerFacts& container);
std::optional<Component> component_of_program(std::string_view argv0);

// Whether `command` is a shell, which gpulet's image does not have.
bool is_shell(std::string_view command);

// Parses the flags of NVIDIA's programs as Go does: "--name=value", "--name value", "-name", booleans
// without a value, repeated names. The settings tables know which flags take a value.

using Flags = std::map<std::string, std::vector<std::string>, std::less<>>;  // without dashes

struct ParsedFlags {
  Flags flags;
  std::vector<std::string> positional;  // arguments that are not flags: a subcommand
};

ParsedFlags parse_flags(Component part, const std::vector<std::string>& arguments);

// Whether the value of this variable may be printed: unknown variables may hold secrets.
bool is_known_variable(Component part, std::string_view name);

// The last value of the first of these flags that a program has, else of the variable; empty without either.
std::string given_value(const Program& program, const std::vector<std::string>& flags, const char* variable);

}  // namespace gpulet::migrate

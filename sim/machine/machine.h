// Machines as YAML: a file in the schema of docs/SIMULATOR.md becomes the initial state of a simulated
// machine. The files of sim/machines are built in.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "sim/state/state.h"

namespace gpulet::sim {

struct MachineOptions {
  // The GPUs' UUIDs and serial numbers derive from it, the machine's name and the GPU's index. It
  // distinguishes two nodes of the same machine.
  std::string seed;
};

// Errors: kInvalidArgument about "file:line:column" with the field, the value found and the expectation.
Result<std::unique_ptr<Machine>> parse_machine(std::string_view text, const std::string& file,
                                               const MachineOptions& options = {});

// Loads a built-in machine by name, or a YAML file by path (contains '/' or ends in .yaml). Errors: kNotFound
// with the nearest name or the file, and those of parse_machine.
Result<std::unique_ptr<Machine>> load_machine(const std::string& name_or_path,
                                              const MachineOptions& options = {});

struct BuiltIn {
  std::string_view name;  // the file name without .yaml
  std::string_view text;
};
std::span<const BuiltIn> built_in_machines();
std::span<const BuiltIn> built_in_models();

}  // namespace gpulet::sim

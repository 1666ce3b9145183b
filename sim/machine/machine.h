// Machines as YAML: a text in the schema of docs/SIMULATOR.md becomes the initial state of a simulated
// machine. Those of sim/machines are built in; a user's own file works the same way.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "sim/state/state.h"

namespace gpulet::sim {

struct MachineOptions {
  // Goes into the GPUs' UUIDs and serial numbers, with the machine's name and the GPU's index: two nodes of
  // one machine are told apart by it, and the same seed gives the same GPUs.
  std::string seed;
};

// Errors: kInvalidArgument about "file:line:column", naming the field, what was found and what would do.
Result<std::unique_ptr<Machine>> parse_machine(std::string_view text, const std::string& file,
                                               const MachineOptions& options = {});

// A built-in machine by its name, or a YAML file by its path (what has a '/' or ends in .yaml). Errors:
// kNotFound with the nearest name or the file, and those of parse_machine.
Result<std::unique_ptr<Machine>> load_machine(const std::string& name_or_path,
                                              const MachineOptions& options = {});

struct BuiltIn {
  std::string_view name;  // the file's, without .yaml
  std::string_view text;
};
std::span<const BuiltIn> built_in_machines();
std::span<const BuiltIn> built_in_models();

}  // namespace gpulet::sim

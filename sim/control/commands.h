// What gpulet-sim's commands do, apart from the command line (main.cpp).
//
// Every function prints its result on standard output, or nothing. Errors: those of sim/control and sim/root;
// kNotFound and kPermissionDenied if `root` has no simulated machine.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "arguments/output.h"
#include "sim/control/control.h"

namespace gpulet::sim {

// The values of all options; each command uses some.
struct Arguments {
  std::string root, machine, gpu, version, library, nvidia_smi, mps_control, seed, kind, location,
      pipe_directory, call, cgroup, allocation;
  arguments::OutputOptions output;
  std::uint32_t percent = 0, pid = 0, link = 0, number = 1, delay_us = 0, delay_ms = 0, down_ms = 0, code = 0,
                skip = 0;
  std::uint32_t gpu_instance = kNoInstance, compute_instance = kNoInstance;
  std::uint64_t memory_mib = 0, count = 1, xid = 0;
  std::int32_t celsius = 0;
  bool no_device_nodes = false, without_uvm = false, without_nodes = false, event = false, force = false;
  control::Clients clients() const { return force ? control::Clients::kIgnore : control::Clients::kRefuse; }
};

// Runs `act` on the running machine, then updates the files of the driver root.
Status on_machine(const Arguments& arguments, const std::function<Status(const StateFile&)>& act);
using GpuAction = std::function<Status(const StateFile&, std::uint32_t)>;
Status on_gpu(const Arguments& arguments, const GpuAction& act);
using OptionalGpuAction = std::function<Status(const StateFile&, std::optional<std::uint32_t>)>;
Status on_gpu_or_driver(const Arguments& arguments, const OptionalGpuAction& act);

Status bring_up(const Arguments& arguments);
Status list_machines(const Arguments& arguments);
Status show_status(const Arguments& arguments);
// Unloads the driver and loads it again after `down_ms`.
Status reload_driver(const Arguments& arguments);
// Attaches to an MPS control daemon until that closes the connection. Takes its limits from this process's
// environment, as a CUDA process does.
Status run_mps_client(const std::string& pipe_directory);

}  // namespace gpulet::sim

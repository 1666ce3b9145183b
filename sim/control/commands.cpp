#include "sim/control/commands.h"

#include <poll.h>

#include <cstdio>
#include <cstdlib>

#include "sim/machine/machine.h"
#include "sim/mps/daemon.h"
#include "sim/root/driver_root.h"

namespace gpulet::sim {

Status on_machine(const Arguments& arguments, const std::function<Status(const StateFile&)>& act) {
  GPULET_TRY_ASSIGN(const StateFile state, open_driver_state(arguments.root));
  GPULET_TRY(act(state));
  const auto machine = std::make_unique<Machine>(*state.lock_for_read());
  return refresh_driver_root(arguments.root, *machine);
}

Status on_gpu(const Arguments& arguments, const GpuAction& act) {
  return on_machine(arguments, [&](const StateFile& state) -> Status {
    GPULET_TRY_ASSIGN(const std::uint32_t gpu, control::find_gpu(state, arguments.gpu));
    return act(state, gpu);
  });
}

Status on_gpu_or_driver(const Arguments& arguments, const OptionalGpuAction& act) {
  if (!arguments.gpu.empty() && arguments.gpu != "all") return on_gpu(arguments, act);
  return on_machine(arguments, [&](const StateFile& state) { return act(state, std::nullopt); });
}

Status bring_up(const Arguments& arguments) {
  GPULET_TRY_ASSIGN(const auto machine, load_machine(arguments.machine, {arguments.seed}));
  RootOptions options;
  options.root = arguments.root;
  options.device_nodes = !arguments.no_device_nodes;
  options.uvm = !arguments.without_uvm;
  options.nvml_library = arguments.library;
  options.nvidia_smi = arguments.nvidia_smi;
  options.mps_control = arguments.mps_control;
  if (const char* library = std::getenv("GPULET_SIM_LIBRARY");
      library != nullptr && options.nvml_library.empty()) {
    options.nvml_library = library;
  }
  GPULET_TRY_ASSIGN(const StateFile state, create_driver_root(*machine, options));
  std::printf("%s is up: %u GPUs, driver root %s\n", machine->name, machine->gpu_count,
              arguments.root.c_str());
  return {};
}

Status list_machines(const Arguments& arguments) {
  if (!arguments.machine.empty()) {
    for (const BuiltIn& machine : built_in_machines()) {
      if (machine.name != arguments.machine) continue;
      std::printf("%.*s", static_cast<int>(machine.text.size()), machine.text.data());
      return {};
    }
    return fail(load_machine(arguments.machine).error());
  }
  for (const BuiltIn& built_in : built_in_machines()) {
    GPULET_TRY_ASSIGN(const auto machine, load_machine(std::string(built_in.name)));
    std::printf("%-10s  %2u x %s\n", machine->name, machine->gpu_count, machine->gpus[0].name);
  }
  return {};
}

Status show_status(const Arguments& arguments) {
  GPULET_TRY_ASSIGN(const StateFile state, open_driver_state(arguments.root));
  const auto machine = std::make_unique<Machine>(*state.lock_for_read());
  const std::string text = arguments::render_output(
      arguments.output, [&] { return control::status_json(*machine); },
      [&](const arguments::TableStyle& style) { return control::status_table(*machine, style.headers); });
  std::fputs(text.c_str(), stdout);
  return {};
}

Status reload_driver(const Arguments& arguments) {
  GPULET_TRY_ASSIGN(const StateFile state, open_driver_state(arguments.root));
  GPULET_TRY(control::unload_driver(state, arguments.clients()));
  poll(nullptr, 0, static_cast<int>(arguments.down_ms));
  return on_machine(arguments,
                    [&](const StateFile& now) { return control::load_driver(now, arguments.version); });
}

Status run_mps_client(const std::string& pipe_directory) {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  GPULET_TRY_ASSIGN(
      const mps::AttachedClient attached,
      mps::attach_client(pipe_directory, variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
                         variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), variable("CUDA_MPS_SM_PARTITION")));
  std::printf("%s\n", attached.limits_text.c_str());
  std::fflush(stdout);
  pollfd daemon{attached.connection.get(), POLLIN, 0};
  poll(&daemon, 1, -1);
  return fail(Code::kUnavailable, "the MPS control daemon closed the connection");
}

}  // namespace gpulet::sim

// The command line: which program of NVIDIA's, kubectl's plugin, or which command of `gpulet`, this process
// is.
#pragma once

#include "cli/main/command.h"

namespace gpulet::cli {

// Runs the program that argv[0] names, or the command that argv[1] names. Returns its exit code.
int run_program(int argc, char** argv);
// The same as a process: leave_process().
[[noreturn]] void main(int argc, char** argv);

// The commands. Each adds itself to `app`, with its options; parsing it sets `run`, which outlives `app`.
//
// To add a command: write commands/NAME.cpp, add it here twice, and document it.
void add_agent(CLI::App& app, Run& run);
void add_list(CLI::App& app, Run& run);
void add_topo(CLI::App& app, Run& run);
void add_place(CLI::App& app, Run& run);
void add_labels(CLI::App& app, Run& run);
void add_top(CLI::App& app, Run& run);
void add_usage(CLI::App& app, Run& run);
void add_health(CLI::App& app, Run& run);
void add_cordon(CLI::App& app, Run& run);
void add_uncordon(CLI::App& app, Run& run);
void add_driver(CLI::App& app, Run& run);
void add_doctor(CLI::App& app, Run& run);
void add_preflight(CLI::App& app, Run& run);
void add_config(CLI::App& app, Run& run);
void add_dra(CLI::App& app, Run& run);
void add_mig(CLI::App& app, Run& run);
void add_cdi(CLI::App& app, Run& run);
void add_runtime(CLI::App& app, Run& run);
void add_scheduler(CLI::App& app, Run& run);
void add_explain(CLI::App& app, Run& run);
void add_metrics_api(CLI::App& app, Run& run);
void add_migrate(CLI::App& app, Run& run);
void add_cleanup(CLI::App& app, Run& run);
void add_version(CLI::App& app, Run& run);
void add_help(CLI::App& app, Run& run);
void add_completion(CLI::App& app, Run& run);

// `gpulet __complete WORD...`, for the scripts of `gpulet completion`.
int print_completion(const CLI::App& app, int argc, char** argv);

// In the order of `gpulet --help`. Options take time to add: a process adds those of the command that it
// runs.
struct Command {
  std::string_view name;
  void (*add)(CLI::App& app, Run& run);
};
#ifdef GPULET_DEMO  // only what `make demo` runs, which a newcomer waits for
inline constexpr Command kCommands[] = {
    {"agent", add_agent}, {"list", add_list},       {"topo", add_topo},
    {"place", add_place}, {"version", add_version},
};
#else
inline constexpr Command kCommands[] = {
    {"agent", add_agent},
    {"list", add_list},
    {"topo", add_topo},
    {"place", add_place},
    {"labels", add_labels},
    {"top", add_top},
    {"usage", add_usage},
    {"health", add_health},
    {"cordon", add_cordon},
    {"uncordon", add_uncordon},
    {"driver", add_driver},
    {"doctor", add_doctor},
    {"preflight", add_preflight},
    {"config", add_config},
    {"dra", add_dra},
    {"mig", add_mig},
    {"cdi", add_cdi},
    {"runtime", add_runtime},
    {"scheduler", add_scheduler},
    {"explain", add_explain},
    {"metrics-api", add_metrics_api},
    {"migrate", add_migrate},
    {"cleanup", add_cleanup},
    {"version", add_version},
    {"help", add_help},
    {"completion", add_completion},
};
#endif

}  // namespace gpulet::cli

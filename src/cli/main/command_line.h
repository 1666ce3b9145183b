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

// In the order of `gpulet --help`.
using AddCommand = void (*)(CLI::App& app, Run& run);
#ifdef GPULET_DEMO  // only what `make demo` runs, which a newcomer waits for
inline constexpr AddCommand kCommands[] = {add_agent, add_list, add_topo, add_place, add_version};
#else
inline constexpr AddCommand kCommands[] = {
    add_agent,   add_list,    add_topo,     add_place,   add_labels,    add_top,       add_usage,
    add_health,  add_cordon,  add_uncordon, add_driver,  add_doctor,    add_preflight, add_config,
    add_dra,     add_mig,     add_cdi,      add_runtime, add_scheduler, add_explain,   add_metrics_api,
    add_migrate, add_cleanup, add_version,  add_help,    add_completion};
#endif

}  // namespace gpulet::cli

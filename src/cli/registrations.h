// Subcommands that a file of their own puts on the command line: their names, options and help. CLI11 is seen
// by these files and command_line.cpp alone.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace gpulet::cli {

// What the command line has chosen: runs it, and returns the exit code.
using Run = std::function<int()>;

// Each adds its subcommands to `app`; parsing one sets `run`, which outlives `app`.
void add_cdi(CLI::App& app, Run& run);        // cdi generate, list, validate, transform root
void add_doctor(CLI::App& app, Run& run);     // doctor
void add_health(CLI::App& app, Run& run);     // health, cordon, uncordon
void add_scheduler(CLI::App& app, Run& run);  // scheduler, scheduler simulate, explain
void add_labels(CLI::App& app, Run& run);     // labels
void add_top(CLI::App& app, Run& run);        // top
void add_metrics_api(CLI::App& app, Run& run);
void add_migrate(CLI::App& app, Run& run);  // migrate check
void add_cleanup(CLI::App& app, Run& run);  // cleanup

}  // namespace gpulet::cli

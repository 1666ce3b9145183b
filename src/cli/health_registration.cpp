#include <CLI/CLI.hpp>
#include <memory>

#include "cli/cordon_command.h"
#include "cli/health_command.h"
#include "cli/registrations.h"

namespace gpulet::cli {
namespace {

// The agent's settings of the same names, and their environment.
void add_places(CLI::App& command, std::string& health_file, std::string& state_dir) {
  command.add_option("--health-file", health_file, "the agent's report (/run/gpulet/health.json)")
      ->envname("GPULET_HEALTH_FILE");
  command.add_option("--state-dir", state_dir, "what outlives the agent (/var/lib/gpulet)")
      ->envname("GPULET_STATE_DIR");
}

CLI::App* add_cordon(CLI::App& app, Run& run, health::Wish wish, const char* name, const char* help) {
  auto* command = app.add_subcommand(name, help);
  const auto options = std::make_shared<CordonOptions>();
  command->add_option("GPU", options->device, "by index (a MIG device: 3:1), UUID, or the beginning of one")
      ->required();
  if (wish == health::Wish::kCordon) {
    command->add_option("--reason", options->reason, "why, one line: shown wherever the GPU's state is");
  }
  add_places(*command, options->health_file, options->state_dir);
  command->add_option("--driver-root", options->driver_root, "where the driver's files are")
      ->envname("DRIVER_ROOT_CTR_PATH");
  command->callback([options, wish, &run] { run = [options, wish] { return cordon(wish, *options); }; });
  return command;
}

}  // namespace

void add_health(CLI::App& app, Run& run) {
  auto* command = app.add_subcommand("health", "how the GPUs stand, why, and what to do next");
  const auto options = std::make_shared<HealthOptions>();
  command->add_option("GPU", options->device,
                      "all of one, by index (a MIG device: 3:1), UUID, or the beginning of one");
  command->add_flag("-w,--watch", options->watch, "again whenever it changes, until interrupted");
  command->add_option("-o,--output", options->output, "table or json")
      ->check(CLI::IsMember({"table", "json"}));
  add_places(*command, options->health_file, options->state_dir);
  command->callback([options, &run] { run = [options] { return health(*options); }; });

  add_cordon(app, run, health::Wish::kCordon, "cordon", "take a GPU out of use; what runs on it may finish");
  add_cordon(app, run, health::Wish::kUncordon, "uncordon",
             "give it back; what it waits for counts as done, and its checks follow");
}

}  // namespace gpulet::cli

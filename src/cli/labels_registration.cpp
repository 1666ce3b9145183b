#include <CLI/CLI.hpp>
#include <memory>

#include "cli/labels_command.h"
#include "cli/registrations.h"

namespace gpulet::cli {

void add_labels(CLI::App& app, Run& run) {
  auto* command = app.add_subcommand("labels", "the node's labels, and why it has each");
  const auto options = std::make_shared<LabelsOptions>();
  command->add_flag("--explain", options->explain, "with the rule and the source of each, and what was cut");
  command->add_option("-o,--output", options->output, "text or json")->check(CLI::IsMember({"text", "json"}));
  command->add_option("--driver-root", options->driver_root, "where the driver's files are")
      ->envname("DRIVER_ROOT_CTR_PATH");
  for (const char* flag : {"config-file", "mig-strategy"}) {
    command->add_option_function<std::string>(
        "--" + std::string(flag),
        [options, flag](const std::string& value) { options->sources.flags[flag] = {value}; },
        "as the agent's, like its environment variables: how GPUs are offered is a part of the labels");
  }
  command->callback([options, &run] {
    run = [options] {
      options->sources.environment = config::process_environment();
      return labels(*options);
    };
  });
}

}  // namespace gpulet::cli

// `gpulet agent`. NVIDIA's programs that run the same agent are cli/dropin/programs.h.
#include <memory>

#include <CLI/CLI.hpp>

#include "cli/dropin/programs.h"
#include "cli/main/command_line.h"

namespace gpulet::cli {

void add_agent(CLI::App& app, Run& run) {
  auto& command = add_command(
      app,
      {.name = "agent",
       .summary = "Run the agent of this node",
       .details =
           "Offers the node's GPUs to the kubelet, watches their health, and serves metrics. Flags override\n"
           "the environment, which overrides the config file. See docs/config.md.",
       .examples = "  gpulet agent --config-file /etc/gpulet/config.yaml"});
  const auto sources = std::make_shared<config::Sources>();
  add_setting_options(command, sources->flags);
  command.callback([sources, &run] {
    run = [sources] {
      sources->environment = config::process_environment();
      return run_agent(std::move(*sources));
    };
  });
}

}  // namespace gpulet::cli

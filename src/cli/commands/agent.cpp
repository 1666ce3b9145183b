// `gpulet agent`. NVIDIA's programs that run the same agent are cli/dropin/programs.h.
#include <memory>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "agent/node/capabilities.h"
#include "cli/dropin/programs.h"
#include "cli/main/command_line.h"

namespace gpulet::cli {
namespace {

// Before any other thread exists.
Status give_up_capabilities(const std::string& kept) {
  GPULET_TRY_ASSIGN(const auto numbers, agent::parse_capabilities(kept));
  return agent::keep_capabilities(numbers);
}

}  // namespace

void add_agent(CLI::App& app, Run& run) {
  auto& command = add_command(
      app,
      {.name = "agent",
       .summary = "Run the agent of this node",
       .details =
           "Offers the node's GPUs to the kubelet, watches their health, and serves metrics. Flags override\n"
           "the environment, which overrides the config file. See docs/config.md.",
       .examples = "  gpulet agent --config-file /etc/gpulet/config.yaml",
       .group = kServiceGroup});
  const auto sources = std::make_shared<config::Sources>();
  add_setting_options(command, sources->flags);
  const auto kept = std::make_shared<std::optional<std::string>>();
  command
      .add_option("--keep-capabilities", *kept,
                  "give up all other Linux capabilities at the start (default: keep all): SETUID,SETGID")
      ->envname("GPULET_KEEP_CAPABILITIES");
  command.callback([sources, kept, &run] {
    run = [sources, kept] {
      if (*kept) {
        const auto status = give_up_capabilities(**kept);
        if (!status) {
          const bool wrong = status.error().code() == Code::kInvalidArgument;
          return print_error("gpulet agent", "--keep-capabilities: " + status.error().full_message(),
                             wrong ? kWrongCommand : kFailed);
        }
      }
      sources->environment = config::process_environment();
      return run_agent(std::move(*sources));
    };
  });
}

}  // namespace gpulet::cli

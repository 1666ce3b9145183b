#include <CLI/CLI.hpp>
#include <memory>

#include "cli/registrations.h"
#include "cli/top_command.h"

namespace gpulet::cli {

void add_top(CLI::App& app, Run& run) {
  auto* command = app.add_subcommand("top", "the node's GPUs, Pods and processes, live");
  const auto options = std::make_shared<TopOptions>();
  command->add_option("--socket", options->socket, "the agent's socket (/run/gpulet/agent.sock)")
      ->envname("GPULET_SOCKET");
  command->add_option("--url", options->url, "another agent instead, http://HOST:PORT");
  command->add_flag("-b,--batch", options->batch, "tables for standard output, one below the other");
  command->add_option("-n,--count", options->count, "so many tables, and end; with --batch");
  command->add_option("-d,--delay", options->seconds, "seconds between two (2; on a screen: as they come)");
  command->add_option("-o,--output", options->output, "table or json, a line each; json is --batch")
      ->check(CLI::IsMember({"table", "json"}));
  command->add_option("-t,--tab", options->tab, "shown first: gpus, pods or processes")
      ->check(CLI::IsMember({"gpus", "pods", "processes"}));
  command->add_option("-s,--sort", options->sort, "by this column of that tab (util, memory, power, …)");
  command->add_option("-f,--filter", options->filter, "only rows with this in them");
  command->add_option("-w,--width", options->width, "columns of tables (the terminal's, or 120)");
  command->callback([options, &run] { run = [options] { return top(*options); }; });
}

}  // namespace gpulet::cli

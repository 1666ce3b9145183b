#include "cli/agent_command.h"

#include <unistd.h>

#include <iostream>

#include "agent/node.h"
#include "base/log.h"
#include "cli/version_command.h"

namespace gpulet::cli {

int run_agent(config::Sources sources) {
  auto with_file = sources;
  if (const auto status = config::read_config_file(with_file); !status) {
    std::cerr << "gpulet: " << status.error().text() << '\n';
    return 1;
  }
  auto loaded = config::load(with_file);
  if (!loaded) {
    std::cerr << "gpulet: " << loaded.error().text() << '\n';
    return 1;
  }
  agent::configure_log(loaded->config.gpulet);
  for (const auto& warning : loaded->warnings) log::warning(warning);
  const auto status = agent::run_node(std::move(sources), std::move(*loaded), version());
  if (!status) std::cerr << "gpulet: " << status.error().text() << std::endl;
  ::_exit(status ? 0 : 1);
}

int run_discovery(agent::FeatureDiscoveryOptions options) {
  options.print = [](const std::string& text) { std::cout << text << std::flush; };
  const auto status = agent::run_feature_discovery(std::move(options));
  if (!status) std::cerr << "gpu-feature-discovery: " << status.error().text() << std::endl;
  ::_exit(status ? 0 : 1);
}

}  // namespace gpulet::cli

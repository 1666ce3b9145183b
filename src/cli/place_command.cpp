#include "cli/place_command.h"

#include <iostream>

#include "agent/nvml_driver.h"

namespace gpulet::cli {
namespace {

Result<std::string> read_and_place(const PlaceOptions& options) {
  config::Sources sources = options.sources;
  GPULET_TRY(config::read_config_file(sources));
  GPULET_TRY_ASSIGN(const config::Loaded loaded, config::load(sources));
  agent::NvmlDriverOptions driver;
  driver.driver_root = options.driver_root;
  GPULET_TRY_ASSIGN(const inventory::Snapshot snapshot, agent::read_snapshot(std::move(driver)));
  return place_report(snapshot, loaded.config, options);
}

}  // namespace

int place(const PlaceOptions& options) {
  const Result<std::string> report = read_and_place(options);
  if (!report) {
    std::cerr << "gpulet place: " << report.error().text() << '\n';
    return 1;
  }
  std::cout << *report << std::flush;
  return 0;
}

}  // namespace gpulet::cli

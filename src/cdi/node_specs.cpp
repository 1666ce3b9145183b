#include "cdi/node_specs.h"

#include <algorithm>
#include <array>

namespace gpulet::cdi {
namespace {

void add_all(std::vector<std::string>& to, const std::vector<std::string>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

NodeSpecs node_specs(const Roots& roots, const inventory::Snapshot& snapshot,
                     const NodeSpecOptions& options) {
  NodeSpecs result;
  auto files = DeviceFiles::read(roots);
  GenerateOptions generating;
  generating.vendor = options.vendor;
  generating.names = {options.names};
  generating.all_device = false;
  generating.hooks = options.hooks;
  generating.additional_gids = options.additional_gids;
  const auto add = [&](Mode mode, const DriverFiles& driver) -> Status {
    generating.mode = mode;
    generating.device_class = class_of(mode);
    GPULET_TRY_ASSIGN(auto made,
                      generate(snapshot, driver, collect(mode, roots, files, snapshot), generating));
    add_all(result.warnings, made.warnings);
    result.specs.push_back(std::move(made.spec));
    return {};
  };
  if (const auto driver = find_driver_files(roots, snapshot.driver.version, options.driver); !driver) {
    result.no_gpus = driver.error();
  } else {
    add_all(result.warnings, driver->warnings);
    if (const auto done = add(Mode::kNvml, *driver); !done) result.no_gpus = done.error();
  }
  const std::array<std::pair<bool, Mode>, 4> others{{{options.gds, Mode::kGds},
                                                     {options.mofed, Mode::kMofed},
                                                     {options.gdrcopy, Mode::kGdrcopy},
                                                     {options.imex, Mode::kImex}}};
  for (const auto& [wanted, mode] : others) {
    if (!wanted) continue;
    const auto done = add(mode, {});
    // That a node has no IMEX channel is the rule; what was asked for by name is missed.
    if (!done && mode != Mode::kImex) result.warnings.push_back(done.error().text());
  }
  add_all(result.warnings, files.warnings());
  return result;
}

Status apply_feature_flag(const std::string& flag, DriverFileOptions& driver, bool& additional_gids) {
  if (flag == "enable-explicit-driver-libraries") {
    driver.explicit_libraries = true;
  } else if (flag == "disable-ipc-discoverer") {
    driver.sockets = false;
  } else if (flag == "additional-gids-for-device-nodes") {
    additional_gids = true;
  } else if (flag == "no-additional-gids-for-device-nodes") {
    additional_gids = false;
  } else if (flag != "disable-nvsandboxutils" && flag != "enable-coherent-annotations" &&
             flag != "disable-multiple-csv-devices") {  // of libraries and machines that are not asked here
    return fail(Code::kInvalidArgument, "there is no feature flag '" + flag + "'");
  }
  return {};
}

}  // namespace gpulet::cdi

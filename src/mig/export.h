// What the GPUs of a node have now as mig-parted's file (layout_file.h), to be applied to another node or
// after a reinstallation.
#pragma once

#include <span>
#include <string>

#include "base/result.h"
#include "mig/layout_file.h"
#include "mig/state.h"

namespace gpulet::mig {

// One config of that name, an entry for each layout, by the first GPU that has it. With `whole`, these are
// all GPUs of the node: an entry about every one of some kinds says so, and names the kinds where there are
// others. The mode is the one in force.
// Errors: kUnsupported, an instance of which the driver does not tell the profile.
Result<LayoutFile> export_layouts(const std::string& name, std::span<const State> gpus, bool whole);

// As YAML, which parse_layout_file reads back.
std::string to_yaml(const LayoutFile& file);

// "0x233010DE", or with a subsystem "0x233010DE:0x16C110DE".
std::string str(const DeviceFilter& filter);

}  // namespace gpulet::mig

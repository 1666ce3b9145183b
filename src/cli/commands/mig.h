// `gpulet mig plan|apply|assert|export`: MIG layouts by hand, with the names, file and flags of
// nvidia-mig-parted (v0.15.0), planned and applied as by the agent (mig/plan.h, mig/apply.h). Needs no agent.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/main/command.h"

namespace gpulet::cli {

enum class MigVerb { kPlan, kApply, kAssert, kExport };

struct MigOptions {
  std::string config_file;        // mig-parted's; "-": standard input; empty: layouts of the hardware
  std::string selected_config;    // empty: the file's only one
  bool mode_only = false;         // MIG on or off, and no instances
  bool valid_config = false;      // assert: only check that the GPUs support it
  bool dry_run = false;           // apply: as plan
  std::vector<std::string> gpus;  // by index or UUID; empty: all
  std::string output;             // "text" or "json"; export: "yaml" or "json"; empty: the first of them
  std::string config_label;       // export: the config's name; empty: "current"
  std::string driver_root = "/";
  std::string kubelet_dir;   // empty: /var/lib/kubelet
  bool ignore_pods = false;  // do not query the kubelet, for a drained node
  // MIG_PARTED_CONFIG_FILE, _SELECTED_CONFIG, _MODE_CHANGE_ONLY, _VALID_CONFIG, _OUTPUT_FORMAT, _CONFIG_LABEL
  // and GPULET_KUBELET_DIR, for fields that are not set above.
  std::map<std::string, std::string, std::less<>> environment;
};

// Exit code:
//   plan    0: not blocked; 1: the layout is invalid, or a GPU cannot be read; 2: an instance to delete is in
//   use apply   0: applied; 1: the layout is invalid and nothing was changed, or a step failed; 2: a GPU is
//   blocked or needs a
//           reset. Each GPU is changed on its own.
//   assert  0: the GPUs match; 1: they do not
//   export  0; 1: a GPU cannot be read
CommandOutput mig_output(MigVerb verb, const MigOptions& options);

// Prints mig_output().
int run_mig(MigVerb verb, const MigOptions& options);

}  // namespace gpulet::cli

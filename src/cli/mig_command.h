// `gpulet mig plan|apply|assert|export`: MIG layouts by hand, with the names, the file and the flags of
// nvidia-mig-parted (v0.15.0), planned and carried out as the agent does it (mig/plan.h, mig/apply.h). Needs
// no agent.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace gpulet::cli {

enum class MigVerb { kPlan, kApply, kAssert, kExport };

struct MigOptions {
  std::string config_file;        // mig-parted's; "-": standard input; empty: layouts from the hardware
  std::string selected_config;    // empty: the file's only one
  bool mode_only = false;         // MIG on or off, and no instances
  bool valid_config = false;      // assert: only whether the GPUs can have it
  bool dry_run = false;           // apply: as plan
  std::vector<std::string> gpus;  // by index or UUID; empty: all
  std::string output;             // "text" or "json"; export: "yaml" or "json"; empty: the first of them
  std::string config_label;       // export: the config's name; empty: "current"
  std::string driver_root = "/";
  std::string kubelet_dir;   // empty: /var/lib/kubelet
  bool ignore_pods = false;  // the kubelet is not asked, as on a node that is being emptied by hand
  // MIG_PARTED_CONFIG_FILE, _SELECTED_CONFIG, _MODE_CHANGE_ONLY, _VALID_CONFIG, _OUTPUT_FORMAT, _CONFIG_LABEL
  // and GPULET_KUBELET_DIR, for what is not set above.
  std::map<std::string, std::string, std::less<>> environment;
};

struct MigAnswer {
  int exit_code = 0;
  std::string out, err;  // with their newlines
};

// plan: 0 nothing is in the way; 1 the layout is refused, or a GPU could not be read; 2 somebody holds what
// would go. apply: 0 the layout is there; 1 it is refused and nothing was touched, or a step failed; 2 a GPU
// is blocked or waits
//   for a reset. Each GPU is changed on its own: one that is blocked holds no other up.
// assert: 0 the GPUs are as the config says, 1 they are not.
// export: 0, or 1 where a GPU could not be read.
MigAnswer mig_answer(MigVerb verb, const MigOptions& options);

// Prints it. Returns the exit code.
int mig(MigVerb verb, const MigOptions& options);

}  // namespace gpulet::cli

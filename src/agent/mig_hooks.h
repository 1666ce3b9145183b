// The hooks that the config names (gpulet.mig.hooksFile), for the MigManager. The file is read anew before
// each round, so a change of it needs no restart; commands get these variables and nothing else but their
// own:
//
//   MIG_PARTED_CONFIG_FILE, MIG_PARTED_HOOKS_FILE   as set; may be empty
//   MIG_PARTED_SELECTED_CONFIG                      the layout's name; empty where a rule lists devices
//   MIG_PARTED_MODE_CHANGE_ONLY=false, MIG_PARTED_SKIP_RESET=true: the agent resets no GPU
//   GPULET_HOOK                                     "pre-apply-mode"
//   GPULET_GPU                                      the UUID of the GPU; all of them with commas around a
//   round
//
// Source of the first five: mig-parted v0.15.0, cmd/nvidia-mig-parted/apply, GetHooksEnvsMap.
#pragma once

#include <functional>
#include <optional>

#include "agent/mig_ports.h"
#include "base/loop.h"
#include "config/rules.h"
#include "mig/hooks.h"

namespace gpulet::agent {

// Loop's thread only. Destroying it kills what runs.
class ConfiguredHooks final : public MigHooks {
 public:
  // `settings` is asked anew each time.
  ConfiguredHooks(Loop& loop, std::function<config::MigSettings()> settings,
                  Duration limit = mig::kHookLimit);

  bool any() const override;
  // A file that cannot be read or is wrong is an error of apply-start.
  void run(mig::HookPoint point, const About& about, std::function<void(Status)> done) override;

 private:
  Loop& loop_;
  std::function<config::MigSettings()> settings_;
  std::optional<mig::HooksFile> file_;  // of the round
  mig::HookRunner runner_;
};

}  // namespace gpulet::agent

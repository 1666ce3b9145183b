// mig-parted's file of hooks: commands that an operator has run around a change of MIG, to stop what uses a
// GPU and to start it again.
//
//   version: v1
//   hooks:
//     apply-start:                     # once, before anything is touched
//       - command: /bin/bash           # an absolute path
//         args: ["-c", "logger changing MIG to $MIG_PARTED_SELECTED_CONFIG"]
//         envs: {LANG: C}
//         workdir: /etc/mig            # "/" when left out
//     pre-apply-mode: []               # before a GPU's mode changes
//     pre-apply-config: []             # before a GPU's instances change
//     apply-exit: []                   # once, at the end, whatever became of it
//
// Source: mig-parted v0.15.0, api/hooks/v1/hooks.go, cmd/nvidia-mig-parted/apply/hooks.go.
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpulet::mig {

enum class HookPoint { kApplyStart, kPreApplyMode, kPreApplyConfig, kApplyExit };
inline constexpr std::size_t kHookPoints = 4;
// "apply-start".
std::string_view name(HookPoint point);

struct Hook {
  std::string command;  // absolute
  std::vector<std::string> args;
  std::map<std::string, std::string> envs;
  std::string workdir = "/";
  std::string place;  // "path:line:column"; for messages
};

struct HooksFile {
  std::string path;
  std::array<std::vector<Hook>, kHookPoints> hooks;  // by point, each in the order of the file
  const std::vector<Hook>& at(HookPoint point) const { return hooks[static_cast<std::size_t>(point)]; }
};

// Errors, kInvalidArgument, about "path:line:column": the field, what was found and what would do.
Result<HooksFile> parse_hooks_file(std::string_view text, const std::string& path);

// The file at `path`. Errors: as parse_hooks_file and base/file.h.
Result<HooksFile> load_hooks_file(const std::string& path);

}  // namespace gpulet::mig

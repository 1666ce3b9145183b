// Command lines of gpulet-hook: `create-container`, which does everything in one process, and those of
// nvidia-cdi-hook, so that NVIDIA's CDI specs work with only the program replaced.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hook/container.h"
#include "hook/cuda_compat.h"
#include "hook/limit_memory.h"
#include "hook/requirements.h"

namespace gpulet::hook {

// Steps under nvidia-cdi-hook's names, in the order in which create-container runs them: first those without
// which no container may start, last the one that reads most of the image.
enum class Step {
  kCheckRequirements,  // check-requirements
  kDeviceParams,       // disable-device-node-modification
  kLinks,              // create-symlinks
  kCudaCompat,         // enable-cuda-compat
  kAppProfile,         // update-application-profile
  kLdcache,            // update-ldcache
  kChmod,              // chmod; never part of create-container
  kLimitMemory,        // limit-memory; a createRuntime hook of its own (hook/limit_memory.h)
};
std::string_view step_name(Step step);
// Whether no container may start without the step: it refuses an image, or takes a right away.
bool is_required(Step step);

struct HookCommand {
  enum class Kind { kRun, kHelp, kVersion, kUnknownHook };
  Kind kind = Kind::kRun;
  std::string
      requested_hook;  // kUnknownHook: the unknown hook's name. NVIDIA's program ignores unknown hooks too
  std::vector<Step> steps{};  // in order

  std::vector<Link> links{};
  std::vector<std::string> directories{};
  std::string ldconfig_path = "/sbin/ldconfig";
  HostProperties host{};
  std::string compat_directory{kCompatDirectory};
  std::string host_proc = "/proc";
  std::string state_path{};  // "" and "-": standard input
  unsigned mode = 0;
  std::vector<std::string> paths{};
  std::string socket{};                          // of the agent
  std::chrono::milliseconds answer_wait = kLimitWait;  // for the agent's answer
};

// Parses main's arguments, program name first. Called as "nvidia-cdi-hook", or as "nvidia-ctk" with "hook"
// first, it ignores unknown hooks, as these programs do. Options are "--name value" or "--name=value".
// Errors: kInvalidArgument.
Result<HookCommand> parse_command(const std::vector<std::string>& arguments);

// Runs the steps of `command`, and calls `begin_step` with the index of each before it. If the image or its
// mounts prevent a write, or ldconfig takes too long, calls `warn` and continues: a container with a
// read-only root still starts.
Status run_command(const HookCommand& command, const std::function<void(const Error&)>& warn,
                   const std::function<void(std::size_t)>& begin_step);

// After which the command is killed.
std::chrono::milliseconds command_time_limit(const HookCommand& command);

// What became of a command that was killed at its time limit: kDeadlineExceeded with the step that it was in.
// `begun` is the number of steps that it had begun. `may_start`: no required step is left or unfinished, so
// the container starts without the others.
struct Overrun {
  Error error;
  bool may_start = false;
};
Overrun describe_overrun(const HookCommand& command, std::size_t begun);

std::string help_text();

}  // namespace gpulet::hook

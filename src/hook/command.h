// gpulet-hook's command lines: its own, which does everything in one process, and those of nvidia-cdi-hook,
// so that a CDI spec of NVIDIA's runs with only the program replaced.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hook/cuda_compat.h"
#include "hook/links.h"
#include "hook/require.h"

namespace gpulet::hook {

// Steps by the names that nvidia-cdi-hook gives them; in the order in which create-container does them.
enum class Step {
  kCheckRequirements,  // check-requirements
  kLinks,              // create-symlinks
  kCudaCompat,         // enable-cuda-compat
  kLdcache,            // update-ldcache
  kDeviceParams,       // disable-device-node-modification
  kAppProfile,         // update-application-profile
  kChmod,              // chmod; never part of create-container
};
std::string_view name(Step step);

struct Command {
  enum class Kind { kRun, kHelp, kVersion, kUnknownHook };
  Kind kind = Kind::kRun;
  std::string asked;  // kUnknownHook: the hook that we do not have, which NVIDIA's program passes over too
  std::vector<Step> steps{};  // in order

  std::vector<Link> links{};
  std::vector<std::string> folders{};
  std::string ldconfig_path = "/sbin/ldconfig";
  HostProperties host{};
  std::string compat_folder{kCompatFolder};
  std::string host_proc = "/proc";
  std::string state_path{};  // "" and "-": standard input
  unsigned mode = 0;
  std::vector<std::string> paths{};
};

// `arguments` are main's, with the name that the program was called by first: "nvidia-cdi-hook" and
// "nvidia-ctk" (then with "hook" in front) take that program's command lines; under any name so does
// gpulet-hook. Options are "--name value" or
// "--name=value". Errors: kInvalidArgument.
Result<Command> parse_command(const std::vector<std::string>& arguments);

// Runs it. What an image or its mounts do not let us write is told to `warn`, and no error: a container with
// a read-only root runs as well as it did.
Status run_command(const Command& command, const std::function<void(const Error&)>& warn);

std::string help_text();

}  // namespace gpulet::hook

// `gpulet cdi generate|list|validate|transform`: CDI specs by hand, with the flags, names and environment
// of nvidia-ctk (1.19). Needs no agent; an agent's report says which GPUs its config excludes.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/main/command.h"
#include "inventory/snapshot.h"

namespace gpulet::cli {

using CdiEnvironment = std::map<std::string, std::string, std::less<>>;

// Empty fields take their value from the environment (NVIDIA_CTK_CDI_…), then the default.
struct CdiGenerateOptions {
  std::string output;  // a file; empty: standard output
  std::string format;  // "yaml" or "json"; empty: by the file's name, else yaml
  std::string mode;    // default "auto"
  std::string driver_root, dev_root;
  std::vector<std::string> device_name_strategies;  // default index and uuid
  std::vector<std::string> config_search_paths, library_search_paths;
  // Path on the host. Default "gpulet-hook"; a name without a directory is searched beside this program and
  // in PATH.
  std::string hook_path;
  std::string ldconfig_path;
  std::string vendor, device_class;  // default nvidia.com and gpu, in every mode
  std::vector<std::string> disabled_hooks, enabled_hooks, feature_flags;
  std::vector<std::string> device_ids;  // default all
  bool no_all_device = false;
  std::string proc = "/proc", sys = "/sys";
  std::string health_file = "/run/gpulet/health.json";  // of an agent: GPUs that it excludes are not in `all`
  CdiEnvironment environment;
};

struct CdiListOptions {
  std::vector<std::string> spec_dirs;  // default NVIDIA_CTK_CDI_SPEC_DIRS, then /etc/cdi and /var/run/cdi
  CdiEnvironment environment;
  OutputOptions output{};
};

struct CdiValidateOptions {
  std::vector<std::string> files;  // empty: those of spec_dirs
  std::vector<std::string> spec_dirs;
  CdiEnvironment environment;
  OutputOptions output{};
};

struct CdiTransformOptions {
  std::string input = "-";  // a file; "-": standard input
  std::string output;       // a file; empty: standard output
  std::string from, to;     // directories; empty: "/"
  std::string relative_to = "host";
};

// Reads the GPUs of a driver root, whose library may be in these directories of it.
using SnapshotReader = std::function<Result<inventory::Snapshot>(
    const std::string& driver_root, const std::vector<std::string>& library_directories)>;

// Exit code: 0; 1 if there is nothing to generate or it cannot be written; 2 for invalid options. Standard
// error has one line for each device or file that is missing from the spec.
CommandOutput cdi_generate_output(const CdiGenerateOptions& options, const SnapshotReader& read);
// The devices that a container engine finds, one qualified name a line; invalid files on standard error, or
// in the document.
CommandOutput cdi_list_output(const CdiListOptions& options);
// Exit code: 0; 1 after every mistake, one a line, with file, line and field.
CommandOutput cdi_validate_output(const CdiValidateOptions& options);
// `transform root`. Exit code: 0; 1 if the document is invalid or cannot be read or written; 2 for invalid
// options. The format is that of the output's name, else YAML. cdi/spec.h has the rules.
CommandOutput cdi_transform_output(const CdiTransformOptions& options);

// Print the outputs. Return the exit code.
int run_cdi_generate(const CdiGenerateOptions& options);
int run_cdi_list(const CdiListOptions& options);
int run_cdi_validate(const CdiValidateOptions& options);
int run_cdi_transform(const CdiTransformOptions& options);

}  // namespace gpulet::cli

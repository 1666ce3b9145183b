// `gpulet cdi generate|list|validate|transform`: CDI specs by hand, with the options, names and environment
// of nvidia-ctk (1.19). Needs no agent.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "inventory/snapshot.h"

namespace gpulet::cli {

using CdiEnvironment = std::map<std::string, std::string, std::less<>>;

// What is empty comes from the environment (NVIDIA_CTK_CDI_…), then from the default.
struct CdiGenerateOptions {
  std::string output;  // a file; empty: standard output
  std::string format;  // "yaml" or "json"; empty: by the file's name, else yaml
  std::string mode;    // default "auto"
  std::string driver_root, dev_root;
  std::vector<std::string> device_name_strategies;  // default index and uuid
  std::vector<std::string> config_search_paths, library_search_paths;
  // On the host. Default "gpulet-hook"; a name without a folder is looked for beside this program and in
  // PATH.
  std::string hook_path;
  std::string ldconfig_path;
  std::string vendor, device_class;  // default nvidia.com and gpu, in every mode
  std::vector<std::string> disabled_hooks, enabled_hooks, feature_flags;
  std::vector<std::string> device_ids;  // default all
  bool no_all_device = false;
  std::string proc = "/proc", sys = "/sys";
  CdiEnvironment environment;
};

struct CdiListOptions {
  std::vector<std::string> spec_dirs;  // default NVIDIA_CTK_CDI_SPEC_DIRS, then /etc/cdi and /var/run/cdi
  CdiEnvironment environment;
};

struct CdiValidateOptions {
  std::vector<std::string> files;  // empty: those of spec_dirs
  std::vector<std::string> spec_dirs;
  CdiEnvironment environment;
};

struct CdiTransformOptions {
  std::string input = "-";  // a file; "-": standard input
  std::string output;       // a file; empty: standard output
  std::string from, to;     // folders; empty: "/"
  std::string relative_to = "host";
};

struct CdiAnswer {
  int exit_code = 0;
  std::string out, err;  // with their newlines
};

// How the GPUs are read: of a driver root.
using ReadSnapshot = std::function<Result<inventory::Snapshot>(const std::string& driver_root)>;

// generate: 0; 1 there is nothing to generate, or it cannot be written; 2 the options are wrong. What could
// not be offered is said on standard error, one line each.
CdiAnswer cdi_generate_answer(const CdiGenerateOptions& options, const ReadSnapshot& read);
// list: the devices that a container engine knows, one qualified name a line; files that are wrong on
// standard error.
CdiAnswer cdi_list_answer(const CdiListOptions& options);
// validate: 0, or 1 and every mistake, one a line, by file, line and field.
CdiAnswer cdi_validate_answer(const CdiValidateOptions& options);
// transform root: 0; 1 the document is wrong, or cannot be read or written; 2 the options are wrong. In the
// form of the output's name, else YAML. cdi/transform_root.h says what changes.
CdiAnswer cdi_transform_answer(const CdiTransformOptions& options);

// Print the answers. Return the exit code.
int cdi_generate(const CdiGenerateOptions& options);
int cdi_list(const CdiListOptions& options);
int cdi_validate(const CdiValidateOptions& options);
int cdi_transform(const CdiTransformOptions& options);

}  // namespace gpulet::cli

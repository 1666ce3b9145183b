// The CDI documents of one writer in a folder that others write to as well (/var/run/cdi). Each file is
// replaced whole: a reader sees the old one or the new one, with its final mode, and nothing is written that
// is there already. What this writer has put there stands with its checksum in the folder's ".gpulet-specs",
// which no container engine reads: only a file that is listed and still has those bytes is ever removed. A
// writer that is killed leaves at most a hidden temporary file, which the next one removes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "cdi/spec.h"

namespace gpulet::cdi {

// The list of what was put into the folder, in it.
inline constexpr const char* kSpecList = ".gpulet-specs";

struct OnDisk {
  // "k8s.device-plugin.nvidia.com/gpu=GPU-…" of every document that stands in the folder as it was asked for,
  // or as an earlier call left it, ascending.
  std::vector<std::string> devices;
  bool has(const std::string& qualified_name) const;
  std::vector<std::string> written;  // file names that this call has changed
  std::vector<std::string> removed;
  std::vector<Error> errors;  // files that could not be written or removed; the others were
};

class SpecFolder {
 public:
  explicit SpecFolder(std::string folder) : folder_(std::move(folder)) {}

  // Makes the folder hold just these documents of ours, as VENDOR-CLASS.json. To be called again at any time:
  // it puts back what is missing or was changed. Errors: the folder cannot be made or read; kUnavailable:
  // another writer is at it now. Blocks for the time of a few file operations.
  Result<OnDisk> write(const std::vector<Spec>& specs);

  const std::string& path() const { return folder_; }

 private:
  struct Standing {
    std::string content;
    std::vector<std::string> devices;
  };
  std::string folder_;
  std::map<std::string, Standing> standing_;  // by file name, as this object wrote or found it
};

// "k8s.device-plugin.nvidia.com-gpu.json".
std::string spec_file_name(const Spec& spec);

}  // namespace gpulet::cdi

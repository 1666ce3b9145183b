// Writes the CDI documents of one writer to a directory that others use too (/var/run/cdi). Each
// file is replaced atomically, so a reader sees the old or the new one with its final mode, and an
// unchanged file is not written. The directory's ".gpulet-specs", which container engines do not
// read, lists this writer's files with checksums; only a listed file with the same checksum is ever
// removed. A writer that is killed leaves at most a hidden temporary file, which the next one
// removes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "cdi/spec.h"

namespace gpulet::cdi {

// Name of the list in the directory.
inline constexpr const char* kSpecList = ".gpulet-specs";

struct WrittenSpecs {
  // Qualified names ("k8s.device-plugin.nvidia.com/gpu=GPU-…"), ascending, of every document on
  // disk that is as requested, or as an earlier call left it.
  std::vector<std::string> devices;
  bool has_device(const std::string& qualified_name) const;
  std::vector<std::string> written;  // file names that this call changed
  std::vector<std::string> removed;
  std::vector<Error> errors;  // files that could not be written or removed; the others were
};

class SpecDirectory {
 public:
  explicit SpecDirectory(std::string directory) : directory_(std::move(directory)) {}

  // Makes this writer's files in the directory exactly these documents, as VENDOR-CLASS.json. Call
  // it again at any time: it restores files that are missing or changed. Errors: the directory
  // cannot be created or read; kUnavailable if another writer holds its lock. Blocks for a few file
  // operations.
  Result<WrittenSpecs> write_specs(const std::vector<Spec>& specs);

  const std::string& directory() const { return directory_; }

 private:
  struct WrittenFile {
    std::string content;
    std::vector<std::string> devices;
  };
  std::string directory_;
  std::map<std::string, WrittenFile> written_files_;  // by file name, as this object wrote or found it
};

// "k8s.device-plugin.nvidia.com-gpu.json".
std::string spec_file_name(const Spec& spec);

// Reads the spec directories as container engines do: *.json and *.yaml; a later directory
// overrides an earlier one; a device that two files of one directory define is ignored.

// The engines' default directories.
inline const std::vector<std::string> kSpecDirs{"/etc/cdi", "/var/run/cdi"};

struct SpecDirs {
  std::vector<std::string> files;     // all files read, in order
  std::vector<std::string> devices;   // qualified names, ascending
  std::vector<SpecProblem> problems;  // of files (whose devices are missing) and of devices
};
// A missing directory counts as empty.
SpecDirs read_spec_dirs(const std::vector<std::string>& directories);

// Reads one file. A file that cannot be read is a problem of the result.
ReadSpec read_spec_file(const std::string& path);

}  // namespace gpulet::cdi

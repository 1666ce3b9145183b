// Records that survive a process: a file "<id>.json" for each, in one directory, replaced atomically and
// readable by its owner only.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace gpulet {

// Each member does a few file operations. Ids are file names: the caller checks them.
class RecordFiles {
 public:
  explicit RecordFiles(std::string directory) : directory_(std::move(directory)) {}

  // Passes each record to `use`, by id; removes what a killed writer left, and passes over other files'
  // names. A missing directory is empty. Returns the errors of `use` and of reading a file, with its path: it
  // stays where it is. Errors: kIo and others of reading the directory; kInvalidArgument for more than
  // `max_files`.
  using Use = std::function<Status(const std::string& id, std::string_view text)>;
  Result<std::vector<Error>> read_files(std::size_t max_files, std::size_t max_bytes, const Use& use) const;
  Status write_file(std::string_view id, std::string_view text) const;
  // No error where there is none.
  Status remove_file(std::string_view id) const;

 private:
  std::string path_of(std::string_view id) const;

  std::string directory_;
};

}  // namespace gpulet

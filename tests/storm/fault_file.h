// The FaultBlock of one simulated node, in a file that a test maps and gives to the agent.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "tests/storm/fault_block.h"

namespace gpulet::storm {

// Whether `programs` are those of this build: they have its sanitizer.
bool is_sanitized(const std::string& programs);

class FaultFile {
 public:
  // Creates the file `path`. Errors: the system call's.
  static Result<FaultFile> create_file(const std::string& path);

  FaultBlock& block() { return *block_; }
  // What preloads `library` (GPULET_FAULTY_CALLS) into a program of the directory `programs`; its faults are
  // those of files below `volume`.
  std::vector<std::string> environment(const std::string& library, const std::string& programs,
                                       const std::string& volume) const;

 private:
  struct Unmap {
    void operator()(FaultBlock* block) const;
  };
  std::string path_;
  std::unique_ptr<FaultBlock, Unmap> block_;
};

}  // namespace gpulet::storm

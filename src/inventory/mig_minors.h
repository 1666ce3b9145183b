// The minor numbers of /dev/nvidia-caps/nvidia-capN: which capability file opens which GPU instance or
// compute instance. Source: the driver's /proc/driver/nvidia-caps/mig-minors, one "<name> <minor>" a line:
// "config 1", "monitor 2", "gpu0/gi1/access 3", "gpu0/gi1/ci0/access 4"; gpuN is the GPU's minor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace gpulet::inventory {

class MigMinors {
 public:
  // nullopt where the file has no such line.
  std::optional<unsigned> gpu_instance(unsigned gpu_minor, unsigned gi) const;
  std::optional<unsigned> compute_instance(unsigned gpu_minor, unsigned gi, unsigned ci) const;
  std::optional<unsigned> config() const;
  std::optional<unsigned> monitor() const;

  bool empty() const { return minors_.empty(); }
  std::size_t size() const { return minors_.size(); }

 private:
  friend Result<MigMinors> parse_mig_minors(std::string_view text);
  std::optional<unsigned> find(std::uint64_t key) const;
  std::vector<std::pair<std::uint64_t, unsigned>> minors_;  // by key: a real file has thousands of lines
};

// Lines whose name is of another form are passed over: a newer driver may add some.
// Errors: kInvalidArgument: a line that is not a name and a minor (with its number), or one name with two
// minors.
Result<MigMinors> parse_mig_minors(std::string_view text);

// The two device nodes that a MIG device needs beside its GPU's: its GPU instance's and its compute
// instance's
// "/dev/nvidia-caps/nvidia-capN". Empty unless both are known.
std::vector<std::string> mig_device_nodes(const MigMinors& minors, unsigned gpu_minor, unsigned gi,
                                          unsigned ci);

}  // namespace gpulet::inventory

// Which devices DCGM's metrics are shown of, in the words of dcgm-exporter's --devices. Pure.
//
//   f             GPUs, and of a GPU in MIG mode its GPU instances
//   g, g:0,2-4    GPUs, in MIG mode too: all, or those of these indices
//   i, i:1,3-5    GPU instances: all, or those of these numbers (GPU_I_ID) on each GPU
// Source: dcgm-exporter, pkg/cmd/app.go; there the numbers of instances count over the whole node.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace gpulet::metrics {

class Shown {
 public:
  Shown() = default;  // f
  // Errors: kInvalidArgument about `about`: what was found and what would do.
  static Result<Shown> parse(std::string_view text, const std::string& about);

  bool gpu(unsigned index, bool mig) const;
  bool instance(unsigned id) const;  // of a GPU in MIG mode
  friend bool operator==(const Shown&, const Shown&) = default;

 private:
  enum class What { kFlexible, kGpus, kInstances };
  bool in_ranges(unsigned number) const;

  What what_ = What::kFlexible;
  std::vector<std::pair<unsigned, unsigned>> ranges_;  // first and last; none: all
};

}  // namespace gpulet::metrics

// What is asked of a cluster's GPUs: one task (a Pod), and the models that it accepts. Plain values.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "scheduler/load_curve.h"

namespace gpulet::scheduler {

// A whole GPU, in thousandths.
inline constexpr unsigned kWhole = 1000;

// One GPU model, as a number below 64 that Models gives.
using ModelId = std::uint8_t;
inline constexpr std::size_t kMaxModels = 64;

// Which models a task accepts, a bit each; empty: any.
struct ModelSet {
  std::uint64_t bits = 0;
  bool accepts(ModelId model) const { return bits == 0 || (bits >> model & 1) != 0; }
  friend bool operator==(const ModelSet&, const ModelSet&) = default;
};

// Names of GPU models as numbers, in order of appearance.
class Models {
 public:
  // Errors: kInvalidArgument for the 65th name, naming it.
  Result<ModelId> id(std::string_view name);
  // "A|B" → both; "" → any. Errors: as id; kInvalidArgument for an empty name between bars.
  Result<ModelSet> set(std::string_view names);
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;
};

struct Task {
  std::int64_t cpu_milli = 0;   // 0 where the policy's caller counts no CPU
  std::int64_t memory_mib = 0;  // of the host; 0 where not counted
  std::uint16_t gpus = 0;       // 0: none
  std::uint16_t gpu_milli = 0;  // of each of them, 1 to 1000; below 1000 it shares
  ModelSet models;
  // What it will make of its GPU's time, where known (a service that ran before). Unknown: its share, flat.
  std::optional<LoadCurve> load;

  bool shares() const { return gpus == 1 && gpu_milli < kWhole; }
  std::int64_t total_milli() const { return std::int64_t{gpus} * gpu_milli; }
  // The same but for the load: what makes two tasks of one class.
  bool same_class(const Task& other) const {
    return cpu_milli == other.cpu_milli && memory_mib == other.memory_mib && gpus == other.gpus &&
           gpu_milli == other.gpu_milli && models == other.models;
  }
};

}  // namespace gpulet::scheduler

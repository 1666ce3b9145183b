// Which GPUs a Pod accepts, by annotations: conditions on what a node knows of a GPU. Pure.
//
//   gpulet.io/gpu-uuid            "GPU-5a1c…|GPU-77e0…": one of these
//   gpulet.io/gpu-index           "0|1": one of these indices on its node
//   gpulet.io/gpu-numa            "0": on one of these NUMA nodes
//   gpulet.io/gpu-shares-on       "oneGPU", "differentGPUs": of the shares that a container requests
//   nvidia.com/use-gpuuuid        "GPU-5a1c…,GPU-77e0…": one of these; nouse-gpuuuid: none of these
//   nvidia.com/use-gputype        "A100,V100": the model's name contains one; nouse-gputype: contains none
//   nvidia.com/numa-bind          "true": all GPUs of a container are on one NUMA node
// Text compares in any case. All conditions must hold, for every GPU of the Pod. A condition on a fact that
// is not known does not hold.
// Source: HAMi 2.9, checkGPUtype, assertNuma and the names that its plugin registers.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "placement/chooser.h"

namespace gpulet::scheduler {

inline constexpr std::size_t kMaxChoiceBytes = 4096;  // of an annotation
inline constexpr std::size_t kMaxChoiceValues = 64;   // of an annotation

// A GPU as a choice sees it.
struct GpuFacts {
  std::string_view uuid, model;  // empty: unknown
  std::size_t index = 0;
  std::optional<int> numa;
};

struct GpuCondition {
  enum class Fact { kUuid, kIndex, kModel, kNuma };
  std::string annotation;
  Fact fact{};
  bool excludes = false;            // none of the values, else one of them
  std::vector<std::string> values;  // as written; a number without leading zeros

  bool is_known_of(const GpuFacts& gpu) const;
  bool matches(const GpuFacts& gpu) const;
  // "NUMA node 0, 1", "a model without T4, P4".
  std::string condition_text() const;
  friend bool operator==(const GpuCondition&, const GpuCondition&) = default;
};

struct GpuChoice {
  std::vector<GpuCondition> conditions;  // one for each annotation
  bool one_numa_node = false;
  placement::SharesOn shares_on = placement::SharesOn::kAnyGpu;
  bool has_any() const {
    return !conditions.empty() || one_numa_node || shares_on != placement::SharesOn::kAnyGpu;
  }
  friend bool operator==(const GpuChoice&, const GpuChoice&) = default;
};

inline constexpr std::string_view kSharesOnAnnotation = "gpulet.io/gpu-shares-on";
inline constexpr std::string_view kNumaBindAnnotation = "nvidia.com/numa-bind";

bool is_choice_annotation(std::string_view key);

// Adds what one of the annotations above says; an empty value of HAMi's says nothing. Errors:
// kInvalidArgument with one line of the annotation, what was found and what is expected.
Status add_choice_annotation(std::string_view key, std::string_view value, GpuChoice& choice);

// The first condition that the GPU does not match; null: none.
const GpuCondition* find_unmet_condition(const GpuChoice& choice, const GpuFacts& gpu);

}  // namespace gpulet::scheduler

// What a Pod's containers request of each of their GPUs: memory and compute. Pure.
//
// All of these forms become one FractionRequest:
// - limits of a container: nvidia.com/gpumem (MiB), nvidia.com/gpumem-percentage, nvidia.com/gpucores
//   (percent);
// - the Pod's annotations gpu-fraction ("0.5" of the memory) or gpu-memory (MiB), for the container
//   gpu-fraction-container-name, on gpu-fraction-num-devices GPUs;
// - annotations nvidia.com/container.NAME.gpu-memory.request and .limit (quantities of bytes);
// - annotation gpulet.io/gpu-memory (a quantity of bytes), for every container with a GPU.
// Source: HAMi, "Configure vGPU for tasks"; KAI and Run:ai, "GPU sharing".
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpulet::fraction {

inline constexpr std::string_view kMemoryResource = "nvidia.com/gpumem";
inline constexpr std::string_view kMemoryPercentResource = "nvidia.com/gpumem-percentage";
inline constexpr std::string_view kComputeResource = "nvidia.com/gpucores";
inline constexpr std::string_view kFractionResources[] = {kMemoryResource, kMemoryPercentResource,
                                                          kComputeResource};
inline constexpr std::string_view kMemoryAnnotation = "gpulet.io/gpu-memory";

inline constexpr std::uint64_t kMaxRequestMib = std::uint64_t{1} << 40;
inline constexpr std::size_t kMaxRequestContainers = 512;   // of a Pod, that are read
inline constexpr std::size_t kMaxRequestAnnotations = 512;  // of a Pod, that are read

// Whether a limit's name is one of kFractionResources: an amount, which no node offers, and no device.
bool is_fraction_resource(std::string_view resource);
// Whether parse_fraction_requests() reads an annotation.
bool is_fraction_annotation(std::string_view key);

// An amount of a GPU's memory: MiB, or millionths of the whole. In a sum of requests both may be set; the
// greater counts.
struct MemoryAmount {
  std::uint64_t mib = 0;         // ≤ kMaxRequestMib
  std::uint32_t millionths = 0;  // ≤ 1,000,000
  bool is_zero() const { return mib == 0 && millionths == 0; }
  // In MiB, rounded down, of a GPU with `gpu_mib` ≤ kMaxRequestMib.
  std::uint64_t mib_of(std::uint64_t gpu_mib) const {
    constexpr std::uint64_t kWhole = 1'000'000;
    return std::max(mib, gpu_mib * millionths / kWhole);
  }
  // The greater of each, so that it covers both.
  void raise_to(const MemoryAmount& other) {
    mib = std::max(mib, other.mib);
    millionths = std::max(millionths, other.millionths);
  }
  friend bool operator==(const MemoryAmount&, const MemoryAmount&) = default;
};

// Of one container, for each share of a GPU that it gets.
struct FractionRequest {
  std::string container;
  MemoryAmount memory;               // that must be free for it; zero: not requested
  MemoryAmount memory_limit;         // that it may use; zero: no limit
  unsigned compute_thousandths = 0;  // ≤ 1000; 0: not requested
  std::string memory_source;         // the field that has `memory`: "annotation gpu-fraction"
  friend bool operator==(const FractionRequest&, const FractionRequest&) = default;
};

// The fields of a Pod that matter. The views are the caller's.
struct PodField {
  std::string_view key, value;
};
struct PodContainer {
  std::string_view name;
  bool is_init = false;
  std::vector<PodField> limits;  // resources.limits; a number as its digits
};
struct PodFields {
  std::vector<PodField> annotations;
  std::vector<PodContainer> containers;  // in the Pod's order, init containers first
};

// One request for each container that has one, in the Pod's order. Without gpu-fraction-container-name,
// gpu-fraction and gpu-memory are for the first main container with a GPU.
// A value of gpulet.io/gpu-memory that is no quantity is ignored, as the scheduler ignores and reports it.
// Cost: O(annotations + containers²), for ≤ kMaxRequestAnnotations and ≤ kMaxRequestContainers; more are not
// read.
// Errors: kInvalidArgument with one line of the field, what was found and what is expected: for an amount
// that is malformed or impossible, two forms that differ, memory or compute for a container without a GPU,
// and a container that does not exist.
Result<std::vector<FractionRequest>> parse_fraction_requests(const PodFields& pod);

// The first `limit` bytes of a field that a user wrote, for a message of one line: control characters are
// blanks.
std::string printable_field(std::string_view text, std::size_t limit);

// "40Gi" → MiB, rounded up: Kubernetes' quantity suffixes up to T and Ti, whole numbers above 0 only, at most
// 2^60 bytes; nullopt for anything else.
std::optional<std::uint64_t> parse_whole_mebibytes(std::string_view text);

// "3000", "3k" → 3000: a whole number in the forms in which the API server writes an extended resource, at
// most 2^40; nullopt for anything else. Source: resource.Quantity, DecimalSI.
std::optional<std::uint64_t> parse_whole_quantity(std::string_view text);

}  // namespace gpulet::fraction

// What a Pod asks of GPUs: devices for each of its containers, and what its annotations want of them. Pure.
//
// Annotations, each of the whole Pod (docs/scheduling.md has them with examples):
//   gpulet.io/gpu-model     "H100" or "A100|H100": whole words of the model's name, in any case
//   gpulet.io/gpu-memory    "40Gi": at least so much on each device; of a shared GPU what the Pod will use of
//   it gpulet.io/gpu-compute   "8.0": at least this compute capability gpulet.io/gpu-driver    "550.54": at
//   least this driver        gpulet.io/gpu-cuda  "12.4": at least this CUDA gpulet.io/gpu-links     "NV",
//   "NV12", "PIX", "PXB", "PHB", "NODE": every two of a container's GPUs linked so or better
//   gpulet.io/gpu-selector  NFD's match expressions as JSON: {"memory": {"op": "Gt", "value": ["40000"]}}
//   gpulet.io/policy        how nodes are scored; also on a namespace
// One that is malformed counts as absent and is among `malformed`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/strong.h"
#include "scheduler/selector.h"
#include "topology/topology.h"

namespace gpulet::scheduler {

inline constexpr const char* kPolicyAnnotation = "gpulet.io/policy";
inline constexpr std::size_t kMaxContainers = 256;
inline constexpr std::size_t kMaxMalformed = 8;

// Devices of one resource for one container.
struct Demand {
  ResourceName resource;
  unsigned count = 0;
  friend bool operator==(const Demand&, const Demand&) = default;
};

struct ContainerRequest {
  // A container that runs before the others gives its devices back to them; a sidecar keeps them.
  enum class Kind { kInit, kSidecar, kMain };
  std::string name;
  Kind kind = Kind::kMain;
  std::vector<Demand> demands;  // by resource
  friend bool operator==(const ContainerRequest&, const ContainerRequest&) = default;
};

// The least that every two GPUs of a container are to each other.
struct LinkWish {
  inventory::PcieDistance pcie = inventory::PcieDistance::kUnknown;  // kUnknown: NVLink is wanted
  unsigned nvlinks = 0;                                              // at least so many
  std::string text;                                                  // as written: "NV12"
  friend bool operator==(const LinkWish&, const LinkWish&) = default;
};
bool satisfies(const topology::Pair& pair, const LinkWish& wish);

struct Wishes {
  std::vector<std::string> models;  // any of them; empty: any model
  std::uint64_t memory_mib = 0;
  std::pair<unsigned, unsigned> compute{};
  std::string driver, cuda;  // as versions; empty: any
  std::optional<LinkWish> links;
  std::vector<Expression> selector;  // all of them
  bool any() const {
    return !models.empty() || memory_mib != 0 || compute != std::pair<unsigned, unsigned>{} ||
           !driver.empty() || !cuda.empty() || links || !selector.empty();
  }
  friend bool operator==(const Wishes&, const Wishes&) = default;
};

// An annotation that is not understood.
struct Malformed {
  std::string annotation, found, accepted;
  // `gpulet.io/gpu-memory is "lots": a quantity is accepted, as 40Gi; it is taken as absent`
  std::string text() const;
  friend bool operator==(const Malformed&, const Malformed&) = default;
};

struct PodRequest {
  std::string name_space, name, uid;
  std::string node;       // where it is bound; empty: nowhere yet
  std::string scheduled;  // when it was bound, RFC 3339; empty before
  bool ended = false;     // succeeded or failed: holds nothing
  // In the order in which the kubelet admits them: those before the others first. Only those that want a
  // device of an extended resource ("domain/name" but kubernetes.io's own).
  std::vector<ContainerRequest> containers;
  Wishes wishes;
  std::string policy;  // empty: none named
  // It prefers nodes by affinity or by topology spread, which plugins of kube-scheduler weigh.
  bool prefers_nodes = false;
  std::vector<Malformed> malformed;

  std::string key() const { return name_space + "/" + name; }
  friend bool operator==(const PodRequest&, const PodRequest&) = default;
};

// A Pod object as the API server has it. Errors: kInvalidArgument for what is no Pod: no JSON, no name.
Result<PodRequest> parse_pod(std::string_view json);

// The wishes of one annotation into `request`; whatever is none of ours is let be. `policies`: what
// gpulet.io/policy may name.
void take_annotation(std::string_view key, std::string_view value, PodRequest& request);

// gpulet.io/policy of a Pod or a namespace: the name if it is one, else what is wrong.
Result<std::string> parse_policy(std::string_view value);

}  // namespace gpulet::scheduler

// What a Pod requests: devices per container, and constraints from annotations, among them match
// expressions. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "fraction/container_rules.h"
#include "fraction/fraction_request.h"
#include "scheduler/model/gpu_choice.h"
#include "topology/topology.h"

namespace gpulet::scheduler {

// Match expressions over device attributes, in the form of Node Feature Discovery's rules: attribute,
// operator, values. Pure.
// Source: NFD, NodeFeatureRule "matchExpressions": In, NotIn, InRegexp, Exists, DoesNotExist, Gt, Lt, GtLt,
// IsTrue, IsFalse.

inline constexpr std::size_t kMaxSelectorBytes = 4096;
inline constexpr std::size_t kMaxExpressions = 32;
inline constexpr std::size_t kMaxValues = 64;

// Attributes of a device. Numbers compare as numbers, versions part by part, strings in any case.
enum class Attribute { kModel, kArchitecture, kMemory, kCompute, kDriver, kCuda, kMig, kShares, kNuma };
// NFD's InRegexp is not supported: a user's expression would decide how long a decision takes.
enum class Operator { kIn, kNotIn, kExists, kDoesNotExist, kGt, kLt, kGtLt, kIsTrue, kIsFalse };

struct Expression {
  Attribute attribute{};
  Operator op{};
  std::vector<std::string> values;
  // `memory Gt 40000`
  std::string expression_text() const;
  friend bool operator==(const Expression&, const Expression&) = default;
};

// A device as expressions see it.
struct DeviceAttributes {
  std::string_view model, architecture;
  std::uint64_t memory_mib = 0;
  std::string compute;  // "9.0"
  std::string_view driver;
  std::string cuda;              // "12.8"
  std::string_view mig_profile;  // empty: a whole GPU
  unsigned shares = 1;           // number of shares of the device
  int numa = -1;                 // unknown
};

// Parses {"memory": {"op": "Gt", "value": ["40000"]}, "architecture": {"op": "In", "value": ["hopper"]}};
// all must hold. Errors: kInvalidArgument with the attribute or operator and what is expected.
Result<std::vector<Expression>> parse_selector(std::string_view json);

bool matches_expression(const Expression& expression, const DeviceAttributes& device);

// -1, 0 or 1: compares part by part as numbers; missing or non-numeric parts count as 0.
int compare_versions(std::string_view a, std::string_view b);

// Whether `wanted` ("H100", "H100 PCIe", "Tesla-T4") is a sequence of whole words of `name`, in any case;
// blanks, '-' and '_' separate words.
bool matches_model_name(std::string_view wanted, std::string_view name);

// The GPUs that a Pod requests: devices for each of its containers, and constraints from its annotations.
// Pure.
//
// Annotations apply to the whole Pod (docs/scheduling.md has examples):
//   gpulet.io/gpu-model     "H100" or "A100|H100": whole words of the model's name, in any case
//   gpulet.io/gpu-memory    "40Gi": minimum memory of each device; of a shared GPU the Pod's expected use
//   gpulet.io/gpu-compute   "8.0": minimum compute capability
//   gpulet.io/gpu-driver    "550.54": minimum driver version
//   gpulet.io/gpu-cuda      "12.4": minimum CUDA version
//   gpulet.io/gpu-links     "NV", "NV12", "PIX", "PXB", "PHB", "NODE": minimum link between every two GPUs
//   gpulet.io/gpu-selector  NFD match expressions: {"memory": {"op": "Gt", "value": ["40000"]}}
//   gpulet.io/policy        scoring policy; also on a namespace
// A malformed annotation is ignored and listed in `malformed`. HAMi's limits and KAI's annotations for memory
// (fraction/fraction_request.h) count as gpulet.io/gpu-memory does. A contradiction in them, or a malformed
// choice of GPUs (gpu_choice.h) or demand (limit_demand.h), is not ignored: the Pod fits nowhere.

inline constexpr const char* kPolicyAnnotation = "gpulet.io/policy";
inline constexpr std::size_t kMaxContainers = 256;
inline constexpr std::size_t kMaxMalformed = 8;

// Devices of one resource for one container.
struct DeviceRequest {
  ResourceName resource;
  unsigned count = 0;
  friend bool operator==(const DeviceRequest&, const DeviceRequest&) = default;
};

struct ContainerRequest {
  // An init container releases its devices to the containers after it; a sidecar keeps them.
  enum class Kind { kInit, kSidecar, kMain };
  std::string name;
  Kind kind = Kind::kMain;
  std::vector<DeviceRequest> devices;  // by resource
  // Of each share, by another field than gpulet.io/gpu-memory, and the field.
  fraction::MemoryAmount memory{};
  std::string memory_source{};
  friend bool operator==(const ContainerRequest&, const ContainerRequest&) = default;
};

// The minimum link between every two GPUs of a container.
struct LinkConstraint {
  inventory::PcieDistance pcie = inventory::PcieDistance::kUnknown;  // kUnknown: NVLink is required
  unsigned nvlinks = 0;                                              // minimum number
  std::string text;                                                  // as written: "NV12"
  friend bool operator==(const LinkConstraint&, const LinkConstraint&) = default;
};
bool satisfies_links(const topology::Pair& pair, const LinkConstraint& constraint);

struct Constraints {
  std::vector<std::string> models;  // any of them; empty: any model
  std::uint64_t memory_mib = 0;
  std::pair<unsigned, unsigned> compute{};
  std::string driver, cuda;  // as versions; empty: any
  std::optional<LinkConstraint> links;
  std::vector<Expression> selector;  // all of them
  GpuChoice choice;
  bool has_any() const {
    return !models.empty() || memory_mib != 0 || compute != std::pair<unsigned, unsigned>{} ||
           !driver.empty() || !cuda.empty() || links || !selector.empty() || choice.has_any();
  }
  friend bool operator==(const Constraints&, const Constraints&) = default;
};

// An annotation with an invalid value.
struct MalformedAnnotation {
  std::string annotation, found, accepted;
  // `annotation gpulet.io/gpu-memory is "lots": expected a whole-number quantity, as 40Gi; ignored`
  std::string message() const;
  friend bool operator==(const MalformedAnnotation&, const MalformedAnnotation&) = default;
};

// What a Pod needs of a node beside devices: what decides which Pods preemption may spare.
struct NodeNeeds {
  std::uint64_t cpu_milli = 0, memory_milli_bytes = 0;  // as kube-scheduler counts its requests
  // Something else that kube-scheduler checks and this code does not: host ports, volumes, other resources,
  // resource claims, topology spread, required anti-affinity.
  bool has_other_needs = false;
  bool needs_pods = false;   // required Pod affinity
  bool repels_pods = false;  // required Pod anti-affinity
  friend bool operator==(const NodeNeeds&, const NodeNeeds&) = default;
};

// A container, as its memory limits are graded.
struct GradedContainer {
  fraction::ContainerAccess access;
  fraction::MemoryAmount limit;  // of each share; zero: none
  friend bool operator==(const GradedContainer&, const GradedContainer&) = default;
};
// The least grade of its memory limits that a Pod demands (limit_demand.h).
struct LimitDemand {
  fraction::LimitGrade least = fraction::LimitGrade::kNone;  // kNone: no demand
  std::vector<GradedContainer> containers{};                 // of a Pod with a demand
  friend bool operator==(const LimitDemand&, const LimitDemand&) = default;
};

struct PodRequest {
  std::string name_space, name, uid;
  std::string scheduler;  // spec.schedulerName
  std::string node;       // where it is bound; empty: not bound
  std::string bound_at;   // when it was bound, RFC 3339; empty: not bound
  // Where kube-scheduler makes room for it (status.nominatedNodeName); empty: nowhere.
  std::string nominated_node;
  bool finished = false;  // Succeeded or Failed: holds nothing
  bool leaving = false;   // being deleted; holds its devices until its containers have ended
  std::int32_t priority = 0;
  std::string labels;  // "key=value\n" each
  NodeNeeds needs;
  // In the kubelet's admission order: init containers first. Only containers that request an extended
  // resource ("domain/name" outside kubernetes.io), other than fraction::kFractionResources.
  std::vector<ContainerRequest> containers;
  // Why it fits nowhere, of parse_fraction_requests(), add_choice_annotation() and read_limit_demand(); empty:
  // nothing.
  std::string request_error;
  bool has_claims = false;  // spec.resourceClaims, of any driver
  Constraints constraints;
  std::string policy;  // empty: none
  // It has preferred affinity or topology spread, which kube-scheduler's plugins score.
  bool prefers_nodes = false;
  std::vector<MalformedAnnotation> malformed;
  LimitDemand limit_demand{};
  bool requests_compute = false;  // of a container: nvidia.com/gpucores

  std::string pod_key() const { return name_space + "/" + name; }
  // The memory that each share of a container must have.
  fraction::MemoryAmount memory_of(const ContainerRequest& container) const;
  // What covers the memory of every container.
  fraction::MemoryAmount greatest_memory() const;
  friend bool operator==(const PodRequest&, const PodRequest&) = default;
};

// Stores the constraint of one annotation in `request`; other annotations are ignored.
void apply_annotation(std::string_view key, std::string_view value, PodRequest& request);

// Validates the value of gpulet.io/policy. Errors: kInvalidArgument with the known names.
Result<std::string> parse_policy(std::string_view value);

}  // namespace gpulet::scheduler

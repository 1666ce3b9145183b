// Grades of a memory limit on a shared GPU: how hard it is for a container to use more memory than it may.
// Pure.
//
//   kernel   the driver refuses the allocation: a limit on the container's cgroup, read back after it was set
//   mps      MPS limits the memory of each process, in user space: a client that sets its own
//            CUDA_MPS_PINNED_DEVICE_MEM_LIMIT has no limit
//   audited  the agent measures the memory and ends the excess (gpulet.fraction.onExceeded: kill or evict)
//   none     nothing holds the limit: it is not measured, or its excess is only reported (onExceeded: warn)
// A container that breaks a rule (container_rules.h) has a lower grade.
// Source: CUDA MPS documentation, "Device Memory Limits"; measured with MPS on an H100
// (docs/real-hardware.md).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpulet::fraction {

// In ascending order.
enum class LimitGrade { kNone, kAudited, kMps, kKernel };
inline constexpr LimitGrade kLimitGrades[] = {LimitGrade::kNone, LimitGrade::kAudited, LimitGrade::kMps,
                                              LimitGrade::kKernel};
std::string_view limit_grade_name(LimitGrade grade);  // "audited"
// nullopt for another text than the names.
std::optional<LimitGrade> parse_limit_grade(std::string_view name);

// The least grade that a Pod accepts: kernel, mps or audited.
inline constexpr std::string_view kMinGradeAnnotation = "gpulet.io/min-limit-grade";
// Errors: kInvalidArgument with one line of the annotation, what was found and what is expected.
Result<LimitGrade> parse_min_grade(std::string_view value);

inline constexpr std::size_t kMaxGradeReasons = 8;

// LimitMeans::no_audit of an agent without the node's processes.
inline constexpr std::string_view kNoHostPids =
    "the agent has no hostPID: it cannot see which container a process on the GPU is in";

// Why a grade is not higher.
struct GradeCap {
  LimitGrade highest = LimitGrade::kNone;  // that is left
  std::string reason;                      // one line: "container main is privileged"
  friend bool operator==(const GradeCap&, const GradeCap&) = default;
};

// What holds limits on a GPU, or on the GPUs of a resource.
struct LimitMeans {
  bool has_driver_limit = false;      // set, or settable where no container is meant
  std::string no_driver_limit{};      // one line: why not
  bool ends_excess = false;           // by the audit
  std::string no_audit{};             // one line: why not
  std::uint64_t mps_process_mib = 0;  // the memory limit of a process of one share; 0: none
  friend bool operator==(const LimitMeans&, const LimitMeans&) = default;
};

struct Grade {
  LimitGrade grade = LimitGrade::kNone;
  std::vector<GradeCap> reasons{};  // why it is not higher: broken rules, then by descending grade
  friend bool operator==(const Grade&, const Grade&) = default;
};

// The grade of one container on a GPU that it shares. `limit_mib`: of each share, that its Pod requests; 0:
// none. Without one, only MPS limits it. The limit of MPS counts where it is not above the Pod's.
// Shapes: at most kMaxGradeReasons reasons, none for kernel.
Grade grade_of_container(std::uint64_t limit_mib, const LimitMeans& means, std::span<const GradeCap> caps);

// The grade that a container gets which requests a limit and breaks no rule.
Grade grade_of_node(const LimitMeans& means);

// What all of these hold: the least of each. Empty: a node that shares nothing.
LimitMeans common_means(std::span<const LimitMeans> all);

// "by audit": what limits memory, for messages.
std::string_view limit_means_text(LimitGrade grade);

}  // namespace gpulet::fraction

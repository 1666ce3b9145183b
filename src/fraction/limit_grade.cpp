#include "fraction/limit_grade.h"

#include <algorithm>
#include <utility>

#include "fraction/fraction_request.h"

namespace gpulet::fraction {
namespace {

// In the order of the enumerators.
constexpr std::string_view kGradeNames[] = {"none", "audited", "mps", "kernel"};
constexpr std::string_view kGradeTexts[] = {"by nothing", "by audit", "by MPS", "by the driver"};
constexpr std::size_t kMaxGradeBytes = 100;  // of a value, in messages

bool limits_by_mps(std::uint64_t limit_mib, const LimitMeans& means) {
  return means.mps_process_mib != 0 && (limit_mib == 0 || means.mps_process_mib <= limit_mib);
}

bool is_held_by(LimitGrade grade, std::uint64_t limit_mib, const LimitMeans& means) {
  switch (grade) {
    case LimitGrade::kKernel:
      return means.has_driver_limit && limit_mib != 0;
    case LimitGrade::kMps:
      return limits_by_mps(limit_mib, means);
    case LimitGrade::kAudited:
      return means.ends_excess && limit_mib != 0;
    case LimitGrade::kNone:
      return true;
  }
  return false;
}

LimitGrade highest_grade(std::uint64_t limit_mib, const LimitMeans& means, LimitGrade most) {
  auto best = LimitGrade::kNone;
  for (const auto grade : kLimitGrades) {
    if (grade <= most && is_held_by(grade, limit_mib, means)) best = grade;
  }
  return best;
}

}  // namespace

std::string_view limit_grade_name(LimitGrade grade) { return kGradeNames[static_cast<std::size_t>(grade)]; }

std::optional<LimitGrade> parse_limit_grade(std::string_view name) {
  const auto* const found = std::ranges::find(kGradeNames, name);
  if (found == std::end(kGradeNames)) return std::nullopt;
  return static_cast<LimitGrade>(found - std::begin(kGradeNames));
}

Result<LimitGrade> parse_min_grade(std::string_view value) {
  const auto grade = parse_limit_grade(value);
  if (grade && *grade != LimitGrade::kNone) return *grade;
  return fail(Code::kInvalidArgument, "annotation " + std::string(kMinGradeAnnotation) + " is \"" +
                                          printable_field(value, kMaxGradeBytes) +
                                          "\": expected kernel, mps or audited");
}

Grade grade_of_container(std::uint64_t limit_mib, const LimitMeans& means, std::span<const GradeCap> caps) {
  const auto best = highest_grade(limit_mib, means, LimitGrade::kKernel);
  auto most = LimitGrade::kKernel;
  Grade result;
  const auto add_reason = [&](LimitGrade highest, std::string reason) {
    if (!reason.empty() && result.reasons.size() < kMaxGradeReasons)
      result.reasons.push_back({highest, std::move(reason)});
  };
  for (const auto& cap : caps) {
    most = std::min(most, cap.highest);
    if (cap.highest < best) add_reason(cap.highest, cap.reason);
  }
  result.grade = highest_grade(limit_mib, means, most);
  if (limit_mib == 0 && result.grade < LimitGrade::kMps)
    add_reason(LimitGrade::kNone, "its Pod requests no memory of the GPU, so there is no limit to hold");
  if (best != LimitGrade::kKernel) add_reason(LimitGrade::kMps, means.no_driver_limit);
  if (best < LimitGrade::kMps && means.mps_process_mib != 0) {
    add_reason(LimitGrade::kAudited, "MPS limits a process to " + std::to_string(means.mps_process_mib) +
                                         " MiB, more than the " + std::to_string(limit_mib) +
                                         " MiB of the Pod");
  }
  if (best == LimitGrade::kNone) add_reason(LimitGrade::kNone, means.no_audit);
  return result;
}

Grade grade_of_node(const LimitMeans& means) {
  // A limit that MPS has too: the least that it sets.
  const auto limit_mib = std::max<std::uint64_t>(means.mps_process_mib, 1);
  return grade_of_container(limit_mib, means, {});
}

LimitMeans common_means(std::span<const LimitMeans> all) {
  LimitMeans common;
  if (all.empty()) return common;
  common = all.front();
  for (const auto& means : all.subspan(1)) {
    if (!means.has_driver_limit) {
      common.has_driver_limit = false;
      if (common.no_driver_limit.empty()) common.no_driver_limit = means.no_driver_limit;
    }
    if (!means.ends_excess) {
      common.ends_excess = false;
      if (common.no_audit.empty()) common.no_audit = means.no_audit;
    }
    const bool has_both = common.mps_process_mib != 0 && means.mps_process_mib != 0;
    common.mps_process_mib = has_both ? std::max(common.mps_process_mib, means.mps_process_mib) : 0;
  }
  return common;
}

std::string_view limit_means_text(LimitGrade grade) { return kGradeTexts[static_cast<std::size_t>(grade)]; }

}  // namespace gpulet::fraction

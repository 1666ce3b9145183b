// The checks of `gpulet doctor`, each judging Facts. Pure: any thread.
//
// They run in the order in which faults keep a Pod from a GPU. A check that depends on a failed one is
// skipped, so that each fault is reported once, by its own check.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/facts.h"

namespace gpulet::doctor {

// kSkip: not applicable here, or not judged because a check that it depends on failed. kUnknown: the facts
// could not be read.
enum class Verdict { kPass, kWarn, kFail, kSkip, kUnknown };
std::string_view display_name(Verdict verdict);  // "pass", "warn", "fail", "skip", "unknown"

// The symptom that a user sees.
enum class Symptom { kNotFound, kNotAllocated, kBroken };
std::string_view display_name(Symptom symptom);  // "GPU not found", "Pod cannot be allocated", "GPU broken"

struct CheckResult {
  Verdict verdict = Verdict::kPass;
  std::string found;  // one line
  std::string fix{};  // one line, with a command if possible; empty if there is nothing to do
  std::vector<std::string> details{};  // supporting details, one line each
};

struct Check {
  std::string_view id;  // "driver-version"
  Symptom symptom;
  std::string_view looks_at, reports, fix;     // for docs/troubleshooting.md
  std::array<std::string_view, 5> depends_on;  // earlier checks that must not have failed; "" for none
  CheckResult (*run_check)(const Facts&);
};
// In running order.
std::span<const Check> all_checks();

struct Finding {
  std::string_view id;
  Symptom symptom;
  CheckResult result;
};
// Constructors of results, for the check functions.
inline CheckResult pass_result(std::string found) { return {Verdict::kPass, std::move(found)}; }
inline CheckResult warn_result(std::string found, std::string fix) {
  return {Verdict::kWarn, std::move(found), std::move(fix)};
}
inline CheckResult fail_result(std::string found, std::string fix) {
  return {Verdict::kFail, std::move(found), std::move(fix)};
}
inline CheckResult skip_result(std::string why) { return {Verdict::kSkip, std::move(why)}; }
inline CheckResult unknown_result(std::string why, std::string fix = {}) {
  return {Verdict::kUnknown, std::move(why), std::move(fix)};
}
inline CheckResult unknown_result(const Error& error) { return unknown_result(error.full_message()); }

// One per check, in running order.
std::vector<Finding> run_checks(const Facts& facts);

// The first failed check, else the first warning; nullptr without either.
const Finding* most_severe(std::span<const Finding> findings);

// The findings as text and as JSON. Pure: any thread.
//
//   {"version": 1, "verdict": "fail", "summary": "…", "checks": [
//     {"id": "driver", "complaint": "GPU not found", "verdict": "fail", "found": "…", "fix": "…"}]}

// One sentence without a newline: the first fault and its fix, or that there is none.
std::string findings_summary(std::span<const Finding> findings);
// One line per check, with the fix below it; the last line is the summary. Ends in a newline.
std::string text_report(std::span<const Finding> findings);
std::string json_report(std::span<const Finding> findings);
// The overall verdict: fail, else warn, else pass.
Verdict overall_verdict(std::span<const Finding> findings);

}  // namespace gpulet::doctor

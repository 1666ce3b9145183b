// The checks of `gpulet doctor`: what each looks at, and its judgement of Facts. Pure: any thread.
//
// They stand in the order in which things stop a Pod from using a GPU. One whose ground another has found
// broken says so and nothing else, so that each fault is named once: by the check that is about it.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/facts.h"

namespace gpulet::doctor {

enum class Verdict { kPass, kWarn, kFail, kCannotTell };
std::string_view name(Verdict verdict);  // "pass", "warn", "fail", "cannot tell"

// What a person comes with.
enum class Complaint { kNotFound, kNotAllocated, kBroken };
std::string_view name(Complaint complaint);  // "GPU not found", "Pod cannot be allocated", "GPU broken"

struct Judgement {
  Verdict verdict = Verdict::kPass;
  std::string found;  // one line
  std::string fix{};  // one line, a command where there is one; empty when there is nothing to do
  std::vector<std::string> details{};  // what stands behind it, a line each
};

struct Check {
  std::string_view id;  // "driver-version"
  Complaint complaint;
  std::string_view looks_at, says, fix;   // for docs/troubleshooting.md
  std::array<std::string_view, 5> needs;  // earlier checks that must not have failed; "" for none
  Judgement (*judge)(const Facts&);
};
// In their order.
std::span<const Check> checks();

struct Finding {
  std::string_view id;
  Complaint complaint;
  Judgement judgement;
};
// One for each check, in their order.
std::vector<Finding> diagnose(const Facts& facts);

// The first that fails, else the first that warns; nullptr when there is neither.
const Finding* foremost(std::span<const Finding> findings);

}  // namespace gpulet::doctor

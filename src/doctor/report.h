// The findings as text and as JSON. Pure: any thread.
//
//   {"version": 1, "verdict": "fail", "summary": "…", "checks": [
//     {"id": "driver", "complaint": "GPU not found", "verdict": "fail", "found": "…", "fix": "…"}]}
#pragma once

#include <span>
#include <string>

#include "doctor/check.h"

namespace gpulet::doctor {

// One sentence, without a newline: what is wrong first and what to do, or that nothing is.
std::string summary(std::span<const Finding> findings);
// A line each, with the fix below it; the last line is the summary. Ends in a newline.
std::string text_report(std::span<const Finding> findings);
std::string json_report(std::span<const Finding> findings);
// Of all: fail, else warn, else pass.
Verdict verdict_of(std::span<const Finding> findings);

}  // namespace gpulet::doctor

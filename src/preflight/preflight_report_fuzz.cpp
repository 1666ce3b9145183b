// The output of `gpulet preflight`: any text is refused or read within the limits, and what is read survives
// being written.
#include <cstdlib>
#include <string_view>

#include "preflight/preflight_report.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace gpulet::preflight;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto report = parse_report(text);
  judge_run({.ended = RunResult::Ended::kReported, .output = std::string(text)}, "GPU-1", false);
  if (!report) return 0;
  if (report->checks.size() > kMaxReportChecks) std::abort();
  const auto again = parse_report(format_report(*report));
  if (!again || again->checks.size() != report->checks.size()) std::abort();
  return 0;
}

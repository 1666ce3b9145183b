// The View as JSON: the file that the agent leaves for `gpulet health` and other programs, and what
// `gpulet health -o json` prints.
//
//   {"version": 1, "at": "2026-01-31T12:00:00.123Z", "devices": [
//     {"name": "GPU 3 (GPU-5a…)", "uuid": "GPU-5a…", "gpu": "GPU-5a…", "gpuInstance": null,
//     "computeInstance": null,
//      "index": 3, "migIndex": null, "model": "…", "slot": "0000:3b:00.0",
//      "state": "quarantined", "offered": false, "since": "…", "reason": "XID 95: …", "comesBack": "…",
//      "due": null, "relapses": 0, "next": "End what runs on it, then …",
//      "faults": [{"class": "xid-reset", "code": 95, "gpuInstance": null, "computeInstance": null,
//                  "effect": "quarantine", "opened": "…", "lastSeen": "…", "count": 1, "detail": "",
//                  "linked": true, "proved": null, "due": null, "text": "XID 95: …", "next": "…"}],
//      "absences": [{"source": "gpu-program", "why": "…"}]}]}
//
// Meanings: health/view.h and state.h. Times are the wall's (base/wall_time.h). name, offered, next and text
// follow from the rest and are not read; members that are not known are passed over. Pure: any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "health/view.h"

namespace gpulet::health {

inline constexpr std::size_t kMaxReportBytes = 16u << 20;
inline constexpr std::size_t kMaxReportDevices = 4096;

// Two blanks a level, a newline at the end; the same View gives the same bytes. Text that is no UTF-8 is
// replaced.
std::string format_report(const View& view);
// Its Times count from 1970, as the wall's do. kInvalidArgument for what is no report: one line that says
// where.
Result<View> parse_report(std::string_view text);
// Errors: as read_file says (kNotFound: no agent has written one), or parse_report, about the file.
Result<View> read_report(const std::string& path);

}  // namespace gpulet::health

// The HealthView as JSON: the file that the agent writes for `gpulet health` and other programs, and the
// output of `gpulet health -o json`; with the recommended action for each fault.
//
//   {"version": 1, "at": "2026-01-31T12:00:00.123Z", "devices": [
//     {"name": "GPU 3 (GPU-5a…)", "uuid": "GPU-5a…", "gpu": "GPU-5a…", "gpuInstance": null,
//      "computeInstance": null, "index": 3, "migIndex": null, "model": "…", "slot": "0000:3b:00.0",
//      "state": "quarantined", "offered": false, "since": "…", "reason": "XID 95: …", "comesBack": "…",
//      "due": null, "relapses": 0, "next": "End all workloads on it, then …",
//      "faults": [{"class": "xid-reset", "code": 95, "gpuInstance": null, "computeInstance": null,
//                  "effect": "quarantine", "opened": "…", "lastSeen": "…", "count": 1, "detail": "",
//                  "linked": true, "proved": null, "due": null, "text": "XID 95: …", "next": "…"}],
//      "migPending": true, "absences": [{"source": "gpu-program", "why": "…"}]}],
//    "driverRelease": {"reason": "driver upgrade", "closed": true}}
//
// offered: whether it is allocatable and not excluded. excluded: why a rule withholds it, else absent.
// repair: what the agent does about its fault (gpulet.repair), else absent. preflight, preflightDetail: the
// last result (gpulet.preflight) and why, else absent. comesBack: what ends the worst
// fault. proved: when the recovery condition was met. migPending: the MIG mode that needs a reset, else
// absent. absences: unavailable sources. driverRelease: while the agent closes the driver on request, else
// absent; closed: no session is open any more. The others are as in node_health.h and device_status.h. Times
// are wall-clock (base/wall_time.h). name, offered, next and text are derived and not read back; unknown
// members are ignored. Pure: any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "health/report/node_health.h"

namespace gpulet::health {

// The shell command that resets a GPU, as `nvidia-smi -i` takes it; empty: all GPUs. A reset is refused while
// the agent holds the driver.
std::string reset_command(const std::string& gpu);

// What an operator does next about a fault of the device: one sentence by class and, for XIDs, by NVIDIA's
// action. The runbook in docs/health.md says more. Names the GPU as `nvidia-smi -i` takes it. Never empty.
std::string recommended_action(const Fault& fault, const DeviceView& device);

// The next step for the device: that of its worst fault, or to wait for its checks. Empty for a healthy one.
std::string next_step(const DeviceView& device);

inline constexpr std::size_t kMaxReportBytes = 16u << 20;
inline constexpr std::size_t kMaxReportDevices = 4096;

// Indented by two, with a newline at the end; the same view gives the same bytes. Invalid UTF-8 is replaced.
std::string format_report(const HealthView& view);
// Its Times count from 1970, like wall-clock times. Errors: kInvalidArgument in one line with the place.
Result<HealthView> parse_report(std::string_view text);
// Errors: those of read_file (kNotFound: no agent has written a report) and parse_report.
Result<HealthView> read_report(const std::string& path);

}  // namespace gpulet::health

// The checks of `gpulet doctor`, each judging Facts. Pure: any thread.
//
// They run in the order in which faults keep a Pod from a GPU. A failure, or missing facts, of a check that
// depends on a failed one is its consequence: it is skipped, so that each fault is reported once, by its own
// check. What a check finds in order or worth a warning, it reports whatever failed before. checks.cpp has
// their table; the functions of the checks are in checks_gpu.cpp and checks_node.cpp.
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
  std::string_view looks_at, reports, fix;  // for docs/troubleshooting.md
  std::array<std::string_view, 5>
      depends_on;  // earlier checks whose failure explains this one's; "" for none
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
// Whether the agent in this Pod has the driver and offers a device: then what this container cannot see or
// open is not a fault of the node.
bool agent_offers_gpus(const Facts& facts);
// What the agent in this Pod knows although this container does not: `what` is not visible or not open here.
CheckResult agent_knows_result(const Facts& facts, const std::string& what);
inline CheckResult unknown_result(const Error& error) { return unknown_result(error.full_message()); }

// One per check, in running order.
std::vector<Finding> run_checks(const Facts& facts);

// The first failed check, else the first warning; nullptr without either.
const Finding* most_severe(std::span<const Finding> findings);

// The findings as text and as JSON. Pure: any thread.
//
//   {"version": 1, "verdict": "fail", "summary": "…", "checks": [
//     {"id": "driver", "complaint": "GPU not found", "verdict": "fail", "found": "…", "fix": "…"}]}

inline constexpr std::string_view kThisNode = "this node";

// One sentence without a newline: the first fault and its fix, or that there is none.
// `subject` is what was checked: "this cluster".
std::string findings_summary(std::span<const Finding> findings, std::string_view subject = kThisNode);
// How the text is printed.
struct TextStyle {
  bool color = false;        // the verdicts in a terminal's colours
  bool all_details = false;  // also those of checks that pass
  std::string_view subject = kThisNode;
  std::size_t columns = 0;  // of arguments::wrap_lines
};
// One line per check, with the fix below it; the last line is the summary. Ends in a newline.
std::string text_report(std::span<const Finding> findings, const TextStyle& style = {});
std::string json_report(std::span<const Finding> findings, std::string_view subject = kThisNode);
// The overall verdict: fail, else warn, else pass.
Verdict overall_verdict(std::span<const Finding> findings);

// The checks for "GPU not found" (from the slot to a responding driver) and "GPU broken" (faults of GPUs and
// of their links). Pure: facts in, a result out.

// GPUs on the PCI bus, and whether they are assigned to virtual machines.
CheckResult check_pci_bus(const Facts& facts);
// Nouveau, bound to a GPU or loaded.
CheckResult check_nouveau(const Facts& facts);
// The loaded kernel module.
CheckResult check_driver_module(const Facts& facts);
// libnvidia-ml below the driver root.
CheckResult check_driver_library(const Facts& facts);
// Versions of the libraries and of the module.
CheckResult check_driver_version(const Facts& facts);
// Presence and major numbers of the device nodes.
CheckResult check_device_nodes(const Facts& facts);
// Permissions of the device nodes, and their links in /dev/char.
CheckResult check_device_permissions(const Facts& facts);
// Rights at the driver that the agent lacks.
CheckResult check_driver_rights(const Facts& facts);
// Whether NVML responds with all GPUs that are bound to the driver.
CheckResult check_driver_response(const Facts& facts);

// The health of each device according to the agent, else according to NVML.
CheckResult check_gpu_health(const Facts& facts);
// MIG mode and instances, and the node label mig.config.state.
CheckResult check_mig(const Facts& facts);
// Whether each MPS control daemon responds.
CheckResult check_mps_daemons(const Facts& facts);
// GPUs throttled by heat or power.
CheckResult check_throttling(const Facts& facts);
// Power limits and clocks that the agent is to set.
CheckResult check_power_limits(const Facts& facts);
CheckResult check_processes_outside_pods(const Facts& facts);
// ACS and the IOMMU between GPUs.
CheckResult check_iommu(const Facts& facts);
// PCIe lanes in use.
CheckResult check_pcie_width(const Facts& facts);
// The NVLink fabric and its manager.
CheckResult check_nvlink_fabric(const Facts& facts);

// The checks for "Pod cannot be allocated": from the kubelet to the scheduler. Pure: facts in, a result out.

// Whether the kubelet accepts registrations.
CheckResult check_kubelet(const Facts& facts);
// Whether a device plugin for NVIDIA GPUs responds.
CheckResult check_device_plugin(const Facts& facts);
// Whether the agent is ready.
CheckResult check_agent(const Facts& facts);
// Whether the kubelet's container engine can inject devices by CDI, or uses NVIDIA's runtime.
CheckResult check_container_runtime(const Facts& facts);
// Whether NVIDIA's container runtime gives GPUs to containers that request none, by a variable of their
// image.
CheckResult check_nvidia_runtime(const Facts& facts);
// Whether CDI specs exist and match the driver, if the agent uses CDI.
CheckResult check_cdi_specs(const Facts& facts);
// Devices that the kubelet can allocate, and how many are held.
CheckResult check_allocatable(const Facts& facts);
// GPUs on their move between the device plugin and claims, and claims that are not prepared.
CheckResult check_claims(const Facts& facts);
// Pods that request NVIDIA's resources and do not run, with their reasons.
CheckResult check_pending_pods(const Facts& facts);
CheckResult check_extender(const Facts& facts);
// The grade of the memory limits on shared GPUs.
CheckResult check_memory_limits(const Facts& facts);
// More than one device plugin.
CheckResult check_plugin_conflict(const Facts& facts);
// Permissions of the agent at the API server.
CheckResult check_permissions(const Facts& facts);
// This node's clock against the API server's.
CheckResult check_clock(const Facts& facts);

}  // namespace gpulet::doctor

// The checks for "Pod cannot be allocated": from the kubelet to the scheduler. Pure: facts in, a result out.
// checks.cpp has their table.
#pragma once

#include "doctor/checks.h"

namespace gpulet::doctor {

// Whether the kubelet accepts registrations.
CheckResult check_kubelet(const Facts& facts);
// Whether a device plugin for NVIDIA GPUs responds.
CheckResult check_device_plugin(const Facts& facts);
// Whether the agent is ready.
CheckResult check_agent(const Facts& facts);
// Whether the kubelet's container engine can inject devices by CDI, or uses NVIDIA's runtime.
CheckResult check_container_runtime(const Facts& facts);
// Whether CDI specs exist and match the driver, if the agent uses CDI.
CheckResult check_cdi_specs(const Facts& facts);
// Devices that the kubelet can allocate, and how many are held.
CheckResult check_allocatable(const Facts& facts);
// Pods that request NVIDIA's resources and do not run, with their reasons.
CheckResult check_pending_pods(const Facts& facts);
// More than one device plugin.
CheckResult check_plugin_conflict(const Facts& facts);
// Permissions of the agent at the API server.
CheckResult check_permissions(const Facts& facts);
// This node's clock against the API server's.
CheckResult check_clock(const Facts& facts);

}  // namespace gpulet::doctor

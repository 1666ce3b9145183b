// What an operator does next about a fault: one sentence, by class. The same sentences are the runbook of
// docs/health.md in short; what ends a fault by itself is in rules.h. Pure.
#pragma once

#include <string>

#include "health/view.h"

namespace gpulet::health {

// Of one fault of the device, by its class and, for XIDs, by NVIDIA's action. Names the GPU as `nvidia-smi
// -i` takes it. Never empty.
std::string remedy(const Fault& fault, const DeviceView& device);

// Of the device: its worst fault's, or that its checks are awaited. Empty for a healthy one.
std::string what_next(const DeviceView& device);

}  // namespace gpulet::health

// `gpulet.partition`: the list of rules that say how each GPU is offered. Problems go into `problems`; what
// is returned then is not to be used.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "config/problems.h"
#include "config/yaml.h"

namespace gpulet::config {

// No driver counts further.
inline constexpr unsigned kMaxGpuIndex = 1023;
// What one MPS daemon serves on the newest GPUs. Source: k8s-device-plugin v0.20.0,
// cmd/mps-control-daemon/mps/device.go.
inline constexpr unsigned kMaxMpsClients = 48;

std::vector<PartitionRule> read_partition(const yaml::Node& node, Problems& problems);

// What is wrong between rules, and between them and `sharing`, each said at the later one's place with the
// earlier one's: the same GPU named twice, the same resource shared in different ways. Warns of a rule that
// no GPU is left for. `sharing_origin`: as Loaded::sharing_origin. Precondition: config.gpu_resources ends
// with its default.
void check_partition(const Config& config, const std::string& sharing_origin, Problems& problems);

}  // namespace gpulet::config

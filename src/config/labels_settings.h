// `gpulet.labels` and `flags.gfd`: rows of the table of settings (config/schema.h).
// Source: facts of k8s-device-plugin v0.20.0, cmd/gpu-feature-discovery/main.go.
#pragma once

#include <vector>

#include "config/schema.h"

namespace gpulet::config {

std::vector<Setting> labels_settings();
// Their flags are those of `gpu-feature-discovery` alone.
std::vector<Setting> feature_discovery_settings();

}  // namespace gpulet::config

// `gpu-feature-discovery`: publishes the node's labels and nothing else, for those who run NVIDIA's program
// of that name beside its device plugin. It reads the driver at the start, on driver events, and once per
// flags.gfd.sleepInterval, as it may not be allowed to receive events. With deviceDiscoveryStrategy vfio it
// reads sysfs instead, once per interval.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "config/load.h"
#include "k8s/client_config.h"

namespace gpulet::agent {

struct FeatureDiscoveryOptions {
  config::Sources sources;
  std::string kubeconfig;                         // empty: the Pod's own cluster
  std::string node_name;                          // needed for labels in a cluster
  std::string name_space = "default";             // of the NodeFeature
  std::string pod_name;                           // its owner; empty: none
  std::function<void(const std::string&)> print;  // prints the labels if there is no file
  Duration oneshot_limit = std::chrono::seconds(60);
};

// Runs until SIGTERM, SIGINT or SIGQUIT, or with oneshot until the labels are published; SIGHUP reloads
// `sources`. Labels stay after the end. The process must end with _exit: a thread may still be in a driver
// call. Errors: those of the settings; kFailedPrecondition for a missing cluster; kUnavailable and
// kUnsupported without a driver if failOnInitError is true; kDeadlineExceeded for a oneshot that no output
// accepted.
Status run_feature_discovery(FeatureDiscoveryOptions options);

}  // namespace gpulet::agent

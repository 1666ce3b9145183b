// `gpu-feature-discovery`: the node's labels and nothing else, for whoever runs NVIDIA's program of that name
// beside its device plugin. It reads the driver at the start, whenever the driver says that something
// changed, and, as that may not be allowed to say so to it, once in flags.gfd.sleepInterval.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "cluster/access.h"
#include "config/load.h"

namespace gpulet::agent {

struct FeatureDiscoveryOptions {
  config::Sources sources;
  std::string kubeconfig;                         // empty: the Pod's own cluster
  std::string node_name;                          // needed where labels go to a cluster
  std::string name_space = "default";             // of the NodeFeature
  std::string pod_name;                           // its owner; empty: none
  std::function<void(const std::string&)> print;  // where the labels go without a file
  Duration oneshot_limit = std::chrono::seconds(60);
};

// Runs until SIGTERM, SIGINT or SIGQUIT, or with oneshot until the labels are where they belong; SIGHUP loads
// `sources` anew. What is labelled stays so. The caller must leave by _exit: a thread may still sit in a
// driver call. Errors: of the settings; kFailedPrecondition for a cluster that is wanted and not there;
// kUnavailable and kUnsupported where there is no driver and failOnInitError is true; kDeadlineExceeded for a
// oneshot that no output took.
Status run_feature_discovery(FeatureDiscoveryOptions options);

}  // namespace gpulet::agent

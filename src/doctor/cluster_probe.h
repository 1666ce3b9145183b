// Facts from the API server, and explanations of pending Pods.
#pragma once

#include <string>
#include <vector>

#include "doctor/node_probe.h"

namespace gpulet::doctor {

// Our user, the API server's clock, the agent's permissions, MIG state and pending Pods, within
// kClusterTimeout. The clock comes from the creation timestamp of a SelfSubjectReview, which every user may
// create. Errors: without access, without a response, or with rejected credentials; other errors are part of
// the facts. Source: Kubernetes API, authentication.k8s.io/v1, authorization.k8s.io/v1.
Result<ClusterFacts> probe_cluster(Prober& prober, const ProbeTargets& targets);

// Explains the first kMaxExplained pending Pods within kExplainTimeout, as `gpulet explain` does: by the
// extender, or locally without one.
void explain_pending_pods(Prober& prober, const ProbeTargets& targets, std::vector<PendingPod>& pods);
// Parses the JSON of `gpulet explain`; `node` comes first. Errors: kInvalidArgument for another document.
Result<PodExplanation> parse_explanation(const std::string& document, const std::string& node);

}  // namespace gpulet::doctor

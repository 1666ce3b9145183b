// The document /api/usage: what Pods and namespaces have held and used on this node, as JSON of one line:
//
//   since       when the sums began, in milliseconds since 1970; 0: no sample yet
//   pods        [{namespace, pod, gpus (held now), held, busy, idle (GPU seconds), joules}], Pods that hold
//               GPUs now, since they began to
//   namespaces  [{namespace, held, busy, idle, joules}], with Pods that have ended
//
// A share or MIG device counts as its part of a GPU. `idle` is the held time that is known to be unused.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration

#include "base/loop.h"
#include "base/result.h"
#include "metrics/usage_accounting.h"

namespace gpulet::agent {

std::string usage_json(const metrics::UsageAccounting& accounting, WallTime since);

// The document as it is read.
struct NodeUsage {
  struct Amount {
    std::string name_space, pod;  // pod: empty for a namespace
    double gpus = 0;
    double held = 0, busy = 0, idle = 0, joules = 0;  // seconds; never negative
  };
  WallTime since{};
  std::vector<Amount> pods{}, namespaces{};
};
// What is missing or odd is left out. Pure.
NodeUsage parse_usage(const nlohmann::json& document);

// As fetch_claim_status(), of /api/usage.
Result<NodeUsage> fetch_usage(const std::string& socket, Duration limit);

}  // namespace gpulet::agent

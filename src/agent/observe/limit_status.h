// What the agent shows of memory limits on shared GPUs: how hard the node's are, and those of each container
// (fraction/limit_grade.h). The member "memory_limit" of /api/node (agent/observe/page_json.h), absent where
// the node wants no limits:
//
//   {"grade": "audited", "reasons": ["…"],
//    "containers": [{"namespace": "team", "pod": "a", "container": "main", "gpu": "GPU-5a…",
//                    "limit": 8589934592, "grade": "none", "reasons": ["container main is privileged"]}],
//    "no_compute_limit": "the driver is 595.91.07: …"}
//
// A "limit" of 0: only MPS limits the container, each of its processes. "no_compute_limit" is there where
// shares by MPS are wanted and no Pod's nvidia.com/gpucores is held.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration

#include "base/types.h"
#include "metrics/gpulet_page.h"

namespace gpulet::agent {

struct MemoryLimitStatus {
  std::string grade;                   // "audited"
  std::vector<std::string> reasons{};  // why it is not higher, one line each
  using Container = metrics::MemoryAuditStats::Container;
  std::vector<Container> containers{};  // without `used`
  std::string no_compute_limit{};  // why compute is only checked, one line; empty: it is held, or not shared
  friend bool operator==(const MemoryLimitStatus&, const MemoryLimitStatus&) = default;
};

nlohmann::ordered_json limit_status_json(const MemoryLimitStatus& status);
// Of /api/node; nullopt where it has none. What is odd is left out; unknown grades stay as they are. Pure.
std::optional<MemoryLimitStatus> parse_limit_status(const nlohmann::json& node);

}  // namespace gpulet::agent

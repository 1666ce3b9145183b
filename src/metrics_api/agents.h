// Where the agent of each node is: asked of the API server when somebody needs it, never on a timer. What is
// known counts until an agent does not answer, a node is asked for that has none, or a minute has passed.
// Cost: one listing of the agents' Pods (pod_list.h) in a minute, or in kAgainAfter while an agent is
// missing: of 5000 nodes some 1 MB in 10 pages.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "metrics_api/asker.h"
#include "metrics_api/pod_list.h"

namespace gpulet::metrics_api {

inline constexpr Duration kBelieved = std::chrono::minutes(1);
inline constexpr Duration kAgainAfter = std::chrono::seconds(5);

using AgentAddresses = std::map<std::string, std::string>;  // by node; numeric

// Loop's thread only.
class Agents {
 public:
  Agents(Loop& loop, Asker& asker, PodSelection which)
      : loop_(loop), asker_(asker), which_(std::move(which)) {}
  Agents(const Agents&) = delete;

  // Where the agents of these nodes are, as far as it is known: at once, or after a listing. Never when this
  // object is gone before. An error of the listing counts only while nothing was ever listed.
  void find(const std::set<std::string>& nodes, std::function<void(Result<AgentAddresses>)> done);
  // It does not answer there: looked for anew the next time.
  void lost(const std::string& node) { known_.erase(node); }

 private:
  bool must_list(const std::set<std::string>& nodes) const;
  void on_listed(Result<std::vector<ListedPod>> pods);

  Loop& loop_;
  Asker& asker_;
  const PodSelection which_;
  AgentAddresses known_;
  std::optional<Time> tried_, listed_;
  bool listing_ = false;
  std::vector<std::function<void(Result<AgentAddresses>)>> waiting_;  // one for each request at most
};

}  // namespace gpulet::metrics_api

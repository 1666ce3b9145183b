// Keeps what the node says of its GPUs' health as settings want it: the condition GpuHealthy, the label and
// the taint. What a run before this one said and nobody wants any more is taken away.
// Needs get on nodes and patch on nodes and nodes/status. One that is missing holds nothing else back.
#pragma once

#include <memory>
#include <optional>

#include "base/loop.h"
#include "cluster/access.h"
#include "cluster/node_patch.h"
#include "cluster/node_status.h"
#include "cluster/node_taints.h"
#include "config/faults.h"
#include "health/view.h"

namespace gpulet::agent {

struct FaultTellingTiming {
  cluster::NodeStatusTiming status;
  cluster::NodePatchTiming patch;
  cluster::NodeTaintsTiming taints;
};

// Loop's thread only. Never blocks; the newest wins.
class FaultTelling {
 public:
  FaultTelling(Loop& loop, const cluster::Access& access, const FaultTellingTiming& timing = {});

  void update(const health::View& view, const config::FaultSettings& settings);

 private:
  std::unique_ptr<cluster::NodeStatus> status_;
  std::unique_ptr<cluster::NodePatch> patch_;
  std::unique_ptr<cluster::NodeTaints> taints_;
  std::optional<bool> condition_;  // as last wanted
};

}  // namespace gpulet::agent

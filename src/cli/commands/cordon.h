// `gpulet cordon` and `gpulet uncordon`: take a GPU or MIG device out of service by hand, and return it. Both
// write the node's cordons file (health/state/cordons.h), which the agent watches; without an agent they take
// effect when one starts.
#pragma once

#include <functional>
#include <string>

#include "base/loop.h"
#include "base/result.h"
#include "cli/main/command.h"
#include "health/evidence/evidence.h"
#include "inventory/snapshot.h"

namespace gpulet::cli {

struct CordonOptions {
  std::string device;  // index, UUID or UUID prefix (health/report/node_health.h)
  std::string reason;  // one line, at most health::kMaxCordonReason bytes
  // The agent's report and its state directory.
  std::string health_file = "/run/gpulet/health.json";
  std::string state_dir = "/var/lib/gpulet";
  std::string driver_root = "/";
};

// Exit code: 0 if the device is cordoned (uncordoned) now, whether or not it was before; 1 if there is no
// such device, it is ambiguous, or the file cannot be written; 2 if the reason is too long or there is no
// state directory. `device` is resolved by the report of a running agent, else by `read_driver`, as an index
// may mean another GPU now. A full UUID needs neither.
CommandOutput cordon_output(health::OperatorAction action, const CordonOptions& options, WallTime now,
                            const std::function<Result<inventory::Snapshot>()>& read_driver);

// Prints cordon_output().
int run_cordon(health::OperatorAction action, const CordonOptions& options);

}  // namespace gpulet::cli

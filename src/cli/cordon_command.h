// `gpulet cordon` and `gpulet uncordon`: a GPU or MIG device is taken out of use by hand, and given back.
// Both write the node's cordons file (health/cordons.h), which the agent follows; both work while no agent
// runs, and then count once one does.
#pragma once

#include <functional>
#include <string>

#include "base/loop.h"
#include "base/result.h"
#include "health/evidence.h"
#include "inventory/snapshot.h"

namespace gpulet::cli {

struct CordonOptions {
  std::string device;  // index, UUID or the beginning of one (health/device_name.h)
  std::string reason;  // one line, at most health::kMaxCordonWords bytes
  // The agent's settings: where its report is, and what is kept over restarts.
  std::string health_file = "/run/gpulet/health.json";
  std::string state_dir = "/var/lib/gpulet";
  std::string driver_root = "/";
};

// 0: it is so, also where it was so before. 1: it is not, said in one line: there is no such device, or it
// cannot be told which is meant, or the file cannot be written. 2: the reason is too long, or there is no
// state folder.
struct CordonAnswer {
  int exit_code = 0;
  std::string out, err;  // with their newlines
};

// Whom `device` means is looked up in the agent's report while it runs; else the driver is asked, as an index
// may mean another GPU since. A whole UUID needs neither.
CordonAnswer cordon_answer(health::Wish wish, const CordonOptions& options, WallTime now,
                           const std::function<Result<inventory::Snapshot>()>& ask_driver);

// Prints it. Returns the exit code.
int cordon(health::Wish wish, const CordonOptions& options);

}  // namespace gpulet::cli

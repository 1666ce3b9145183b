// `gpulet scheduler`, assembled: one loop with the lists and watches, the listening socket and the signals.
#pragma once

#include <map>
#include <string>

#include "base/result.h"
#include "scheduler/score.h"

namespace gpulet::extender {

struct Options {
  std::string listen = "0.0.0.0:9410";
  std::string policy = "default";  // of Pods that name none, nor their namespace
  // See ExtenderService.
  std::size_t nodes_to_score = scheduler::kNodesToScore;
  // PEM files, read again when they change; empty: plain HTTP. With authorities, a client must show a
  // certificate of theirs.
  std::string certificate_file{}, key_file{}, client_authorities_file{};
  unsigned leave_seconds = 5;  // told to end, it serves on for so long, saying that it is not ready
};

// Runs until SIGTERM, SIGINT or SIGQUIT. `environment`: where the API server is (cluster::find_access).
// Errors: kInvalidArgument for an unknown policy, a bad address or certificate; kFailedPrecondition where
// there is no API server to be found; kIo and kPermissionDenied of listening.
Status run(const Options& options, std::map<std::string, std::string, std::less<>> environment);

}  // namespace gpulet::extender

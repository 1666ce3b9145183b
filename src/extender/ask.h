// `gpulet explain`: asks a running extender through the API server's proxy of its Service, or, where there is
// none, lists what an extender would and says the same by the same code.
#pragma once

#include <string>

#include "base/loop.h"
#include "base/result.h"
#include "cluster/access.h"

namespace gpulet::extender {

struct Question {
  std::string name_space = "default", pod;
  bool json = false;
  // The extender's Service: "namespace/name:port", the port by number or name; empty: nobody is asked.
  std::string service = "gpulet/gpulet-scheduler:9410";
  std::string policy = "default";  // where nobody is asked
  Duration limit = std::chrono::seconds(60);
};

// Blocks until it is answered. Needs get on services/proxy, or else what an extender needs.
// Errors: kNotFound for a Pod that there is not; kInvalidArgument; kUnavailable, kDeadlineExceeded and
// kPermissionDenied of the API server.
Result<std::string> ask(const Question& question, const cluster::Access& access);

}  // namespace gpulet::extender

// The listener child: the only process of ours that the network can reach. It is forked before the agent has threads
// or secrets, drops to a user of its own without capabilities, and runs under a seccomp filter with no file but its
// listening socket and one end of a socket pair, through which the agent pushes what it may say. It can be killed at any time:
// the agent starts another and nothing else notices.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/loop.h"
#include "base/result.h"

namespace gpulet::web {

// What the child serves. Each page is complete and small (a few MiB at most).
struct Pages {
  bool healthy = true;          // /healthz: 200 or 503
  std::string health_text;      // what is wrong, one line each
  bool ready = false;           // /readyz
  std::string ready_text;
  std::string metrics;          // /metrics, Prometheus text format 0.0.4
};

class Listener {
 public:
  // Binds `address` ("host:port", port 0 for any) and starts the child. The child re-executes this same program with
  // `gpulet listener`, so that nothing of the agent's memory is in it. Restarts it with backoff when it dies.
  // Errors: kInvalidArgument for a bad address, kIo or kPermissionDenied when it cannot be bound.
  static Result<std::unique_ptr<Listener>> start(Loop& loop, const std::string& address);
  virtual ~Listener() = default;

  // Hands the child what to serve from now on. The agent calls it at least every second: a child that has heard
  // nothing for kStale answers /healthz with 503, so that a stuck agent is seen as such.
  virtual void publish(const Pages& pages) = 0;
  virtual std::uint16_t port() const = 0;
};

// The child's main: never returns. Reads its descriptors from 3 (listening socket) and 4 (socket pair).
[[noreturn]] void run_listener_child();

}  // namespace gpulet::web

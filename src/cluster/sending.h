// What everyone who writes to the API server shares: one request at a time, tried again for as long as it
// takes, each kind of trouble said once.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "base/backoff.h"
#include "base/loop.h"
#include "cluster/access.h"
#include "cluster/api_client.h"

namespace gpulet::cluster {

struct SendTiming {
  Duration request_limit = std::chrono::seconds(10);  // for one, from looking up the name to the last byte
  BackoffLimits backoff{std::chrono::milliseconds(500), std::chrono::seconds(30)};
};

// How the telling goes.
struct Delivery {
  bool waiting = false;     // something is not taken yet
  std::string trouble{};    // what stands in the way now; empty while nothing does
  std::uint64_t taken = 0;  // writes that the API server took
  std::uint64_t told = 0;   // lines in the log: one for each kind of trouble, until all is taken
};

// Loop's thread only.
class Sending {
 public:
  enum class Outcome {
    kDone,     // taken: goes on at once
    kNext,     // half of the work, what was read: goes on at once
    kAgain,    // goes on after a while, and is no trouble: somebody else was first
    kTrouble,  // goes on after a while, and is said
    kRefused,  // is said, and goes on at once with something else: whoever sends waits with this one
  };

  // `what` is told, for the log: "the node's condition". `step` starts the next request, or idles.
  Sending(Loop& loop, Access access, SendTiming timing, std::string what, std::function<void()> step);

  // Runs `step` on the next turn; not while a request is under way or waits for its next try.
  void wake();
  // Sends it. `answered` judges every answer of the server; one that never comes is trouble. `right` is what
  // a refusal lacks: "patch on nodes/status". Then `step` runs again, at once or after a while.
  void request(const ApiRequest& request, std::string right,
               std::function<Outcome(const ApiResponse&)> answered);
  // There is nothing to send now: the connection is not kept. `settled`: all is taken, and trouble is over.
  void idle(bool settled = true);

  const Delivery& delivery() const { return delivery_; }

 private:
  void on_answer(const Result<ApiResponse>& response);
  void tell(const Result<ApiResponse>& response);

  Loop& loop_;
  const std::string what_;
  std::function<void()> step_;
  ApiClient client_;
  Backoff backoff_;
  Delivery delivery_;
  std::set<std::string> told_;  // since all was settled
  bool busy_ = false;
  std::string right_;
  std::function<Outcome(const ApiResponse&)> answered_;
  Subscription next_;
};

}  // namespace gpulet::cluster

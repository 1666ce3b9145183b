// Questions to the API server, several at a time: one waits for no other's answer. Nothing is tried again
// here; whoever asks us may.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "cluster/access.h"
#include "cluster/api_client.h"

namespace gpulet::metrics_api {

struct AskerLimits {
  std::size_t at_once = 4;                       // connections
  std::size_t waiting = 256;                     // questions beyond those under way
  Duration answer = std::chrono::seconds(5);     // for one, from when it is its turn
  Duration keep_open = std::chrono::seconds(5);  // connections, when nothing more is asked
};

// Loop's thread only.
class Asker {
 public:
  using Done = std::function<void(Result<cluster::ApiResponse>)>;

  Asker(Loop& loop, const cluster::Access& access, AskerLimits limits);
  Asker(const Asker&) = delete;

  // `done` is called from the loop, once, and never from inside this call; never when this object is gone
  // before. Errors: those of ApiClient::request; kUnavailable when too many wait.
  void ask(cluster::ApiRequest request, Done done);

 private:
  struct Line {
    std::unique_ptr<cluster::ApiClient> client;
    bool busy = false;
  };
  struct Question {
    cluster::ApiRequest request;
    Done done;
  };
  void pump();
  void on_answer(Line& line, const Done& done, Result<cluster::ApiResponse> response);

  Loop& loop_;
  const AskerLimits limits_;
  std::vector<Line> lines_;
  std::deque<Question> questions_;
  std::deque<std::function<void()>> refused_;
  Subscription pumping_, closing_;
};

}  // namespace gpulet::metrics_api

// A client of the listener: one GET over a Unix socket or TCP on the loop, its body in pieces as they come.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/loop.h"
#include "base/result.h"

namespace gpulet::web {

// Where to connect to.
struct Endpoint {
  sockaddr_storage address{};
  socklen_t size = 0;
};
// Errors: kInvalidArgument for a path that is longer than a socket's may be.
Result<Endpoint> endpoint_of(const std::string& socket_path);

// For the head of an answer to come.
inline constexpr Duration kFetchLimit = std::chrono::seconds(10);
// Between two pieces: who has events sends a comment every 15 s.
inline constexpr Duration kFetchSilence = std::chrono::seconds(45);
inline constexpr std::size_t kMaxRefusal = 4096;  // more of the body of a refusal is not read

class Fetch {
 public:
  struct Hooks {
    // The head is there, and says 200.
    std::function<void()> begun = {};
    std::function<Status(std::string_view)> piece = {};  // an error ends it, and is what `ended` gets
    // Once, and nothing after it: the body is whole, or why it is not. May destroy the Fetch, which no other may.
    std::function<void(Status)> ended = {};
  };
  // Errors: kNotFound where there is no such socket, kPermissionDenied where it may not be used, kUnavailable
  // where nobody listens; those that come later go to `ended`: kUnavailable for a connection that was lost,
  // kFailedPrecondition with the answer's own words for a status other than 200, kIo for what is no HTTP.
  // `host` is what the request calls the server.
  static Result<std::unique_ptr<Fetch>> start(Loop& loop, const Endpoint& where, const std::string& host,
                                              const std::string& path, Hooks hooks);
  virtual ~Fetch() = default;
};

}  // namespace gpulet::web

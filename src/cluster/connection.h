// One connection to an HTTP server, the API server mostly, on the loop: connecting, handshake, then one
// HTTP/1.1 request and its response at a time. The response comes whole, or in pieces as they arrive.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/loop.h"
#include "base/result.h"
#include "cluster/channel.h"
#include "cluster/resolve.h"

namespace gpulet::cluster {

struct ApiResponse {
  int status = 0;
  std::string body;  // at most kMaxResponseBytes
};

inline constexpr std::size_t kMaxResponseBytes = 1u << 20;

// Of a response that comes in pieces. Neither may destroy the connection or its client.
struct StreamListener {
  std::function<void()> begun;                    // its head is there, and is a success
  std::function<Status(std::string_view)> piece;  // the next bytes of its body; an error ends the connection
};

// Loop's thread only.
class Connection {
 public:
  using Done = std::function<void(Result<ApiResponse>)>;

  // Starts connecting, and speaks through `channel`. `peer` is the server as errors call it. Errors:
  // kUnavailable.
  static Result<std::unique_ptr<Connection>> open(Loop& loop, std::unique_ptr<Channel> channel,
                                                  const Address& address, std::string peer, Done done);
  virtual ~Connection() = default;

  // The response comes to `done`, once for each start; an error ends the connection. With a `listener`, the
  // body of a successful response goes to it and is empty in the response. Precondition: reusable(), or just
  // opened.
  virtual void start(std::string request, StreamListener listener) = 0;

  // Ready for another request.
  virtual bool reusable() const = 0;
  // The server's machine has answered; false where another address is worth a try.
  virtual bool connected() const = 0;
};

}  // namespace gpulet::cluster

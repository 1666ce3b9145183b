// The addresses of a host, without holding the loop up: a numeric one and "localhost" at once, any other name
// by getaddrinfo on a detached thread that has no part of the loop.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "base/thread.h"

namespace gpulet::cluster {

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
};
using Addresses = std::vector<Address>;  // in the order in which to try them

// Loop's thread only.
class Resolver {
 public:
  using Done = std::function<void(Result<Addresses>)>;

  Resolver(Loop& loop, std::string host, std::uint16_t port);
  ~Resolver();
  Resolver(const Resolver&) = delete;

  // Calls `done` once: at once or later from the loop, never when this object is gone before or when resolve
  // is called again first. One look-up at most is under way: a second call waits for the first one's answer.
  // Errors: kUnavailable for a name that is not known now, and when the kernel gives no thread.
  void resolve(Done done);

 private:
  void answered(const Result<Addresses>& addresses);

  std::shared_ptr<Relay> relay_;
  std::string host_;
  std::uint16_t port_;
  bool looking_up_ = false;
  Done done_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace gpulet::cluster

// A small HTTP/1.1 server on the loop, for what a Service answers: no file is opened, every wait and every
// buffer has a limit. Beast parses the requests. A process in which it speaks TLS ignores
// SIGPIPE.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "base/file.h"
#include "base/loop.h"
#include "web/door.h"
#include "web/listener.h"
#include "web/service.h"

namespace gpulet::web {

// A newer one takes the place of the one that has waited longest; those that watch stay.
inline constexpr std::size_t kMaxConnections = 128 + kMaxWatchers;

struct ServerLimits {
  // For a whole request to arrive, for an answer to it to be made, and for the answer to be taken.
  Duration exchange = std::chrono::seconds(10);
  Duration idle = std::chrono::seconds(10);  // between two requests of one connection
  std::size_t head_bytes = 8192;             // of a request: its line and its fields
  std::size_t body_bytes = 0;  // of a request; 0: one with a body is refused, and the body not read
  std::size_t connections = kMaxConnections;
  std::size_t watchers = kMaxWatchers;  // of the site, whichever server they came through
};

// Over the node's own socket, beside those that watch there.
inline constexpr std::size_t kMaxLocalConnections = 16 + kMaxLocalWatchers;

// Of the node's own socket, so that the network cannot keep its users out.
inline constexpr ServerLimits kLocalLimits{.connections = kMaxLocalConnections,
                                           .watchers = kMaxWatchers + kMaxLocalWatchers};

class Connection;

class Server {
 public:
  // `listening` is a listening, non-blocking stream socket that outlives the server.
  Server(Loop& loop, int listening, Service& service, Door& door, const ServerLimits& limits = {});
  ~Server();
  Server(const Server&) = delete;

  std::size_t connections() const { return connections_.size(); }
  // Those that watch came in by rules that are no longer in force: they must ask again.
  void drop_watchers();

 private:
  void watch();
  void accept_all();
  void make_room();
  void remove(std::uint64_t id);

  Loop& loop_;
  int listening_;
  Service& service_;
  Door& door_;
  const ServerLimits limits_;
  std::uint64_t next_id_ = 0;
  std::map<std::uint64_t, std::unique_ptr<Connection>>
      connections_;  // by age: the first has been here longest
  Subscription accepting_, again_;
};

}  // namespace gpulet::web

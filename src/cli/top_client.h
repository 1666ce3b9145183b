// The agent's documents as they come: a client of /api/events over the agent's socket or by a URL, which
// comes back by itself when the connection is lost. Loop's thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/backoff.h"
#include "base/loop.h"
#include "base/result.h"
#include "cluster/resolve.h"
#include "web/event_parser.h"
#include "web/fetch.h"

namespace gpulet::cli {

// Where an agent is: a socket's path, or a host and port.
struct TopTarget {
  std::string socket;
  std::string host;
  std::uint16_t port = 0;
};
// "http://HOST:PORT", the port 9400 where there is none. Errors: kInvalidArgument, with what would do.
Result<TopTarget> parse_top_url(const std::string& url);

class TopClient {
 public:
  struct Hooks {
    std::function<void()> connected;
    // An error is what ends the connection.
    std::function<Status(const web::Event&)> event;
    // The connection was lost or could not be made; another is on its way. One line, with what to do.
    std::function<void(const Error&)> away;
  };
  // Connects on the loop's next turn.
  TopClient(Loop& loop, TopTarget target, Hooks hooks);
  TopClient(const TopClient&) = delete;

  // /api/history, once; `done` comes on the loop, not when the client is gone before or asked again.
  void fetch_history(std::function<void(Result<std::string>)> done);

 private:
  void connect();
  void open(const web::Endpoint& where);
  void lost(const Error& error);

  Loop& loop_;
  TopTarget target_;
  Hooks hooks_;
  Backoff backoff_;
  std::unique_ptr<cluster::Resolver> resolver_;
  std::size_t address_ = 0;  // which of a host's addresses is tried
  std::optional<web::Endpoint> where_;
  std::unique_ptr<web::Fetch> events_, history_;
  web::EventParser parser_;
  std::string history_text_;
  Subscription again_;
};

}  // namespace gpulet::cli

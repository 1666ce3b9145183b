// The agent's documents as a stream: a client of /api/events over the agent's socket or a URL, which
// reconnects by itself. Loop's thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/loop.h"
#include "base/result.h"
#include "cli/top/model.h"
#include "cli/top/view.h"
#include "http/client.h"
#include "http/socket.h"

namespace gpulet::cli {

// Address of an agent: a socket's path, or a host and port.
struct TopTarget {
  std::string socket;
  std::string host;
  std::uint16_t port = 0;
};
// "http://HOST:PORT", default port 9400. Errors: kInvalidArgument.
Result<TopTarget> parse_top_url(const std::string& url);
// Adds the address, and for a socket the remedy, to an error of the connection.
Error explain_connection_error(const Error& error, const TopTarget& target);

class TopClient {
 public:
  struct Hooks {
    std::function<void()> connected;
    // Returning an error closes the connection.
    std::function<Status(const http::ServerSentEvent&)> received;
    // The connection was lost or refused, and will be retried. The error is one line with the remedy.
    std::function<void(const Error&)> disconnected;
  };
  // Connects on the loop's next iteration.
  TopClient(Loop& loop, TopTarget target, Hooks hooks);
  TopClient(const TopClient&) = delete;

  // Fetches /api/history. Calls `done` on the loop, unless the client is destroyed or this is called again
  // before.
  void fetch_history(std::function<void(Result<std::string>)> done);

 private:
  void connect_to_agent();
  void open_event_stream(const http::SocketAddress& where);
  void handle_disconnect(const Error& error);

  Loop& loop_;
  TopTarget target_;
  Hooks hooks_;
  Backoff backoff_;
  std::unique_ptr<http::Resolver> resolver_;
  std::size_t address_ = 0;  // index of the host's address to try next
  std::optional<http::SocketAddress> endpoint_;
  std::unique_ptr<http::HttpGet> events_, history_;
  http::EventStreamParser parser_;
  std::string history_text_;
  Subscription reconnect_;
};

// What screen and batch share: a client, the model that it fills, and the state of the connection. Loop's
// thread only.
class TopSession {
 public:
  struct Hooks {
    std::function<void(const std::string& name)> changed;  // a document of that name was applied
    // Connected or disconnected, see top_view().disconnected_since. `first`: no connection before.
    std::function<void(bool first)> connection_changed;
  };
  TopSession(Loop& loop, TopTarget target, TopView view, Hooks hooks);

  const TopModel& model() const { return model_; }
  TopView& top_view() { return view_; }
  // While paused, documents are kept; the newest of each are applied at the end.
  void set_paused(bool paused);
  // Fetches the history, once per connection. Without a connection or a node, it does nothing: call it again
  // while the history is shown.
  void request_history();

 private:
  Status receive_event(const http::ServerSentEvent& event);
  Status apply_document(const std::string& name, const std::string& document);

  Loop& loop_;
  TopModel model_;
  TopView view_;
  Hooks hooks_;
  TopClient client_;
  std::map<std::string, std::string> pending_;
  bool connected_once_ = false, has_history_ = false;
};

}  // namespace gpulet::cli

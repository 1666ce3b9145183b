// A small HTTP/1.1 server on the loop. It opens no file, and every wait and every buffer has a limit. Beast
// parses the requests.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/file.h"
#include "base/loop.h"
#include "http/access_gate.h"
#include "http/message.h"
#include "http/transport.h"

namespace gpulet::http {

// Limits of event subscribers, and of further ones over the node's own socket, so that the network cannot
// keep those out.
inline constexpr std::size_t kMaxSubscribers = 16;
inline constexpr std::size_t kMaxLocalSubscribers = 4;

// A newer connection replaces the oldest one of the address that has the most; subscribers stay.
inline constexpr std::size_t kMaxConnections = 128 + kMaxSubscribers;

struct ServerLimits {
  // For each of: receiving a whole request, making the response, sending the response.
  Duration exchange = std::chrono::seconds(10);
  Duration idle = std::chrono::seconds(10);  // between two requests of one connection
  std::size_t head_bytes = 8192;             // of a request: its line and its fields
  std::size_t body_bytes = 0;  // of a request; 0: a request with a body is rejected, and the body not read
  // Of all connections together: bodies of requests as far as they have arrived, and of responses as far as
  // they have not been sent. The connections that have not moved for longest are closed for others. At least
  // twice body_bytes; 0: no limit, for a server whose responses are shared texts.
  std::size_t body_budget = 0;
  std::size_t connections = kMaxConnections;
  std::size_t subscribers = kMaxSubscribers;  // of the site, whichever server they came through
};

// Over the node's own socket, in addition to its subscribers.
inline constexpr std::size_t kMaxLocalConnections = 16 + kMaxLocalSubscribers;

// Of the node's own socket, so that the network cannot keep its users out.
inline constexpr ServerLimits kLocalLimits{.connections = kMaxLocalConnections,
                                           .subscribers = kMaxSubscribers + kMaxLocalSubscribers};

// What one connection may do before all others have had their turn: a client that pipelines requests or sends
// a large body without a pause delays nobody.
inline constexpr std::size_t kMaxTurnBytes = 256u << 10;  // each way, and one request
// Requests per turn of the loop that had to wait for it. New connections, other descriptors of the loop and
// requests of a client that awaits each response come first.
inline constexpr std::size_t kMaxDelayedRequests = 32;

class ServerConnection;

class Server {
 public:
  // `listening`: a listening, non-blocking stream socket that outlives the server.
  Server(Loop& loop, int listening, RequestHandler& service, AccessGate& gate,
         const ServerLimits& limits = {});
  ~Server();
  Server(const Server&) = delete;

  std::size_t connection_count() const { return connections_.size(); }
  // Closes the connections of subscribers, after the access rules have changed.
  void drop_subscribers();

 private:
  friend class ServerConnection;
  void watch_listening_socket();
  void accept_all();
  void close_oldest();
  void serve_delayed();

  // ---- for its connections, by their ids ----
  void remove_connection(std::uint64_t id);
  // The connection has had its turn, and has more to read.
  void delay_connection(std::uint64_t id);
  // Closes others until `bytes` more fit into the budget of bodies. False if they do not.
  bool make_body_room(std::uint64_t id, std::size_t bytes);
  // Where all slots of event streams are taken: takes one for a new subscriber at `address`, of a client that
  // does not read, or else the oldest of the address that has the most, if that has two more than this one.
  void make_subscriber_room(const PeerAddress& address);

  Loop& loop_;
  int listening_;
  RequestHandler& service_;
  AccessGate& gate_;
  const ServerLimits limits_;
  std::uint64_t next_id_ = 0;
  std::map<std::uint64_t, std::unique_ptr<ServerConnection>> connections_;  // by age, oldest first
  std::deque<std::uint64_t> delayed_;
  Subscription accepting_, again_, next_turn_;
};

// How far a subscriber may fall behind. Beyond, it is disconnected; it can reconnect and gets the newest
// state.
inline constexpr std::size_t kMaxQueuedEvents = 8;  // texts
inline constexpr std::size_t kMaxQueuedEventBytes = 1u << 20;

// One client's connection: reads requests and writes responses, and events once it is subscribed.
class ServerConnection {
 public:
  ServerConnection(Server& server, std::uint64_t id, FileDescriptor socket, PeerAddress address);
  ~ServerConnection();

  // Serves what has arrived already, within one turn. False when the connection is over.
  bool serve_requests();
  bool is_subscribed() const { return static_cast<bool>(subscription_); }
  const PeerAddress& address() const { return address_; }
  // Events wait because the client does not read.
  bool is_stalled() const { return !out_.empty(); }
  std::size_t body_bytes() const;  // see ServerLimits::body_budget
  // When bytes last moved; few bytes count only together.
  Time last_progress() const { return progressed_at_; }

 private:
  struct Parser;  // Beast's, behind a pointer: its headers are heavy

  void on_ready();
  // Plain or TLS, by the gate and the client's first byte. False when the connection is over. Sets no
  // transport until the client has sent a byte.
  bool choose_transport();
  // Reads once. kTransferred also for bytes that are discarded.
  Transport::IoResult read_more();
  void end_turn();
  void record_progress(std::size_t bytes);
  // Parses the buffer. False when the connection is over.
  bool parse_request();
  // Checks the client's password, now or later, and then passes the request to the handler, which responds
  // now or later by on_handler_response().
  void dispatch_request(bool head_only, bool keep_alive);
  void on_verdict(PasswordChecker::Verdict verdict, bool head_only, bool keep_alive);
  void handle_request(bool head_only, bool keep_alive);
  bool is_authenticated() const;  // see Request; of a client that check_credentials() has accepted
  void on_handler_response(Response answer, bool head_only, bool keep_alive);
  // Whether the access rules are still those of when it was accepted.
  bool has_current_rules() const { return generation_ == gate_.generation(); }
  void subscribe();
  void on_event(const SharedText& text);
  void send_response(Response answer, bool head_only, bool keep_alive);
  bool flush();
  void await_events(std::uint32_t events);
  // After a call of the transport: nullopt where bytes moved. Else whether the connection goes on; it then
  // awaits what the transport wants.
  std::optional<bool> await_transport(Transport::Outcome outcome);
  void start_limit(Duration limit);
  void close_connection();

  Server& server_;  // destroys this object by remove_connection()
  const std::uint64_t id_;
  Loop& loop_;
  FileDescriptor socket_;
  const PeerAddress address_;
  RequestHandler& service_;
  AccessGate& gate_;
  std::uint64_t generation_;  // of the gate when this connection was accepted
  const ServerLimits& limits_;

  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Parser> parser_;
  std::string buffer_;  // grows to limits_.head_bytes
  std::size_t filled_ = 0;

  std::deque<SharedText> out_;
  std::size_t sent_ = 0;  // of the first of them
  bool keep_alive_ = false, lingering_ = false;
  bool handling_ = false, answering_ = false;  // inside the handler's call; until it has responded
  std::size_t drained_ = 0;
  Time progressed_at_;
  std::size_t progressed_ = 0;  // bytes since then
  Subscription subscription_;

  std::uint32_t awaited_ = 0;
  Subscription ready_, timeout_;
  Lifetime lifetime_;
};

}  // namespace gpulet::http

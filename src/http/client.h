// HTTP/1.1 clients on the loop, without a thread: a connection that takes one request at a time and can be
// used again, a single GET with limits on silence, and a parser of event streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "http/socket.h"
#include "http/transport.h"

namespace gpulet::http {

struct ClientRequest {
  std::string method = "GET";
  std::string path;                                               // with its query
  std::string host;                                               // the field Host, as host_field() writes it
  std::string accept{}, authorization{}, content_type{}, body{};  // fields that are empty are left out
  bool close = false;  // ask the server to close the connection after its response
};
// "10.0.0.1:6443", "[fd00::1]:6443"
std::string host_field(const std::string& host, std::uint16_t port);

struct ClientResponse {
  int status = 0;
  std::string body;  // at most kMaxResponseBytes
};

inline constexpr std::size_t kMaxResponseBytes = 1u << 20;

// Receives the body of a successful response in pieces. Neither function may destroy the connection or its
// client.
struct BodyReceiver {
  std::function<void()> on_head = {};                     // the head of a successful response has arrived
  std::function<Status(std::string_view)> on_piece = {};  // the next bytes; an error ends the connection
  // Of an unsuccessful response, only so much of the body is read, and the connection ends. Without: a body
  // above kMaxResponseBytes is an error.
  std::optional<std::size_t> error_body_limit = {};
};

// Loop's thread only.
class ClientConnection {
 public:
  using Done = std::function<void(Result<ClientResponse>)>;

  // Starts connecting. `peer` names the server in errors. Errors: kUnavailable; for a Unix socket also
  // kNotFound and kPermissionDenied; those of `transport`.
  static Result<std::unique_ptr<ClientConnection>> open_connection(Loop& loop,
                                                                   const TransportFactory& transport,
                                                                   const SocketAddress& address,
                                                                   std::string peer, Done done);
  virtual ~ClientConnection() = default;

  // Calls `done` once, with the response or the error, which ends the connection. With `on_piece`, the body
  // of a successful response goes there and is empty in the response. `done` must not destroy the
  // connection. Precondition: is_reusable(), or just opened.
  virtual void start_request(const ClientRequest& request, BodyReceiver receiver) = 0;

  // Ready for another request.
  virtual bool is_reusable() const = 0;
  // The server's machine has answered. Until then another address may be worth a try.
  virtual bool is_connected() const = 0;
};

// Time limits of HttpGet: for the head of the response, and between two pieces of its body. A server of
// event streams sends a comment every 15 s.
inline constexpr Duration kGetHeadLimit = std::chrono::seconds(10);
inline constexpr Duration kGetIdleLimit = std::chrono::seconds(45);
inline constexpr std::size_t kMaxErrorBodyBytes = 4096;  // of the body of an unsuccessful response

// One GET from the agent's listener, over a Unix socket or TCP, without TLS.
class HttpGet {
 public:
  struct Callbacks {
    std::function<void()> on_head = {};                     // the head has arrived, with status 200
    std::function<Status(std::string_view)> on_piece = {};  // an error ends the request, and goes to `on_end`
    // Called last, once: the body is complete, or why not. May destroy the HttpGet; the others may not.
    std::function<void(Status)> on_end = {};
  };
  // `host` is the field Host. Errors: kNotFound for a Unix socket that does not exist, kPermissionDenied,
  // kUnavailable when nobody listens. Later ones go to `on_end`: kUnavailable for a lost connection,
  // kFailedPrecondition with the body's text for a status other than 200, kIo for what is not HTTP.
  static Result<std::unique_ptr<HttpGet>> start_get(Loop& loop, const SocketAddress& address,
                                                    const std::string& host, const std::string& path,
                                                    Callbacks callbacks);
  virtual ~HttpGet() = default;
};

// The largest event: the agent's documents are a few MiB at most (web/listener.h).
inline constexpr std::size_t kMaxEventBytes = 16u << 20;

struct ServerSentEvent {
  std::string name;  // "message" where the server gives none
  std::string data;  // lines joined by '\n'
  friend bool operator==(const ServerSentEvent&, const ServerSentEvent&) = default;
};

// Parses server-sent events from the bytes of a body, in whatever pieces they arrive. Pure.
// Source: the HTML standard, section 9.2.6 "Interpreting an event stream".
class EventStreamParser {
 public:
  // The events that end in `bytes`, in order. Comments, ids and retry times are ignored; an event without
  // data is none. Errors: kInvalidArgument for an event above kMaxEventBytes; the parser is then useless.
  Result<std::vector<ServerSentEvent>> parse_bytes(std::string_view bytes);

 private:
  void end_line(std::vector<ServerSentEvent>& events);

  std::string line_, name_, data_;
  bool has_data_ = false;
  bool after_return_ = false;  // the last byte was a CR: an LF belongs to it
  bool first_line_ = true;
};

}  // namespace gpulet::http

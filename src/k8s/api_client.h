// Requests to the API server over HTTPS on the loop, without a blocking call: one at a time, and on top a
// sender that retries until the server has accepted a write.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/loop.h"
#include "base/result.h"
#include "http/client.h"
#include "http/socket.h"
#include "k8s/client_config.h"

namespace gpulet::k8s {

struct ApiRequest {
  std::string method;          // "POST"
  std::string path;            // "/api/v1/…", its query with it
  std::string content_type{};  // of the body
  std::string body{};
  std::string accept = "application/json";
};

// One request at a time over one connection. Once closed, nothing is kept: no connection, no TLS state, no
// certificates in memory. Loop's thread only.
class ApiClient {
 public:
  using Done = http::ClientConnection::Done;

  // `limit` is for one request, from the lookup of the name to the last byte.
  ApiClient(Loop& loop, ClientConfig config, Duration limit);
  ~ApiClient();
  ApiClient(const ApiClient&) = delete;

  // Calls `done` from the loop, once; never after this object is destroyed. Uses the connection of the
  // previous request if it is still open. Precondition: the previous request is done. Errors: kUnavailable,
  // kDeadlineExceeded, kPermissionDenied for a certificate that is not trusted, kIo, and those of reading
  // the token and the certificates, or of ClientConfig::credential.
  void send_request(const ApiRequest& request, Done done);

  // As send_request(), but hands the body of a successful response to `piece` as it arrives. The whole
  // response may take `whole`; the client's own limit is for its head. An error of `piece` ends the
  // response with that error. `piece` must not destroy or call this object.
  void stream_response(const ApiRequest& request, Duration whole,
                       std::function<Status(std::string_view)> piece, Done done);

  // Closes the connection. The `done` of a request in progress is not called.
  void close_connection();

 private:
  struct Pending {
    http::ClientRequest request;
    http::BodyReceiver receiver;
  };
  void begin_request(const ApiRequest& request, http::BodyReceiver receiver, Done done);
  Status renew_credential();
  void connect_to_server(Result<http::SocketAddresses> addresses);
  Result<std::unique_ptr<http::ClientConnection>> open_tls_connection(const http::SocketAddress& address);
  void start_deadline(Duration limit, const char* what);
  void finish_request(Result<http::ClientResponse> result);

  Loop& loop_;
  ClientConfig config_;
  Duration limit_;
  http::Resolver resolver_;
  std::size_t attempt_ = 0;  // which of several addresses is next
  std::unique_ptr<http::ClientConnection> connection_;
  std::optional<Pending> pending_;
  Done done_;
  Subscription timeout_, finish_timer_;
};

struct SendTiming {
  Duration request_limit = std::chrono::seconds(10);  // for one, from the lookup of the name to the last byte
  BackoffLimits backoff{std::chrono::milliseconds(500), std::chrono::seconds(30)};
};

// What became of the writes so far.
struct SendStatus {
  bool pending = false;        // the newest write is not accepted yet
  std::string error{};         // why not; empty while nothing fails
  std::uint64_t accepted = 0;  // writes that the API server accepted
  std::uint64_t warnings = 0;  // log lines: one for each kind of error, until everything is accepted
};

// Sends the writes of one controller, one request at a time, and retries each with backoff for as long as
// it takes. Each kind of error is logged once. Loop's thread only.
class RetryingSender {
 public:
  enum class Outcome {
    kDone,     // accepted: continue at once
    kNext,     // a read that a write needs has succeeded: continue at once
    kRetry,    // a conflict with another writer: continue after the backoff, without an error
    kError,    // log it and continue after the backoff
    kRefused,  // log it and continue at once with another write: the caller delays this one itself
  };

  // `what` names the write in the log: "the node's condition". `step` sends the next request, or calls
  // idle().
  RetryingSender(Loop& loop, ClientConfig config, SendTiming timing, std::string what,
                 std::function<void()> step);

  // Runs `step` on the next turn, unless a request is in progress or waits for its retry.
  void wake();
  // Sends the request. `judge` decides on every response of the server; no response is kError. `permission`
  // is what a 403 lacks: "patch on nodes/status". Then `step` runs again, at once or after the backoff.
  void send_request(const ApiRequest& request, std::string permission,
                    std::function<Outcome(const http::ClientResponse&)> judge);
  // There is nothing to send now: closes the connection. `settled`: everything is accepted, and errors are
  // over.
  void idle(bool settled = true);

  const SendStatus& send_status() const { return status_; }

 private:
  void on_response(const Result<http::ClientResponse>& response);
  void warn_once(const Result<http::ClientResponse>& response);

  Loop& loop_;
  const std::string what_;
  std::function<void()> step_;
  ApiClient client_;
  Backoff backoff_;
  SendStatus status_;
  std::set<std::string> warned_;  // since everything was accepted
  bool busy_ = false;
  std::string permission_;
  std::function<Outcome(const http::ClientResponse&)> judge_;
  Subscription next_;
};

}  // namespace gpulet::k8s

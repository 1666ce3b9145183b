// HTTPS to the API server on the loop: one request at a time over one connection, with no blocking call.
// Between two bursts of requests nothing is kept: no connection, no TLS state, no certificates in memory.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/loop.h"
#include "base/result.h"
#include "cluster/access.h"
#include "cluster/connection.h"
#include "cluster/resolve.h"

namespace gpulet::cluster {

struct ApiRequest {
  std::string method;          // "POST"
  std::string path;            // "/api/v1/…", its query with it
  std::string content_type{};  // of the body
  std::string body{};
  std::string accept = "application/json";
};

// Loop's thread only.
class ApiClient {
 public:
  using Done = Connection::Done;

  // `limit` is for one request, from looking up the name to the last byte.
  ApiClient(Loop& loop, Access access, Duration limit);
  ~ApiClient();
  ApiClient(const ApiClient&) = delete;

  // Calls `done` from the loop, once; never when this object is gone before. The connection of the request
  // before is used again if it is still open. Precondition: the one before is done.
  // Errors: kUnavailable, kDeadlineExceeded, kPermissionDenied for a certificate that is not trusted, kIo,
  // and those of reading the token and the certificates, or of Access::credential.
  void request(const ApiRequest& request, Done done);

  // As request(), but the body of a successful response is handed to `piece` as it arrives and may take
  // `whole` to end; the client's own limit is for its head. An error of `piece` ends the response with that
  // error. `piece` must not destroy this object nor call it.
  void stream(const ApiRequest& request, Duration whole, std::function<Status(std::string_view)> piece,
              Done done);

  // Closes the connection, with the request under way if there is one: its `done` is not called.
  void close();

 private:
  struct Pending {
    std::string text;
    StreamListener listener;
  };
  void begin(const ApiRequest& request, StreamListener listener, Done done);
  Status renew_credential();
  void connect(Result<Addresses> addresses);
  Result<std::unique_ptr<Connection>> opened(const Address& address);
  void await_end(Duration limit, const char* what);
  void finish(Result<ApiResponse> result);

  Loop& loop_;
  Access access_;
  Duration limit_;
  Resolver resolver_;
  std::size_t attempt_ = 0;  // which of several addresses is next
  std::unique_ptr<Connection> connection_;
  std::optional<Pending> pending_;
  Done done_;
  Subscription timeout_, later_;
};

}  // namespace gpulet::cluster

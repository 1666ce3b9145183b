// HTTPS to the API server on the loop: one request at a time over one connection, with no thread and no
// blocking call. Between two bursts of requests nothing is kept: no connection, no TLS state, no certificates
// in memory.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/loop.h"
#include "base/result.h"
#include "cluster/access.h"

namespace gpulet::cluster {

struct ApiRequest {
  std::string method;        // "POST"
  std::string path;          // "/api/v1/…"
  std::string content_type;  // of the body
  std::string body;
};

struct ApiResponse {
  int status = 0;
  std::string body;  // at most kMaxResponseBytes
};

inline constexpr std::size_t kMaxResponseBytes = 1u << 20;

// Loop's thread only.
class ApiClient {
 public:
  using Done = std::function<void(Result<ApiResponse>)>;

  // `limit` is for one request, from connecting to the last byte.
  ApiClient(Loop& loop, Access access, Duration limit);
  ~ApiClient();
  ApiClient(const ApiClient&) = delete;

  // Calls `done` from the loop, once; never when this object is gone before. The connection of the request
  // before is used again if it is still open. Precondition: the one before is done.
  // Errors: kUnavailable, kDeadlineExceeded, kPermissionDenied for a certificate that is not trusted, kIo,
  // and those of reading the token and the CA.
  void request(ApiRequest request, Done done);

  // Closes the connection. Precondition: no request under way.
  void close();

 private:
  class Connection;
  void finish(Result<ApiResponse> result);

  Loop& loop_;
  Access access_;
  Duration limit_;
  std::unique_ptr<Connection> connection_;
  Done done_;
  Subscription timeout_, later_;
};

}  // namespace gpulet::cluster

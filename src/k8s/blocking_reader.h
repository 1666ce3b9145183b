// Reads objects of the API server and waits for each answer: for commands that a person runs.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/loop.h"
#include "base/result.h"
#include "http/client.h"
#include "k8s/api_client.h"
#include "k8s/client_config.h"

namespace gpulet::k8s {

inline constexpr std::size_t kMaxReadBytes = 4u << 20;  // of one object
inline constexpr unsigned kReadPage = 250;              // objects
inline constexpr std::size_t kMaxReadPages = 200;       // of one list

// `permission` is what a 401 or 403 lacks: "list on nodes". Errors of all: kPermissionDenied, with the
// permission; kUnavailable for another answer that is not 200 or 404; kIo for a list or an object that is too
// large or damaged; those of the connection. One thread.
class BlockingReader {
 public:
  // `limit` is for one answer.
  BlockingReader(const ClientConfig& access, Duration limit);

  // Hands each object of a collection to `item`, one in memory at a time. `path` may have a query; with
  // kMetadataOnly as `accept`, objects have only their metadata. Returns false for a collection that does not
  // exist. Errors: also kUnsupported above kReadPage × kMaxReadPages objects.
  Result<bool> list_objects(const std::string& path, const std::string& permission,
                            const std::function<void(std::string_view)>& item,
                            const std::string& accept = "application/json");
  // nullopt for an object that does not exist.
  Result<std::optional<std::string>> get_object(const std::string& path, const std::string& permission);
  // Any answer of the server. The body of a successful one is at most kMaxReadBytes.
  Result<http::ClientResponse> get_response(const std::string& path, const std::string& accept);

 private:
  Result<http::ClientResponse> stream(const ApiRequest& request,
                                      const std::function<Status(std::string_view)>& piece);

  const Duration limit_;
  EpollLoop loop_;
  ApiClient client_;
};

}  // namespace gpulet::k8s

// Reads objects of the API server by their path, several at the same time: for answers that somebody waits
// for, where one slow request must not delay the others.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/loop.h"
#include "base/result.h"
#include "k8s/client_config.h"

namespace gpulet::k8s {

struct ParallelTiming {
  Duration request_limit = std::chrono::seconds(5);
  std::size_t connections = 8;  // each takes one request at a time; opened when they are needed
  Duration idle_close = std::chrono::seconds(5);
};

inline constexpr std::size_t kMaxParallelReads = 4096;  // that are queued

// Without retries: the caller knows for how long the result matters. Loop's thread only. Each callback comes
// once, from the loop, never from inside the call or after destruction.
class ParallelReader {
 public:
  static std::unique_ptr<ParallelReader> start_reader(Loop& loop, const ClientConfig& access,
                                                      ParallelTiming timing = {});
  virtual ~ParallelReader() = default;

  // The object's JSON; nullopt for one that does not exist. `permission` is what a 403 lacks: "get on
  // resourceclaims". Precondition: `path` is made of valid names. Errors: kPermissionDenied, about the
  // missing permission; kUnavailable for an answer of 429 or 500 and above, and when more than
  // kMaxParallelReads are queued; those of the connection.
  virtual void read_object(const std::string& path, const std::string& permission,
                           std::function<void(Result<std::optional<std::string>>)> done) = 0;
};

}  // namespace gpulet::k8s

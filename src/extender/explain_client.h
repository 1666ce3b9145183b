// The client of `gpulet explain`: asks a running extender through the API server's proxy, or, without one,
// lists the cluster and computes the explanation itself with the same code.
#pragma once

#include <string>

#include "base/loop.h"
#include "base/result.h"
#include "k8s/client_config.h"

namespace gpulet::extender {

// As in deploy/.
inline constexpr const char* kDefaultService = "gpulet/gpulet-scheduler:9410";

struct ExplainQuery {
  std::string name_space = "default", pod;
  bool json = false;
  // The extender's Service: "namespace/name:port", the port by number or name; empty: compute locally. Uses
  // TLS if the extender requires it, or at once with "namespace/https:name:port".
  std::string service = kDefaultService;
  // "http://host:port" or "https://host:port" of an extender, used instead of the Service and without the
  // API server. For https: the CA bundle (empty: system CAs), and a client certificate with its key if the
  // extender requires one; PEM files.
  std::string url{};
  std::string ca_file{}, certificate_file{}, key_file{};
  std::string policy = "default";  // for the local computation
  Duration timeout = std::chrono::seconds(60);
};

// Limit of a response.
inline constexpr std::size_t kMaxExplanationBytes = 32u << 20;

struct ExplainAnswer {
  std::string text;
  bool by_extender = false;  // else computed locally
};

// Blocks until the explanation is there. Needs get on services/proxy, or else the extender's permissions;
// with a URL none. Errors: kNotFound if the Pod does not exist; kInvalidArgument; kFailedPrecondition if
// there is neither an extender nor a GpuNode; kUnavailable, kDeadlineExceeded and kPermissionDenied of the
// API server; errors of reading the PEM files.
Result<ExplainAnswer> fetch_explanation(const ExplainQuery& query, const k8s::ClientConfig& access);

}  // namespace gpulet::extender

// `gpulet explain`: asks a running extender through the API server's proxy of its Service, or, where there is
// none, lists what an extender would and says the same by the same code.
#pragma once

#include <string>

#include "base/loop.h"
#include "base/result.h"
#include "cluster/access.h"

namespace gpulet::extender {

// As deploy/ names it.
inline constexpr const char* kService = "gpulet/gpulet-scheduler:9410";

struct Question {
  std::string name_space = "default", pod;
  bool json = false;
  // The extender's Service: "namespace/name:port", the port by number or name; empty: nobody is asked. By TLS
  // where it says that it speaks it, or at once as "namespace/https:name:port".
  std::string service = kService;
  // "http://host:port" or "https://host:port" of an extender, asked in place of the Service and without the
  // API server. For https: who signed its certificate (empty: whom the system trusts), and our certificate
  // with its key where it asks for one; PEM files.
  std::string url{};
  std::string ca_file{}, certificate_file{}, key_file{};
  std::string policy = "default";  // where nobody is asked
  Duration limit = std::chrono::seconds(60);
};

// What it answers is no larger.
inline constexpr std::size_t kMaxExplanationBytes = 32u << 20;

struct Answer {
  std::string text;
  bool by_extender = false;  // else it was worked out here
};

// Blocks until it is answered. Needs get on services/proxy, or else what an extender needs; with a URL no
// right. Errors: kNotFound for a Pod that there is not; kInvalidArgument; kFailedPrecondition where there is
// no extender and nodes publish nothing; kUnavailable, kDeadlineExceeded and kPermissionDenied of the API
// server; those of reading the PEM files.
Result<Answer> ask(const Question& question, const cluster::Access& access);

}  // namespace gpulet::extender

// `gpulet metrics-api` as a process: its listening socket, certificate and loop, and what is joined on it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/loop.h"
#include "base/result.h"
#include "cluster/access.h"
#include "metrics_api/pages.h"
#include "metrics_api/pod_list.h"
#include "metrics_api/scraper.h"

namespace gpulet::metrics_api {

struct ServerOptions {
  std::string listen = ":8443";
  std::string certificate_file{}, key_file{};  // both, followed as they change; or neither: a self-signed one
  PodSelection agents{.name_space = {}, .label_selector = "app.kubernetes.io/name=gpulet", .name = {}};
  ScrapeOptions scrape{};
  PagesOptions pages{};
};

// Loop's thread only.
class Server {
 public:
  // Listens from the start, and answers once the API server has said whom to trust. Needs get, list and watch
  // on the ConfigMap extension-apiserver-authentication, create on tokenreviews and subjectaccessreviews, and
  // list on pods. The process ignores SIGPIPE. Errors: kInvalidArgument about an option or a file; kIo and
  // kPermissionDenied for what cannot be read or bound.
  static Result<std::unique_ptr<Server>> start(Loop& loop, const cluster::Access& access,
                                               const ServerOptions& options);
  virtual ~Server() = default;

  virtual std::uint16_t port() const = 0;
};

}  // namespace gpulet::metrics_api

// Who may connect to the listener, as Prometheus' web config file says it: read at the start, and followed as
// it, its certificates and its keys change. A bad file is one line in the log, and what was read before it
// stays in force.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file_watch.h"
#include "base/loop.h"
#include "base/result.h"
#include "config/web_config.h"
#include "web/access.h"

namespace gpulet::agent {

web::Access access_of(const config::WebConfig& config);

// Loop's thread only.
class WebAccess {
 public:
  // `apply` takes what is new and valid (Listener::set_access). Errors: of read_web_config and web::check, as
  // there is nothing before it that could stay in force; kIo without inotify.
  static Result<std::unique_ptr<WebAccess>> start(Loop& loop, std::string file,
                                                  std::function<Status(const web::Access&)> apply);

  const web::Access& access() const { return access_; }  // in force
  // Why the files as they are now are not in force.
  const std::optional<Error>& error() const { return error_; }

 private:
  WebAccess(Loop& loop, std::string file, std::function<Status(const web::Access&)> apply);
  Result<web::Access> read();
  Status follow();
  void on_changed();

  Loop& loop_;
  std::string file_;
  std::function<Status(const web::Access&)> apply_;
  web::Access access_;
  std::optional<Error> error_;
  std::vector<std::string> files_, followed_;
  std::vector<std::unique_ptr<FileWatch>> watches_;
  Subscription reading_;
};

}  // namespace gpulet::agent

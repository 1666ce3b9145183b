#include "agent/reporter.h"

#include "base/log.h"
#include "cluster/access.h"

namespace gpulet::agent {

void NodeReporter::event(Severity severity, std::string_view reason, const std::string& message) {
  ++counts_[std::string(reason)];
  const bool warning = severity == Severity::kWarning;
  if (warning) {
    log::warning(message, {{"reason", reason}});
  } else {
    log::info(message, {{"reason", reason}});
  }
  if (sender_) sender_->send({.warning = warning, .reason = std::string(reason), .message = message});
}

std::unique_ptr<NodeReporter> make_reporter(Loop& loop,
                                            const std::map<std::string, std::string, std::less<>>& environment) {
  std::unique_ptr<cluster::EventSender> sender;
  auto access = cluster::in_cluster_access(environment);
  if (!access) {
    log::warning("no Kubernetes events are sent", access.error());
  } else if (*access) {
    sender = cluster::EventSender::start(loop, **access);
  }
  return std::make_unique<NodeReporter>(std::move(sender));
}

}  // namespace gpulet::agent

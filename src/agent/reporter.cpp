#include "agent/reporter.h"

#include "base/log.h"

namespace gpulet::agent {

void NodeReporter::event(Severity severity, std::string_view reason, const std::string& message) {
  const bool warning = severity == Severity::kWarning;
  if (warning) {
    log::warning(message, {{"reason", reason}});
  } else {
    log::info(message, {{"reason", reason}});
  }
  ++counts_[std::string(reason)];
  if (heard_) heard_(severity, reason, message);
  if (sender_) sender_->send({warning, std::string(reason), message});
}

std::unique_ptr<NodeReporter> make_reporter(
    Loop& loop, const std::map<std::string, std::string, std::less<>>& environment) {
  auto access = cluster::find_access(environment);
  if (!access) log::warning("no Kubernetes events are sent", access.error());
  if (!access || !*access) return std::make_unique<NodeReporter>();
  return std::make_unique<NodeReporter>(cluster::EventSender::start(loop, std::move(**access)));
}

}  // namespace gpulet::agent

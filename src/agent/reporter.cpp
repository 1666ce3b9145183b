#include "agent/reporter.h"

#include "base/log.h"

namespace gpulet::agent {

void EventReporter::event(Severity severity, std::string_view reason, const std::string& message) {
  const bool warning = severity == Severity::kWarning;
  if (warning) {
    log::warning(reason, {{"message", message}});
  } else {
    log::info(reason, {{"message", message}});
  }
  ++counts_[std::string(reason)];
  if (sender_) sender_->send({warning, std::string(reason), message});
}

}  // namespace gpulet::agent

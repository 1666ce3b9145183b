#include "agent/node/ports.h"

#include "base/log.h"
#include "config/config.h"

namespace gpulet::agent {

void NodeReporter::report_event(Severity severity, std::string_view reason, const std::string& message) {
  const bool warning = severity == Severity::kWarning;
  if (warning) {
    log::warning(message, {{"reason", reason}});
  } else {
    log::info(message, {{"reason", reason}});
  }
  ++counts_[std::string(reason)];
  if (listener_) listener_(severity, reason, message);
  if (sender_) sender_->record_event({warning, std::string(reason), message});
}

std::unique_ptr<NodeReporter> make_reporter(
    Loop& loop, const std::map<std::string, std::string, std::less<>>& environment) {
  auto access = k8s::find_client_config(environment);
  if (!access) log::warning("cannot send Kubernetes events", access.error());
  if (!access || !*access) return std::make_unique<NodeReporter>();
  return std::make_unique<NodeReporter>(k8s::EventRecorder::start_recorder(loop, std::move(**access)));
}

void configure_log(const config::GpuletSettings& settings) {
  log::Level level = log::Level::kInfo;
  switch (settings.log_level) {
    case config::LogLevel::kDebug:
      level = log::Level::kDebug;
      break;
    case config::LogLevel::kInfo:
      level = log::Level::kInfo;
      break;
    case config::LogLevel::kWarning:
      level = log::Level::kWarning;
      break;
    case config::LogLevel::kError:
      level = log::Level::kError;
      break;
  }
  log::configure_logging(
      level, settings.log_format == config::LogFormat::kJson ? log::Format::kJson : log::Format::kText);
}

}  // namespace gpulet::agent

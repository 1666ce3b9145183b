#include "agent/node.h"
#include "base/log.h"

namespace gpulet::agent {

void configure_log(const config::Own& settings) {
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
  log::configure(level,
                 settings.log_format == config::LogFormat::kJson ? log::Format::kJson : log::Format::kText);
}

}  // namespace gpulet::agent

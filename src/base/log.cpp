#include "base/log.h"

// fmt's code is compiled into this one file: no library of gpulet links fmt's.
#define FMT_HEADER_ONLY
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cctype>
#include <mutex>
#include <nlohmann/json.hpp>

namespace gpulet::log {
namespace {

struct Output {
  std::shared_ptr<spdlog::logger> logger;
  Format format = Format::kText;
};

Output& output() {
  static Output out = [] {
    Output made;
    made.logger =
        std::make_shared<spdlog::logger>("gpulet", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made.logger->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l %v", spdlog::pattern_time_type::utc);
    made.logger->flush_on(spdlog::level::debug);
    return made;
  }();
  return out;
}

spdlog::level::level_enum spdlog_level(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

// JSON quoting also for the text form: one line, whatever a driver or a user put into the value.
std::string quote(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// A message in the text form: one line, too.
std::string escape_controls(std::string_view message) {
  if (std::ranges::none_of(message, [](unsigned char c) { return std::iscntrl(c) != 0; }))
    return std::string(message);
  const auto quoted = quote(message);
  return quoted.substr(1, quoted.size() - 2);
}

bool needs_no_quotes(std::string_view text) {
  if (text.empty()) return false;
  for (const char c : text) {
    if (!std::isgraph(static_cast<unsigned char>(c)) || c == '"' || c == '=') return false;
  }
  return true;
}

void write_log_line(Level level, std::string_view message, const Error* cause, Fields fields) {
  auto& out = output();
  const auto target = spdlog_level(level);
  if (!out.logger->should_log(target)) return;
  std::string line;
  const bool json = out.format == Format::kJson;
  auto add = [&](std::string_view key, std::string_view value, bool quoted) {
    if (json) {
      line += ',' + quote(key) + ':' + (quoted ? quote(value) : std::string(value));
    } else {
      line += ' ' + std::string(key) + '=' +
              (!quoted || needs_no_quotes(value) ? std::string(value) : quote(value));
    }
  };
  line = json ? "\"message\":" + quote(message) : escape_controls(message);
  for (const auto& field : fields) add(field.key, field.value, field.quoted);
  if (cause != nullptr) {
    add("error", cause->full_message(), true);
    add("code", code_name(cause->code()), true);
  }
  if (json) line += '}';
  out.logger->log(target, spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace

void configure_logging(Level level, Format format) {
  auto& out = output();
  out.format = format;
  out.logger->set_level(spdlog_level(level));
  out.logger->set_pattern(format == Format::kJson ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",%v)"
                                                  : "%Y-%m-%dT%H:%M:%S.%eZ %l %v",
                          spdlog::pattern_time_type::utc);
}

void debug(std::string_view message, Fields fields) {
  write_log_line(Level::kDebug, message, nullptr, fields);
}
void info(std::string_view message, Fields fields) { write_log_line(Level::kInfo, message, nullptr, fields); }
void warning(std::string_view message, Fields fields) {
  write_log_line(Level::kWarning, message, nullptr, fields);
}
void error(std::string_view message, Fields fields) {
  write_log_line(Level::kError, message, nullptr, fields);
}
void warning(std::string_view message, const Error& cause, Fields fields) {
  write_log_line(Level::kWarning, message, &cause, fields);
}
void error(std::string_view message, const Error& cause, Fields fields) {
  write_log_line(Level::kError, message, &cause, fields);
}

}  // namespace gpulet::log

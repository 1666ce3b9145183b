// The log: one line per event, as text or JSON, on standard error. Only log.cpp uses spdlog.
//
//   log::info("registered", {{"resource", "nvidia.com/gpu"}, {"devices", 8}});
//
// The message is a constant phrase and fields have the variable parts, so that lines can be searched and
// counted. An error is logged once, by whoever decides what to do about it. Any thread.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gpulet::log {

enum class Level { kDebug, kInfo, kWarning, kError };
enum class Format { kText, kJson };

// Sets level and format of the process. Default: info, text.
void configure_logging(Level level, Format format);

struct Field {
  Field(std::string_view field_key, std::string_view text) : key(field_key), value(text) {}
  Field(std::string_view field_key, const char* text) : key(field_key), value(text) {}
  Field(std::string_view field_key, const std::string& text) : key(field_key), value(text) {}
  Field(std::string_view field_key, bool flag)
      : key(field_key), value(flag ? "true" : "false"), quoted(false) {}
  template <class Number>
    requires std::is_arithmetic_v<Number>
  Field(std::string_view field_key, Number number)
      : key(field_key), value(std::to_string(number)), quoted(false) {}

  std::string_view key;
  std::string value;
  bool quoted = true;  // false: a number or a boolean in JSON
};
using Fields = std::initializer_list<Field>;

void debug(std::string_view message, Fields fields = {});
void info(std::string_view message, Fields fields = {});
void warning(std::string_view message, Fields fields = {});
void error(std::string_view message, Fields fields = {});
// Adds the fields "error" (full_message) and "code".
void warning(std::string_view message, const Error& error, Fields fields = {});
void error(std::string_view message, const Error& error, Fields fields = {});

}  // namespace gpulet::log

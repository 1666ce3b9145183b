#include "cluster/objects.h"

#include <algorithm>
#include <cctype>
#include <ctime>
#include <nlohmann/json.hpp>

namespace gpulet::cluster {

using nlohmann::json;

bool is_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
  });
}

std::string in_query(std::string_view text) {
  constexpr const char* kHex = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (std::isalnum(code) != 0 || c == '-' || c == '.' || c == '_') {
      out += c;
    } else {
      out += {'%', kHex[code >> 4], kHex[code & 15]};
    }
  }
  return out;
}

std::string rfc3339(WallTime time) {
  const auto seconds = std::chrono::system_clock::to_time_t(time);
  tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string shortened(std::string text, std::size_t limit) {
  if (text.size() <= limit) return text;
  std::size_t end = limit;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text;
}

const json& member(const json& object, const char* name) {
  static const json none;
  if (!object.is_object()) return none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

std::string text_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : std::string();
}

std::map<std::string, std::string> texts_of(const nlohmann::json& metadata, const char* field) {
  std::map<std::string, std::string> texts;
  const auto& given = member(metadata, field);
  if (!given.is_object()) return texts;
  for (const auto& [key, value] : given.items()) texts[key] = text_of(value);
  return texts;
}

std::string body_of(const json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string said(const ApiResponse& response) {
  const auto status = json::parse(response.body, nullptr, false);
  std::string message = text_of(member(status, "message"));
  // Where a budget is behind it, its name is in the cause.
  const auto& causes = member(member(status, "details"), "causes");
  if (causes.is_array() && !causes.empty()) {
    const std::string cause = text_of(member(causes.front(), "message"));
    if (!cause.empty()) message += (message.empty() ? "" : " ") + cause;
  }
  return "the API server answered " + std::to_string(response.status) +
         (message.empty() ? "" : ": " + shortened(std::move(message), 300));
}

bool has_cause(const ApiResponse& response, std::string_view reason) {
  const auto status = json::parse(response.body, nullptr, false);
  const auto& causes = member(member(status, "details"), "causes");
  return causes.is_array() && std::ranges::any_of(causes, [&](const json& cause) {
           return text_of(member(cause, "reason")) == reason;
         });
}

}  // namespace gpulet::cluster

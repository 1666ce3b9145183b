#include "k8s/objects.h"

#include <algorithm>
#include <cctype>
#include <ctime>
#include <limits>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text.h"

namespace gpulet::k8s {

using nlohmann::json;

std::string encode_query_value(std::string_view text) {
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

std::optional<WallTime> parse_rfc3339(const std::string& text) {
  constexpr std::size_t kSeconds = 19;
  if (text.size() <= kSeconds) return std::nullopt;
  const auto time = parse_wall_time(text.substr(0, kSeconds) + ".000Z");
  std::string zone = text.substr(kSeconds);
  if (zone.front() == '.') zone.erase(0, std::min(zone.find_first_not_of("0123456789", 1), zone.size()));
  if (!time || zone == "Z") return time;
  if (zone.size() != 6 || zone[3] != ':' || (zone[0] != '+' && zone[0] != '-')) return std::nullopt;
  const auto hours = text::parse_unsigned(zone.substr(1, 2)), minutes = text::parse_unsigned(zone.substr(4));
  if (!hours || !minutes || *hours > 23 || *minutes > 59) return std::nullopt;
  const auto ahead = std::chrono::minutes(*hours * 60 + *minutes);
  return zone[0] == '+' ? *time - ahead : *time + ahead;
}

std::string format_rfc3339(WallTime time) {
  const auto seconds = std::chrono::system_clock::to_time_t(time);
  tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string truncate_utf8(std::string text, std::size_t limit) {
  if (text.size() <= limit) return text;
  std::size_t end = limit;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text;
}

std::string sanitize_line(std::string text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool second_set = byte >= 0x80 && byte < 0xA0 && i > 0 && text[i - 1] == '\xC2';
    if (second_set) text[i - 1] = ' ';
    if (second_set || byte < ' ' || byte == 0x7f) text[i] = ' ';
  }
  return text;
}

std::map<std::string, std::string> json_text_map(const nlohmann::json& metadata, const char* field) {
  std::map<std::string, std::string> texts;
  const auto& given = json_member(metadata, field);
  if (!given.is_object()) return texts;
  for (const auto& [key, value] : given.items()) texts[key] = json_text(value);
  return texts;
}

std::string serialize_json(const json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string describe_response(const http::ClientResponse& response) {
  const auto status = parse_json(response.body);
  std::string message = json_text(json_member(status, "message"));
  // If a PodDisruptionBudget is the reason, the cause has its name.
  const auto& causes = json_member(json_member(status, "details"), "causes");
  if (causes.is_array() && !causes.empty()) {
    const std::string cause = json_text(json_member(causes.front(), "message"));
    if (!cause.empty()) message += (message.empty() ? "" : " ") + cause;
  }
  return "the API server answered " + std::to_string(response.status) +
         (message.empty() ? "" : ": " + sanitize_line(truncate_utf8(std::move(message), 300)));
}

bool has_cause(const http::ClientResponse& response, std::string_view reason) {
  const auto status = parse_json(response.body);
  const auto& causes = json_member(json_member(status, "details"), "causes");
  return causes.is_array() && std::ranges::any_of(causes, [&](const json& cause) {
           return json_text(json_member(cause, "reason")) == reason;
         });
}

namespace {

constexpr std::size_t kMaxKeyBytes = 1024;

Error not_json() { return Error(Code::kIo, "the API server returned something that is not a JSON object"); }

}  // namespace

JsonStream::JsonStream(std::size_t limit, std::function<void(std::string_view, std::string_view)> member,
                       std::function<void(std::string_view)> item)
    : limit_(limit), member_(std::move(member)), item_(std::move(item)) {}

Status JsonStream::feed(std::string_view bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    if (in_text_) {
      GPULET_TRY(consume_string(bytes, at));
    } else {
      GPULET_TRY(consume_char(bytes[at]));
      ++at;
    }
    if (value_.size() > limit_) {
      return fail(Code::kIo, "the API server sent an object above " + std::to_string(limit_) + " bytes");
    }
  }
  return {};
}

// Reads to the end of the string, or of the bytes.
Status JsonStream::consume_string(std::string_view bytes, std::size_t& at) {
  const std::size_t from = at;
  bool ended = false;
  while (at < bytes.size() && !ended) {
    const char c = bytes[at++];
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      ended = true;
    }
  }
  const auto part = bytes.substr(from, at - from);
  if (capturing_) value_ += part;
  if (depth_ == 1) text_ += part;
  if (text_.size() > kMaxKeyBytes) return fail(not_json());
  if (!ended) return {};
  in_text_ = false;
  if (depth_ != 1) return {};
  if (key_next_) {
    key_ = text_.substr(1, text_.size() - 2);
  } else if (member_) {
    member_(key_, text_);
  }
  return {};
}

Status JsonStream::consume_char(char c) {
  if (capturing_) value_ += c;
  switch (c) {
    case '"':
      if (depth_ == 0) return fail(not_json());
      in_text_ = true;
      if (depth_ == 1) text_ = "\"";
      return {};
    case ':':
      if (depth_ == 1) key_next_ = false;
      return {};
    case ',':
      if (depth_ == 1) key_next_ = true;
      return {};
    case '{':
    case '[':
      if (done_ || (depth_ == 0 && c != '{')) return fail(not_json());
      if (!capturing_ && c == '{' && ((depth_ == 1 && !key_next_) || (items_ && depth_ == 2))) {
        capturing_ = true;
        value_ = "{";
      }
      if (depth_ == 1 && c == '[' && key_ == "items") items_ = true;
      ++depth_;
      return {};
    case '}':
    case ']':
      return end_value();
    default:
      // A number, a literal or whitespace; only whitespace may surround the object.
      return depth_ == 0 && static_cast<unsigned char>(c) > ' ' ? Status(fail(not_json())) : Status();
  }
}

Status JsonStream::end_value() {
  if (depth_ == 0) return fail(not_json());
  --depth_;
  if (depth_ == 0) done_ = true;
  if (items_ && depth_ == 2 && capturing_) {
    capturing_ = false;
    if (item_) item_(value_);
    value_.clear();
  }
  if (depth_ != 1) return {};
  items_ = false;
  if (!capturing_) return {};
  capturing_ = false;
  if (member_) member_(key_, value_);
  value_.clear();
  return {};
}

std::string string_member(std::string_view object, std::string_view name) {
  std::string found;
  JsonStream members(
      std::numeric_limits<std::size_t>::max(),
      [&](std::string_view key, std::string_view value) {
        if (key == name && value.front() == '"') found = value.substr(1, value.size() - 2);
      },
      nullptr);
  return members.feed(object) ? found : std::string();
}

std::string metadata_string(std::string_view object, std::string_view name) {
  std::string found;
  JsonStream members(
      std::numeric_limits<std::size_t>::max(),
      [&](std::string_view key, std::string_view value) {
        if (key == "metadata") found = string_member(value, name);
      },
      nullptr);
  return members.feed(object) ? found : std::string();
}

}  // namespace gpulet::k8s

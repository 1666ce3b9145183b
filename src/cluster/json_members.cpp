#include "cluster/json_members.h"

#include <limits>

namespace gpulet::cluster {
namespace {

constexpr std::size_t kMaxKeyBytes = 1024;

Error not_json() { return Error(Code::kIo, "the API server answered with what is no JSON object"); }

}  // namespace

JsonMembers::JsonMembers(std::size_t limit, std::function<void(std::string_view, std::string_view)> member,
                         std::function<void(std::string_view)> item)
    : limit_(limit), member_(std::move(member)), item_(std::move(item)) {}

Status JsonMembers::feed(std::string_view bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    if (in_text_) {
      GPULET_TRY(in_text(bytes, at));
    } else {
      GPULET_TRY(take(bytes[at]));
      ++at;
    }
    if (value_.size() > limit_) {
      return fail(Code::kIo, "the API server sent an object above " + std::to_string(limit_) + " bytes");
    }
  }
  return {};
}

// To the end of the text, or of the bytes.
Status JsonMembers::in_text(std::string_view bytes, std::size_t& at) {
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

Status JsonMembers::take(char c) {
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
      return ends();
    default:
      // A number, a word or a blank; before and after the object there are blanks only.
      return depth_ == 0 && static_cast<unsigned char>(c) > ' ' ? Status(fail(not_json())) : Status();
  }
}

Status JsonMembers::ends() {
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

std::string text_member(std::string_view object, std::string_view name) {
  std::string found;
  JsonMembers members(
      std::numeric_limits<std::size_t>::max(),
      [&](std::string_view key, std::string_view value) {
        if (key == name && value.front() == '"') found = value.substr(1, value.size() - 2);
      },
      nullptr);
  return members.feed(object) ? found : std::string();
}

std::string metadata_text(std::string_view object, std::string_view name) {
  std::string found;
  JsonMembers members(
      std::numeric_limits<std::size_t>::max(),
      [&](std::string_view key, std::string_view value) {
        if (key == "metadata") found = text_member(value, name);
      },
      nullptr);
  return members.feed(object) ? found : std::string();
}

}  // namespace gpulet::cluster

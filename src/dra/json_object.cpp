#include "dra/json_object.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace gpulet::dra {
namespace {

constexpr std::size_t kMaxShownBytes = 40;

// A short form of the value, for a message of one line.
std::string describe_value(const nlohmann::json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMaxShownBytes) text = text.substr(0, kMaxShownBytes) + "…";
  return text;
}

}  // namespace

Error wrong_type(const std::string& path, std::string_view expected, const nlohmann::json& found) {
  return Error(Code::kInvalidArgument,
               path + ": expected " + std::string(expected) + ", found " + describe_value(found));
}

Result<JsonObject> JsonObject::from_value(const nlohmann::json& value, std::string path) {
  if (!value.is_object()) return fail(wrong_type(path.empty() ? "text" : path, "an object", value));
  return JsonObject(value, std::move(path));
}

std::string JsonObject::field_path(std::string_view name) const {
  return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
}

const nlohmann::json* JsonObject::member(const char* name) const {
  const auto& found = json_member(*value_, name);
  return found.is_null() ? nullptr : &found;
}

Result<std::optional<std::string>> JsonObject::optional_text(const char* name) const {
  const auto* found = member(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is_string()) return fail(wrong_type(field_path(name), "text", *found));
  return found->get<std::string>();
}

Result<std::optional<bool>> JsonObject::optional_bool(const char* name) const {
  const auto* found = member(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is_boolean()) return fail(wrong_type(field_path(name), "true or false", *found));
  return found->get<bool>();
}

Result<std::optional<std::int64_t>> JsonObject::optional_integer(const char* name) const {
  const auto* found = member(name);
  if (found == nullptr) return std::nullopt;
  const bool fits = found->is_number_integer() &&
                    !(found->is_number_unsigned() && found->get<std::uint64_t>() > std::uint64_t{INT64_MAX});
  if (!fits) return fail(wrong_type(field_path(name), "a whole number", *found));
  return found->get<std::int64_t>();
}

Result<std::optional<JsonObject>> JsonObject::optional_object(const char* name) const {
  const auto* found = member(name);
  if (found == nullptr) return std::nullopt;
  GPULET_TRY_ASSIGN(JsonObject object, from_value(*found, field_path(name)));
  return object;
}

Result<std::string> JsonObject::required_text(const char* name) const {
  GPULET_TRY_ASSIGN(auto text, optional_text(name));
  if (!text || text->empty()) return fail(Code::kInvalidArgument, field_path(name) + ": required, not set");
  return *text;
}

Result<const nlohmann::json*> JsonObject::list(const char* name, std::size_t most) const {
  const auto* found = member(name);
  if (found == nullptr) return nullptr;
  if (!found->is_array()) return fail(wrong_type(field_path(name), "a list", *found));
  if (found->size() > most) {
    return fail(Code::kInvalidArgument, field_path(name) + ": expected at most " + std::to_string(most) +
                                            " items, found " + std::to_string(found->size()));
  }
  return found;
}

Result<std::vector<JsonObject>> JsonObject::objects(const char* name, std::size_t most) const {
  GPULET_TRY_ASSIGN(const nlohmann::json* items, list(name, most));
  std::vector<JsonObject> all;
  for (std::size_t i = 0; items != nullptr && i < items->size(); ++i) {
    GPULET_TRY_ASSIGN(JsonObject object,
                      from_value((*items)[i], field_path(name) + "[" + std::to_string(i) + "]"));
    all.push_back(std::move(object));
  }
  return all;
}

Result<std::vector<std::string>> JsonObject::texts(const char* name, std::size_t most) const {
  GPULET_TRY_ASSIGN(const nlohmann::json* items, list(name, most));
  std::vector<std::string> all;
  for (std::size_t i = 0; items != nullptr && i < items->size(); ++i) {
    const auto& item = (*items)[i];
    if (!item.is_string()) {
      return fail(wrong_type(field_path(name) + "[" + std::to_string(i) + "]", "text", item));
    }
    all.push_back(item.get<std::string>());
  }
  return all;
}

Status JsonObject::reject_unknown_fields(std::initializer_list<std::string_view> known) const {
  for (const auto& item : value_->items()) {
    if (std::ranges::find(known, item.key()) == known.end()) {
      std::string expected;
      for (const auto name : known) expected += (expected.empty() ? "" : ", ") + std::string(name);
      return fail(Code::kInvalidArgument,
                  field_path(item.key()) + ": unknown field \"" + item.key() + "\", expected " + expected);
    }
  }
  return {};
}

}  // namespace gpulet::dra

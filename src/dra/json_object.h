// Reads members of JSON objects that others wrote. A member of the wrong type is an error that names the
// field, what was found and what was expected. null counts as absent, as in Kubernetes' own decoder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration

#include "base/result.h"

namespace gpulet::dra {

// One object and the path of its field, such as "status.allocation". The JSON value must outlive it.
// Every member function returns kInvalidArgument for a mistake. Pure.
class JsonObject {
 public:
  static Result<JsonObject> from_value(const nlohmann::json& value, std::string path);

  // The field's path: "status.allocation.devices".
  std::string field_path(std::string_view name) const;
  // nullptr where the member is absent or null.
  const nlohmann::json* member(const char* name) const;

  // nullopt where the member is absent.
  Result<std::optional<std::string>> optional_text(const char* name) const;
  Result<std::optional<bool>> optional_bool(const char* name) const;
  // A whole number that fits an int64.
  Result<std::optional<std::int64_t>> optional_integer(const char* name) const;
  Result<std::optional<JsonObject>> optional_object(const char* name) const;
  // An absent or empty text is an error.
  Result<std::string> required_text(const char* name) const;
  // Empty where the member is absent. Errors: also more than `most` items.
  Result<std::vector<JsonObject>> objects(const char* name, std::size_t most) const;
  Result<std::vector<std::string>> texts(const char* name, std::size_t most) const;

  // Errors: a member that is not one of `known`.
  Status reject_unknown_fields(std::initializer_list<std::string_view> known) const;

  const nlohmann::json& value() const { return *value_; }
  const std::string& path() const { return path_; }

 private:
  JsonObject(const nlohmann::json& value, std::string path) : value_(&value), path_(std::move(path)) {}
  // nullptr where the member is absent.
  Result<const nlohmann::json*> list(const char* name, std::size_t most) const;

  const nlohmann::json* value_;
  std::string path_;
};

// "spec.pool: expected text, found 5".
Error wrong_type(const std::string& path, std::string_view expected, const nlohmann::json& found);

}  // namespace gpulet::dra

// Reads fields of YAML mappings and collects every mistake with its place, so that one run reports all of
// them. The readers of `resources`, `sharing` and `gpulet.partition` are built on it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "config/schema.h"
#include "config/yaml.h"

namespace gpulet::config {

class Problems {
 public:
  Problems(std::string file, bool drop_in) : file_(std::move(file)), drop_in_(drop_in) {}

  // Drop-in mode: as lenient as NVIDIA's plugin.
  bool drop_in() const { return drop_in_; }
  const std::string& file_path() const { return file_; }
  bool full() const { return errors_.size() >= kMaxProblems; }

  // "file:3:5: field: message", one line: a line break of a key or value is shown as "\n".
  void add_error(yaml::Position position, const std::string& field, const std::string& message) {
    add_error(yaml::position_text(file_, position), field.empty() ? message : field + ": " + message);
  }
  void add_error(const std::string& about, const std::string& message) {
    if (!full()) errors_.emplace_back(Code::kInvalidArgument, one_line(message), about);
  }
  void add_warning(yaml::Position position, const std::string& field, const std::string& message) {
    add_warning(yaml::position_text(file_, position) + ": " +
                (field.empty() ? message : field + ": " + message));
  }
  void add_warning(const std::string& message) {
    if (warnings_.size() < kMaxProblems) warnings_.push_back(one_line(message));
  }
  // For mistakes that NVIDIA's plugin tolerates: a warning in drop-in mode, else an error.
  void add_lenient(yaml::Position position, const std::string& field, const std::string& message) {
    drop_in_ ? add_warning(position, field, message) : add_error(position, field, message);
  }

  std::vector<Error> take_errors() { return std::move(errors_); }
  std::vector<std::string> take_warnings() { return std::move(warnings_); }

 private:
  static constexpr std::size_t kMaxProblems = 100;  // of either
  static std::string one_line(const std::string& message);
  std::string file_;
  bool drop_in_;
  std::vector<Error> errors_;
  std::vector<std::string> warnings_;
};

// The functions below add mistakes to `problems` and then return nothing.

// Limit of replicas per GPU: each is a device to the kubelet, and device lists are sent whole.
inline constexpr unsigned kMaxReplicas = 4096;

// The values of a mapping by key; null if absent or null. Unknown keys are mistakes.
class MappingReader {
 public:
  MappingReader(const yaml::Node& node, std::string section, std::vector<std::string> keys,
                Problems& problems);
  const yaml::Node* operator[](std::string_view key) const;
  std::string field_path(std::string_view key) const { return section_ + "." + std::string(key); }

 private:
  std::string section_;
  std::vector<std::string> keys_;
  std::vector<const yaml::Node*> values_;
};

// Whether the node is of the kind; `name` describes it in the error ("a list").
bool expect_kind(yaml::Node::Kind kind, const char* name, const yaml::Node& node, const std::string& field,
                 Problems& problems);

std::optional<std::string> read_text(const yaml::Node& node, const std::string& field, Problems& problems);
std::optional<bool> read_bool(const yaml::Node& node, const std::string& field, Problems& problems);
std::optional<ResourceName> read_name(const yaml::Node& node, const std::string& field, Problems& problems);
// At least 2 and at most kMaxReplicas.
std::optional<unsigned> read_replicas(const yaml::Node& node, const std::string& field, Problems& problems,
                                      unsigned least = 2);

// "0f1e2d3c-…": 8-4-4-4-12 hexadecimal digits.
bool is_hexadecimal_uuid(std::string_view text);

// The entry of `keys` that matches: equal or, in drop-in mode with `any_case`, equal ignoring case as in Go's
// JSON, with a warning. Otherwise reports the unknown key with the nearest one and returns an empty view.
std::string_view match_key(const yaml::Entry& entry, const std::string& section,
                           std::span<const std::string> keys, bool any_case, Problems& problems);

// "expected a list, found 'x'": the error about a node of the wrong kind.
std::string expected_but_found(std::string_view expected, const yaml::Node& node);

//

// Parses the texts of a flag or a variable: the last one counts, or all of them for a list. Errors:
// kInvalidArgument if a text is not of the setting's kind.
Result<Value> value_from_text(const Setting& setting, const std::vector<std::string>& given);

// Parses a node of the file. Errors: kInvalidArgument, "expected …, found …". Precondition: node is not null.
Result<Value> value_from_node(const Setting& setting, const yaml::Node& node);

// Checks a value of the right kind; returns one line if it is invalid: not a choice, out of range, not
// host:port. `discovery`: for gpu-feature-discovery, which takes a choice more.
std::optional<std::string> value_error(const Setting& setting, const Value& value, bool discovery);

}  // namespace gpulet::config

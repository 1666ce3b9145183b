// How a document's tree is read into values: each field by its own reader, and every mistake kept with its
// place. Inside this room only.
#pragma once

#include <algorithm>
#include <charconv>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "cdi/validate.h"

namespace gpulet::cdi {

using config::yaml::Node;
using config::yaml::Position;

// A plain word that YAML reads as a number, a boolean or nothing.
inline bool is_number(const Node& node) {
  if (!node.plain || node.scalar.empty()) return false;
  double ignored = 0;
  const char* end = node.scalar.data() + node.scalar.size();
  const auto read = std::from_chars(node.scalar.data(), end, ignored);
  return read.ec == std::errc{} && read.ptr == end;
}
inline bool is_bool(const Node& node) {
  return node.plain && (node.scalar == "true" || node.scalar == "false");
}

class Reader {
 public:
  explicit Reader(const std::string& file) : file_(file) {}

  std::vector<SpecProblem> problems;

  void wrong(const Node& node, const std::string& field, std::string message) {
    problems.push_back({file_, node.position, field, std::move(message)});
  }
  void wrong(Position position, const std::string& field, std::string message) {
    problems.push_back({file_, position, field, std::move(message)});
  }

  struct Field {
    std::string_view key;
    std::function<void(const Node&, const std::string&)> read;
    bool required = false;
  };

  // The members of a mapping, each by its reader.
  void object(const Node& node, const std::string& field, std::span<const Field> fields) {
    if (node.kind != Node::Kind::kMapping) return wrong(node, field, "an object is wanted");
    for (const auto& entry : node.entries) {
      const auto found = std::ranges::find(fields, entry.key, &Field::key);
      const std::string name = field.empty() ? entry.key : field + "." + entry.key;
      if (found == fields.end()) {
        unknown(entry, name, fields);
      } else if (entry.value.kind != Node::Kind::kNull) {
        found->read(entry.value, name);
      } else if (found->required) {
        wrong(entry.value, name, "is empty");
      }
    }
    for (const auto& wanted : fields) {
      const bool there =
          std::ranges::any_of(node.entries, [&](const auto& e) { return e.key == wanted.key; });
      if (wanted.required && !there) {
        wrong(node, field.empty() ? std::string(wanted.key) : field + "." + std::string(wanted.key),
              "is missing");
      }
    }
  }

  void list(const Node& node, const std::string& field,
            const std::function<void(const Node&, const std::string&)>& read) {
    if (node.kind != Node::Kind::kSequence) return wrong(node, field, "a list is wanted");
    for (std::size_t i = 0; i < node.items.size(); ++i) {
      read(node.items[i], field + "[" + std::to_string(i) + "]");
    }
  }

  auto text(std::string& to) {
    return [this, &to](const Node& node, const std::string& field) {
      if (node.kind != Node::Kind::kScalar || is_number(node) || is_bool(node)) {
        return wrong(node, field, "a text is wanted" + quoted_hint(node));
      }
      to = node.scalar;
    };
  }
  auto texts(std::vector<std::string>& to) {
    return [this, &to](const Node& node, const std::string& field) {
      list(node, field,
           [&](const Node& item, const std::string& name) { text(to.emplace_back())(item, name); });
    };
  }
  template <class T>
  auto number(T& to, std::int64_t low, std::int64_t high) {
    return [this, &to, low, high](const Node& node, const std::string& field) {
      std::int64_t value = 0;
      const char* end = node.scalar.data() + node.scalar.size();
      const auto read = std::from_chars(node.scalar.data(), end, value);
      if (node.kind != Node::Kind::kScalar || !node.plain || node.scalar.empty() ||
          (node.scalar.size() > 1 && node.scalar.front() == '0') || read.ec != std::errc{} ||
          read.ptr != end || value < low || value > high) {
        return wrong(
            node, field,
            "a whole number from " + std::to_string(low) + " to " + std::to_string(high) + " is wanted");
      }
      if constexpr (requires { to.emplace(); }) {
        to = static_cast<typename T::value_type>(value);
      } else {
        to = static_cast<T>(value);
      }
    };
  }
  auto flag(bool& to) {
    return [this, &to](const Node& node, const std::string& field) {
      if (node.kind != Node::Kind::kScalar || !is_bool(node)) {
        return wrong(node, field, "true or false is wanted");
      }
      to = node.scalar == "true";
    };
  }

 private:
  static std::string quoted_hint(const Node& node) {
    return node.kind == Node::Kind::kScalar ? ": put '" + node.scalar + "' in quotes" : "";
  }

  void unknown(const config::yaml::Entry& entry, const std::string& name, std::span<const Field> fields) {
    std::vector<std::string> keys;
    for (const auto& field : fields) keys.emplace_back(field.key);
    const auto near = text::nearest(entry.key, keys);
    wrong(entry.position, name, "there is no such field" + (near ? "; did you mean " + *near + "?" : ""));
  }

  std::string file_;
};

}  // namespace gpulet::cdi

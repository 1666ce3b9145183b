// Writes YAML in block style, with one quoting rule for every document that gpulet writes: a text is bare
// only if every reader of YAML 1.1 and 1.2 takes it as that text, and is in double quotes otherwise.
//
//   YamlNode root;
//   root.add("version", YamlNode::text("v1"));
//   root.add("devices", YamlNode::list()).items.push_back(YamlNode::bare("0"));
//   write_yaml(root);  // "version: v1\ndevices:\n  - 0\n"
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpulet {

struct YamlNode {
  enum class Kind {
    kMapping,
    kList,
    kText,  // quoted if needed
    kBare,  // written as it is: a number, a boolean
  };
  Kind kind = Kind::kMapping;
  std::string scalar;                                       // of kText and kBare
  std::vector<YamlNode> items;                              // of a list
  std::vector<std::pair<std::string, YamlNode>> members{};  // of a mapping, in order
  std::string comment{};  // behind the first line; a line break in it becomes '?'
  bool flow = false;      // a list of scalars on one line: "[0, 1]"

  static YamlNode text(std::string scalar) { return {Kind::kText, std::move(scalar), {}}; }
  static YamlNode bare(std::string scalar) { return {Kind::kBare, std::move(scalar), {}}; }
  static YamlNode list() { return {Kind::kList, {}, {}}; }

  bool is_scalar() const { return kind == Kind::kText || kind == Kind::kBare; }
  // Appends a member and returns it; the reference holds until the next add().
  YamlNode& add(std::string key, YamlNode value) {
    return members.emplace_back(std::move(key), std::move(value)).second;
  }
};

// Nested content is indented to the next multiple of `indent`: 2 as kubectl, 4 as Go's YAML encoder.
// Precondition: `root` is a mapping.
std::string write_yaml(const YamlNode& root, std::size_t indent = 2);

// `text` as a YAML scalar: bare or in double quotes.
std::string yaml_scalar(std::string_view text);

// `text` in double quotes with the escapes that JSON and YAML share.
std::string quoted_text(std::string_view text);

}  // namespace gpulet

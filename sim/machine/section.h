// Reading a YAML mapping strictly: each key is asked for by name and kind, and what nobody asked for is an
// error that offers the nearest key. The first problem is kept, with its place in the text and the field's
// path; reading goes on with the values that stood before, so that a reader needs no branch for each field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "config/yaml.h"
#include "sim/state/state.h"

namespace gpulet::sim {

using config::yaml::Node;

class Problem {
 public:
  explicit Problem(std::string file) : file_(std::move(file)) {}
  // "hgx.yaml:3:5: gpus.count: 'x' is no whole number from 1 to 64". Only the first is kept.
  void report(const Node& node, const std::string& path, const std::string& message);
  void report(config::yaml::Position position, const std::string& path, const std::string& message);
  bool any() const { return first_.has_value(); }
  Status status() const;
  // Text from another file (a built-in model) is read through the same problem.
  std::string swap_file(std::string file) { return std::exchange(file_, std::move(file)); }

 private:
  std::string file_;
  std::optional<Error> first_;
};

struct Range {
  std::int64_t min;
  std::int64_t max;
};

// Values. nullopt after reporting what would do.
std::optional<std::int64_t> read_integer(Problem& problem, const Node& node, const std::string& path,
                                         Range range);
std::optional<std::string> read_text(Problem& problem, const Node& node, const std::string& path,
                                     std::size_t max_length);
std::optional<bool> read_flag(Problem& problem, const Node& node, const std::string& path);
// "0x233010DE": device << 16 | vendor.
std::optional<std::uint32_t> read_pci_id(Problem& problem, const Node& node, const std::string& path);
// "0000:1b:00.0".
std::optional<PciAddress> read_pci_address(Problem& problem, const Node& node, const std::string& path);
// A sequence of whole numbers.
std::vector<std::int64_t> read_integers(Problem& problem, const Node& node, const std::string& path,
                                        Range range);
// One of `names`: its place in the list.
std::optional<std::size_t> read_choice(Problem& problem, const Node& node, const std::string& path,
                                       const std::vector<std::string>& names);

class Section {
 public:
  // Reports when `node` is no mapping; nothing is then found in it.
  Section(Problem& problem, const Node& node, std::string path);

  // The value of a key, null when it is absent (for need(): after reporting that).
  const Node* take(const std::string& key);
  const Node* need(const std::string& key);
  // "gpus.count".
  std::string path(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

  // Each leaves `value` as it is when the key is absent.
  template <class Number>
  void integer(const std::string& key, Number& value, Range range) {
    if (const Node* node = take(key)) {
      if (const auto read = read_integer(problem_, *node, path(key), range))
        value = static_cast<Number>(*read);
    }
  }
  template <std::size_t kSize>
  void text(const std::string& key, char (&value)[kSize]) {
    if (const Node* node = take(key)) {
      if (const auto read = read_text(problem_, *node, path(key), kSize - 1)) set_text(value, *read);
    }
  }
  template <class Number>
  void flag(const std::string& key, Number& value) {
    if (const Node* node = take(key)) {
      if (const auto read = read_flag(problem_, *node, path(key))) value = *read ? 1 : 0;
    }
  }
  void pci_id(const std::string& key, std::uint32_t& value);
  // The place in `names` goes through `numbers` (as long as `names`).
  template <class Number>
  void choice(const std::string& key, Number& value, const std::vector<std::string>& names,
              const std::vector<std::uint32_t>& numbers) {
    if (const Node* node = take(key)) {
      if (const auto read = read_choice(problem_, *node, path(key), names))
        value = static_cast<Number>(numbers[*read]);
    }
  }

  // Reports the first key that was not asked for.
  void finish();

 private:
  Problem& problem_;
  const Node& node_;
  std::string path_;
  std::vector<std::string> asked_;
};

}  // namespace gpulet::sim

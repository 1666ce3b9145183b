// GPU models (names, clocks, limits, MIG profiles) and the links between a machine's GPUs: NVLink, directly
// or through NVSwitches, and the PCIe topology. docs/SIMULATOR.md lists the keys. All are
// read through Section, a strict reader of YAML mappings (model_section.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "config/yaml.h"
#include "sim/state/state.h"

namespace gpulet::sim {

// Strict reading of YAML mappings: each key is read by name and type, and an unread key is an error that
// suggests the nearest key. The first error is stored with its position and the field's path; reading
// continues with the previous values, so that callers need no branch per field.

using config::yaml::Node;

class FirstError {
 public:
  explicit FirstError(std::string file) : file_(std::move(file)) {}
  // "hgx.yaml:3:5: gpus.count: 'x' is not an integer from 1 to 64". Only the first is stored.
  void report_error(const Node& node, const std::string& path, const std::string& message);
  void report_error(config::yaml::Position position, const std::string& path, const std::string& message);
  bool has_error() const { return first_.has_value(); }
  Status to_status() const;
  // Errors of another file (a built-in model) go to the same object.
  std::string swap_file(std::string file) { return std::exchange(file_, std::move(file)); }

 private:
  std::string file_;
  std::optional<Error> first_;
};

struct Range {
  std::int64_t min;
  std::int64_t max;
};

// Parse values. On an error, report what is expected and return nullopt.
std::optional<std::int64_t> read_integer(FirstError& problem, const Node& node, const std::string& path,
                                         Range range);
std::optional<std::string> read_bounded_text(FirstError& problem, const Node& node, const std::string& path,
                                             std::size_t max_length);
std::optional<bool> read_flag(FirstError& problem, const Node& node, const std::string& path);
// "0x233010DE": device << 16 | vendor.
std::optional<std::uint32_t> read_pci_id(FirstError& problem, const Node& node, const std::string& path);
// "0000:1b:00.0".
std::optional<PciAddress> read_pci_address(FirstError& problem, const Node& node, const std::string& path);
// A sequence of integers.
std::vector<std::int64_t> read_integers(FirstError& problem, const Node& node, const std::string& path,
                                        Range range);
// One of `names`: its index.
std::optional<std::size_t> read_choice(FirstError& problem, const Node& node, const std::string& path,
                                       const std::vector<std::string>& names);

class Section {
 public:
  // Reports an error if `node` is not a mapping; then no key is found.
  Section(FirstError& problem, const Node& node, std::string path);

  // Return the value of a key, null if absent; require_key then reports an error.
  const Node* find_key(const std::string& key);
  const Node* require_key(const std::string& key);
  // "gpus.count".
  std::string key_path(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

  // Each leaves `value` unchanged if the key is absent.
  template <class Number>
  void integer_key(const std::string& key, Number& value, Range range) {
    if (const Node* node = find_key(key)) {
      if (const auto read = read_integer(errors_, *node, key_path(key), range))
        value = static_cast<Number>(*read);
    }
  }
  template <std::size_t kSize>
  void text_key(const std::string& key, char (&value)[kSize]) {
    if (const Node* node = find_key(key)) {
      if (const auto read = read_bounded_text(errors_, *node, key_path(key), kSize - 1))
        set_text(value, *read);
    }
  }
  template <class Number>
  void flag_key(const std::string& key, Number& value) {
    if (const Node* node = find_key(key)) {
      if (const auto read = read_flag(errors_, *node, key_path(key))) value = *read ? 1 : 0;
    }
  }
  void pci_id_key(const std::string& key, std::uint32_t& value);
  // Maps the index in `names` through `numbers` (of the same length).
  template <class Number>
  void choice_key(const std::string& key, Number& value, const std::vector<std::string>& names,
                  const std::vector<std::uint32_t>& numbers) {
    if (const Node* node = find_key(key)) {
      if (const auto read = read_choice(errors_, *node, key_path(key), names))
        value = static_cast<Number>(numbers[*read]);
    }
  }

  // Reports the first key that was not read.
  void report_unknown_keys();

 private:
  FirstError& errors_;
  const Node& node_;
  std::string path_;
  std::vector<std::string> read_keys_;
};

// Models and links.

struct NvLinkKind {
  std::uint8_t version = 0;  // nvml.h's number: 6 for 4.0; 0: no NVLink
  std::uint32_t speed_mbps = 0;
};
using NvLinkKinds = std::array<NvLinkKind, kMaxGpus>;

// Parses `links: {matrix: [[0, 1], [1, 0]]}`, a symmetric count per pair; or `links: {nvswitch: 18}`; or
// `links: {nvswitch: {links: 18, switches: [address...], device_id: 0x22A310DE, boards: 1}}`.
void read_links(FirstError& problem, Section& machine_section, Machine& machine, const NvLinkKinds& kinds);

// Parses `topology: {single: [[0, 1]], multiple: ..., host_bridge: ...}`: groups of GPUs by their closest
// connection. Other pairs share a NUMA node or the system.
void read_topology(FirstError& problem, Section& machine_section, Machine& machine);

// Returns a GPU that reports nothing yet.
Gpu blank_gpu();

// Parses the model's keys of `section` into `gpu`. Absent keys leave it unchanged, so that a GPU can override
// single keys. `link` receives the kind of NVLink. The caller reports unknown keys.
void read_model(FirstError& problem, Section& section, Gpu& gpu, NvLinkKind& link);

// Derives what depends on the other fields: events, idle state.
void complete_gpu(Gpu& gpu);

}  // namespace gpulet::sim

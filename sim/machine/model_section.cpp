#include "sim/machine/model.h"

#include <algorithm>
#include <charconv>

#include "base/text.h"

namespace gpulet::sim {
namespace {

constexpr std::size_t kQuotedLength = 40;

std::string quote_value(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull:
      return "nothing";
    case Node::Kind::kSequence:
      return "a list";
    case Node::Kind::kMapping:
      return "a mapping";
    case Node::Kind::kScalar:
      break;
  }
  return "'" + node.scalar.substr(0, kQuotedLength) + "'";
}

std::optional<std::uint64_t> parse_hex_digits(std::string_view text, std::size_t max_digits) {
  std::uint64_t value = 0;
  if (text.empty() || text.size() > max_digits) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

void FirstError::report_error(config::yaml::Position position, const std::string& path,
                              const std::string& message) {
  if (first_) return;
  const std::string text = path.empty() ? message : path + ": " + message;
  first_ = Error(Code::kInvalidArgument, text, config::yaml::position_text(file_, position));
}

void FirstError::report_error(const Node& node, const std::string& path, const std::string& message) {
  report_error(node.position, path, message);
}

Status FirstError::to_status() const {
  if (first_) return fail(*first_);
  return {};
}

std::optional<std::int64_t> read_integer(FirstError& problem, const Node& node, const std::string& path,
                                         Range range) {
  std::int64_t value = 0;
  const char* end = node.scalar.data() + node.scalar.size();
  const auto [stopped, error] = std::from_chars(node.scalar.data(), end, value);
  if (node.kind == Node::Kind::kScalar && error == std::errc() && stopped == end && value >= range.min &&
      value <= range.max) {
    return value;
  }
  problem.report_error(node, path,
                       quote_value(node) + " is not an integer from " + std::to_string(range.min) + " to " +
                           std::to_string(range.max));
  return std::nullopt;
}

std::optional<std::string> read_bounded_text(FirstError& problem, const Node& node, const std::string& path,
                                             std::size_t max_length) {
  const bool printable =
      std::all_of(node.scalar.begin(), node.scalar.end(), [](char c) { return c >= ' ' && c != 0x7f; });
  if (node.kind == Node::Kind::kScalar && !node.scalar.empty() && node.scalar.size() <= max_length &&
      printable)
    return node.scalar;
  problem.report_error(
      node, path,
      quote_value(node) + " is not a string of 1 to " + std::to_string(max_length) + " printable bytes");
  return std::nullopt;
}

std::optional<bool> read_flag(FirstError& problem, const Node& node, const std::string& path) {
  if (node.kind == Node::Kind::kScalar && node.scalar == "true") return true;
  if (node.kind == Node::Kind::kScalar && node.scalar == "false") return false;
  problem.report_error(node, path, quote_value(node) + " is not a boolean");
  return std::nullopt;
}

std::optional<std::uint32_t> read_pci_id(FirstError& problem, const Node& node, const std::string& path) {
  if (node.kind == Node::Kind::kScalar && node.scalar.size() == 10 &&
      text::starts_with(text::lower(node.scalar), "0x")) {
    if (const auto value = parse_hex_digits(std::string_view(node.scalar).substr(2), 8))
      return static_cast<std::uint32_t>(*value);
  }
  problem.report_error(node, path, quote_value(node) + " is not a device and vendor id like 0x233010DE");
  return std::nullopt;
}

std::optional<PciAddress> read_pci_address(FirstError& problem, const Node& node, const std::string& path) {
  // Accepts "dddd:bb:dd.f" with up to eight digits of the domain, as NVML writes it.
  const auto parts = text::split(node.scalar, ':');
  if (node.kind == Node::Kind::kScalar && parts.size() == 3) {
    const auto dot = parts[2].find('.');
    const auto domain = parse_hex_digits(parts[0], 8);
    const auto bus = parse_hex_digits(parts[1], 2);
    if (domain && bus && dot != std::string::npos) {
      const auto device = parse_hex_digits(std::string_view(parts[2]).substr(0, dot), 2);
      const auto function = parse_hex_digits(std::string_view(parts[2]).substr(dot + 1), 1);
      if (device && function && *device < 32 && *function < 8) {
        return PciAddress{static_cast<std::uint32_t>(*domain), static_cast<std::uint8_t>(*bus),
                          static_cast<std::uint8_t>(*device), static_cast<std::uint8_t>(*function), 0};
      }
    }
  }
  problem.report_error(node, path, quote_value(node) + " is not a PCI address like 0000:1b:00.0");
  return std::nullopt;
}

std::vector<std::int64_t> read_integers(FirstError& problem, const Node& node, const std::string& path,
                                        Range range) {
  std::vector<std::int64_t> values;
  if (node.kind != Node::Kind::kSequence) {
    problem.report_error(node, path, quote_value(node) + " is not a list of integers");
    return values;
  }
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    const auto value = read_integer(problem, node.items[i], path + "[" + std::to_string(i) + "]", range);
    if (!value) return {};
    values.push_back(*value);
  }
  return values;
}

std::optional<std::size_t> read_choice(FirstError& problem, const Node& node, const std::string& path,
                                       const std::vector<std::string>& names) {
  const auto found = std::find(names.begin(), names.end(), node.scalar);
  if (node.kind == Node::Kind::kScalar && found != names.end())
    return static_cast<std::size_t>(found - names.begin());
  problem.report_error(node, path, quote_value(node) + " is not one of " + text::join(names, ", "));
  return std::nullopt;
}

Section::Section(FirstError& problem, const Node& node, std::string path)
    : errors_(problem), node_(node), path_(std::move(path)) {
  if (node_.kind != Node::Kind::kMapping)
    errors_.report_error(node_, path_, quote_value(node_) + " is not a mapping");
}

const Node* Section::find_key(const std::string& key) {
  read_keys_.push_back(key);
  for (const auto& entry : node_.entries) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

const Node* Section::require_key(const std::string& key) {
  const Node* node = find_key(key);
  if (node == nullptr) errors_.report_error(node_, path_, "missing key '" + key + "'");
  return node;
}

void Section::pci_id_key(const std::string& key, std::uint32_t& value) {
  if (const Node* node = find_key(key)) {
    if (const auto read = read_pci_id(errors_, *node, key_path(key))) value = *read;
  }
}

void Section::report_unknown_keys() {
  for (const auto& entry : node_.entries) {
    if (std::find(read_keys_.begin(), read_keys_.end(), entry.key) != read_keys_.end()) continue;
    const auto nearest = text::nearest(entry.key, read_keys_);
    errors_.report_error(entry.position, key_path(entry.key),
                         nearest ? "unknown key, did you mean '" + *nearest + "'?"
                                 : "unknown key, one of " + text::join(read_keys_, ", "));
  }
}

}  // namespace gpulet::sim

#include "sim/machine/section.h"

#include <algorithm>
#include <charconv>

#include "base/text.h"

namespace gpulet::sim {
namespace {

constexpr std::size_t kQuotedLength = 40;

std::string quoted(const Node& node) {
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

std::optional<std::uint64_t> hexadecimal(std::string_view text, std::size_t max_digits) {
  std::uint64_t value = 0;
  if (text.empty() || text.size() > max_digits) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

void Problem::report(config::yaml::Position position, const std::string& path, const std::string& message) {
  if (first_) return;
  const std::string text = path.empty() ? message : path + ": " + message;
  first_ = Error(Code::kInvalidArgument, text, config::yaml::place(file_, position));
}

void Problem::report(const Node& node, const std::string& path, const std::string& message) {
  report(node.position, path, message);
}

Status Problem::status() const {
  if (first_) return fail(*first_);
  return {};
}

std::optional<std::int64_t> read_integer(Problem& problem, const Node& node, const std::string& path,
                                         Range range) {
  std::int64_t value = 0;
  const char* end = node.scalar.data() + node.scalar.size();
  const auto [stopped, error] = std::from_chars(node.scalar.data(), end, value);
  if (node.kind == Node::Kind::kScalar && error == std::errc() && stopped == end && value >= range.min &&
      value <= range.max) {
    return value;
  }
  problem.report(node, path,
                 quoted(node) + " is no whole number from " + std::to_string(range.min) + " to " +
                     std::to_string(range.max));
  return std::nullopt;
}

std::optional<std::string> read_text(Problem& problem, const Node& node, const std::string& path,
                                     std::size_t max_length) {
  const bool printable =
      std::all_of(node.scalar.begin(), node.scalar.end(), [](char c) { return c >= ' ' && c != 0x7f; });
  if (node.kind == Node::Kind::kScalar && !node.scalar.empty() && node.scalar.size() <= max_length &&
      printable)
    return node.scalar;
  problem.report(node, path,
                 quoted(node) + " is no text of 1 to " + std::to_string(max_length) + " printable bytes");
  return std::nullopt;
}

std::optional<bool> read_flag(Problem& problem, const Node& node, const std::string& path) {
  if (node.kind == Node::Kind::kScalar && node.scalar == "true") return true;
  if (node.kind == Node::Kind::kScalar && node.scalar == "false") return false;
  problem.report(node, path, quoted(node) + " is neither true nor false");
  return std::nullopt;
}

std::optional<std::uint32_t> read_pci_id(Problem& problem, const Node& node, const std::string& path) {
  if (node.kind == Node::Kind::kScalar && node.scalar.size() == 10 &&
      text::starts_with(text::lower(node.scalar), "0x")) {
    if (const auto value = hexadecimal(std::string_view(node.scalar).substr(2), 8))
      return static_cast<std::uint32_t>(*value);
  }
  problem.report(node, path, quoted(node) + " is no device and vendor id like 0x233010DE");
  return std::nullopt;
}

std::optional<PciAddress> read_pci_address(Problem& problem, const Node& node, const std::string& path) {
  // "dddd:bb:dd.f", with up to eight digits of the domain as NVML writes it.
  const auto parts = text::split(node.scalar, ':');
  if (node.kind == Node::Kind::kScalar && parts.size() == 3) {
    const auto dot = parts[2].find('.');
    const auto domain = hexadecimal(parts[0], 8);
    const auto bus = hexadecimal(parts[1], 2);
    if (domain && bus && dot != std::string::npos) {
      const auto device = hexadecimal(std::string_view(parts[2]).substr(0, dot), 2);
      const auto function = hexadecimal(std::string_view(parts[2]).substr(dot + 1), 1);
      if (device && function && *device < 32 && *function < 8) {
        return PciAddress{static_cast<std::uint32_t>(*domain), static_cast<std::uint8_t>(*bus),
                          static_cast<std::uint8_t>(*device), static_cast<std::uint8_t>(*function), 0};
      }
    }
  }
  problem.report(node, path, quoted(node) + " is no PCI address like 0000:1b:00.0");
  return std::nullopt;
}

std::vector<std::int64_t> read_integers(Problem& problem, const Node& node, const std::string& path,
                                        Range range) {
  std::vector<std::int64_t> values;
  if (node.kind != Node::Kind::kSequence) {
    problem.report(node, path, quoted(node) + " is no list of whole numbers");
    return values;
  }
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    const auto value = read_integer(problem, node.items[i], path + "[" + std::to_string(i) + "]", range);
    if (!value) return {};
    values.push_back(*value);
  }
  return values;
}

std::optional<std::size_t> read_choice(Problem& problem, const Node& node, const std::string& path,
                                       const std::vector<std::string>& names) {
  const auto found = std::find(names.begin(), names.end(), node.scalar);
  if (node.kind == Node::Kind::kScalar && found != names.end())
    return static_cast<std::size_t>(found - names.begin());
  problem.report(node, path, quoted(node) + " is none of " + text::join(names, ", "));
  return std::nullopt;
}

Section::Section(Problem& problem, const Node& node, std::string path)
    : problem_(problem), node_(node), path_(std::move(path)) {
  if (node_.kind != Node::Kind::kMapping)
    problem_.report(node_, path_, quoted(node_) + " where a mapping is needed");
}

const Node* Section::take(const std::string& key) {
  asked_.push_back(key);
  for (const auto& entry : node_.entries) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

const Node* Section::need(const std::string& key) {
  const Node* node = take(key);
  if (node == nullptr) problem_.report(node_, path_, "needs the key '" + key + "'");
  return node;
}

void Section::pci_id(const std::string& key, std::uint32_t& value) {
  if (const Node* node = take(key)) {
    if (const auto read = read_pci_id(problem_, *node, path(key))) value = *read;
  }
}

void Section::finish() {
  for (const auto& entry : node_.entries) {
    if (std::find(asked_.begin(), asked_.end(), entry.key) != asked_.end()) continue;
    const auto nearest = text::nearest(entry.key, asked_);
    problem_.report(entry.position, path(entry.key),
                    nearest ? "unknown key, did you mean '" + *nearest + "'?"
                            : "unknown key, one of " + text::join(asked_, ", "));
  }
}

}  // namespace gpulet::sim

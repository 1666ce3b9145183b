#include "scheduler/model/pod_request.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text.h"
#include "scheduler/core/policy.h"

namespace gpulet::scheduler {
namespace {

using nlohmann::json;

// In the order of the enumerators.
constexpr std::array<std::string_view, 9> kAttributes = {
    "model", "architecture", "memory", "compute", "driver", "cuda", "mig", "shares", "numa"};
constexpr std::array<std::string_view, 9> kOperators = {"In", "NotIn", "Exists", "DoesNotExist", "Gt",
                                                        "Lt", "GtLt",  "IsTrue", "IsFalse"};

template <std::size_t N>
std::string join_names(const std::array<std::string_view, N>& names) {
  std::string text;
  for (const auto name : names) text.append(text.empty() ? "" : ", ").append(name);
  return text;
}

// How many values an operator takes.
std::pair<std::size_t, std::size_t> value_count_range(Operator op) {
  switch (op) {
    case Operator::kIn:
    case Operator::kNotIn:
      return {1, kMaxValues};
    case Operator::kGt:
    case Operator::kLt:
      return {1, 1};
    case Operator::kGtLt:
      return {2, 2};
    default:
      return {0, 0};
  }
}

Result<Expression> parse_expression(const std::string& key, const json& value) {
  const auto* const attribute = std::ranges::find(kAttributes, key);
  if (attribute == kAttributes.end()) {
    return fail(Code::kInvalidArgument,
                "'" + key + "' is not a device attribute; expected one of " + join_names(kAttributes));
  }
  Expression expression{
      .attribute = static_cast<Attribute>(attribute - kAttributes.begin()), .op = {}, .values = {}};
  const auto op = value.is_object() ? value.find("op") : value.end();
  if (!value.is_object() || op == value.end() || !op->is_string()) {
    return fail(Code::kInvalidArgument,
                "'" + key + "' has no \"op\"; expected one of " + join_names(kOperators));
  }
  const auto* const known = std::ranges::find(kOperators, op->get<std::string>());
  if (known == kOperators.end()) {
    return fail(
        Code::kInvalidArgument,
        "'" + op->get<std::string>() + "' is not an operator; expected one of " + join_names(kOperators));
  }
  expression.op = static_cast<Operator>(known - kOperators.begin());
  if (const auto values = value.find("value"); values != value.end()) {
    if (!values->is_array())
      return fail(Code::kInvalidArgument, "'" + key + "' has a \"value\" that is not a list");
    for (const auto& one : *values) {
      if (!one.is_string()) {
        return fail(Code::kInvalidArgument,
                    "'" + key + "' has a value that is not a string: write \"8\", not 8");
      }
      expression.values.push_back(one.get<std::string>());
    }
  }
  const auto [least, most] = value_count_range(expression.op);
  if (expression.values.size() < least || expression.values.size() > most) {
    return fail(Code::kInvalidArgument, std::string(*known) + " of '" + key + "' takes " +
                                            std::to_string(least) +
                                            (most > least ? " to " + std::to_string(most) : "") + " values");
  }
  return expression;
}

std::string attribute_text(Attribute attribute, const DeviceAttributes& device) {
  switch (attribute) {
    case Attribute::kModel:
      return std::string(device.model);
    case Attribute::kArchitecture:
      return std::string(device.architecture);
    case Attribute::kMemory:
      return std::to_string(device.memory_mib);
    case Attribute::kCompute:
      return device.compute;
    case Attribute::kDriver:
      return std::string(device.driver);
    case Attribute::kCuda:
      return device.cuda;
    case Attribute::kMig:
      return std::string(device.mig_profile);
    case Attribute::kShares:
      return std::to_string(device.shares);
    case Attribute::kNuma:
      return device.numa < 0 ? std::string() : std::to_string(device.numa);
  }
  return {};
}

bool is_numeric_attribute(Attribute attribute) {
  return attribute != Attribute::kModel && attribute != Attribute::kArchitecture &&
         attribute != Attribute::kMig;
}

bool equals_attribute(Attribute attribute, const std::string& expected, const std::string& found) {
  if (attribute == Attribute::kModel) return matches_model_name(expected, found);
  if (is_numeric_attribute(attribute)) return !found.empty() && compare_versions(expected, found) == 0;
  return text::lower(expected) == text::lower(found);
}

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words(1);
  for (const char c : text::lower(text)) {
    if (c == ' ' || c == '-' || c == '_') {
      if (!words.back().empty()) words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

}  // namespace

std::string Expression::expression_text() const {
  std::string text(kAttributes[static_cast<std::size_t>(attribute)]);
  text.append(" ").append(kOperators[static_cast<std::size_t>(op)]);
  for (std::size_t i = 0; i < values.size(); ++i) text.append(i == 0 ? " " : "|").append(values[i]);
  return text;
}

int compare_versions(std::string_view a, std::string_view b) {
  while (!a.empty() || !b.empty()) {
    const auto next = [](std::string_view& rest) {
      const auto end = std::min(rest.find('.'), rest.size());
      std::uint64_t value = 0;
      std::from_chars(rest.data(), rest.data() + end, value);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      return value;
    };
    const auto left = next(a), right = next(b);
    if (left != right) return left < right ? -1 : 1;
  }
  return 0;
}

bool matches_model_name(std::string_view expected, std::string_view name) {
  const auto words = split_words(expected), all = split_words(name);
  return !words.empty() && !std::ranges::search(all, words).empty();
}

Result<std::vector<Expression>> parse_selector(std::string_view text) {
  if (text.size() > kMaxSelectorBytes) {
    return fail(Code::kInvalidArgument, "longer than " + std::to_string(kMaxSelectorBytes) + " bytes");
  }
  const auto object = parse_json(text);
  if (!object.is_object() || object.empty()) {
    return fail(Code::kInvalidArgument,
                "expected a JSON object of attributes, each with \"op\" and \"value\"");
  }
  if (object.size() > kMaxExpressions) {
    return fail(Code::kInvalidArgument, "has more than " + std::to_string(kMaxExpressions) + " expressions");
  }
  std::vector<Expression> expressions;
  for (const auto& [key, value] : object.items()) {
    GPULET_TRY_ASSIGN(auto expression, parse_expression(key, value));
    expressions.push_back(std::move(expression));
  }
  return expressions;
}

bool matches_expression(const Expression& expression, const DeviceAttributes& device) {
  const std::string found = attribute_text(expression.attribute, device);
  const auto& values = expression.values;
  const auto is = [&](const std::string& expected) {
    return equals_attribute(expression.attribute, expected, found);
  };
  switch (expression.op) {
    case Operator::kIn:
      return std::ranges::any_of(values, is);
    case Operator::kNotIn:
      return std::ranges::none_of(values, is);
    case Operator::kExists:
      return !found.empty();
    case Operator::kDoesNotExist:
      return found.empty();
    case Operator::kGt:
      return !found.empty() && compare_versions(found, values.front()) > 0;
    case Operator::kLt:
      return !found.empty() && compare_versions(found, values.front()) < 0;
    case Operator::kGtLt:
      return !found.empty() && compare_versions(found, values.front()) > 0 &&
             compare_versions(found, values.back()) < 0;
    case Operator::kIsTrue:
      return !found.empty() && found != "0";
    case Operator::kIsFalse:
      return found.empty() || found == "0";
  }
  return false;
}

namespace {

using inventory::PcieDistance;

constexpr std::string_view kPrefix = "gpulet.io/";
constexpr std::size_t kMaxFoundBytes = 100;  // of the value, in messages
constexpr std::size_t kMaxModelNames = 64;

bool is_version(std::string_view text) {
  if (text.empty() || text.size() > 32) return false;
  for (const auto& part : text::split(text, '.')) {
    if (part.size() > 9 || !text::parse_unsigned(part)) return false;
  }
  return true;
}

std::optional<LinkConstraint> parse_link_constraint(std::string_view text) {
  static const std::map<std::string_view, PcieDistance> kDistances = {{"PIX", PcieDistance::kSingle},
                                                                      {"PXB", PcieDistance::kMultiple},
                                                                      {"PHB", PcieDistance::kHostBridge},
                                                                      {"NODE", PcieDistance::kNode}};
  if (const auto found = kDistances.find(text); found != kDistances.end()) {
    return LinkConstraint{.pcie = found->second, .nvlinks = 0, .text = std::string(text)};
  }
  if (!text.starts_with("NV")) return std::nullopt;
  const auto count =
      text.size() == 2 ? std::optional<std::uint64_t>(1) : text::parse_unsigned(text.substr(2));
  if (!count || *count == 0 || *count > 64) return std::nullopt;
  return LinkConstraint{.nvlinks = static_cast<unsigned>(*count), .text = std::string(text)};
}

std::optional<std::vector<std::string>> parse_models(std::string_view text) {
  std::vector<std::string> models;
  for (const auto& part : text::split(text, '|')) {
    models.emplace_back(text::trim(part));
    if (models.back().empty()) return std::nullopt;
  }
  if (models.empty() || models.size() > kMaxModelNames) return std::nullopt;
  return models;
}

// Each stores a value in the request, or returns what it expected.
using AnnotationParser = std::optional<std::string> (*)(std::string_view, PodRequest&);

std::optional<std::string> parse_version_annotation(std::string_view value, std::string& into,
                                                    const char* example) {
  if (!is_version(value)) return std::string("expected a version, as ") + example;
  into = value;
  return std::nullopt;
}

const std::map<std::string_view, AnnotationParser>& annotation_parsers() {
  static const std::map<std::string_view, AnnotationParser> kTakers = {
      {"gpu-model",
       [](std::string_view value, PodRequest& request) -> std::optional<std::string> {
         auto models = parse_models(value);
         if (!models) return "expected words of a model's name, separated by |, as A100|H100";
         request.constraints.models = std::move(*models);
         return std::nullopt;
       }},
      {"gpu-memory",
       [](std::string_view value, PodRequest& request) -> std::optional<std::string> {
         const auto memory = fraction::parse_whole_mebibytes(value);
         if (!memory) return "expected a whole-number quantity, as 40Gi";
         request.constraints.memory_mib = *memory;
         return std::nullopt;
       }},
      {"gpu-compute",
       [](std::string_view value, PodRequest& request) -> std::optional<std::string> {
         std::string text;
         if (auto refused = parse_version_annotation(value, text, "8.0")) return refused;
         const auto parts = text::split(text, '.');
         request.constraints.compute = {
             static_cast<unsigned>(*text::parse_unsigned(parts[0])),
             parts.size() > 1 ? static_cast<unsigned>(*text::parse_unsigned(parts[1])) : 0};
         return std::nullopt;
       }},
      {"gpu-driver",
       [](std::string_view value, PodRequest& request) {
         return parse_version_annotation(value, request.constraints.driver, "550.54");
       }},
      {"gpu-cuda",
       [](std::string_view value, PodRequest& request) {
         return parse_version_annotation(value, request.constraints.cuda, "12.4");
       }},
      {"gpu-links",
       [](std::string_view value, PodRequest& request) -> std::optional<std::string> {
         auto constraint = parse_link_constraint(value);
         if (!constraint) return "expected NV, NV with a number of links, PIX, PXB, PHB or NODE";
         request.constraints.links = std::move(constraint);
         return std::nullopt;
       }},
      {"gpu-selector",
       [](std::string_view value, PodRequest& request) -> std::optional<std::string> {
         auto selector = parse_selector(value);
         if (!selector) return selector.error().message() + " (expected NFD match expressions)";
         request.constraints.selector = std::move(*selector);
         return std::nullopt;
       }},
      {"policy",
       [](std::string_view value, PodRequest& request) -> std::optional<std::string> {
         auto policy = parse_policy(value);
         if (!policy) return policy.error().message();
         request.policy = std::move(*policy);
         return std::nullopt;
       }},
  };
  return kTakers;
}

}  // namespace

bool satisfies_links(const topology::Pair& pair, const LinkConstraint& constraint) {
  if (constraint.pcie == PcieDistance::kUnknown) return pair.nvlinks() >= constraint.nvlinks;
  // NVLink beats any PCIe path.
  return pair.nvlinks() != 0 || pair.pcie >= constraint.pcie;
}

fraction::MemoryAmount PodRequest::memory_of(const ContainerRequest& container) const {
  auto memory = container.memory;
  memory.raise_to({.mib = constraints.memory_mib});
  return memory;
}

fraction::MemoryAmount PodRequest::greatest_memory() const {
  fraction::MemoryAmount memory{.mib = constraints.memory_mib};
  for (const auto& container : containers) memory.raise_to(container.memory);
  return memory;
}

std::string MalformedAnnotation::message() const {
  return "annotation " + annotation + " is \"" + found + "\": " + accepted + "; ignored";
}

Result<std::string> parse_policy(std::string_view value) {
  const auto names = policy_names();
  if (std::ranges::find(names, value) != names.end()) return std::string(value);
  std::string accepted = "expected one of " + text::join(names, ", ");
  if (const auto nearest = text::nearest(value, names)) accepted += " (did you mean " + *nearest + "?)";
  return fail(Code::kInvalidArgument, accepted);
}

void apply_annotation(std::string_view key, std::string_view value, PodRequest& request) {
  if (is_choice_annotation(key)) {
    const auto added = add_choice_annotation(key, value, request.constraints.choice);
    // A Pod without devices is not rejected for it.
    if (!added && request.request_error.empty() && !request.containers.empty())
      request.request_error = added.error().message();
    return;
  }
  if (!key.starts_with(kPrefix)) return;
  const auto taker = annotation_parsers().find(key.substr(kPrefix.size()));
  if (taker == annotation_parsers().end()) return;
  const auto accepted = taker->second(value, request);
  if (!accepted || request.malformed.size() >= kMaxMalformed) return;
  request.malformed.push_back(
      {std::string(key), fraction::printable_field(value, kMaxFoundBytes), *accepted});
}

}  // namespace gpulet::scheduler

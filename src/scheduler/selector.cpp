#include "scheduler/selector.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/text.h"

namespace gpulet::scheduler {
namespace {

using nlohmann::json;

// In the order of the enumerations.
constexpr std::array<std::string_view, 9> kAttributes = {
    "model", "architecture", "memory", "compute", "driver", "cuda", "mig", "shares", "numa"};
constexpr std::array<std::string_view, 9> kOperators = {"In", "NotIn", "Exists", "DoesNotExist", "Gt",
                                                        "Lt", "GtLt",  "IsTrue", "IsFalse"};

template <std::size_t N>
std::string all_of(const std::array<std::string_view, N>& names) {
  std::string text;
  for (const auto name : names) text.append(text.empty() ? "" : ", ").append(name);
  return text;
}

// How many values an operator takes.
std::pair<std::size_t, std::size_t> values_of(Operator op) {
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

Result<Expression> expression_of(const std::string& key, const json& value) {
  const auto* const attribute = std::ranges::find(kAttributes, key);
  if (attribute == kAttributes.end()) {
    return fail(Code::kInvalidArgument, "'" + key + "' is no attribute of a device: " + all_of(kAttributes));
  }
  Expression expression{
      .attribute = static_cast<Attribute>(attribute - kAttributes.begin()), .op = {}, .values = {}};
  const auto op = value.is_object() ? value.find("op") : value.end();
  if (!value.is_object() || op == value.end() || !op->is_string()) {
    return fail(Code::kInvalidArgument, "'" + key + "' has no \"op\": " + all_of(kOperators));
  }
  const auto* const known = std::ranges::find(kOperators, op->get<std::string>());
  if (known == kOperators.end()) {
    return fail(Code::kInvalidArgument,
                "'" + op->get<std::string>() + "' is no operator: " + all_of(kOperators));
  }
  expression.op = static_cast<Operator>(known - kOperators.begin());
  if (const auto values = value.find("value"); values != value.end()) {
    if (!values->is_array())
      return fail(Code::kInvalidArgument, "'" + key + "' has a \"value\" that is no list");
    for (const auto& one : *values) {
      if (!one.is_string()) {
        return fail(Code::kInvalidArgument, "'" + key + "' has a value that is no text: write \"8\", not 8");
      }
      expression.values.push_back(one.get<std::string>());
    }
  }
  const auto [least, most] = values_of(expression.op);
  if (expression.values.size() < least || expression.values.size() > most) {
    return fail(Code::kInvalidArgument, std::string(*known) + " of '" + key + "' takes " +
                                            std::to_string(least) +
                                            (most > least ? " to " + std::to_string(most) : "") + " values");
  }
  return expression;
}

std::string text_of(Attribute attribute, const Attributes& device) {
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

bool is_numeric(Attribute attribute) {
  return attribute != Attribute::kModel && attribute != Attribute::kArchitecture &&
         attribute != Attribute::kMig;
}

bool equal(Attribute attribute, const std::string& wanted, const std::string& found) {
  if (attribute == Attribute::kModel) return names_model(wanted, found);
  if (is_numeric(attribute)) return !found.empty() && compare_versions(wanted, found) == 0;
  return text::lower(wanted) == text::lower(found);
}

std::vector<std::string> words_of(std::string_view text) {
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

std::string Expression::text() const {
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

bool names_model(std::string_view wanted, std::string_view name) {
  const auto words = words_of(wanted), all = words_of(name);
  return !words.empty() && !std::ranges::search(all, words).empty();
}

Result<std::vector<Expression>> parse_selector(std::string_view text) {
  if (text.size() > kMaxSelectorBytes) {
    return fail(Code::kInvalidArgument, "it is longer than " + std::to_string(kMaxSelectorBytes) + " bytes");
  }
  const auto object = json::parse(text, nullptr, false);
  if (!object.is_object() || object.empty()) {
    return fail(Code::kInvalidArgument, "a JSON object of attributes is accepted, each with \"op\" and \"value\"");
  }
  if (object.size() > kMaxExpressions) {
    return fail(Code::kInvalidArgument,
                "it has more than " + std::to_string(kMaxExpressions) + " expressions");
  }
  std::vector<Expression> expressions;
  for (const auto& [key, value] : object.items()) {
    GPULET_TRY_ASSIGN(auto expression, expression_of(key, value));
    expressions.push_back(std::move(expression));
  }
  return expressions;
}

bool matches(const Expression& expression, const Attributes& device) {
  const std::string found = text_of(expression.attribute, device);
  const auto& values = expression.values;
  const auto is = [&](const std::string& wanted) { return equal(expression.attribute, wanted, found); };
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

}  // namespace gpulet::scheduler

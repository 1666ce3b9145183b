#include "hook/requirements.h"

#include <array>
#include <map>
#include <optional>
#include <utility>

#include "base/text.h"

namespace gpulet::hook {

std::optional<Version> parse_version(std::string_view text) {
  constexpr std::size_t kMaxParts = 8;
  Version version;
  while (version.parts.size() < kMaxParts) {
    const auto dot = text.find('.');
    const auto part = text::parse_unsigned(text.substr(0, dot));
    if (!part) return std::nullopt;
    version.parts.push_back(*part);
    if (dot == std::string_view::npos) {
      while (version.parts.size() > 1 && version.parts.back() == 0) version.parts.pop_back();
      return version;
    }
    text.remove_prefix(dot + 1);
  }
  return std::nullopt;
}

namespace {

constexpr std::string_view kPrefix = "NVIDIA_REQUIRE_";
constexpr std::size_t kMaxExpressionBytes = 64u << 10;

struct Condition {
  std::string_view property;
  std::string_view comparison;
  std::string_view value;
};

// Parses "cuda>=12.4". Errors: kInvalidArgument.
Result<Condition> parse_condition(std::string_view text) {
  const auto wrong = [&] {
    return fail(Code::kInvalidArgument, "'" + printable_text(text, 60) + "' is not a condition");
  };
  const auto start = text.find_first_of("<>=!");
  if (start == 0 || start == std::string_view::npos) return wrong();
  const auto length = start + 1 < text.size() && text[start + 1] == '=' ? 2u : 1u;
  const Condition condition{text.substr(0, start), text.substr(start, length), text.substr(start + length)};
  if (condition.comparison == "!" || condition.comparison == "==" || condition.value.empty() ||
      condition.value.find_first_of("<>=!") != std::string_view::npos)
    return wrong();
  return condition;
}

bool is_condition_met(std::string_view comparison, std::strong_ordering order) {
  if (comparison == "=") return order == 0;
  if (comparison == "!=") return order != 0;
  if (comparison == "<") return order < 0;
  if (comparison == "<=") return order <= 0;
  if (comparison == ">") return order > 0;
  return order >= 0;
}

// Returns true for unknown host properties and for unsupported properties.
Result<bool> is_condition_met(const Condition& condition, const HostProperties& host) {
  const std::string property = text::lower(condition.property);
  const auto wrong = [&](std::string_view why) {
    return fail(Code::kInvalidArgument, "'" + printable_text(condition.value, 60) + "' of '" + property +
                                            "' is not a " + std::string(why));
  };
  if (property == "brand") {
    if (condition.comparison != "=" && condition.comparison != "!=")
      return wrong("brand that can be ordered");
    if (host.brand.empty()) return true;
    return (text::lower(host.brand) == text::lower(condition.value)) == (condition.comparison == "=");
  }
  const std::string* known = property == "cuda"     ? &host.cuda
                             : property == "driver" ? &host.driver
                             : property == "arch"   ? &host.arch
                                                    : nullptr;
  if (known == nullptr) return true;
  const auto wanted = parse_version(condition.value);
  if (!wanted) return wrong("version");
  const auto own = parse_version(*known);
  if (!own) return true;
  return is_condition_met(condition.comparison, *own <=> *wanted);
}

// Parses all conditions, even after one that fails, so that a syntax error does not depend on the node.
Result<bool> is_alternative_met(std::string_view alternative, const HostProperties& host) {
  bool all = true;
  for (const std::string& text : text::split(alternative, ',')) {
    if (text::trim(text).empty()) continue;
    GPULET_TRY_ASSIGN(const Condition condition, parse_condition(text::trim(text)));
    GPULET_TRY_ASSIGN(const bool one, is_condition_met(condition, host));
    all = all && one;
  }
  return all;
}

// Returns the driver version that satisfies the lowest "cuda>=" of the expression.
std::string upgrade_advice(const std::string& expression) {
  std::optional<Version> least;
  std::string version;
  for (const std::string& alternative : text::split(expression, ' ')) {
    if (alternative.find(',') != std::string::npos) continue;
    const auto condition = parse_condition(alternative);
    if (!condition || text::lower(condition->property) != "cuda" || condition->comparison != ">=") continue;
    const auto found = parse_version(condition->value);
    if (!found || (least && *least <= *found)) continue;
    least = found;
    version = std::string(condition->value);
  }
  if (!least) return "use another node";
  const std::string_view branch = driver_branch_for(version);
  const std::string newer = branch.empty() ? "a driver that supports CUDA " + printable_text(version, 20)
                                           : "driver " + std::string(branch) + " or newer (CUDA " +
                                                 printable_text(version, 20) + ")";
  return "update the node to " + newer + ", use an image for an older CUDA";
}

std::string host_text(const HostProperties& host) {
  std::string out = "this node has driver " + (host.driver.empty() ? "of unknown version" : host.driver);
  if (!host.cuda.empty()) out += ", which supports CUDA " + host.cuda;
  if (!host.arch.empty()) out += ", compute capability " + host.arch;
  if (!host.brand.empty()) out += ", brand " + host.brand;
  return out;
}

// `name` is the variable of `expression`.
Status check_expression(std::string_view name, const std::string& expression, const HostProperties& host) {
  const std::string variable = printable_text(name, 60);
  if (expression.size() > kMaxExpressionBytes)
    return fail(Code::kInvalidArgument, "the image's " + variable + " is longer than 65536 characters");
  bool any = false;
  bool empty = true;
  for (const std::string& alternative : text::split(expression, ' ')) {
    if (text::trim(alternative).empty()) continue;
    const auto one = is_alternative_met(alternative, host);
    if (!one) return fail(one.error().with_context("cannot parse the image's " + variable));
    empty = false;
    any = any || *one;
  }
  if (any || empty) return {};
  return fail(Code::kFailedPrecondition, "the image needs " + printable_text(expression) + " (" + variable +
                                             "), but " + host_text(host) + ": " + upgrade_advice(expression) +
                                             ", or set NVIDIA_DISABLE_REQUIRE=1 for the container");
}

// As Go's strconv.ParseBool.
bool is_true_value(std::string_view text) {
  return text == "1" || text == "t" || text == "T" || text == "true" || text == "TRUE" || text == "True";
}

// Returns "12.4" for "12.4.1"; "" for an invalid version.
std::string major_minor(std::string_view text) {
  if (text::starts_with(text, "v")) text.remove_prefix(1);
  if (!parse_version(text)) return {};
  const auto first = text.find('.');
  const auto second = first == std::string_view::npos ? first : text.find('.', first + 1);
  return std::string(text.substr(0, second));
}

}  // namespace

std::string printable_text(std::string_view hostile, std::size_t max) {
  std::string out;
  for (const char c : hostile.substr(0, max)) out += c >= 0x20 && c < 0x7F ? c : '?';
  return hostile.size() > max ? out + "..." : out;
}

std::string_view driver_branch_for(std::string_view cuda) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 23> kBranches{{
      {"10.0", "410"}, {"10.1", "418"}, {"10.2", "440"}, {"11.0", "450"}, {"11.1", "455"}, {"11.2", "460"},
      {"11.3", "465"}, {"11.4", "470"}, {"11.5", "495"}, {"11.6", "510"}, {"11.7", "515"}, {"11.8", "520"},
      {"12.0", "525"}, {"12.1", "530"}, {"12.2", "535"}, {"12.3", "545"}, {"12.4", "550"}, {"12.5", "555"},
      {"12.6", "560"}, {"12.8", "570"}, {"12.9", "575"}, {"13.0", "580"}, {"13.1", "590"},
  }};
  const auto wanted = parse_version(cuda);
  for (const auto& [version, branch] : kBranches)
    if (wanted && parse_version(version) == wanted) return branch;
  return {};
}

Status check_requirements(const std::vector<std::string>& environment, const HostProperties& host) {
  std::map<std::string, std::string> variables;  // the last value of a name wins
  for (const std::string& entry : environment) {
    const auto equals = entry.find('=');
    if (equals != std::string::npos) variables[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  if (is_true_value(variables["NVIDIA_DISABLE_REQUIRE"])) return {};
  const std::string legacy = major_minor(variables["CUDA_VERSION"]);
  const std::string main_name = std::string(kPrefix) + "CUDA";
  if (variables[main_name].empty() && !legacy.empty())
    GPULET_TRY(check_expression("CUDA_VERSION", "cuda>=" + legacy, host));
  for (const auto& [name, value] : variables) {
    if (!text::starts_with(name, kPrefix) || text::starts_with(name, "NVIDIA_REQUIRE_JETPACK")) continue;
    GPULET_TRY(check_expression(name, value, host));
  }
  return {};
}

}  // namespace gpulet::hook

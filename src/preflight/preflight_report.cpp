#include "preflight/preflight_report.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace gpulet::preflight {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::array<std::string_view, 4> kOutcomeNames = {"passed", "slow", "failed", "not-run"};

Error wrong_member(const std::string& member, const std::string& expected) {
  return Error(Code::kInvalidArgument, member + " is not " + expected);
}

std::string printable_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7F) c = '?';
  }
  return text;
}

// The text of a member; empty where there is none.
Result<std::string> text_member(const nlohmann::json& object, const char* name, const std::string& place) {
  const auto& value = json_member(object, name);
  if (value.is_null()) return std::string();
  if (!value.is_string() || json_text(value).size() > kMaxReportText)
    return fail(
        wrong_member(place + name, "a string of at most " + std::to_string(kMaxReportText) + " bytes"));
  return printable_line(json_text(value));
}

Result<std::optional<std::uint64_t>> number_member(const nlohmann::json& object, const char* name,
                                                   const std::string& place) {
  const auto& value = json_member(object, name);
  if (value.is_null()) return std::optional<std::uint64_t>();
  if (!value.is_number_unsigned()) return fail(wrong_member(place + name, "a number of bytes"));
  return std::optional<std::uint64_t>(value.get<std::uint64_t>());
}

Result<CheckResult> parse_result(const nlohmann::json& object, const std::string& place) {
  if (!object.is_object()) return fail(wrong_member(place, "an object"));
  CheckResult result;
  GPULET_TRY_ASSIGN(const std::string check, text_member(object, "check", place + "."));
  const auto known = parse_check(check);
  if (!known) return fail(wrong_member(place + ".check", "the name of a check"));
  result.check = *known;
  GPULET_TRY_ASSIGN(const std::string outcome, text_member(object, "outcome", place + "."));
  const auto* const found = std::ranges::find(kOutcomeNames, outcome);
  if (found == kOutcomeNames.end())
    return fail(wrong_member(place + ".outcome", "passed, slow, failed or not-run"));
  result.outcome = static_cast<Outcome>(found - kOutcomeNames.begin());
  GPULET_TRY_ASSIGN(result.message, text_member(object, "message", place + "."));
  GPULET_TRY_ASSIGN(result.peer, text_member(object, "peer", place + "."));
  GPULET_TRY_ASSIGN(result.bytes_per_second, number_member(object, "bytesPerSecond", place + "."));
  GPULET_TRY_ASSIGN(result.expected_bytes_per_second,
                    number_member(object, "expectedBytesPerSecond", place + "."));
  return result;
}

// The texts of the checks with this outcome.
std::string join_checks(const Report& report, Outcome outcome) {
  std::string text;
  for (const auto& result : report.checks) {
    if (result.outcome == outcome) text += (text.empty() ? "" : "; ") + describe_check(result);
  }
  return text;
}

}  // namespace

std::optional<Check> parse_check(std::string_view name) {
  const auto* const found = std::ranges::find(kCheckNames, name);
  if (found == kCheckNames.end()) return std::nullopt;
  return static_cast<Check>(found - kCheckNames.begin());
}

std::string_view enum_name(Outcome outcome) { return kOutcomeNames[static_cast<std::size_t>(outcome)]; }

std::string_view enum_name(Verdict::Kind kind) {
  static constexpr std::string_view kNames[] = {"passed", "slow", "failed", "unknown", "run-again"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string format_report(const Report& report) {
  OrderedJson checks = OrderedJson::array();
  for (const auto& result : report.checks) {
    OrderedJson one = {{"check", enum_name(result.check)}, {"outcome", enum_name(result.outcome)}};
    if (!result.peer.empty()) one["peer"] = result.peer;
    if (result.bytes_per_second) one["bytesPerSecond"] = *result.bytes_per_second;
    if (result.expected_bytes_per_second) one["expectedBytesPerSecond"] = *result.expected_bytes_per_second;
    if (!result.message.empty()) one["message"] = result.message.substr(0, kMaxReportText);
    checks.push_back(std::move(one));
  }
  const OrderedJson document = {{"gpu", report.gpu}, {"model", report.model}, {"checks", std::move(checks)}};
  return document.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

Result<Report> parse_report(std::string_view text) {
  if (text.size() > kMaxReportBytes)
    return fail(Code::kInvalidArgument,
                "the report is longer than " + std::to_string(kMaxReportBytes) + " bytes");
  const auto document = parse_json(text);
  if (!document.is_object()) return fail(Code::kInvalidArgument, "the report is no JSON object");
  Report report;
  GPULET_TRY_ASSIGN(report.gpu, text_member(document, "gpu", ""));
  GPULET_TRY_ASSIGN(report.model, text_member(document, "model", ""));
  const auto& checks = json_member(document, "checks");
  if (!checks.is_array() || checks.size() > kMaxReportChecks)
    return fail(
        wrong_member("checks", "an array of at most " + std::to_string(kMaxReportChecks) + " results"));
  for (const auto& check : checks) {
    GPULET_TRY_ASSIGN(auto result,
                      parse_result(check, "checks[" + std::to_string(report.checks.size()) + "]"));
    report.checks.push_back(std::move(result));
  }
  return report;
}

std::string describe_check(const CheckResult& result) {
  std::string text(enum_name(result.check));
  if (!result.peer.empty()) text += " with " + result.peer;
  return text + ": " + (result.message.empty() ? std::string(enum_name(result.outcome)) : result.message);
}

namespace {

bool is_peer_fault(const CheckResult& result) {
  return result.check == Check::kPeerCopy &&
         (result.outcome == Outcome::kFailed || result.outcome == Outcome::kSlow);
}

Verdict judge_report(Report report) {
  using Kind = Verdict::Kind;
  const std::pair<Outcome, Kind> kinds[] = {{Outcome::kFailed, Kind::kFailed}, {Outcome::kSlow, Kind::kSlow}};
  for (const auto& [outcome, kind] : kinds) {
    if (auto text = join_checks(report, outcome); !text.empty())
      return {kind, std::move(text), std::move(report)};
  }
  const bool has_passed =
      std::ranges::find(report.checks, Outcome::kPassed, &CheckResult::outcome) != report.checks.end();
  auto not_run = join_checks(report, Outcome::kNotRun);
  if (has_passed) return {Kind::kPassed, std::move(not_run), std::move(report)};
  return {Kind::kUnknown, not_run.empty() ? "no check was run" : std::move(not_run), std::move(report)};
}

}  // namespace

Verdict judge_run(const RunResult& run, std::string_view gpu, bool hung_before) {
  using Kind = Verdict::Kind;
  switch (run.ended) {
    case RunResult::Ended::kReported:
      break;
    case RunResult::Ended::kTimedOut:
      if (!hung_before) return {Kind::kRunAgain, run.error};
      return {Kind::kFailed, "hung twice: " + run.error};
    case RunResult::Ended::kCrashed:
    case RunResult::Ended::kNotStarted:
      return {Kind::kUnknown, run.error};
  }
  auto report = parse_report(run.output);
  if (!report) return {Kind::kUnknown, "its output is not understood: " + report.error().full_message()};
  if (report->gpu != gpu) return {Kind::kUnknown, "its output is about another GPU"};
  return judge_report(std::move(*report));
}

bool has_peer_fault(const Verdict& verdict) {
  return verdict.report && std::ranges::any_of(verdict.report->checks, is_peer_fault);
}

Verdict judge_own_checks(Verdict verdict) {
  if (!has_peer_fault(verdict)) return verdict;
  for (auto& check : verdict.report->checks) {
    if (!is_peer_fault(check)) continue;
    check.outcome = Outcome::kNotRun;
    check.message = "the fault of one of the two: " + check.message;
  }
  return judge_report(std::move(*verdict.report));
}

}  // namespace gpulet::preflight

#include "doctor/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace gpulet::doctor {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kVerdictWidth = 13, kIdWidth = 16;

std::string padded(std::string_view text, std::size_t width) {
  return std::string(text) + std::string(text.size() < width ? width - text.size() : 1, ' ');
}

// What others have said stays one line, and moves no cursor.
std::string one_line(std::string text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are controls too.
    const bool second_set = byte >= 0x80 && byte < 0xA0 && i > 0 && text[i - 1] == '\xC2';
    if (second_set) text[i - 1] = ' ';
    if (second_set || byte < ' ' || byte == 0x7f) text[i] = ' ';
  }
  return text;
}

}  // namespace

Verdict verdict_of(std::span<const Finding> findings) {
  const auto* first = foremost(findings);
  return first == nullptr ? Verdict::kPass : first->judgement.verdict;
}

std::string summary(std::span<const Finding> findings) {
  const auto* first = foremost(findings);
  const auto untold = std::ranges::count_if(
      findings, [](const Finding& finding) { return finding.judgement.verdict == Verdict::kCannotTell; });
  if (first == nullptr) {
    std::string text = "Nothing was found that keeps a Pod from a GPU of this node";
    if (untold > 0)
      text += "; " + std::to_string(untold) + " of " + std::to_string(findings.size()) + " could not be told";
    return text + ".";
  }
  const auto& judgement = first->judgement;
  const bool fail = judgement.verdict == Verdict::kFail;
  std::string text = std::string(name(first->complaint)) + (fail ? "" : ", perhaps") + ": " + judgement.found;
  if (!judgement.fix.empty()) text += "; to do: " + judgement.fix;
  text += ".";
  std::string also;  // another fault, which this one does not explain
  for (const auto& finding : findings) {
    if (&finding != first && finding.judgement.verdict == Verdict::kFail)
      also += (also.empty() ? " Then see to " : ", ") + ("`" + std::string(finding.id) + "`");
  }
  return one_line(text + (also.empty() ? "" : also + "."));
}

std::string text_report(std::span<const Finding> findings) {
  const std::string margin(kVerdictWidth + kIdWidth, ' ');
  std::string text;
  for (const auto& finding : findings) {
    const auto& judgement = finding.judgement;
    text += padded(name(judgement.verdict), kVerdictWidth) + padded(finding.id, kIdWidth) +
            one_line(judgement.found) + "\n";
    if (!judgement.fix.empty()) text += margin + "→ " + one_line(judgement.fix) + "\n";
    if (judgement.verdict == Verdict::kPass) continue;
    for (const auto& detail : judgement.details) text += margin + "  " + one_line(detail) + "\n";
  }
  return text + "\n" + summary(findings) + "\n";
}

std::string json_report(std::span<const Finding> findings) {
  Json json{{"version", 1},
            {"verdict", name(verdict_of(findings))},
            {"summary", summary(findings)},
            {"checks", Json::array()}};
  for (const auto& finding : findings) {
    Json details = Json::array();
    for (const auto& detail : finding.judgement.details) details.push_back(one_line(detail));
    json["checks"].push_back({{"id", finding.id},
                              {"complaint", name(finding.complaint)},
                              {"verdict", name(finding.judgement.verdict)},
                              {"found", one_line(finding.judgement.found)},
                              {"fix", one_line(finding.judgement.fix)},
                              {"details", std::move(details)}});
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace gpulet::doctor

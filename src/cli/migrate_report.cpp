#include "cli/migrate_report.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "cli/text_table.h"
#include "migrate/parts.h"

namespace gpulet::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kLongestCell = 80;  // of a value; JSON has it whole

// One line of what can be shown; what is no ASCII may be cut only between letters.
std::string shown(std::string text, std::size_t longest = std::string::npos) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = ' ';
  }
  if (text.size() <= longest) return text;
  while (longest > 0 && (static_cast<unsigned char>(text[longest]) & 0xc0u) == 0x80u) --longest;
  return text.substr(0, longest) + "…";
}

std::string numbered(const std::vector<std::string>& lines) {
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    text += "  " + std::to_string(i + 1) + ". " + shown(lines[i]) + "\n";
  }
  return text;
}

std::string settings_table(const std::vector<migrate::Setting>& settings) {
  std::string text, of;
  std::vector<std::vector<std::string>> rows;
  const auto flush = [&] {
    if (!rows.empty()) text += "  " + shown(of) + "\n" + text_table(rows);
    rows.clear();
  };
  for (const auto& setting : settings) {
    if (setting.of != of) flush();
    of = setting.of;
    const std::string given = setting.name + (setting.value.empty() ? "" : "=" + setting.value);
    rows.push_back(
        {"   ", std::string(migrate::title(setting.fate)), shown(given, kLongestCell), shown(setting.note)});
  }
  flush();
  return text;
}

}  // namespace

std::string migrate_text(const migrate::Report& report) {
  if (report.found.empty()) {
    std::string text = "Nothing of NVIDIA's stack was found at " + shown(report.place) + ".\n";
    for (const auto& line : report.not_read) text += "  not read: " + shown(line) + "\n";
    return text;
  }
  std::string text = "What is there (" + shown(report.place) + ")\n";
  std::vector<std::vector<std::string>> rows;
  for (const auto& found : report.found) {
    rows.push_back({" ", std::string(migrate::title(found.part)), shown(found.where), shown(found.what)});
  }
  text += text_table(rows);
  if (!report.settings.empty()) text += "\nSettings\n" + settings_table(report.settings);
  if (!report.differences.empty()) {
    text += "\nWhat differs, on purpose\n";
    for (const auto& difference : report.differences) {
      text += "  " + difference.what + "\n    " + difference.page + "\n";
    }
  }
  if (!report.decide.empty()) text += "\nTo decide first\n" + numbered(report.decide);
  if (!report.not_read.empty()) text += "\nNot read\n" + numbered(report.not_read);
  if (!report.next.empty()) text += "\nNext, in this order\n" + numbered(report.next);
  if (!report.back.empty()) text += "\nThe way back\n" + numbered(report.back);
  return text;
}

std::string migrate_json(const migrate::Report& report) {
  Json found = Json::array(), settings = Json::array(), differences = Json::array();
  for (const auto& one : report.found) {
    found.push_back({{"part", migrate::key(one.part)}, {"where", one.where}, {"what", one.what}});
  }
  for (const auto& one : report.settings) {
    Json setting{{"of", one.of},
                 {"name", one.name},
                 {"value", one.value},
                 {"fate", migrate::key(one.fate)},
                 {"note", one.note}};
    if (!one.variable.empty()) setting["variable"] = one.variable;
    settings.push_back(std::move(setting));
  }
  for (const auto& one : report.differences) differences.push_back({{"what", one.what}, {"page", one.page}});
  const Json json{{"place", report.place},
                  {"clear", report.clear()},
                  {"found", std::move(found)},
                  {"settings", std::move(settings)},
                  {"differences", std::move(differences)},
                  {"decide", report.decide},
                  {"notRead", report.not_read},
                  {"next", report.next},
                  {"back", report.back}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace gpulet::cli

// Checks the tables of docs/config.md against the table of settings.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "base/test_page.h"
#include "base/text.h"
#include "config/schema.h"
#include "health/policy/health_policy.h"

namespace gpulet::config {
namespace {

constexpr const char* kPage = "docs/config.md";

std::string code(std::string_view text) { return text.empty() ? "" : "`" + std::string(text) + "`"; }

std::string milliseconds_text(std::uint64_t count) {
  return format_duration(std::chrono::milliseconds(count));
}

std::string choices(const Setting& setting) {
  std::vector<std::string> all;
  for (const auto choice : setting.choices) all.push_back(choice.empty() ? "empty" : code(choice));
  return text::join(all, ", ");
}

// The default and the valid values, but not those that the help names or the default implies.
std::string values(const Setting& setting) {
  const auto by_default = code(setting.default_text.value_or(""));
  const auto after_default = [&](const std::string& valid) {
    return by_default.empty() ? valid : by_default + "; " + valid;
  };
  const auto& bounds = setting.bounds;
  switch (setting.kind) {
    case Kind::kBool:
      return by_default.empty() ? "true, false" : by_default;
    case Kind::kString:
    case Kind::kGrace:
      return by_default;
    case Kind::kChoice:
      if (!by_default.empty() && std::ranges::all_of(setting.choices, [&](const auto choice) {
            return setting.help.find(choice) != std::string_view::npos;
          }))
        return by_default;
      return after_default(choices(setting));
    case Kind::kChoices:
      return after_default("of " + choices(setting));
    case Kind::kStrings:
      return after_default("list of strings");
    case Kind::kUnsigned:
      return after_default(bounds ? std::to_string(bounds->least) + " to " + std::to_string(bounds->most)
                                  : "integer");
    case Kind::kUnsigneds:
      return after_default("list of integers");
    case Kind::kDuration:
      return after_default(bounds
                               ? milliseconds_text(bounds->least) + " to " + milliseconds_text(bounds->most)
                               : "1ms to 24h");
    case Kind::kInterval:
      return after_default("duration, `infinite`");
  }
  return "";
}

// "gpulet.health.classes.lost.effect" as "gpulet.health.classes.CLASS.effect": all fault classes have the
// same settings.
std::string path_of(const Setting& setting) {
  std::string path(setting.path);
  for (const auto& rule : health::fault_rules()) {
    const std::string segment = ".classes." + std::string(rule.name);
    const auto at = path.find(segment);
    const auto end = at == std::string::npos ? at : at + segment.size();
    if (end == path.size() || (end != std::string::npos && path[end] == '.')) {
      return path.replace(at, segment.size(), ".classes.CLASS");
    }
  }
  return path;
}

// At most the first two segments: deeper sections are too small for a table each.
std::string section_of(const Setting& setting) {
  auto segments = text::split(path_of(setting), '.');
  if (segments.empty()) return "";
  segments.pop_back();
  if (segments.size() > 2) segments.resize(2);
  return text::join(segments, ".");
}

// "GPULET_LOG_LEVEL", the variable of the flag "log-level" where its row names none.
std::string usual_variable(const Setting& setting) {
  std::string name = "GPULET_";
  for (const char letter : setting.flag)
    name += letter == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  return name;
}

std::string row(const Setting& setting) {
  const auto section = section_of(setting);
  std::vector<std::string> names;
  if (!setting.path.empty())
    names.push_back(code(path_of(setting).substr(section.empty() ? 0 : section.size() + 1)));
  if (!setting.flag.empty()) names.push_back(code("--" + std::string(setting.flag)));
  for (const auto alias : setting.flag_aliases)
    names.push_back(code((alias.size() == 1 ? "-" : "--") + std::string(alias)));
  const bool usual = setting.environment.size() == 1 && setting.environment[0] == usual_variable(setting);
  for (const auto variable : setting.environment) {
    if (!usual) names.push_back(code(variable));
  }
  std::string help(setting.help);
  for (auto at = help.find('|'); at != std::string::npos; at = help.find('|', at + 2)) help.insert(at, "\\");
  return "| " + text::join(names, ", ") + " | " + values(setting) + " | " + help +
         (setting.assign ? "" : "; accepted without effect") + " |\n";
}

// One table a section, sections in the order of their first settings.
std::string tables() {
  std::vector<std::string> sections;
  for (const auto& setting : settings()) {
    const auto section = section_of(setting);
    if (std::find(sections.begin(), sections.end(), section) == sections.end()) sections.push_back(section);
  }
  std::string page;
  for (const auto& section : sections) {
    page += "\n### " + (section.empty() ? "By flag or environment only" : code(section)) +
            "\n\n| setting | default; values | |\n|---|---|---|\n";
    std::set<std::string> written;
    for (const auto& setting : settings()) {
      if (section_of(setting) != section) continue;
      auto one = row(setting);
      if (written.insert(one).second) page += one;
    }
  }
  std::vector<std::string> classes;
  for (const auto& rule : health::fault_rules()) classes.push_back(code(rule.name));
  return page + "\n`CLASS` is one of " + text::join(classes, ", ") + ".\n\n";
}

TEST(Docs, SettingsTablesMatch) { expect_in_document(kPage, "settings", tables()); }

}  // namespace
}  // namespace gpulet::config

// Checks the tables of docs/config.md against the table of settings.
#include <gtest/gtest.h>

#include <algorithm>
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

// The valid values.
std::string values(const Setting& setting) {
  const auto& bounds = setting.bounds;
  switch (setting.kind) {
    case Kind::kBool:
      return "true, false";
    case Kind::kString:
      return "string";
    case Kind::kChoice:
      return choices(setting);
    case Kind::kChoices:
      return "of " + choices(setting);
    case Kind::kStrings:
      return "list of strings";
    case Kind::kUnsigned:
      return bounds ? std::to_string(bounds->least) + " to " + std::to_string(bounds->most) : "integer";
    case Kind::kUnsigneds:
      return "list of integers";
    case Kind::kDuration:
      return bounds ? milliseconds_text(bounds->least) + " to " + milliseconds_text(bounds->most)
                    : "1ms to 24h";
    case Kind::kGrace:
      return "`stay`, `finish`, `finish=DURATION`, `evict`";
    case Kind::kInterval:
      return "duration, `infinite`";
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

// At most the first three segments: deeper sections are too small for a table each.
std::string section_of(const Setting& setting) {
  auto segments = text::split(path_of(setting), '.');
  if (segments.empty()) return "";
  segments.pop_back();
  if (segments.size() > 3) segments.resize(3);
  return text::join(segments, ".");
}

std::string row(const Setting& setting) {
  std::vector<std::string> flags, environment;
  if (!setting.flag.empty()) flags.push_back(code("--" + std::string(setting.flag)));
  for (const auto alias : setting.flag_aliases)
    flags.push_back(code((alias.size() == 1 ? "-" : "--") + std::string(alias)));
  for (const auto variable : setting.environment) environment.push_back(code(variable));
  const auto section = section_of(setting);
  const auto key = path_of(setting).substr(section.empty() ? 0 : section.size() + 1);
  std::string help(setting.help);
  for (auto at = help.find('|'); at != std::string::npos; at = help.find('|', at + 2)) help.insert(at, "\\");
  return "| " + code(key) + " | " + text::join(flags, ", ") + " | " + text::join(environment, ", ") + " | " +
         code(setting.default_text.value_or("")) + " | " + values(setting) + " | " + help +
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
            "\n\n| key | flag | environment | default | values | |\n|---|---|---|---|---|---|\n";
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

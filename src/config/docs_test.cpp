// docs/config.md shows the table of settings: that it is this one.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/test_page.h"
#include "config/schema.h"

namespace gpulet::config {
namespace {

constexpr const char* kPage = "docs/config.md";

std::string code(std::string_view text) { return text.empty() ? "" : "`" + std::string(text) + "`"; }

std::string joined(const std::vector<std::string>& parts) {
  std::string all;
  for (const auto& part : parts) all += (all.empty() ? "" : ", ") + part;
  return all;
}

std::string in_milliseconds(std::uint64_t count) {
  if (count == 0) return "0s";
  if (count % 1000 != 0) return std::to_string(count) + "ms";
  if (count % 3'600'000 == 0) return std::to_string(count / 3'600'000) + "h";
  return count % 60'000 == 0 ? std::to_string(count / 60'000) + "m" : std::to_string(count / 1000) + "s";
}

std::string choices(const Setting& setting) {
  std::vector<std::string> all;
  for (const auto choice : setting.choices) all.push_back(choice.empty() ? "nothing" : code(choice));
  return joined(all);
}

// What a value may be.
std::string values(const Setting& setting) {
  const auto& bounds = setting.bounds;
  switch (setting.kind) {
    case Kind::kBool:
      return "true, false";
    case Kind::kString:
      return "text";
    case Kind::kChoice:
      return choices(setting);
    case Kind::kChoices:
      return "of " + choices(setting);
    case Kind::kStrings:
      return "list of texts";
    case Kind::kUnsigned:
      return bounds ? std::to_string(bounds->least) + " to " + std::to_string(bounds->most) : "whole number";
    case Kind::kUnsigneds:
      return "list of whole numbers";
    case Kind::kDuration:
      return bounds ? in_milliseconds(bounds->least) + " to " + in_milliseconds(bounds->most) : "1ms to 24h";
    case Kind::kGrace:
      return "`stay`, `finish`, `finish=DURATION`, `evict`";
    case Kind::kInterval:
      return "duration, `infinite`";
  }
  return "";
}

// Of "gpulet.health.classes.lost.hold" the first three: deeper ones are too small for a table each.
std::string section_of(const Setting& setting) {
  std::size_t end = std::string_view::npos;
  for (std::size_t dot = setting.path.find('.'), depth = 0; dot != std::string_view::npos && depth < 3;
       ++depth) {
    end = dot;
    dot = setting.path.find('.', dot + 1);
  }
  return end == std::string_view::npos ? "" : std::string(setting.path.substr(0, end));
}

std::string row(const Setting& setting) {
  std::vector<std::string> flags, environment;
  if (!setting.flag.empty()) flags.push_back(code("--" + std::string(setting.flag)));
  for (const auto alias : setting.flag_aliases)
    flags.push_back(code((alias.size() == 1 ? "-" : "--") + std::string(alias)));
  for (const auto variable : setting.environment) environment.push_back(code(variable));
  const auto section = section_of(setting);
  const auto key = setting.path.substr(section.empty() ? 0 : section.size() + 1);
  std::string help(setting.help);
  for (auto at = help.find('|'); at != std::string::npos; at = help.find('|', at + 2)) help.insert(at, "\\");
  return "| " + code(key) + " | " + joined(flags) + " | " + joined(environment) + " | " +
         code(setting.default_text.value_or("")) + " | " + values(setting) + " | " + help +
         (setting.assign ? "" : "; read and without effect") + " |\n";
}

// One table a section, sections in the order of their first settings.
std::string tables() {
  std::vector<std::string> sections;
  for (const auto& setting : settings()) {
    const auto section = section_of(setting);
    if (std::find(sections.begin(), sections.end(), section) == sections.end()) sections.push_back(section);
  }
  std::string text;
  for (const auto& section : sections) {
    text += "\n### " + (section.empty() ? "By flag or environment only" : code(section)) +
            "\n\n| key | flag | environment | default | values | |\n|---|---|---|---|---|---|\n";
    for (const auto& setting : settings())
      if (section_of(setting) == section) text += row(setting);
  }
  return text + "\n";
}

TEST(Docs, TheTablesOfSettingsAreThese) { expect_in_page(kPage, "settings", tables()); }

}  // namespace
}  // namespace gpulet::config

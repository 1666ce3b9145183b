#include "arguments/command_doc.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include <CLI/CLI.hpp>

#include "arguments/arguments.h"
#include "base/text.h"

namespace gpulet::arguments {
namespace {

constexpr std::string_view kExamplesTitle = "Examples:\n";
constexpr const char* kArgumentsTitle = "Arguments";
constexpr std::size_t kColumns = 80, kHelpColumn = 28, kIndent = 2;

// What an option takes, by its name and type.
std::string value_name(const CLI::Option& option) {
  constexpr std::pair<std::string_view, const char*> kEnds[] = {
      {"file", "FILE"},     {"kubeconfig", "FILE"}, {"bundle", "FILE"}, {"socket", "FILE"},
      {"plot", "FILE"},     {"static-pod", "FILE"}, {"input", "FILE"},  {"output", "FILE"},
      {"dir", "DIRECTORY"}, {"root", "DIRECTORY"},  {"url", "URL"},     {"timeout", "TIME"}};
  const std::string name = option.get_lnames().empty() ? "" : option.get_lnames().front();
  if (!option_choices(option).empty()) return name == "output" ? "FORMAT" : "TEXT";
  for (const auto& [end, value] : kEnds) {
    if (std::string_view(name).ends_with(end)) return value;
  }
  const std::string type = option.get_type_name();
  const bool number = type.starts_with("UINT") || type.starts_with("INT") || type.starts_with("FLOAT");
  return number ? "N" : "TEXT";
}

std::string option_names(const std::set<CLI::Option*>& options) {
  std::vector<std::string> names;
  for (const auto* option : options) names.push_back(option->get_name());
  std::ranges::sort(names);
  return text::join(names, ", ");
}

OptionDoc describe_option(const CLI::Option& option) {
  OptionDoc doc{.help = option.get_description(),
                .group = option.get_group(),
                .choices = option_choices(option),
                .required = option.get_required()};
  doc.repeats = option.get_positional() && option.get_expected_max() > 1;
  if (option.get_positional()) {
    doc.names = {option.get_name(true, false)};
    doc.group = kArgumentsTitle;
  } else {
    for (const auto& name : option.get_snames()) doc.names.push_back("-" + name);
    for (const auto& name : option.get_lnames()) doc.names.push_back("--" + name);
    if (option.get_items_expected_min() > 0) doc.value = value_name(option);
  }
  if (!option.get_needs().empty()) doc.help += " (needs " + option_names(option.get_needs()) + ")";
  if (!option.get_envname().empty()) doc.help += " [$" + option.get_envname() + "]";
  if (option.get_required() && !option.get_positional()) doc.help += " (required)";
  return doc;
}

// A name and its text, which starts in kHelpColumn.
std::string help_entry(const std::string& name, std::string_view help) {
  std::string entry = std::string(kIndent, ' ') + name;
  const bool fits = display_width(entry) + kIndent <= kHelpColumn;
  entry += fits ? std::string(kHelpColumn - display_width(entry), ' ') : "\n" + std::string(kHelpColumn, ' ');
  const auto lines = wrap_text(help, kColumns - kHelpColumn);
  return entry + text::join(lines, "\n" + std::string(kHelpColumn, ' ')) + "\n";
}

std::string option_usage(const OptionDoc& option) {
  const std::string names = text::join(option.names, ", ");
  return names + (option.value.empty() ? "" : " " + option.value);
}

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string, CLI::AppFormatMode) const override {
    return help_text(describe_command(*app));
  }
};

}  // namespace

CommandDoc describe_command(const CLI::App& command) {
  CommandDoc doc{.path = command.get_name(), .summary = command.get_description()};
  for (const auto* parent = command.get_parent(); parent != nullptr; parent = parent->get_parent())
    doc.path = parent->get_name() + " " + doc.path;
  const std::string footer = command.get_footer();
  const auto examples = footer.find(kExamplesTitle);
  doc.details = footer.substr(0, examples);
  if (examples != std::string::npos) doc.examples = footer.substr(examples + kExamplesTitle.size());
  doc.group = command.get_group();
  doc.needs_command = command.get_require_subcommand_min() > 0;
  for (const auto* option : command.get_options()) {
    if (option->get_group().empty()) continue;
    (option->get_positional() ? doc.arguments : doc.options).push_back(describe_option(*option));
  }
  for (const auto* one : command.get_subcommands([](const CLI::App*) { return true; })) {
    if (!one->get_group().empty()) doc.commands.push_back(describe_command(*one));
  }
  return doc;
}

void set_help_texts(CLI::App& command, std::string_view details, std::string_view examples) {
  command.footer(std::string(details) +
                 (examples.empty() ? "" : std::string(kExamplesTitle) + std::string(examples)));
}

void use_help_text(CLI::App& program) {
  program.formatter(std::make_shared<HelpFormatter>());
  program.set_help_flag("-h,--help", "print this help");
}

std::string usage_line(const CommandDoc& doc) {
  std::string usage = doc.path + " [options]";
  for (const auto& argument : doc.arguments) {
    const std::string name = argument.names.front() + (argument.repeats ? "..." : "");
    usage += argument.required ? " " + name : " [" + name + "]";
  }
  if (!doc.commands.empty()) usage += doc.needs_command ? " COMMAND" : " [COMMAND]";
  return usage;
}

std::string help_text(const CommandDoc& doc) {
  std::string text = doc.summary + "\n";
  if (!doc.details.empty()) text += "\n" + text::join(wrap_text(doc.details, kColumns), "\n") + "\n";
  if (!doc.examples.empty()) text += "\nExamples:\n" + doc.examples + "\n";
  if (!doc.arguments.empty()) text += std::string("\n") + kArgumentsTitle + ":\n";
  for (const auto& argument : doc.arguments)
    text += help_entry(argument.names.front() + (argument.repeats ? "..." : ""), argument.help);
  for (const auto& title : group_titles(doc.commands)) {
    text += "\n" + title + ":\n";
    for (const auto& command : doc.commands) {
      if (command.group == title) text += help_entry(std::string(command.name()), command.summary);
    }
  }
  for (const auto& title : group_titles(doc.options)) {
    text += "\n" + title + ":\n";
    for (const auto& option : doc.options) {
      if (option.group == title) text += help_entry(option_usage(option), option.help);
    }
  }
  text += "\nUsage: " + usage_line(doc) + "\n";
  if (!doc.commands.empty()) text += "Use `" + doc.path + " COMMAND --help` for the help of a command.\n";
  return text;
}

}  // namespace gpulet::arguments

#include "arguments/arguments.h"

#include <algorithm>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/text.h"

namespace gpulet::arguments {
namespace {

// U+0080 to U+009F, which terminals obey too.
bool is_c1_control(std::string_view character) {
  return character.size() == 2 && character[0] == '\xc2' && static_cast<unsigned char>(character[1]) < 0xa0;
}

const CLI::App& selected_command(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  return names;
}

constexpr std::size_t kMostNames = 8;  // in a message; --help has more

std::string unknown_option(const CLI::App& command, const std::string& wrong,
                           const FindSetting& find_setting) {
  std::string text = "unknown option " + wrong;
  std::vector<std::string> options;
  for (const auto* option : command.get_options()) {
    if (option->get_group().empty()) continue;
    for (const auto& one : option->get_lnames()) options.push_back("--" + one);
  }
  const auto name_at = std::min(wrong.find_first_not_of('-'), wrong.size());
  const auto setting = find_setting ? find_setting(std::string_view(wrong).substr(name_at)) : std::string();
  if (!setting.empty()) return text + "; set " + setting + " in the config file";
  if (const auto near = text::nearest(wrong, options)) return text + "; did you mean " + *near + "?";
  for (const auto* option : command.get_options()) {  // --json for --output json
    const auto choices = option_choices(*option);
    if (option->get_positional() || std::ranges::find(choices, wrong.substr(name_at)) == choices.end())
      continue;
    return text + "; did you mean " + option->get_name() + " " + wrong.substr(name_at) + "?";
  }
  return text;
}

// {"table", "wide"} of "{table,wide}".
std::vector<std::string> set_members(std::string_view set) {
  return text::split(set.substr(1, set.find('}') - 1), ',');
}

// "table, wide or json"; empty: any value.
std::string expected_values(const CLI::Option& option) { return list_choices(option_choices(option)); }

// "--output: xml not in {table,json}": the values are refused by CLI11's validators or by those of the
// program, whose texts are shown as they are.
std::string refused_value(const std::string& what) {
  const auto colon = what.find(": ");
  if (colon == std::string::npos) return what;
  const std::string option = what.substr(0, colon + 2), message = what.substr(colon + 2);
  if (const auto set = message.rfind(" not in {"); set != std::string::npos) {
    return option + "unknown value '" + message.substr(0, set) + "'; expected " +
           list_choices(set_members(std::string_view(message).substr(set + 8)));
  }
  constexpr std::string_view kValue = "Value ", kRange = " not in range ";
  if (const auto range = message.rfind(kRange); message.starts_with(kValue) && range != std::string::npos) {
    return option + "expected a number from " + message.substr(range + kRange.size()) + ", found '" +
           message.substr(kValue.size(), range - kValue.size()) + "'";
  }
  return what;
}

// "Could not convert: --weight = abc" and the flags' forms.
std::string unconverted_value(const std::string& what) {
  constexpr std::string_view kStart = "Could not convert: ", kFlag = ": Should be true/false or a number";
  const auto equals = what.find(" = ");
  if (what.starts_with(kStart) && equals != std::string::npos) {
    return what.substr(kStart.size(), equals - kStart.size()) + ": expected a number, found '" +
           what.substr(equals + 3) + "'";
  }
  if (what.ends_with(kFlag)) return what.substr(0, what.size() - kFlag.size()) + ": expected true or false";
  return what;
}

// "--output: 1 required TEXT missing", "--size: At Most 1 required but received 2".
std::string wrong_value_count(const CLI::App& command, const std::string& what) {
  const auto colon = what.find(": ");
  if (colon == std::string::npos) return what;
  const auto name = what.substr(0, colon);
  if (what.find("At Most 1 required") != std::string::npos) return name + " is given more than once";
  const auto* option = command.get_option_no_throw(name);
  const auto values = option == nullptr ? std::string() : expected_values(*option);
  return name + ": expected a value" + (values.empty() ? "" : ": " + values);
}

std::string describe_mistake(const CLI::App& command, const CLI::ParseError& error) {
  const std::string what = error.what();
  if (dynamic_cast<const CLI::ValidationError*>(&error) != nullptr) return refused_value(what);
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) return unconverted_value(what);
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) return wrong_value_count(command, what);
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    const auto names = command_names(command);
    if (what.starts_with("A subcommand"))
      return names.size() > kMostNames ? "expected a command" : "expected a command: " + list_choices(names);
    const auto name = what.substr(0, what.find(' '));
    const auto* option = command.get_option_no_throw(name);
    const auto values = option == nullptr ? std::string() : expected_values(*option);
    return name + " is required" + (values.empty() ? "" : ": " + values);
  }
  if (const auto at = what.find(" excludes "); at != std::string::npos)
    return what.substr(0, at) + " cannot be combined with " + what.substr(at + 10);
  return what;
}

}  // namespace

std::string printable_text(std::string_view text) {
  std::string printable;
  while (!text.empty()) {
    const auto length = text::utf8_length(text);
    const auto character = text.substr(0, std::max<std::size_t>(length, 1));
    const auto byte = static_cast<unsigned char>(text[0]);
    const bool control = (byte < ' ' && byte != '\n') || byte == 0x7f || is_c1_control(character);
    if (length != 0 && !control) {
      printable += character;
    } else {
      for (const char one : character) printable += "\\x" + hex_text(static_cast<unsigned char>(one), 2);
    }
    text.remove_prefix(character.size());
  }
  return printable;
}

std::vector<std::string> wrap_text(std::string_view text, std::size_t width) {
  std::vector<std::string> lines(1);
  std::string words(text);
  std::ranges::replace(words, '\n', ' ');
  for (const auto& word : text::split(words, ' ')) {
    if (word.empty()) continue;
    auto& line = lines.back();
    if (line.empty()) {
      line = word;
    } else if (display_width(line) + 1 + display_width(word) <= width) {
      line += " " + word;
    } else {
      lines.push_back(word);
    }
  }
  return lines;
}

namespace {

// The blank at which `line` is broken: the last one behind column `from` that leaves at most `columns`, else
// the first one behind it. npos if the line fits, or has none.
std::size_t break_point(std::string_view line, std::size_t columns, std::size_t from) {
  std::size_t column = 0, found = std::string_view::npos;
  bool code = false, escape = false;
  for (std::size_t at = 0; at < line.size(); ++at) {
    const char c = line[at];
    if (c == '\x1b') escape = true;
    const bool starts = (static_cast<unsigned char>(c) & 0xc0u) != 0x80u;
    if (c == '`') code = !code && line.find('`', at + 1) != std::string_view::npos;
    if (c == ' ' && !code && column > from && (column <= columns || found == std::string_view::npos))
      found = at;
    if (starts && !escape) ++column;
    if (escape && c == 'm') escape = false;
  }
  return column > columns ? found : std::string_view::npos;
}

}  // namespace

std::string wrap_lines(std::string_view text, std::size_t columns, std::size_t indent) {
  if (columns == 0) return std::string(text);
  std::vector<std::string> lines;
  for (auto& line : text::split(text, '\n')) {
    const auto own = std::min(line.find_first_not_of(' '), line.size());
    const auto hang = std::max(indent, own == 0 ? 0 : own + 2);
    for (auto at = break_point(line, columns, hang); at != std::string::npos;
         at = break_point(line, columns, hang)) {
      lines.push_back(line.substr(0, line.find_last_not_of(' ', at) + 1));
      const auto rest = std::min(line.find_first_not_of(' ', at), line.size());
      line = std::string(hang, ' ') + line.substr(rest);
    }
    lines.push_back(std::move(line));
  }
  return text::join(lines, "\n");
}

std::vector<std::string> option_choices(const CLI::Option& option) {
  const std::string type = option.get_type_name();  // "TEXT:{table,json}"
  const auto set = type.find('{');
  return set == std::string::npos ? std::vector<std::string>()
                                  : set_members(std::string_view(type).substr(set));
}

std::string list_choices(std::span<const std::string> choices) {
  if (choices.size() < 2) return choices.empty() ? std::string() : choices.front();
  return text::join(choices.first(choices.size() - 1), ", ") + " or " + choices.back();
}

std::optional<std::string> find_unknown_command(const CLI::App& app, const std::string& name) {
  const auto names = command_names(app);
  const auto has_name = [&](const CLI::App* command) { return command->get_name() == name; };
  if (!app.get_subcommands(has_name).empty()) return std::nullopt;
  const auto near = text::nearest(name, names);
  const std::string text = "unknown command '" + name + "'";
  if (near) return text + "; did you mean " + *near + "?";
  return names.size() > kMostNames ? text : text + "; expected " + list_choices(names);
}

std::string command_path(const CLI::App& app) {
  std::string path = app.get_name();
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    path += " " + command->get_name();
  }
  return path;
}

std::string describe_parse_error(const CLI::App& app, const CLI::ParseError& error,
                                 const FindSetting& find_setting) {
  const auto& command = selected_command(app);
  // An unknown option comes first: a required one may be missing because of its misspelling.
  const auto rest = app.remaining(true);
  std::string text;
  if (rest.empty()) {
    text = describe_mistake(command, error);
  } else if (const auto& wrong = rest.front(); wrong.starts_with('-')) {
    text = unknown_option(command, wrong.substr(0, wrong.find('=')), find_setting);
  } else if (!command_names(command).empty()) {
    text = find_unknown_command(command, wrong).value_or("unexpected argument '" + wrong + "'");
  } else {
    text = "unexpected argument '" + wrong + "'";
  }
  return text + " (see " + command_path(app) + " --help)";
}

void refuse_malformed_numbers(CLI::App& app) {
  for (auto* option : app.get_options()) {
    if (option->get_type_name().starts_with("UINT")) {
      option->check(CLI::Validator(
          [](const std::string& value) {
            return text::parse_unsigned(value)
                       ? std::string()
                       : "expected a number that is not negative, found '" + value + "'";
          },
          ""));
    }
  }
  for (auto* command : app.get_subcommands([](const CLI::App*) { return true; }))
    refuse_malformed_numbers(*command);
}

}  // namespace gpulet::arguments

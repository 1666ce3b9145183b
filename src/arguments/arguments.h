// What a program answers to invalid arguments, one form for every program: "PROGRAM COMMAND: what is wrong,
// and what was expected (see PROGRAM COMMAND --help)". CLI11 finds the mistakes; its own texts are not shown.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
class ParseError;
}  // namespace CLI

namespace gpulet::arguments {

// Exit code of an invalid option or argument.
inline constexpr int kWrongArguments = 2;

// `text` for a terminal: control characters except line breaks, and bytes that are not UTF-8, become "\x1b".
std::string printable_text(std::string_view text);

// `text` in lines of at most `width` columns, broken at blanks; a longer word has a line of its own. At least
// one line.
std::vector<std::string> wrap_text(std::string_view text, std::size_t width);

// Lines of prose for a terminal: one wider than `columns` continues below, `indent` blanks from the left, or
// two more than the line itself has. It breaks at blanks, but not inside `code`, which is to be copied.
// Escape sequences of colours have no width. 0 columns: as it is.
std::string wrap_lines(std::string_view text, std::size_t columns, std::size_t indent = 0);

// "table, wide or json".
std::string list_choices(std::span<const std::string> choices);

// The values that `option` takes; empty: any.
std::vector<std::string> option_choices(const CLI::Option& option);

// "unknown command 'lst'; did you mean list?"; nullopt if `app` has a command of that name.
std::optional<std::string> find_unknown_command(const CLI::App& app, const std::string& name);

// The program and the commands on the command line so far: "gpulet mig plan".
std::string command_path(const CLI::App& app);

// What is wrong with the command line that `app` has refused with `error`, on one line. `find_setting`
// returns what sets an option of that name (without dashes) that is another program's, or nothing.
using FindSetting = std::function<std::string(std::string_view option)>;
std::string describe_parse_error(const CLI::App& app, const CLI::ParseError& error,
                                 const FindSetting& find_setting);

// Makes every option with an unsigned number as its value refuse other texts; CLI11 takes "-1" as the largest
// number and "010" as 8. Once, after all options are added; includes subcommands.
void refuse_malformed_numbers(CLI::App& app);

}  // namespace gpulet::arguments

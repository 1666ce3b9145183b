// A program's command line as plain data. Its help, man pages and completions are made of it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace gpulet::arguments {

struct OptionDoc {
  std::vector<std::string> names = {};    // "-o", "--output"; of an argument its name, "GPU"
  std::string value = {};                 // "FILE"; empty: a flag, or an argument
  std::string help = {};                  // one line, with the default and the environment variable
  std::string group = {};                 // title in the help
  std::vector<std::string> choices = {};  // the values; empty: any
  bool required = false;
  bool repeats = false;  // several arguments
};

// Hidden options and commands are left out.
struct CommandDoc {
  std::string path = {};     // "gpulet mig plan"
  std::string summary = {};  // one line, imperative
  std::string details = {};  // one paragraph
  std::string examples = {};
  std::string group = {};  // title in the parent's help
  std::vector<OptionDoc> arguments = {}, options = {};
  std::vector<CommandDoc> commands = {};
  bool needs_command = false;

  std::string_view name() const { return std::string_view(path).substr(path.rfind(' ') + 1); }
};

// Reads `command` and its subcommands.
CommandDoc describe_command(const CLI::App& command);

// Stores what CLI11 has no place for, details and examples, for describe_command().
void set_help_texts(CLI::App& command, std::string_view details, std::string_view examples);

// Makes --help of `program` and its subcommands print help_text(). Before subcommands are added.
void use_help_text(CLI::App& program);

// "gpulet mig plan [options] [GPU]".
std::string usage_line(const CommandDoc& doc);

// kubectl's order: summary, details, examples, arguments, options by group, commands, usage. At most 80
// columns wide, except for examples. Pure.
std::string help_text(const CommandDoc& doc);

// The titles of `docs`, in the order in which they first appear.
template <class Doc>
std::vector<std::string> group_titles(const std::vector<Doc>& docs) {
  std::vector<std::string> titles;
  for (const auto& doc : docs) {
    bool known = false;
    for (const auto& title : titles) known = known || title == doc.group;
    if (!known) titles.push_back(doc.group);
  }
  return titles;
}

// A man page of section 1 in man(7)'s macros, with the command's subcommands. `version`: "0.1.0". Pure.
std::string manual_page(const CommandDoc& doc, const std::string& version);
// "gpulet-mig" of "gpulet mig": the name of a command's page.
std::string manual_name(const CommandDoc& doc);

}  // namespace gpulet::arguments

// `gpulet help`, `gpulet completion`, and the man pages: what the command line says about itself.
#include <memory>

#include <CLI/CLI.hpp>

#include "arguments/completion.h"
#include "base/file.h"
#include "cli/kubectl/kubectl.h"
#include "cli/main/command_line.h"

namespace gpulet::cli {
namespace {

struct HelpOptions {
  std::vector<std::string> command;
  std::string man_dir;  // writes the man pages there instead
};

// A man page for the program, for each command with its subcommands, and for kubectl's plugin.
Status write_manuals(const arguments::CommandDoc& program, const std::string& directory) {
  const auto write = [&](const arguments::CommandDoc& doc) {
    return write_file_atomic(directory + "/" + arguments::manual_name(doc) + ".1",
                             arguments::manual_page(doc, version()));
  };
  GPULET_TRY(write(program));
  for (const auto& command : program.commands) GPULET_TRY(write(command));
  return write(kubectl::describe_plugin());
}

CommandOutput help_output(const CLI::App& app, const HelpOptions& options) {
  if (!options.man_dir.empty()) {
    const auto written = write_manuals(arguments::describe_command(app), options.man_dir);
    return written ? CommandOutput{} : error_output("gpulet help", written.error().full_message());
  }
  const CLI::App* command = &app;
  for (const auto& name : options.command) {
    if (const auto unknown = arguments::find_unknown_command(*command, name)) {
      return error_output("gpulet help",
                          *unknown + " (see " + arguments::describe_command(*command).path + " --help)",
                          kWrongCommand);
    }
    command = command->get_subcommand(name);
  }
  return {.exit_code = 0, .out = arguments::help_text(arguments::describe_command(*command)), .err = {}};
}

}  // namespace

void add_help(CLI::App& app, Run& run) {
  auto& command = add_command(app, {.name = "help",
                                    .summary = "Show the help of a command",
                                    .examples = "  gpulet help\n"
                                                "  gpulet help mig plan",
                                    .group = kOtherGroup});
  const auto options = std::make_shared<HelpOptions>();
  command.add_option("COMMAND", options->command, "command, such as `mig plan` (default: gpulet itself)");
  // For packages.
  command.add_option("--man-dir", options->man_dir, "write the man pages to this directory")->group("");
  // The options end before the command runs.
  command.callback([options, &app, &run] {
    run = [output = help_output(app, *options)] { return print_output(output); };
  });
}

void add_completion(CLI::App& app, Run& run) {
  auto& command = add_command(
      app, {.name = "completion",
            .summary = "Print the completion script of a shell",
            .details = "Add the first example to ~/.bashrc, or the second to ~/.zshrc behind compinit. The "
                       "Debian package installs all three.",
            .examples = "  source <(gpulet completion bash)\n"
                        "  source <(gpulet completion zsh)\n"
                        "  gpulet completion fish > ~/.config/fish/completions/gpulet.fish",
            .group = kOtherGroup});
  const auto shell = std::make_shared<std::string>();
  command.add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember(
          std::vector<std::string>(std::begin(arguments::kShells), std::end(arguments::kShells))));
  command.callback([shell, &run] {
    run = [shell] {
      return print_output(
          {.exit_code = 0, .out = arguments::completion_script(*shell, "gpulet").value_or(""), .err = {}});
    };
  });
}

int print_completion(const CLI::App& app, int argc, char** argv) {
  const std::vector<std::string> words(argv + 2, argv + argc);
  auto program = arguments::describe_command(app);
  auto completion = arguments::complete_words(program, words);
  // The arguments of help are commands.
  if (words.size() > 1 && words.front() == "help" && !words.back().starts_with('-')) {
    std::erase_if(program.commands, [](const auto& command) { return command.name() == "help"; });
    completion = arguments::complete_words(program, std::span(words).subspan(1));
  }
  return print_output({.exit_code = 0, .out = arguments::completion_lines(completion), .err = {}});
}

}  // namespace gpulet::cli

#include "arguments/completion.h"

#include <algorithm>
#include <utility>

namespace gpulet::arguments {
namespace {

const OptionDoc* find_option(const CommandDoc& command, std::string_view name) {
  for (const auto& option : command.options) {
    if (std::ranges::find(option.names, name) != option.names.end()) return &option;
  }
  return nullptr;
}

const CommandDoc* find_command(const CommandDoc& command, std::string_view name) {
  const auto found = std::ranges::find(command.commands, name, &CommandDoc::name);
  return found == command.commands.end() ? nullptr : &*found;
}

// `prefix` stands before the value in the same word.
Completion complete_value(const OptionDoc& option, std::string_view value, const std::string& prefix) {
  Completion completion;
  for (const auto& choice : option.choices) {
    if (choice.starts_with(value)) completion.candidates.push_back({prefix + choice, {}});
  }
  if (!option.choices.empty()) return completion;
  const auto& kind = option.value.empty() ? option.names.front() : option.value;
  if (kind == "FILE") completion.files = Completion::Files::kAny;
  if (kind == "DIRECTORY") completion.files = Completion::Files::kDirectories;
  return completion;
}

Completion complete_option_name(const CommandDoc& command, std::string_view word) {
  Completion completion;
  for (const auto& option : command.options) {
    for (const auto& name : option.names) {
      const bool short_name = name.size() == 2;
      if (name.starts_with(word) && (!short_name || option.names.size() == 1))
        completion.candidates.push_back({name, option.help});
    }
  }
  return completion;
}

Completion complete_argument(const CommandDoc& command, std::size_t index, std::string_view word) {
  Completion completion;
  if (!command.arguments.empty() && (index < command.arguments.size() || command.arguments.back().repeats))
    completion = complete_value(command.arguments[std::min(index, command.arguments.size() - 1)], word, {});
  for (const auto& one : command.commands) {
    if (index == 0 && one.name().starts_with(word))
      completion.candidates.push_back({std::string(one.name()), one.summary});
  }
  return completion;
}

constexpr std::string_view kBash = R"(# Completion of PROGRAM for bash: source <(PROGRAM completion bash)
_PROGRAM() {
  local word=${COMP_WORDS[COMP_CWORD]} line
  [[ $word == = ]] && word=
  COMPREPLY=()
  while IFS= read -r line; do
    case $line in
      :files) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
      :directories) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$word") ;;
      *) COMPREPLY+=("${line%%$'\t'*}") ;;
    esac
  done < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _PROGRAM PROGRAM
)";

constexpr std::string_view kZsh = R"(#compdef PROGRAM
# Completion of PROGRAM for zsh: source <(PROGRAM completion zsh), after compinit
_PROGRAM() {
  local line
  local -a candidates
  while IFS= read -r line; do
    case $line in
      :files) compset -P '--*='; _files; return ;;
      :directories) compset -P '--*='; _files -/; return ;;
      *) candidates+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
    esac
  done < <("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
  _describe PROGRAM candidates
}
if [[ ${funcstack[1]} == _PROGRAM ]]; then _PROGRAM "$@"; else compdef _PROGRAM PROGRAM; fi
)";

constexpr std::string_view kFish = R"(# Completion of PROGRAM for fish: PROGRAM completion fish | source
function __PROGRAM_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    for line in ($words[1] __complete $words[2..-1] "$current" 2>/dev/null)
        switch $line
            case :files
                __fish_complete_path "$current"
            case :directories
                __fish_complete_directories "$current" ''
            case '*'
                printf '%s\n' $line
        end
    end
end
complete -c PROGRAM -f -a '(__PROGRAM_complete)'
)";

}  // namespace

Completion complete_words(const CommandDoc& program, std::span<const std::string> words) {
  const CommandDoc* command = &program;
  const OptionDoc* pending = nullptr;  // the option whose value comes next
  std::size_t arguments = 0;
  bool arguments_only = false;
  const std::string last = words.empty() || words.back() == "=" ? std::string() : words.back();
  for (const auto& word : words.first(words.empty() ? 0 : words.size() - 1)) {
    if (word == "=") continue;
    if (pending != nullptr) {
      pending = nullptr;
    } else if (word == "--") {
      arguments_only = true;
    } else if (!arguments_only && word.size() > 1 && word.starts_with('-')) {
      const auto* option = find_option(*command, word);
      if (option != nullptr && !option->value.empty()) pending = option;
    } else if (const auto* next = find_command(*command, word); next != nullptr && arguments == 0) {
      command = next;
    } else {
      ++arguments;
    }
  }
  if (pending != nullptr) return complete_value(*pending, last, {});
  if (arguments_only || !last.starts_with('-')) return complete_argument(*command, arguments, last);
  const auto equals = last.find('=');
  if (equals == std::string::npos) return complete_option_name(*command, last);
  const auto* option = find_option(*command, std::string_view(last).substr(0, equals));
  if (option == nullptr) return {};
  return complete_value(*option, std::string_view(last).substr(equals + 1), last.substr(0, equals + 1));
}

std::string completion_lines(const Completion& completion) {
  if (completion.files == Completion::Files::kAny) return ":files\n";
  if (completion.files == Completion::Files::kDirectories) return ":directories\n";
  std::string lines;
  for (const auto& candidate : completion.candidates) lines += candidate.text + "\t" + candidate.help + "\n";
  return lines;
}

std::optional<std::string> completion_script(std::string_view shell, std::string_view program) {
  const auto text = shell == "bash" ? kBash : shell == "zsh" ? kZsh : shell == "fish" ? kFish : "";
  if (text.empty()) return std::nullopt;
  constexpr std::string_view kName = "PROGRAM";
  std::string script(text);
  for (auto at = script.find(kName); at != std::string::npos; at = script.find(kName))
    script.replace(at, kName.size(), program);
  return script;
}

}  // namespace gpulet::arguments

// What a shell completes. Its function runs `PROGRAM __complete WORD...` and shows the lines that it prints.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "arguments/command_doc.h"

namespace gpulet::arguments {

struct Candidate {
  std::string text;  // replaces the last word
  std::string help;  // may be empty
};

struct Completion {
  std::vector<Candidate> candidates;  // in the order of the help
  enum class Files { kNone, kAny, kDirectories } files = Files::kNone;
};

// Completes the last of `words`, which follow the program's name; it may be empty. Bash splits "--output=js"
// into three words, of which the value alone is replaced; in one word it is completed with the option. Pure.
Completion complete_words(const CommandDoc& program, std::span<const std::string> words);

// "TEXT\tHELP" lines, or one line ":files" or ":directories".
std::string completion_lines(const Completion& completion);

// The script that `PROGRAM completion SHELL` prints; nullopt for an unknown shell.
std::optional<std::string> completion_script(std::string_view shell, std::string_view program);
inline constexpr const char* kShells[] = {"bash", "zsh", "fish"};
inline constexpr std::string_view kCompleteCommand = "__complete";

}  // namespace gpulet::arguments

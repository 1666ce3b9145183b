// What a few terminals can do, for images that have no terminfo: compiled entries of ncurses' own database.
#pragma once

#include <string>

namespace gpulet::cli {

struct TerminalEntry {
  std::string name;  // what the terminal is to be called by with it
  std::string text;  // what ncurses takes as $TERMINFO: "hex:…"
};
// For the terminal of that name: its own, or that of xterm, which nearly all others of today understand.
TerminalEntry terminal_entry(const std::string& name);

}  // namespace gpulet::cli

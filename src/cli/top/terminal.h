// The terminal of `gpulet top`: lines out, keys and mouse in, with ncurses. One per process, on one thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/top/controls.h"

namespace gpulet::cli {

// Applies the environment's locale. Returns whether its character set is UTF-8.
bool apply_locale();

class TopTerminal {
 public:
  // Controls the terminal of standard input and output until destruction. SIGTSTP is blocked by now, and the
  // caller answers it by stop(). The terminal reports its mouse meanwhile, except while the program is
  // stopped. Its capabilities come from the usual terminfo directories, else (an image without them) from
  // entries for xterm, the Linux console and screen in this program. No colour if the terminal has none or
  // `colours` is false. Errors: kFailedPrecondition for a terminal that cannot place its cursor ("dumb"), or
  // none.
  static Result<std::unique_ptr<TopTerminal>> open_terminal(const std::string& name, bool colours);
  // Whether open_terminal() would succeed.
  static bool is_usable_terminal(const std::string& name);
  virtual ~TopTerminal() = default;

  // Gives the terminal back, stops the process, and returns when it continues. draw() takes the terminal
  // again.
  virtual void stop() = 0;
  virtual void draw(const std::vector<TopLine>& lines) = 0;
  // The next pressed key or mouse button; nullopt if there is none.
  virtual std::optional<TopKey> read_key() = 0;
  // Whether its font has braille patterns; the Linux console's has not.
  virtual bool has_braille() const = 0;
  // Adopts the terminal's size. It may change while the program is stopped, too.
  virtual void measure() = 0;
  virtual unsigned columns() const = 0;
  virtual unsigned rows() const = 0;
};

// A compiled entry of ncurses' database, for images without terminfo.
struct TerminalEntry {
  std::string name;  // name of the terminal to use with it
  std::string text;  // the value of $TERMINFO: "hex:…"
};
// The entry of that terminal, else that of xterm, which most terminals are compatible with.
TerminalEntry terminal_entry(const std::string& name);

}  // namespace gpulet::cli

// The terminal of `gpulet top`: lines out, keys in, by ncurses. One at a time in a process, on one thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/top_control.h"
#include "cli/top_view.h"

namespace gpulet::cli {

// Takes the locale's character set from the environment; whether it is UTF-8.
bool use_locale();

class TopTerminal {
 public:
  // Takes the terminal of standard input and output over, until destruction, also from a signal's hands: a
  // program that is stopped and goes on finds it again. Its abilities are read from the usual terminfo
  // folders; where those do not have it (an image without any), what xterm, the Linux console and screen can
  // do is in this program. No colour where the terminal has none or `colours` is false. Errors:
  // kFailedPrecondition for a terminal that cannot place a cursor ("dumb"), or that is none.
  static Result<std::unique_ptr<TopTerminal>> open(const std::string& name, bool colours);
  // Whether open() would find one.
  static bool usable(const std::string& name);
  virtual ~TopTerminal() = default;

  virtual void draw(const std::vector<TopLine>& lines) = 0;
  // The next key that was pressed; nullopt when there is none now.
  virtual std::optional<TopKey> read() = 0;
  // After SIGWINCH, and once before the first draw.
  virtual void measure() = 0;
  virtual unsigned columns() const = 0;
  virtual unsigned rows() const = 0;
};

}  // namespace gpulet::cli

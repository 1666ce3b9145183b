// A program in its own terminal (a pty) and its visible screen, emulated by libvterm.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "tests/sim/node_fixture.h"

struct VTerm;

namespace gpulet::tests {

class Terminal {
 public:
  // Runs `command` with exactly `environment`; fails the test on an error.
  Terminal(std::vector<std::string> command, std::vector<std::string> environment, int rows, int columns);
  // Ends the program if it still runs.
  ~Terminal();
  Terminal(const Terminal&) = delete;

  void press_keys(const std::string& keys);
  // Presses and releases a mouse button at a place of the screen: 1 left, 4 and 5 the wheel. Reported in the
  // protocol that the program has chosen; fails the test if it has not turned the mouse on.
  void press_mouse(int button, int row, int column);
  void send_signal(int signal);
  void resize(int rows, int columns);  // and notifies the program
  // Waits until the screen has `text` (or does not) after all output. Returns false after kTestTimeout.
  bool wait_for_text(const std::string& text);
  bool wait_for_absence(const std::string& text);
  bool wait_for_row(int index, const std::string& text);  // waits likewise
  // Reads output for this time, or until the program ends.
  void start_watching(std::chrono::milliseconds time);
  // The rows, without trailing spaces.
  std::string screen() const;
  std::string row(int index) const;
  // The screen as the text of an HTML element <pre>: a <span style="color:…"> for each run of cells of one
  // style, and an <i> for each character beyond ASCII, whose font may have another width. Colours are
  // libvterm's; the terminal's own two are left to the page.
  std::string screen_html() const;
  // What the program has changed: mouse reports, the alternate screen, and the line discipline's echo and
  // line mode.
  bool is_mouse_on() const;
  bool is_alternate_screen() const { return alternate_screen_; }
  bool is_line_mode() const;
  // All three as a shell wants them, waiting for it.
  bool wait_for_restored();
  // All bytes that the program wrote.
  const std::string& written() const { return written_; }
  // Waits for its end. Returns its exit code, or minus the signal.
  int wait_for_exit();

 private:
  // Returns false on a timeout or at the end of output.
  bool read_output(std::chrono::milliseconds limit);
  bool wait_until(const std::function<bool()>& condition);
  void write_all(const std::string& bytes);
  // libvterm's callback for a property of the terminal that the program sets.
  static int on_property(int property, void* value, void* self);

  FileDescriptor pty_;
  pid_t child_ = -1;
  bool over_ = false, alternate_screen_ = false;
  std::string written_;
  std::unique_ptr<VTerm, void (*)(VTerm*)> terminal_;
  int rows_, columns_;
};

}  // namespace gpulet::tests

// A program in a terminal of its own (a pty), and what a person would see there: libvterm is the terminal.
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
  // Runs `command` with exactly `environment`; fails the test when it cannot.
  Terminal(std::vector<std::string> command, std::vector<std::string> environment, int rows, int columns);
  // Ends the program if it still runs.
  ~Terminal();
  Terminal(const Terminal&) = delete;

  void press(const std::string& keys);
  void resize(int rows, int columns);  // and tells the program
  // True once the screen has `text` (or has it no more) after all that was written; false after kPatience.
  bool shows(const std::string& text);
  bool shows_no(const std::string& text);
  bool row_begins(int index, const std::string& text);  // as soon as it does
  // Reads what is written for so long, or until the program ends.
  void watch(std::chrono::milliseconds time);
  // The rows, without blanks at their ends.
  std::string screen() const;
  std::string row(int index) const;
  // All bytes that the program wrote, for those that are no text.
  const std::string& written() const { return written_; }
  // Waits for its end: its exit code, or minus the signal that ended it.
  int wait();

 private:
  // False when nothing came in that time, or nothing will.
  bool read(std::chrono::milliseconds limit);
  bool until(const std::function<bool()>& condition);

  FileDescriptor pty_;
  pid_t child_ = -1;
  bool over_ = false;
  std::string written_;
  std::unique_ptr<VTerm, void (*)(VTerm*)> terminal_;
  int rows_, columns_;
};

}  // namespace gpulet::tests

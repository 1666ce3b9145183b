// What the demo prints: headings, commands and results, one line each; colour and weight only on a terminal.
#pragma once

#include <chrono>
#include <string>

namespace gpulet::cli {

using Milliseconds = std::chrono::duration<double, std::milli>;

// "1.3 ms", "840 µs".
std::string text_of(std::chrono::nanoseconds time);

class Narrator {
 public:
  Narrator();
  void heading(const std::string& text);
  void command(const std::string& text);  // what a person could type
  void say(const std::string& text);
  void done(const std::string& text);   // a claim that was seen to hold
  void block(const std::string& text);  // a program's own output, indented

 private:
  bool colour_;
  std::chrono::steady_clock::time_point start_;
  int step_ = 0;
};

}  // namespace gpulet::cli

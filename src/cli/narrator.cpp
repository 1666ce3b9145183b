#include "cli/narrator.h"

#include <unistd.h>

#include <cstdio>
#include <iostream>

namespace gpulet::cli {

using namespace std::chrono_literals;

std::string text_of(std::chrono::nanoseconds time) {
  char text[32];
  if (time < 1ms) {
    std::snprintf(text, sizeof text, "%.0f µs", static_cast<double>(time.count()) / 1e3);
  } else {
    std::snprintf(text, sizeof text, "%.1f ms", Milliseconds(time).count());
  }
  return text;
}

Narrator::Narrator() : colour_(::isatty(STDOUT_FILENO) == 1), start_(std::chrono::steady_clock::now()) {}

void Narrator::heading(const std::string& text) {
  char clock[16];
  std::snprintf(clock, sizeof clock, "%4.1f s",
                Milliseconds(std::chrono::steady_clock::now() - start_).count() / 1e3);
  std::cout << '\n'
            << (colour_ ? "\033[1;36m" : "") << ++step_ << ". " << text << (colour_ ? "\033[0m\033[2m" : "")
            << "  [" << clock << "]" << (colour_ ? "\033[0m" : "") << std::endl;
}
void Narrator::command(const std::string& text) {
  std::cout << (colour_ ? "   \033[2m$ " : "   $ ") << text << (colour_ ? "\033[0m" : "") << std::endl;
}
void Narrator::say(const std::string& text) { std::cout << "   " << text << std::endl; }
void Narrator::done(const std::string& text) {
  std::cout << (colour_ ? "   \033[1;32m✓\033[0m " : "   ok: ") << text << std::endl;
}
void Narrator::block(const std::string& text) {
  std::string_view rest = text;
  while (!rest.empty()) {
    const auto end = std::min(rest.find('\n'), rest.size());
    std::cout << "   " << rest.substr(0, end) << '\n';
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  std::cout << std::flush;
}

}  // namespace gpulet::cli

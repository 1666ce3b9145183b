// The screen of a program in a terminal, as HTML, for the pictures of `gpulet top` (tests/web/run.py
// --screenshots).
//
//   terminal_html ROWS COLUMNS TEXT PROGRAM [ARGUMENT]...   once TEXT is on the screen, and two seconds later
#include <cstdio>

#include "base/text.h"
#include "tests/sim/terminal.h"

int main(int count, char** arguments) {
  const std::vector<std::string> words(arguments + 1, arguments + count);
  const auto number_of = [&](std::size_t at) {
    return words.size() < 4 ? std::nullopt : gpulet::text::parse_unsigned(words[at]);
  };
  const auto rows = number_of(0), columns = number_of(1);
  if (!rows || !columns) return 2;
  gpulet::tests::Terminal terminal({words.begin() + 3, words.end()},
                                   {"TERM=xterm-256color", "COLORTERM=truecolor", "LANG=C.UTF-8"},
                                   static_cast<int>(*rows), static_cast<int>(*columns));
  if (!terminal.wait_for_text(words[2])) return 1;
  terminal.start_watching(std::chrono::seconds(2));
  std::puts(terminal.screen_html().c_str());
  return 0;
}

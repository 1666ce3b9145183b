#include "cli/top/terminal.h"

#include <langinfo.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstring>

// Last, and without its macros, whose names collide with the standard library.
#define NCURSES_NOMACROS 1
#include <ncurses.h>
// From <term.h>, whose macros include `lines` and `columns`.
extern "C" {
int setupterm(const char* name, int fd, int* error);
void* set_curterm(void* terminal);
int del_curterm(void* terminal);
}

namespace gpulet::cli {
namespace {

constexpr int kEscapeDelayMs = 25;  // longest time between the bytes of an escape sequence
enum Pair : short { kGreen = 1, kYellow, kRed };
constexpr mmask_t kMouseEvents = BUTTON1_PRESSED | BUTTON4_PRESSED | BUTTON5_PRESSED;

// Of the current terminal, which is a text.
bool has_capability(const char* name) {
  const char* text = ::tigetstr(name);
  return text != nullptr && text != reinterpret_cast<const char*>(-1);
}

// Stops this process as SIGTSTP does, which is blocked, and returns when it continues. Not by SIGSTOP: an
// orphaned process group, which nobody can continue, must not stop.
void stop_process() {
  struct sigaction before{}, standard{};
  ::sigaction(SIGTSTP, nullptr, &before);
  if (before.sa_handler == SIG_IGN) return;  // so was the process started
  standard.sa_handler = SIG_DFL;
  ::sigaction(SIGTSTP, &standard, nullptr);
  sigset_t stop, mask;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, SIGTSTP);
  ::raise(SIGTSTP);
  ::pthread_sigmask(SIG_UNBLOCK, &stop, &mask);  // here
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  ::sigaction(SIGTSTP, &before, nullptr);
}

class Curses final : public TopTerminal {
 public:
  Curses(SCREEN* screen, bool colours, bool braille)
      : screen_(screen), colours_(colours && ::has_colors()), braille_(braille) {
    ::cbreak();
    ::noecho();
    ::nonl();
    ::keypad(stdscr, TRUE);
    ::nodelay(stdscr, TRUE);
    ::set_escdelay(kEscapeDelayMs);
    ::curs_set(0);
    if (has_capability("kmous")) {
      ::mousemask(kMouseEvents, nullptr);
      ::mouseinterval(0);  // a press is reported at once, not as a part of a click
    }
    if (colours_) {
      ::start_color();
      const short background = ::use_default_colors() == OK ? -1 : COLOR_BLACK;
      ::init_pair(kGreen, COLOR_GREEN, background);
      ::init_pair(kYellow, COLOR_YELLOW, background);
      ::init_pair(kRed, COLOR_RED, background);
    }
  }
  ~Curses() override {
    ::endwin();
    ::delscreen(screen_);
  }

  void stop() override {
    ::endwin();
    stop_process();
    // As the shell has set it meanwhile. What the kernel discarded at Ctrl-Z is drawn again.
    ::def_shell_mode();
    ::flushinp();
    ::clearok(curscr, TRUE);
  }

  void draw(const std::vector<TopLine>& lines) override {
    ::werase(stdscr);
    for (std::size_t row = 0; row < lines.size(); ++row) {
      if (::wmove(stdscr, static_cast<int>(row), 0) == ERR) break;
      for (const auto& span : lines[row]) {
        ::wattrset(stdscr, static_cast<int>(attributes(span)));
        // ERR in the last corner, where the cursor cannot advance; the character is written.
        ::waddnstr(stdscr, span.text.data(), static_cast<int>(span.text.size()));
      }
    }
    ::wattrset(stdscr, A_NORMAL);
    ::wrefresh(stdscr);
  }

  std::optional<TopKey> read_key() override {
    using Kind = TopKey::Kind;
    for (;;) {
      const int code = ::wgetch(stdscr);
      switch (code) {
        case ERR:
          return std::nullopt;
        case KEY_UP:
          return TopKey{Kind::kUp};
        case KEY_DOWN:
          return TopKey{Kind::kDown};
        case KEY_PPAGE:
          return TopKey{Kind::kPageUp};
        case KEY_NPAGE:
          return TopKey{Kind::kPageDown};
        case KEY_HOME:
          return TopKey{Kind::kHome};
        case KEY_END:
          return TopKey{Kind::kEnd};
        case KEY_BTAB:
          return TopKey{Kind::kBackTab};
        case KEY_BACKSPACE:
        case '\b':
        case 127:
          return TopKey{Kind::kBackspace};
        case KEY_ENTER:
        case '\r':
        case '\n':
          return TopKey{Kind::kEnter};
        case '\t':
          return TopKey{Kind::kTab};
        case 27:
          return TopKey{Kind::kEscape};
        case KEY_MOUSE:
          if (const auto key = read_mouse()) return key;
          break;
        default:
          if (code >= ' ' && code <= '~') return TopKey{Kind::kCharacter, static_cast<char>(code)};
      }
    }
  }

  void measure() override {
    winsize size{};
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) return;
    if (size.ws_row != rows() || size.ws_col != columns()) ::resizeterm(size.ws_row, size.ws_col);
  }
  unsigned columns() const override { return static_cast<unsigned>(::getmaxx(stdscr)); }
  unsigned rows() const override { return static_cast<unsigned>(::getmaxy(stdscr)); }
  bool has_braille() const override { return braille_; }

 private:
  static std::optional<TopKey> read_mouse() {
    using Kind = TopKey::Kind;
    MEVENT event{};
    if (::getmouse(&event) != OK || event.x < 0 || event.y < 0) return std::nullopt;
    TopKey key{.kind = Kind::kClick,
               .row = static_cast<std::size_t>(event.y),
               .column = static_cast<std::size_t>(event.x)};
    if ((event.bstate & BUTTON4_PRESSED) != 0) key.kind = Kind::kWheelUp;
    if ((event.bstate & BUTTON5_PRESSED) != 0) key.kind = Kind::kWheelDown;
    return (event.bstate & kMouseEvents) != 0 ? std::optional(key) : std::nullopt;
  }

  // A selected bar keeps its colours: reversed, it would show the rest as filled.
  attr_t attributes(const TopSpan& span) const {
    const bool bar = span.tone == TopTone::kDim || span.tone == TopTone::kBarLow ||
                     span.tone == TopTone::kBarMiddle || span.tone == TopTone::kBarHigh;
    return tone_attributes(span.tone) | (span.selected && !bar ? A_REVERSE : A_NORMAL);
  }

  attr_t tone_attributes(TopTone tone) const {
    const auto coloured = [&](short pair, attr_t without) {
      return colours_ ? static_cast<attr_t>(COLOR_PAIR(pair)) : without;
    };
    switch (tone) {
      case TopTone::kPlain:
        break;
      case TopTone::kGood:
      case TopTone::kBarLow:
        return coloured(kGreen, A_NORMAL);
      case TopTone::kBarMiddle:
        return coloured(kYellow, A_NORMAL);
      case TopTone::kBarHigh:
        return coloured(kRed, A_NORMAL);
      case TopTone::kWarn:
        return coloured(kYellow, A_BOLD);
      case TopTone::kBad:
        return coloured(kRed, A_REVERSE) | A_BOLD;
      case TopTone::kDim:
        return A_DIM;
      case TopTone::kStrong:
        return A_BOLD;
      case TopTone::kHeader:
        return A_REVERSE;
      case TopTone::kSortedHeader:
        return A_REVERSE | A_BOLD;
    }
    return A_NORMAL;
  }

  SCREEN* screen_;
  bool colours_, braille_;
};

enum class TerminalAbility { kUnknown, kNoCursor, kFull };

TerminalAbility terminal_ability(const std::string& name) {
  int found = 0;
  if (::setupterm(name.c_str(), STDOUT_FILENO, &found) != OK) return TerminalAbility::kUnknown;
  const bool full = has_capability("cup");
  ::del_curterm(::set_curterm(nullptr));
  return full ? TerminalAbility::kFull : TerminalAbility::kNoCursor;
}

// The name by which ncurses knows the terminal.
Result<std::string> find_terminal(const std::string& name) {
  if (name.empty() || ::isatty(STDIN_FILENO) == 0 || ::isatty(STDOUT_FILENO) == 0)
    return fail(Code::kFailedPrecondition, "standard input and output are not a terminal");
  std::string used = name;
  auto ability = terminal_ability(used);
  if (ability == TerminalAbility::kUnknown) {
    auto entry = terminal_entry(name);
    ::setenv("TERMINFO", entry.text.c_str(), 1);
    used = std::move(entry.name);
    ability = terminal_ability(used);
  }
  if (ability == TerminalAbility::kFull) return used;
  return fail(Code::kFailedPrecondition, "this terminal cannot place its cursor", name);
}

}  // namespace

bool apply_locale() {
  ::setlocale(LC_CTYPE, "");
  return std::strcmp(::nl_langinfo(CODESET), "UTF-8") == 0;
}

bool TopTerminal::is_usable_terminal(const std::string& name) { return find_terminal(name).has_value(); }

Result<std::unique_ptr<TopTerminal>> TopTerminal::open_terminal(const std::string& name, bool colours) {
  GPULET_TRY_ASSIGN(const std::string used, find_terminal(name));
  // ncurses ignores SIGTSTP while it draws, which loses a Ctrl-Z; a signal that has a handler it leaves
  // alone. This handler never runs: the signal is blocked, and the loop reads it.
  struct sigaction stop{};
  ::sigaction(SIGTSTP, nullptr, &stop);
  if (stop.sa_handler == SIG_DFL) ::signal(SIGTSTP, [](int) {});
  SCREEN* screen = ::newterm(used.c_str(), stdout, stdin);
  if (screen == nullptr) return fail(Code::kFailedPrecondition, "cannot set up the terminal", name);
  return std::unique_ptr<TopTerminal>(std::make_unique<Curses>(screen, colours, name != "linux"));
}

}  // namespace gpulet::cli

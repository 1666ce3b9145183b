#include "tests/sim/terminal.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>
#include <vterm.h>

#include <array>
#include <cstdio>
#include <regex>

namespace gpulet::tests {
namespace {

std::string colour(const VTermScreen* screen, VTermColor colour, const char* property) {
  if (VTERM_COLOR_IS_DEFAULT_FG(&colour) || VTERM_COLOR_IS_DEFAULT_BG(&colour)) return "";
  ::vterm_screen_convert_color_to_rgb(screen, &colour);
  std::array<char, 16> hex{};
  std::snprintf(hex.data(), hex.size(), ":#%02x%02x%02x;", colour.rgb.red, colour.rgb.green, colour.rgb.blue);
  return std::string(property) + hex.data();
}

std::string style(const VTermScreen* screen, const VTermScreenCell& cell) {
  const bool reverse = cell.attrs.reverse != 0;
  auto css = colour(screen, cell.fg, reverse ? "background" : "color") +
             colour(screen, cell.bg, reverse ? "color" : "background");
  if (reverse && css.empty()) css = "background:var(--text);color:var(--screen);";
  return css + (cell.attrs.bold != 0 ? "font-weight:bold;" : "");
}

std::string html_text(const VTermScreenCell& cell) {
  std::string text;
  for (const auto character : cell.chars) {
    if (character == 0 || character == static_cast<std::uint32_t>(-1))
      break;  // empty, or right of a wide one
    text += "&#" + std::to_string(character) + ";";
  }
  if (cell.chars[0] > 0x7f) return "<i>" + text + "</i>";
  return text.empty() ? " " : text;
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (const auto& text : texts) all.push_back(const_cast<char*>(text.c_str()));
  all.push_back(nullptr);
  return all;
}

}  // namespace

Terminal::Terminal(std::vector<std::string> command, std::vector<std::string> environment, int rows,
                   int columns)
    : terminal_(::vterm_new(rows, columns), ::vterm_free), rows_(rows), columns_(columns) {
  ::vterm_set_utf8(terminal_.get(), 1);
  static const VTermScreenCallbacks kCallbacks = [] {
    VTermScreenCallbacks callbacks{};  // which there are depends on the version
    callbacks.settermprop = [](VTermProp property, VTermValue* value, void* self) {
      return on_property(property, value, self);
    };
    return callbacks;
  }();
  VTermScreen* const screen = ::vterm_obtain_screen(terminal_.get());
  ::vterm_screen_set_callbacks(screen, &kCallbacks, this);
  ::vterm_screen_enable_altscreen(screen, 1);
  ::vterm_screen_reset(screen, 1);
  const auto arguments = pointers(command), variables = pointers(environment);
  const winsize size{static_cast<unsigned short>(rows), static_cast<unsigned short>(columns), 0, 0};
  int pty = -1;
  child_ = ::forkpty(&pty, nullptr, nullptr, &size);
  if (child_ == 0) {
    ::execve(arguments[0], arguments.data(), variables.data());
    ::_exit(127);
  }
  pty_ = FileDescriptor(pty);
  EXPECT_GT(child_, 0);
}

Terminal::~Terminal() {
  if (child_ <= 0) return;
  ::kill(child_, SIGKILL);
  ::waitpid(child_, nullptr, 0);
}

int Terminal::on_property(int property, void* value, void* self) {
  auto& terminal = *static_cast<Terminal*>(self);
  const auto& set = *static_cast<const VTermValue*>(value);
  if (property == VTERM_PROP_ALTSCREEN) terminal.alternate_screen_ = set.boolean != 0;
  return 1;
}

void Terminal::write_all(const std::string& bytes) {
  EXPECT_EQ(::write(pty_.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
}

void Terminal::press_keys(const std::string& keys) { write_all(keys); }

void Terminal::press_mouse(int button, int row, int column) {
  EXPECT_TRUE(is_mouse_on());
  ::vterm_mouse_move(terminal_.get(), row, column, VTERM_MOD_NONE);
  ::vterm_mouse_button(terminal_.get(), button, true, VTERM_MOD_NONE);
  ::vterm_mouse_button(terminal_.get(), button, false, VTERM_MOD_NONE);
  std::string report(256, '\0');
  report.resize(::vterm_output_read(terminal_.get(), report.data(), report.size()));
  write_all(report);
}

// By what it wrote: libvterm sets only the first of several modes in one sequence. Source: xterm's control
// sequences, DECSET 1000.
bool Terminal::is_mouse_on() const {
  static const std::regex kModes("\x1b\\[\\?([0-9;]*)([hl])");
  bool on = false;
  for (std::sregex_iterator at(written_.begin(), written_.end(), kModes), end; at != end; ++at) {
    if ((";" + (*at)[1].str() + ";").find(";1000;") != std::string::npos) on = (*at)[2] == "h";
  }
  return on;
}

bool Terminal::is_line_mode() const {
  termios modes{};
  if (::tcgetattr(pty_.get(), &modes) != 0) return false;
  return (modes.c_lflag & ICANON) != 0 && (modes.c_lflag & ECHO) != 0;
}

bool Terminal::wait_for_restored() {
  return wait_until([this] { return !is_mouse_on() && !alternate_screen_ && is_line_mode(); });
}

void Terminal::send_signal(int signal) { EXPECT_EQ(::kill(child_, signal), 0); }

void Terminal::resize(int rows, int columns) {
  rows_ = rows;
  columns_ = columns;
  ::vterm_set_size(terminal_.get(), rows, columns);
  const winsize size{static_cast<unsigned short>(rows), static_cast<unsigned short>(columns), 0, 0};
  EXPECT_EQ(::ioctl(pty_.get(), TIOCSWINSZ, &size), 0);
}

bool Terminal::read_output(std::chrono::milliseconds limit) {
  pollfd waits{pty_.get(), POLLIN, 0};
  if (over_ || ::poll(&waits, 1, static_cast<int>(limit.count())) <= 0) return false;
  char bytes[16384];
  const ssize_t got = ::read(pty_.get(), bytes, sizeof bytes);
  if (got <= 0) {  // EIO: the program has ended
    over_ = true;
    return false;
  }
  written_.append(bytes, static_cast<std::size_t>(got));
  ::vterm_input_write(terminal_.get(), bytes, static_cast<std::size_t>(got));
  return true;
}

bool Terminal::wait_until(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kTestTimeout;
  while (!condition()) {
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= 0ms || (!read_output(std::chrono::ceil<std::chrono::milliseconds>(left)) && over_))
      return condition();
  }
  return true;
}

bool Terminal::wait_for_text(const std::string& text) {
  return wait_until([&] { return screen().find(text) != std::string::npos; });
}
bool Terminal::wait_for_absence(const std::string& text) {
  return wait_until([&] { return screen().find(text) == std::string::npos; });
}

bool Terminal::wait_for_row(int index, const std::string& text) {
  return wait_until([&] { return row(index).starts_with(text); });
}

void Terminal::start_watching(std::chrono::milliseconds time) {
  const auto deadline = std::chrono::steady_clock::now() + time;
  for (auto left = time; left > 0ms && !over_;
       left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now())) {
    read_output(left);
  }
}

std::string Terminal::row(int index) const {
  const VTermRect line{index, index + 1, 0, columns_};
  std::string text(static_cast<std::size_t>(columns_) * 6 + 1, '\0');
  text.resize(
      ::vterm_screen_get_text(::vterm_obtain_screen(terminal_.get()), text.data(), text.size(), line));
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

std::string Terminal::screen() const {
  std::string text;
  for (int index = 0; index < rows_; ++index) text += row(index) + "\n";
  return text;
}

std::string Terminal::screen_html() const {
  VTermScreen* const screen = ::vterm_obtain_screen(terminal_.get());
  std::string html;
  for (int row = 0; row < rows_; ++row) {
    std::string before;
    for (int column = 0; column < columns_; ++column) {
      VTermScreenCell cell;
      ::vterm_screen_get_cell(screen, {row, column}, &cell);
      const auto css = style(screen, cell);
      if (css != before && !before.empty()) html += "</span>";
      if (css != before && !css.empty()) html += "<span style=\"" + css + "\">";
      html += html_text(cell);
      before = css;
    }
    html += before.empty() ? "\n" : "</span>\n";
  }
  return html;
}

int Terminal::wait_for_exit() {
  const bool ended = wait_until([this] { return over_; });
  EXPECT_TRUE(ended) << screen();
  if (!ended) ::kill(child_, SIGKILL);
  int status = 0;
  ::waitpid(std::exchange(child_, -1), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace gpulet::tests

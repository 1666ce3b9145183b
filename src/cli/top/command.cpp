// `gpulet top`: a node's GPUs, Pods and processes in a terminal, or as tables on standard output. Reads the
// documents of the agent's socket, or of another agent over HTTP; needs no driver.
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <span>

#include <CLI/CLI.hpp>

#include "base/process.h"
#include "base/text.h"
#include "cli/main/command_line.h"
#include "cli/top/client.h"
#include "cli/top/controls.h"
#include "cli/top/terminal.h"
#include "cli/top/view.h"

namespace gpulet::cli {
namespace {

using namespace std::chrono_literals;

struct TopOptions {
  std::string socket = "/run/gpulet/agent.sock";  // the agent's gpulet.socket
  std::string url;                                // http://HOST:PORT instead
  bool batch = false;                             // print tables, `count` times
  std::optional<std::uint64_t> count;
  std::optional<double> seconds;  // between two tables (2); on a screen the shortest interval
  std::string output = "table";   // "wide", "json", one line per iteration, "yaml"; these imply batch
  std::string tab;                // "gpus", "pods" or "processes": the first one, and the only one of a batch
  std::string sort;               // a column of that tab (without one, of the GPUs)
  std::string filter;
  std::optional<unsigned> width;  // of tables; default: the terminal's, or 120
};

constexpr double kMinSeconds = 0.1, kMaxSeconds = 3600;
constexpr unsigned kTableColumns = 120, kMaxColumns = 1000;
constexpr Duration kFirstDataTimeout = 10s;
constexpr Duration kFreshSample = 3s;    // a watched agent samples every second
constexpr Duration kUsageDelay = 100ms;  // the usage of a sample follows it
constexpr Duration kBatchInterval = 2s;
constexpr Duration kRedraw = 1s;  // for ages on the screen

int print_top_error(int code, const std::string& why) { return print_error("gpulet top", why, code); }

Duration duration_of(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

std::string environment_text(const char* name) {
  const char* value = ::getenv(name);
  return value == nullptr ? std::string() : value;
}

class Batch {
 public:
  Batch(const TopOptions& options, TopTarget target, TopView view)
      : options_(options),
        interval_(options.seconds ? duration_of(*options.seconds) : kBatchInterval),
        remaining_(options.count),
        session_(loop_, std::move(target), std::move(view),
                 {.changed = [this](const std::string& name) { on_changed(name); },
                  .connection_changed = [this](bool first) { on_connection(first); }}) {}

  int run_batch() {
    if (remaining_ && *remaining_ == 0) return 0;
    const auto signals =
        SignalWatcher::watch_signals(loop_, {SIGINT, SIGTERM, SIGHUP}, [this](int) { loop_.stop_loop(); });
    if (!signals) return print_top_error(kFailed, signals.error().full_message());
    first_data_timeout_ = loop_.after(kFirstDataTimeout, [this] {
      if (session_.model().node_document() == nullptr) fail_batch("no GPU data from the agent within 10 s");
    });
    loop_.run_loop();
    return code_;
  }

 private:
  void fail_batch(const std::string& why) {
    code_ = print_top_error(kFailed, why);
    loop_.stop_loop();
  }

  void on_connection(bool first) {
    if (first && session_.top_view().disconnected_since) fail_batch(session_.top_view().disconnect_reason);
  }

  // The first table shows a sample that the agent takes because it is watched; earlier ones may be 15 s old.
  void on_changed(const std::string& name) {
    if (started_) return;
    if (!fallback_) fallback_ = loop_.after(kFreshSample, [this] { start_printing(); });
    const auto at = session_.model().sampled_at();
    if (name == "now" && !first_sample_at_) first_sample_at_ = at;
    if (name == "now" && at != first_sample_at_)
      settle_timer_ = loop_.after(kUsageDelay, [this] { start_printing(); });
    if (name == "use" && first_sample_at_ && at != first_sample_at_)
      settle_timer_ = loop_.after(Duration::zero(), [this] { start_printing(); });
  }

  void start_printing() {
    if (started_ || session_.model().node_document() == nullptr) return;
    started_ = true;
    fallback_.reset();
    print_tables();
  }

  void print_tables() {
    auto& view = session_.top_view();
    view.now = unix_milliseconds(loop_.wall_now());
    if (view.disconnected_since) {
      code_ = print_top_error(kFailed, view.disconnect_reason);
    } else if (options_.output == "json") {
      std::cout << render_top_json(session_.model(), view) << std::endl;
    } else if (options_.output == "yaml") {
      std::cout << "---\n" << yaml_of_json(render_top_json(session_.model(), view)) << std::flush;
    } else {
      if (std::exchange(printed_, true)) std::cout << '\n';
      std::span<const TopTab> tabs = kTopTabs;
      if (!options_.tab.empty()) tabs = {&view.tab, 1};
      for (const auto& line : render_batch(session_.model(), view, tabs))
        std::cout << line_text(line) << '\n';
      std::cout << std::flush;
    }
    if (!std::cout || (remaining_ && --*remaining_ == 0)) return loop_.stop_loop();
    next_print_ = loop_.after(interval_, [this] { print_tables(); });
  }

  const TopOptions& options_;
  EpollLoop loop_;
  Duration interval_;
  std::optional<std::uint64_t> remaining_;
  TopSession session_;
  std::optional<std::int64_t> first_sample_at_;
  bool started_ = false, printed_ = false;
  int code_ = 0;
  Subscription first_data_timeout_, fallback_, settle_timer_, next_print_;
};

class Screen {
 public:
  Screen(const TopOptions& options, TopTarget target, TopView view)
      : interval_(options.seconds ? duration_of(*options.seconds) : Duration::zero()),
        session_(loop_, std::move(target), std::move(view),
                 {.changed = [this](const std::string&) { schedule_draw(); },
                  .connection_changed = [this](bool first) { on_connection(first); }}) {}

  int run_screen() {
    // Also after Ctrl-\ the terminal is restored.
    const auto signals = SignalWatcher::watch_signals(
        loop_, {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH}, [this](int signal) {
          if (signal != SIGWINCH && signal != SIGTSTP) return loop_.stop_loop();
          if (signal == SIGTSTP && terminal_) terminal_->stop();
          draw_screen();
        });
    if (!signals) return print_top_error(kFailed, signals.error().full_message());
    loop_.run_loop();
    keys_.reset();
    terminal_.reset();
    return failure_.empty() ? 0 : print_top_error(kFailed, failure_);
  }

 private:
  // Takes over the terminal only once there is an agent.
  void on_connection(bool first) {
    if (!first) return draw_screen();
    if (session_.top_view().disconnected_since) return fail_screen(session_.top_view().disconnect_reason);
    auto terminal =
        TopTerminal::open_terminal(environment_text("TERM"), environment_text("NO_COLOR").empty());
    if (!terminal) return fail_screen(terminal.error().full_message());
    terminal_ = std::move(*terminal);
    session_.top_view().braille = terminal_->has_braille();
    keys_ = loop_.watch_descriptor(STDIN_FILENO, EPOLLIN, [this](std::uint32_t events) { on_keys(events); });
    draw_screen();
  }

  void fail_screen(const std::string& why) {
    failure_ = why;
    loop_.stop_loop();
  }

  void on_keys(std::uint32_t events) {
    if ((events & (EPOLLHUP | EPOLLERR)) != 0) return loop_.stop_loop();  // the terminal is closed
    auto& view = session_.top_view();
    bool is_shown = true;
    while (const auto key = terminal_->read_key()) {
      if (!is_shown) screen_ = render_screen(session_.model(), view);  // what the key before it shows
      is_shown = false;
      const bool paused = view.paused;
      if (apply_key(view, *key, screen_) == TopAction::kQuit) return loop_.stop_loop();
      if (view.paused != paused) session_.set_paused(view.paused);
    }
    draw_screen();
  }

  void schedule_draw() {
    if (pending_draw_ || !terminal_) return;
    const auto since = loop_.now() - drawn_;
    pending_draw_ =
        loop_.after(since < interval_ ? interval_ - since : Duration::zero(), [this] { draw_screen(); });
  }

  void draw_screen() {
    pending_draw_.reset();
    if (!terminal_) return;
    auto& view = session_.top_view();
    terminal_->measure();
    view.columns = terminal_->columns();
    view.rows = terminal_->rows();
    view.now = unix_milliseconds(loop_.wall_now());
    if (shows_history(view)) session_.request_history();
    screen_ = render_screen(session_.model(), view);
    view.scroll = std::min(view.scroll, screen_.max_scroll);
    terminal_->draw(screen_.lines);
    drawn_ = loop_.now();
    redraw_ = loop_.after(std::max(kRedraw, interval_), [this] { draw_screen(); });
  }

  EpollLoop loop_;
  Duration interval_;
  TopSession session_;
  std::unique_ptr<TopTerminal> terminal_;
  std::string failure_;
  TopScreen screen_;  // what is shown
  Time drawn_{};
  Subscription keys_, pending_draw_, redraw_;
};

unsigned batch_columns(const TopOptions& options) {
  if (options.width) return *options.width;
  if (options.output == "wide") return kMaxColumns;
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kTableColumns;
}

// Sets tab, filter and sort column. Returns the error of an invalid option.
std::optional<std::string> parse_view_options(const TopOptions& options, TopView& view) {
  static const std::map<std::string, TopTab> kTabs = {
      {"gpus", TopTab::kGpus}, {"pods", TopTab::kPods}, {"processes", TopTab::kProcesses}};
  const auto tab = kTabs.find(options.tab.empty() ? "gpus" : options.tab);
  if (tab == kTabs.end()) return "--tab '" + options.tab + "': expected gpus, pods or processes";
  view.tab = tab->second;
  for (const auto each : kTopTabs) {
    view.queries[each] = default_query(each);
    view.queries[each].filter = options.filter;
  }
  if (options.sort.empty()) return std::nullopt;
  const auto column = find_column(view.tab, options.sort);
  if (!column) {
    std::string names;
    for (const auto one : sort_columns(view.tab))
      names += (names.empty() ? "" : ", ") + std::string(column_name(one));
    return "--sort '" + options.sort + "': expected one of " + names;
  }
  auto& query = view.queries[view.tab];
  query.sort = *column;
  query.descending = sorts_descending(*column);
  return std::nullopt;
}

// Returns 0 after the last table, a quitting key or a signal; 1 if there is no agent, it may not be accessed,
// it is away when a table is due, or it sends no GPU data in kFirstDataTimeout; 2 for an invalid option.
// Without a terminal that can place its cursor it prints tables.
int run_top(const TopOptions& options) {
  TopView view;
  if (const auto wrong = parse_view_options(options, view)) return print_top_error(kWrongCommand, *wrong);
  if (options.seconds && !(*options.seconds >= kMinSeconds && *options.seconds <= kMaxSeconds))
    return print_top_error(kWrongCommand, "--delay: expected 0.1 to 3600 seconds");
  if (options.width && (*options.width < kMinTopColumns || *options.width > kMaxColumns))
    return print_top_error(kWrongCommand, "--width: expected 40 to 1000 columns");
  TopTarget target{.socket = options.socket, .host = {}, .port = 0};
  if (!options.url.empty()) {
    auto parsed = parse_top_url(options.url);
    if (!parsed) return print_top_error(kWrongCommand, parsed.error().full_message());
    target = std::move(*parsed);
  }
  view.utf8 = apply_locale();
  view.columns = batch_columns(options);
  if (options.batch || options.count || options.output != "table" ||
      !TopTerminal::is_usable_terminal(environment_text("TERM")))
    return Batch(options, std::move(target), std::move(view)).run_batch();
  return Screen(options, std::move(target), std::move(view)).run_screen();
}

}  // namespace

void add_top(CLI::App& app, Run& run) {
  auto& command =
      add_command(app, {.name = "top",
                        .summary = "Show this node's GPUs, Pods and processes live",
                        .details = "Reads the agent's socket. Press ? for the keys. See docs/top.md.",
                        .examples = "  gpulet top\n"
                                    "  gpulet top -b -n 1\n"
                                    "  gpulet top --url http://127.0.0.1:9400   # over kubectl port-forward",
                        .group = kInspectGroup});
  const auto options = std::make_shared<TopOptions>();
  add_socket_option(command, options->socket);
  command.add_option("--url", options->url, "connect to the agent at http://HOST:PORT instead");
  command.add_flag("-b,--batch", options->batch, "print tables to standard output");
  command.add_option("-n,--count", options->count, "exit after N iterations (with --batch)");
  command.add_option("-d,--delay", options->seconds, "refresh interval in seconds (batch default: 2)");
  command
      .add_option(
          "-o,--output", options->output,
          "output format: table, wide, json (one line per iteration) or yaml; all but table imply --batch "
          "(default table)")
      ->check(CLI::IsMember({"table", "wide", "json", "yaml"}))
      ->group(kOutputGroup);
  command
      .add_option("-t,--tab", options->tab,
                  "first tab, and with --batch the only one: gpus, pods or processes")
      ->check(CLI::IsMember({"gpus", "pods", "processes"}));
  command.add_option("-s,--sort", options->sort, "column of that tab to sort by (util, memory, power, …)");
  command.add_option("-f,--filter", options->filter, "show only rows that contain this text");
  command.add_option("-w,--width", options->width,
                     "width of tables in columns (default: the terminal's, or 120)");
  command.callback([options, &run] { run = [options] { return run_top(*options); }; });
}

}  // namespace gpulet::cli

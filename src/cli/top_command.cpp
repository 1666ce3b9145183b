#include "cli/top_command.h"

#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "base/signals.h"
#include "base/wall_time.h"
#include "cli/exit_codes.h"
#include "cli/top_json.h"
#include "cli/top_session.h"
#include "cli/top_terminal.h"

namespace gpulet::cli {
namespace {

using namespace std::chrono_literals;

constexpr unsigned kTableColumns = 120, kMostColumns = 1000;
constexpr Duration kFirstWord = 10s;   // for the agent to say anything of its GPUs
constexpr Duration kFreshSample = 3s;  // who watches is told a new one within a second
constexpr Duration kItsUse = 100ms;    // who used what in a sample comes with it
constexpr Duration kBatchInterval = 2s;
constexpr Duration kRedraw = 1s;  // ages go on

int refused(int code, const std::string& why) {
  std::cerr << "gpulet top: " << why << '\n';
  return code;
}

Duration duration_of(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

std::string environment(const char* name) {
  const char* value = ::getenv(name);
  return value == nullptr ? std::string() : value;
}

class Batch {
 public:
  Batch(const TopOptions& options, TopTarget target, TopView view)
      : options_(options),
        interval_(options.seconds ? duration_of(*options.seconds) : kBatchInterval),
        left_(options.count),
        session_(loop_, std::move(target), std::move(view),
                 {.changed = [this](const std::string& name) { on_changed(name); },
                  .link = [this](bool first) { on_link(first); }}) {}

  int run() {
    if (left_ && *left_ == 0) return 0;
    const auto signals = SignalWatch::start(loop_, {SIGINT, SIGTERM, SIGHUP}, [this](int) { loop_.stop(); });
    if (!signals) return refused(kFailed, signals.error().text());
    patience_ = loop_.after(kFirstWord, [this] {
      if (session_.model().node() == nullptr) give_up("the agent has said nothing of its GPUs in 10 s");
    });
    loop_.run();
    return code_;
  }

 private:
  void give_up(const std::string& why) {
    code_ = refused(kFailed, why);
    loop_.stop();
  }

  void on_link(bool first) {
    if (first && session_.view().away_since) give_up(session_.view().away_why);
  }

  // The first table is of a sample that was taken because we look; before, they may be 15 s apart.
  void on_changed(const std::string& name) {
    if (begun_) return;
    if (!fallback_) fallback_ = loop_.after(kFreshSample, [this] { begin(); });
    const auto at = session_.model().at();
    if (name == "now" && !first_at_) first_at_ = at;
    if (name == "now" && at != first_at_) settled_ = loop_.after(kItsUse, [this] { begin(); });
    if (name == "use" && first_at_ && at != first_at_)
      settled_ = loop_.after(Duration::zero(), [this] { begin(); });
  }

  void begin() {
    if (begun_ || session_.model().node() == nullptr) return;
    begun_ = true;
    fallback_.reset();
    print();
  }

  void print() {
    auto& view = session_.view();
    view.now = unix_milliseconds(loop_.wall_now());
    if (view.away_since) {
      code_ = refused(kFailed, view.away_why);
    } else if (options_.output == "json") {
      std::cout << top_json(session_.model(), view) << std::endl;
    } else {
      if (std::exchange(printed_, true)) std::cout << '\n';
      for (const auto& line : top_tables(session_.model(), view)) std::cout << text_of(line) << '\n';
      std::cout << std::flush;
    }
    if (!std::cout || (left_ && --*left_ == 0)) return loop_.stop();
    next_ = loop_.after(interval_, [this] { print(); });
  }

  const TopOptions& options_;
  EpollLoop loop_;
  Duration interval_;
  std::optional<std::uint64_t> left_;
  TopSession session_;
  std::optional<std::int64_t> first_at_;
  bool begun_ = false, printed_ = false;
  int code_ = 0;
  Subscription patience_, fallback_, settled_, next_;
};

class Screen {
 public:
  Screen(const TopOptions& options, TopTarget target, TopView view)
      : interval_(options.seconds ? duration_of(*options.seconds) : Duration::zero()),
        session_(loop_, std::move(target), std::move(view),
                 {.changed = [this](const std::string&) { draw_soon(); },
                  .link = [this](bool first) { on_link(first); }}) {}

  int run() {
    const auto signals = SignalWatch::start(loop_, {SIGINT, SIGTERM, SIGHUP, SIGWINCH}, [this](int signal) {
      if (signal != SIGWINCH) return loop_.stop();
      if (terminal_) terminal_->measure();
      draw();
    });
    if (!signals) return refused(kFailed, signals.error().text());
    loop_.run();
    keys_.reset();
    terminal_.reset();
    return why_.empty() ? 0 : refused(kFailed, why_);
  }

 private:
  // The terminal is left alone until it is known that there is an agent.
  void on_link(bool first) {
    if (!first) return draw();
    if (session_.view().away_since) return give_up(session_.view().away_why);
    auto terminal = TopTerminal::open(environment("TERM"), environment("NO_COLOR").empty());
    if (!terminal) return give_up(terminal.error().text());
    terminal_ = std::move(*terminal);
    terminal_->measure();
    keys_ = loop_.watch(STDIN_FILENO, EPOLLIN, [this](std::uint32_t events) { on_keys(events); });
    draw();
  }

  void give_up(const std::string& why) {
    why_ = why;
    loop_.stop();
  }

  void on_keys(std::uint32_t events) {
    if ((events & (EPOLLHUP | EPOLLERR)) != 0) return loop_.stop();  // the terminal has gone
    auto& view = session_.view();
    while (const auto key = terminal_->read()) {
      const bool paused = view.paused;
      if (press(view, *key, most_scroll_) == TopAction::kQuit) return loop_.stop();
      if (view.paused != paused) session_.set_paused(view.paused);
      if (view.page == TopPage::kHistory) session_.want_history();
    }
    draw();
  }

  void draw_soon() {
    if (soon_ || !terminal_) return;
    const auto since = loop_.now() - drawn_;
    soon_ = loop_.after(since < interval_ ? interval_ - since : Duration::zero(), [this] { draw(); });
  }

  void draw() {
    soon_.reset();
    if (!terminal_) return;
    auto& view = session_.view();
    view.columns = terminal_->columns();
    view.rows = terminal_->rows();
    view.now = unix_milliseconds(loop_.wall_now());
    const auto screen = top_screen(session_.model(), view);
    most_scroll_ = screen.most_scroll;
    view.scroll = std::min(view.scroll, most_scroll_);
    terminal_->draw(screen.lines);
    drawn_ = loop_.now();
    again_ = loop_.after(std::max(kRedraw, interval_), [this] { draw(); });
  }

  EpollLoop loop_;
  Duration interval_;
  TopSession session_;
  std::unique_ptr<TopTerminal> terminal_;
  std::string why_;
  std::size_t most_scroll_ = 0;
  Time drawn_{};
  Subscription keys_, soon_, again_;
};

unsigned table_columns(const TopOptions& options) {
  if (options.width) return *options.width;
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kTableColumns;
}

// Of the options' words, the wrong one.
std::optional<std::string> take_words(const TopOptions& options, TopView& view) {
  static const std::map<std::string, TopTab> kTabs = {
      {"gpus", TopTab::kGpus}, {"pods", TopTab::kPods}, {"processes", TopTab::kProcesses}};
  const auto tab = kTabs.find(options.tab);
  if (tab == kTabs.end()) return "--tab '" + options.tab + "': gpus, pods or processes would do";
  view.tab = tab->second;
  for (const auto each : kTopTabs) {
    view.queries[each] = default_query(each);
    view.queries[each].filter = options.filter;
  }
  if (options.sort.empty()) return std::nullopt;
  const auto column = column_of(view.tab, options.sort);
  if (!column) {
    std::string names;
    for (const auto one : columns_of(view.tab))
      names += (names.empty() ? "" : ", ") + std::string(name_of(one));
    return "--sort '" + options.sort + "': there are " + names;
  }
  auto& query = view.queries[view.tab];
  query.sort = *column;
  query.descending = largest_first(*column);
  return std::nullopt;
}

}  // namespace

int top(const TopOptions& options) {
  TopView view;
  if (const auto wrong = take_words(options, view)) return refused(kWrongCommand, *wrong);
  if (options.seconds && !(*options.seconds >= 0.1 && *options.seconds <= kMostTopSeconds))
    return refused(kWrongCommand, "--delay: between 0.1 and 3600 seconds");
  if (options.width && (*options.width < kLeastTopColumns || *options.width > kMostColumns))
    return refused(kWrongCommand, "--width: between 40 and 1000 columns");
  TopTarget target{.socket = options.socket, .host = {}, .port = 0};
  if (!options.url.empty()) {
    auto parsed = parse_top_url(options.url);
    if (!parsed) return refused(kWrongCommand, parsed.error().text());
    target = std::move(*parsed);
  }
  view.utf8 = use_locale();
  view.columns = table_columns(options);
  if (options.batch || options.count || options.output == "json" || !TopTerminal::usable(environment("TERM")))
    return Batch(options, std::move(target), std::move(view)).run();
  return Screen(options, std::move(target), std::move(view)).run();
}

}  // namespace gpulet::cli

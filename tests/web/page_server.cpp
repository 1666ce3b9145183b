// For the browser tests (run.py): the listener with its unprivileged child, as in the agent, fed by lines on
// standard input.
//
//   page_server      prints "port N" and executes commands until the input ends
//   node JSON        publish the node document          now JSON     a sample
//   use JSON         usage by owner                         trends JSON  the history for long ranges
//   metrics TEXT     the metrics page                       kill         the child, as an attacker or the
//   kernel would
//   stop, go         end all service at the port, as an agent that stops; serve again at the same port
// It prints "watchers N" whenever that changes. Like an agent, it publishes the pages every second.
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "base/loop.h"
#include "web/listener.h"

namespace {

using gpulet::Subscription;

class PageServer {
 public:
  int serve_pages() {
    if (!start_listener(0)) return 1;
    print_line("port", listener_->listening_port());
    reading_ = loop_.watch_descriptor(STDIN_FILENO, EPOLLIN, [this](std::uint32_t) { read_commands(); });
    publish_snapshot();
    loop_.run_loop();
    return 0;
  }

 private:
  static void print_line(const char* what, unsigned number) {
    std::printf("%s %u\n", what, number);
    std::fflush(stdout);
  }

  bool start_listener(unsigned port) {
    auto started = gpulet::web::Listener::start_listener(
        loop_, "127.0.0.1:" + std::to_string(port),
        {.on_subscribers = [](unsigned count) { print_line("watchers", count); }});
    if (!started) {
      std::fprintf(stderr, "%s\n", started.error().full_message().c_str());
      return false;
    }
    listener_ = std::move(*started);
    return true;
  }

  void publish_snapshot() {
    if (listener_) listener_->publish_pages(pages_);
    again_ = loop_.after(std::chrono::seconds(1), [this] { publish_snapshot(); });
  }

  void read_commands() {
    std::array<char, 65536> buffer;
    const ssize_t got = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (got <= 0) return loop_.stop_loop();
    input_.append(buffer.data(), static_cast<std::size_t>(got));
    for (std::size_t end = input_.find('\n'); end != std::string::npos; end = input_.find('\n')) {
      run_command(std::string_view(input_).substr(0, end));
      input_.erase(0, end + 1);
      publish_snapshot();
    }
  }

  void run_command(std::string_view line) {
    const auto space = line.find(' ');
    const auto what = line.substr(0, space);
    const std::string text(space == std::string_view::npos ? "" : line.substr(space + 1));
    if (what == "node") pages_.node = pages_.public_node = text;
    if (what == "now") pages_.now = text;
    if (what == "use") pages_.use = pages_.public_use = text;
    if (what == "trends") pages_.trends = text;
    if (what == "metrics") pages_.metrics = text + "\n";
    if (what == "kill" && listener_->child_pid() > 0) ::kill(listener_->child_pid(), SIGKILL);
    if (what == "stop") {
      port_ = listener_->listening_port();
      listener_.reset();
    }
    if (what == "go" && !start_listener(port_)) loop_.stop_loop();
  }

  gpulet::EpollLoop loop_;
  std::unique_ptr<gpulet::web::Listener> listener_;
  gpulet::web::Pages pages_{.ready = true, .metrics = "gpulet_up 1\n"};
  std::string input_;
  unsigned port_ = 0;
  Subscription reading_, again_;
};

}  // namespace

// The listener starts this program again as its child.
int main(int, char** argv) {
  if (std::string_view(argv[0]) == gpulet::web::kListenerName) gpulet::web::run_listener_child();
  return PageServer().serve_pages();
}

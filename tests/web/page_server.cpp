// The listener as the agent runs it, its child without rights and all, fed by lines on standard input instead
// of by an agent: for the browser tests (run.py).
//
//   page_server      says "port N" and then does what it is told, until the input ends
//   node JSON        the node document from now on          now JSON   a sample
//   metrics TEXT     the metrics page                       kill       the child, as an attacker or the
//   kernel would
// It says "watchers N" whenever that changes. The pages are published anew each second, as an agent does.
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
  int run() {
    auto started = gpulet::web::Listener::start(loop_, "127.0.0.1:0",
                                                {.watched = [](unsigned count) { say("watchers", count); }});
    if (!started) {
      std::fprintf(stderr, "%s\n", started.error().text().c_str());
      return 1;
    }
    listener_ = std::move(*started);
    say("port", listener_->port());
    reading_ = loop_.watch(STDIN_FILENO, EPOLLIN, [this](std::uint32_t) { read(); });
    publish();
    loop_.run();
    return 0;
  }

 private:
  static void say(const char* what, unsigned number) {
    std::printf("%s %u\n", what, number);
    std::fflush(stdout);
  }

  void publish() {
    listener_->publish(pages_);
    again_ = loop_.after(std::chrono::seconds(1), [this] { publish(); });
  }

  void read() {
    std::array<char, 65536> buffer;
    const ssize_t got = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (got <= 0) return loop_.stop();
    input_.append(buffer.data(), static_cast<std::size_t>(got));
    for (std::size_t end = input_.find('\n'); end != std::string::npos; end = input_.find('\n')) {
      obey(std::string_view(input_).substr(0, end));
      input_.erase(0, end + 1);
      publish();
    }
  }

  void obey(std::string_view line) {
    const auto space = line.find(' ');
    const auto what = line.substr(0, space);
    const std::string text(space == std::string_view::npos ? "" : line.substr(space + 1));
    if (what == "node") pages_.node = text;
    if (what == "now") pages_.now = text;
    if (what == "metrics") pages_.metrics = text + "\n";
    if (what == "kill" && listener_->child() > 0) ::kill(listener_->child(), SIGKILL);
  }

  gpulet::EpollLoop loop_;
  std::unique_ptr<gpulet::web::Listener> listener_;
  gpulet::web::Pages pages_{.ready = true, .metrics = "gpulet_up 1\n"};
  std::string input_;
  Subscription reading_, again_;
};

}  // namespace

// The listener starts this program anew as its child.
int main(int, char** argv) {
  if (std::string_view(argv[0]) == gpulet::web::kListenerName) gpulet::web::run_listener_child();
  return PageServer().run();
}

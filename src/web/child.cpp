// The child's side of listener.h.
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/process.h"
#include "web/listener.h"
#include "web/sandbox.h"
#include "web/server.h"

namespace gpulet::web {
namespace {

constexpr int kListening = 3;
constexpr int kPair = 4;
// Standard ones, the two above, the loop's two, and one that is accepted before an older connection makes room.
constexpr unsigned kMaxDescriptors = 8 + kMaxConnections;

[[noreturn]] void refuse(const Error& error) {
  const std::string text = error.text();
  static_cast<void>(::send(kPair, text.data(), text.size(), MSG_NOSIGNAL));
  ::_exit(1);
}

// Takes what the agent says; ends this process with it.
class News {
 public:
  News(Loop& loop, Site& site) : loop_(loop), site_(site) {
    reading_ = loop_.watch(kPair, EPOLLIN, [this](std::uint32_t) { read(); });
  }

 private:
  void read() {
    std::array<char, 65'536> buffer;
    const ssize_t got = ::recv(kPair, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) ::_exit(0);
    reader_.append({buffer.data(), static_cast<std::size_t>(got)});
    for (;;) {
      auto frame = reader_.next();
      if (!frame) refuse(frame.error());
      if (!*frame) return;
      site_.publish(std::move(**frame), loop_.now());
    }
  }

  Loop& loop_;
  Site& site_;
  FrameReader reader_;
  Subscription reading_;
};

}  // namespace

void run_listener_child() {
  ::prctl(PR_SET_NAME, kListenerName);
  close_from(kPair + 1);
  const pid_t parent = ::getppid();
  EpollLoop loop;
  if (const auto entered = enter_sandbox(parent, kMaxDescriptors); !entered) refuse(entered.error());
  Site site;
  const News news(loop, site);
  const Server server(loop, kListening, site);
  loop.run();
  ::_exit(0);
}

}  // namespace gpulet::web

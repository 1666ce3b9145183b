// The child's side of listener.h.
#include <malloc.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>
#include <variant>

#include "base/process.h"
#include "web/door.h"
#include "web/frame.h"
#include "web/listener.h"
#include "web/sandbox.h"
#include "web/server.h"
#include "web/site.h"

namespace gpulet::web {
namespace {

constexpr int kListening = 3;
constexpr int kPair = 4;
constexpr int kLocal = 5;
// Standard ones, the three above, the loop's two, and for each server one that is accepted before an older
// connection makes room.
constexpr unsigned kMaxDescriptors = 10 + kMaxConnections + kMaxLocalConnections;

// A proxy or a load balancer ends what is silent for a minute, some for half of one.
constexpr Duration kHeartbeat = std::chrono::seconds(15);
constexpr Duration kSayAfter = std::chrono::milliseconds(50);

[[noreturn]] void refuse(const Error& error) {
  const std::string text = error.text();
  static_cast<void>(::send(kPair, text.data(), text.size(), MSG_NOSIGNAL));
  ::_exit(1);
}

bool listens(int fd) {
  int yes = 0;
  socklen_t size = sizeof yes;
  return ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &yes, &size) == 0 && yes != 0;
}

// Takes what the agent says, and tells it how many watch; ends this process with it.
class News {
 public:
  News(Loop& loop, Site& site, bool network, bool local)
      : loop_(loop), site_(site), network_(network), local_(local) {
    site_.watchers().on_count = [this] { say_watchers(); };
    reading_ = loop_.watch(kPair, EPOLLIN, [this](std::uint32_t) { read(); });
    beat();
  }

 private:
  void read() {
    std::array<char, 65'536> buffer;
    const ssize_t got = ::recv(kPair, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) ::_exit(0);
    reader_.append({buffer.data(), static_cast<std::size_t>(got)});
    for (;;) {
      auto message = reader_.next();
      if (!message) refuse(message.error());
      if (!*message) return;
      if (auto* frame = std::get_if<Frame>(&**message)) {
        site_.publish(std::move(*frame), loop_.now());
      } else {
        let_in(std::move(std::get<Access>(**message)));
      }
    }
  }

  // Nobody is let in before the agent has said who may.
  void let_in(Access access) {
    if (const auto set = door_.set(std::move(access)); !set) refuse(set.error());
    if (server_) server_->drop_watchers();
    if (!server_ && network_) server_.emplace(loop_, kListening, site_, door_);
    if (!local_server_ && local_) local_server_.emplace(loop_, kLocal, site_, open_door_, kLocalLimits);
  }

  // Soon, so that a watcher that comes and goes costs nothing; again when the agent takes nothing now.
  void say_watchers() {
    if (saying_) return;
    saying_ = loop_.after(kSayAfter, [this] {
      saying_.reset();
      const char byte = watchers_byte(site_.watchers().count());
      if (::send(kPair, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == EAGAIN) say_watchers();
    });
  }

  void beat() {
    beating_ = loop_.after(kHeartbeat, [this] {
      site_.watchers().tell(Site::heartbeat());
      beat();
    });
  }

  Loop& loop_;
  Site& site_;
  bool network_, local_;
  Door door_, open_door_;
  std::optional<Server> server_, local_server_;
  FrameReader reader_;
  Subscription reading_, saying_, beating_;
};

// Documents of tens of KiB come and go between the small ones of the history, which stay for minutes and
// would hold the heap apart where those were: each of them gets pages of its own, which go back with it.
// Source: mallopt(3), M_MMAP_THRESHOLD.
void keep_documents_out_of_the_heap() {
  constexpr int kDocumentBytes = 16 << 10;
  ::mallopt(M_MMAP_THRESHOLD, kDocumentBytes);
}

}  // namespace

void run_listener_child() {
  ::prctl(PR_SET_NAME, kListenerName);
  keep_documents_out_of_the_heap();
  close_from(kLocal + 1);
  const bool network = listens(kListening), local = listens(kLocal);
  ::signal(SIGPIPE, SIG_IGN);  // TLS writes to sockets that their clients have left
  const pid_t parent = ::getppid();
  EpollLoop loop;
  if (const auto entered = enter_sandbox(parent, kMaxDescriptors); !entered) refuse(entered.error());
  Site site;
  const News news(loop, site, network, local);
  loop.run();
  ::_exit(0);
}

}  // namespace gpulet::web

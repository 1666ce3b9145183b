#include "web/listener.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/backoff.h"
#include "base/file.h"
#include "base/log.h"
#include "base/process.h"
#include "web/frame.h"
#include "web/listening.h"

namespace gpulet::web {
namespace {

constexpr BackoffLimits kRestartBackoff{std::chrono::milliseconds(100), std::chrono::seconds(10)};
constexpr Duration kLivedWell = std::chrono::seconds(30);  // then its next death starts the backoff anew
constexpr Duration kTakesNothing = std::chrono::seconds(10);
constexpr std::size_t kMaxHeard = 1024;                          // of what the child says, at a time
constexpr Duration kHearAgain = std::chrono::milliseconds(200);  // and no oftener
constexpr Duration kLastWords = std::chrono::seconds(1);         // after these it is gone, or ended
class ChildListener final : public Listener {
 public:
  ChildListener(Loop& loop, FileDescriptor listening, ListenerOptions options)
      : loop_(loop),
        options_(std::move(options)),
        listening_(std::move(listening)),
        port_(port_of(listening_.get())),
        backoff_(kRestartBackoff, static_cast<std::uint64_t>(::getpid())) {}

  Status start_child() {
    std::array<int, 2> pair;
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) {
      return fail(errno_error("cannot make a socket pair", errno));
    }
    FileDescriptor ours(pair[0]);
    const FileDescriptor its(pair[1]);
    ProcessOptions options{.program = options_.program, .arguments = {kListenerName}};
    options.descriptors = {{its.get(), 4}};
    if (listening_.valid()) options.descriptors.emplace_back(listening_.get(), 3);
    if (options_.local) options.descriptors.emplace_back(options_.local->fd(), 5);
    GPULET_TRY_ASSIGN(child_, Process::start(options));
    pair_ = std::move(ours);
    started_ = loop_.now();
    child_->on_exit(loop_, [this](const ProcessExit& exit) { on_exit(exit); });
    sending_.clear();
    sent_ = 0;
    told_.reset();
    access_is_new_ = true;
    fresh_ = latest_ && started_ - published_ < options_.stale;
    flush();
    return {};
  }

  void publish(const Pages& pages) override {
    const std::size_t size = size_of(pages);
    if (size > kMaxPagesBytes) {
      if (!std::exchange(told_too_large_, true)) {
        log::error("the pages are too large to be served", {{"bytes", size}, {"limit", kMaxPagesBytes}});
      }
      return;
    }
    told_too_large_ = false;
    latest_ = std::make_shared<const Pages>(pages);
    fresh_ = true;
    published_ = loop_.now();
    if (child_) flush();
  }

  Status set_access(Access access) override {
    GPULET_TRY(check(access));
    if (access == options_.access) return {};
    options_.access = std::move(access);
    access_is_new_ = true;
    if (child_) flush();
    return {};
  }

  std::uint16_t port() const override { return port_; }
  pid_t child() const override { return child_ ? child_->id() : 0; }
  std::uint64_t restarts() const override { return restarts_; }

 private:
  // The next that the child must hear; empty when it knows all. Who may connect comes before any page.
  std::string next_frame() {
    if (std::exchange(access_is_new_, false)) return encode_frame(options_.access);
    if (!std::exchange(fresh_, false)) return {};
    const auto fresh = std::chrono::duration_cast<std::chrono::milliseconds>(options_.stale);
    std::string frame = encode(*latest_, fresh, told_.get());
    told_ = latest_;
    return frame;
  }

  // Writes as much as the child takes now; what was published meanwhile is only ever the newest.
  void flush() {
    for (;;) {
      if (sent_ == sending_.size()) {
        std::string next = next_frame();
        sending_.swap(next);  // and not moved into: an empty one would leave it the room of the last
        sent_ = 0;
        if (sending_.empty()) break;
      }
      const ssize_t put =
          ::send(pair_.get(), sending_.data() + sent_, sending_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (put < 0 && errno == EINTR) continue;
      if (put < 0 && errno == EAGAIN) return await_child();
      if (put < 0) break;  // it is dying: its end is an event of its own
      sent_ += static_cast<std::size_t>(put);
      stuck_.reset();
    }
    writable_.reset();
    stuck_.reset();
    listen_to_child();
  }

  void await_child() {
    if (!writable_) {
      readable_.reset();  // one descriptor, one watch: it is heard again once it has taken what there is
      writable_ = loop_.watch(pair_.get(), EPOLLOUT, [this](std::uint32_t) { flush(); });
    }
    if (!stuck_) {
      stuck_ = loop_.after(kTakesNothing, [this] {
        log::warning("the listener child takes nothing any more: killed", {{"pid", child_->id()}});
        child_->send_signal(SIGKILL);
      });
    }
  }

  void listen_to_child() {
    if (!readable_ && !writable_ && !deaf_ && pair_.valid()) {
      readable_ = loop_.watch(pair_.get(), EPOLLIN, [this](std::uint32_t) { hear(); });
    }
  }

  // What the child says is not trusted: little of it is read, and seldom.
  void hear() {
    std::array<char, kMaxHeard> said;
    const ssize_t got = ::recv(pair_.get(), said.data(), said.size(), MSG_DONTWAIT);
    readable_.reset();
    if (got <= 0) return;  // its end is an event of its own
    const std::string_view bytes(said.data(), static_cast<std::size_t>(got));
    for (const char byte : bytes) {
      if (!watchers_of(byte)) return end_by_its_words(bytes);
    }
    deaf_ = loop_.after(kHearAgain, [this] {
      deaf_.reset();
      listen_to_child();
    });
    set_watchers(*watchers_of(bytes.back()));
  }

  // Only one that gives up says anything else, and then it is gone at once.
  void end_by_its_words(std::string_view words) {
    last_words_ = words;
    deaf_ = loop_.after(kLastWords, [this] { child_->send_signal(SIGKILL); });
  }

  void set_watchers(unsigned count) {
    if (std::exchange(watchers_, count) != count && options_.watched) options_.watched(count);
  }

  void on_exit(const ProcessExit& exit) {
    std::array<char, kMaxHeard> rest;
    const ssize_t got = ::recv(pair_.get(), rest.data(), rest.size(), MSG_DONTWAIT);
    if (got > 0 && last_words_.empty()) last_words_.assign(rest.data(), static_cast<std::size_t>(got));
    std::erase_if(last_words_, [](char byte) { return static_cast<unsigned char>(byte) < ' '; });
    for (auto* watch : {&writable_, &readable_, &stuck_, &deaf_}) watch->reset();
    pair_.reset();
    child_.reset();
    if (loop_.now() - started_ > kLivedWell) backoff_.reset();
    const std::string why = std::exchange(last_words_, {});
    restart_later({{"ended", exit.text()}, {"reason", why}});
    set_watchers(0);
  }

  void restart_later(log::Fields fields) {
    log::warning("the listener child is gone: starting another", fields);
    restart_ = loop_.after(backoff_.next(), [this] {
      ++restarts_;
      if (const auto started = start_child(); !started) restart_later({{"error", started.error().text()}});
    });
  }

  Loop& loop_;
  ListenerOptions options_;
  FileDescriptor listening_;  // none without an address
  std::uint16_t port_;
  Backoff backoff_;
  std::uint64_t restarts_ = 0;

  FileDescriptor pair_;
  std::unique_ptr<Process> child_;
  Time started_{}, published_{};
  std::shared_ptr<const Pages> latest_;  // what was published last
  std::shared_ptr<const Pages> told_;    // what this child has been told last
  bool fresh_ = false;                   // latest_ is still to be told
  bool access_is_new_ = false;           // and so is who may connect
  std::string sending_;                  // a frame that is being written
  std::size_t sent_ = 0;
  unsigned watchers_ = 0;
  std::string last_words_;
  bool told_too_large_ = false;
  Subscription writable_, readable_, stuck_, deaf_, restart_;
};

}  // namespace

Result<std::unique_ptr<Listener>> Listener::start(Loop& loop, const std::string& address,
                                                  ListenerOptions options) {
  GPULET_TRY(check(options.access));
  FileDescriptor listening;
  if (!address.empty() || !options.local) {
    GPULET_TRY_ASSIGN(listening, listen_on(address));
  }
  auto listener = std::make_unique<ChildListener>(loop, std::move(listening), std::move(options));
  GPULET_TRY(listener->start_child());
  return listener;
}

}  // namespace gpulet::web

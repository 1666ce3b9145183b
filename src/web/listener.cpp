#include "web/listener.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/file.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/process.h"
#include "http/socket.h"
#include "web/ipc_messages.h"

namespace gpulet::web {
namespace {

constexpr BackoffLimits kRestartBackoff{std::chrono::milliseconds(100), std::chrono::seconds(10)};
constexpr Duration kStableLifetime = std::chrono::seconds(30);  // after this lifetime the backoff is reset
constexpr Duration kWriteTimeout = std::chrono::seconds(10);
constexpr std::size_t kMaxChildBytes = 1024;                          // read from the child at a time
constexpr Duration kReadChildDelay = std::chrono::milliseconds(200);  // between reads
constexpr Duration kChildExitTimeout = std::chrono::seconds(1);  // until the child has exited or is killed
class ChildListener final : public Listener {
 public:
  ChildListener(Loop& loop, FileDescriptor listening, ListenerOptions options)
      : loop_(loop),
        options_(std::move(options)),
        listening_(std::move(listening)),
        port_(http::socket_port(listening_.get())),
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
    if (listening_.is_open()) options.descriptors.emplace_back(listening_.get(), 3);
    if (options_.local) options.descriptors.emplace_back(options_.local->fd(), 5);
    GPULET_TRY_ASSIGN(child_, Process::spawn(options));
    pair_ = std::move(ours);
    started_ = loop_.now();
    child_->on_exit(loop_, [this](const ProcessExit& exit) { on_exit(exit); });
    sending_.clear();
    sent_ = 0;
    sent_pages_.reset();
    access_is_new_ = true;
    fresh_ = latest_ && started_ - published_ < options_.max_age;
    flush();
    return {};
  }

  void publish_pages(Pages pages) override {
    const std::size_t size = total_page_bytes(pages);
    if (size > kMaxPagesBytes) {
      if (!std::exchange(logged_too_large_, true)) {
        log::error("the pages are too large to be served", {{"bytes", size}, {"limit", kMaxPagesBytes}});
      }
      return;
    }
    logged_too_large_ = false;
    latest_ = std::make_shared<const Pages>(std::move(pages));
    confirm_pages();
  }

  void confirm_pages() override {
    if (!latest_) return;
    fresh_ = true;
    published_ = loop_.now();
    if (child_) flush();
  }

  Status set_access_rules(http::AccessRules access) override {
    GPULET_TRY(http::check_access_rules(access));
    if (access == options_.access_rules) return {};
    options_.access_rules = std::move(access);
    access_is_new_ = true;
    if (child_) flush();
    return {};
  }

  std::uint16_t listening_port() const override { return port_; }
  pid_t child_pid() const override { return child_ ? child_->pid() : 0; }
  std::uint64_t restarts() const override { return restarts_; }

 private:
  // The next message for the child; empty if it is up to date. Access rules precede any page.
  std::string next_message() {
    if (std::exchange(access_is_new_, false)) return encode_access_message(options_.access_rules);
    if (!std::exchange(fresh_, false)) return {};
    const auto fresh = std::chrono::duration_cast<std::chrono::milliseconds>(options_.max_age);
    std::string frame = encode_pages(*latest_, fresh, sent_pages_.get());
    sent_pages_ = latest_;
    return frame;
  }

  // Writes as much as the child accepts; of pages published meanwhile, only the newest are sent.
  void flush() {
    for (;;) {
      if (sent_ == sending_.size()) {
        std::string next = next_message();
        sending_.swap(next);  // not moved: a move from an empty string would keep the old capacity
        sent_ = 0;
        if (sending_.empty()) break;
      }
      const ssize_t put =
          ::send(pair_.get(), sending_.data() + sent_, sending_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (put < 0 && errno == EINTR) continue;
      if (put < 0 && errno == EAGAIN) return await_child();
      if (put < 0) break;  // the child is exiting, which is an event of its own
      sent_ += static_cast<std::size_t>(put);
      stuck_.reset();
    }
    writable_.reset();
    stuck_.reset();
    watch_child_socket();
  }

  void await_child() {
    if (!writable_) {
      readable_.reset();  // one watch per descriptor: reading resumes once the child has accepted the message
      writable_ = loop_.watch_descriptor(pair_.get(), EPOLLOUT, [this](std::uint32_t) { flush(); });
    }
    if (!stuck_) {
      stuck_ = loop_.after(kWriteTimeout, [this] {
        log::warning("the listener child does not read its socket; killing it", {{"pid", child_->pid()}});
        child_->send_signal(SIGKILL);
      });
    }
  }

  void watch_child_socket() {
    if (!readable_ && !writable_ && !read_delay_ && pair_.is_open()) {
      readable_ = loop_.watch_descriptor(pair_.get(), EPOLLIN, [this](std::uint32_t) { read_child(); });
    }
  }

  // The child's output is not trusted: its size and rate are limited.
  void read_child() {
    std::array<char, kMaxChildBytes> buffer;
    const ssize_t got = ::recv(pair_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    readable_.reset();
    if (got <= 0) return;  // its exit is an event of its own
    const std::string_view bytes(buffer.data(), static_cast<std::size_t>(got));
    bool wants_metrics = false;
    std::optional<unsigned> subscribers;
    for (const char byte : bytes) {
      if (byte == kMetricsWanted) {
        wants_metrics = true;
      } else if (subscribers = decode_subscriber_count(byte); !subscribers) {
        return log_child_error(bytes);
      }
    }
    read_delay_ = loop_.after(kReadChildDelay, [this] {
      read_delay_.reset();
      watch_child_socket();
    });
    if (subscribers) set_subscriber_count(*subscribers);
    if (wants_metrics && options_.on_metrics_wanted) options_.on_metrics_wanted();
  }

  // Only a child that fails sends any other text, and then it exits.
  void log_child_error(std::string_view words) {
    child_error_ = words;
    read_delay_ = loop_.after(kChildExitTimeout, [this] { child_->send_signal(SIGKILL); });
  }

  void set_subscriber_count(unsigned count) {
    if (std::exchange(subscriber_count_, count) != count && options_.on_subscribers)
      options_.on_subscribers(count);
  }

  void on_exit(const ProcessExit& exit) {
    std::array<char, kMaxChildBytes> rest;
    const ssize_t got = ::recv(pair_.get(), rest.data(), rest.size(), MSG_DONTWAIT);
    if (got > 0 && child_error_.empty()) child_error_.assign(rest.data(), static_cast<std::size_t>(got));
    std::erase_if(child_error_, [](char byte) { return static_cast<unsigned char>(byte) < ' '; });
    for (auto* watch : {&writable_, &readable_, &stuck_, &read_delay_}) watch->reset();
    pair_.reset();
    child_.reset();
    if (loop_.now() - started_ > kStableLifetime) backoff_.reset();
    const std::string why = std::exchange(child_error_, {});
    schedule_restart({{"ended", exit.exit_text()}, {"reason", why}});
    set_subscriber_count(0);
  }

  void schedule_restart(log::Fields fields) {
    log::warning("the listener child is gone: starting another", fields);
    restart_ = loop_.after(backoff_.next_delay(), [this] {
      ++restarts_;
      if (const auto started = start_child(); !started)
        schedule_restart({{"error", started.error().full_message()}});
    });
  }

  Loop& loop_;
  ListenerOptions options_;
  FileDescriptor listening_;  // not open without an address
  std::uint16_t port_;
  Backoff backoff_;
  std::uint64_t restarts_ = 0;

  std::unique_ptr<Process> child_;
  // Closed before child_ is awaited, which then exits: without CAP_KILL root may not signal another user's
  // process.
  FileDescriptor pair_;
  Time started_{}, published_{};
  std::shared_ptr<const Pages> latest_;      // the last published pages
  std::shared_ptr<const Pages> sent_pages_;  // the last pages sent to this child
  bool fresh_ = false;                       // latest_ has not been sent
  bool access_is_new_ = false;               // nor have the access rules
  std::string sending_;                      // the message that is being written
  std::size_t sent_ = 0;
  unsigned subscriber_count_ = 0;
  std::string child_error_;
  bool logged_too_large_ = false;
  Subscription writable_, readable_, stuck_, read_delay_, restart_;
};

}  // namespace

Result<std::unique_ptr<Listener>> Listener::start_listener(Loop& loop, const std::string& address,
                                                           ListenerOptions options) {
  GPULET_TRY(http::check_access_rules(options.access_rules));
  FileDescriptor listening;
  if (!address.empty() || !options.local) {
    GPULET_TRY_ASSIGN(listening, http::listen_tcp(address));
  }
  auto listener = std::make_unique<ChildListener>(loop, std::move(listening), std::move(options));
  GPULET_TRY(listener->start_child());
  return listener;
}

}  // namespace gpulet::web

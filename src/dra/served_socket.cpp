#include "dra/served_socket.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/dead_socket.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "device_plugin/plugin_host.h"
#include "device_plugin/rpc_core.h"

namespace gpulet::dra {
namespace {

// Another process that serves the same path may replace the socket each time: retries must not spin.
constexpr BackoffLimits kListenBackoff{std::chrono::milliseconds(100), std::chrono::seconds(10)};
constexpr Duration kReplacedResetAfter = std::chrono::seconds(30);
// Without a free descriptor the socket stays ready, and the loop would spin.
constexpr Duration kPauseWithoutDescriptors = std::chrono::milliseconds(100);

class ListeningSocket final : public ServedSocket {
 public:
  ListeningSocket(Loop& loop, std::shared_ptr<device_plugin::GrpcThread> rpc, std::string path)
      : loop_(loop), rpc_(std::move(rpc)), path_(std::move(path)) {}

  ~ListeningSocket() override {
    if (listener_.is_open() && file_identity(path_) == identity_) ::unlink(path_.c_str());
  }

  Status open() {
    const std::string directory(text::parent_directory(path_));
    GPULET_TRY(make_directories(directory));
    GPULET_TRY(listen());
    GPULET_TRY_ASSIGN(
        watcher_, device_plugin::DirectoryWatcher::open_watcher(loop_, directory,
                                                                {.changed =
                                                                     [this](const std::string& name, bool) {
                                                                       if (name == text::base_name(path_))
                                                                         check_socket();
                                                                     },
                                                                 .rescan = [this] { check_socket(); }}));
    return {};
  }

 private:
  Status listen() {
    GPULET_TRY_ASSIGN(FileDescriptor socket, bind_unix_socket(path_));
    identity_ = file_identity(path_);
    GPULET_TRY(start_listening(socket, path_));
    listener_ = std::move(socket);
    watch_listener();
    return {};
  }

  void watch_listener() {
    accepting_ =
        loop_.watch_descriptor(listener_.get(), EPOLLIN, [this](std::uint32_t) { accept_connections(); });
  }

  void accept_connections() {
    for (;;) {
      FileDescriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket.is_open()) {
        rpc_->serve_connection(std::move(socket));
        continue;
      }
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      accepting_ = loop_.after(kPauseWithoutDescriptors, [this] { watch_listener(); });
      return;
    }
  }

  void check_socket() {
    // Without a recorded identity, the socket was removed before it could be inspected: then no socket is not
    // the expected state.
    const auto now = file_identity(path_);
    if (!listener_.is_open() || (now && now == identity_)) return;
    if (loop_.now() - last_lost_ > kReplacedResetAfter) backoff_.reset();
    last_lost_ = loop_.now();
    log::warning("the socket of the claims' service was removed or replaced", {{"path", path_}});
    accepting_.reset();
    listener_.reset();
    listen_later();
  }

  void listen_later() {
    retry_ = loop_.after(backoff_.next_delay(), [this] {
      const auto listening = listen();
      if (listening) return;
      log::warning("cannot serve claims", listening.error());
      listen_later();
    });
  }

  Loop& loop_;
  std::shared_ptr<device_plugin::GrpcThread> rpc_;
  const std::string path_;
  FileDescriptor listener_;
  std::optional<FileIdentity> identity_;
  Subscription accepting_, retry_;
  Backoff backoff_{kListenBackoff, 0};
  Time last_lost_{};
  std::unique_ptr<device_plugin::DirectoryWatcher> watcher_;
};

}  // namespace

Result<std::unique_ptr<ServedSocket>> ServedSocket::open_socket(
    Loop& loop, std::shared_ptr<device_plugin::GrpcThread> rpc, std::string path) {
  auto socket = std::make_unique<ListeningSocket>(loop, std::move(rpc), std::move(path));
  GPULET_TRY(socket->open());
  return socket;
}

namespace {

// "-1a2b3c4d"
std::string instance_suffix(std::string_view instance) {
  if (instance.empty()) return {};
  return "-" + std::string(instance.substr(0, instance.find('-')));
}

void remove_dead_sockets_in(const std::string& directory, std::string_view prefix, std::string_view suffix,
                            std::vector<std::string>& removed) {
  std::error_code error;
  std::filesystem::directory_iterator entries(directory, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(suffix)) continue;
    const std::string path = directory + "/" + name;
    if (is_dead_socket(path) && ::unlink(path.c_str()) == 0) removed.push_back(path);
  }
}

}  // namespace

std::string service_socket_path(const std::string& plugins_directory, const std::string& driver,
                                std::string_view instance) {
  return plugins_directory + "/" + driver + "/dra" + instance_suffix(instance) + ".sock";
}

std::string registration_socket_path(const std::string& registry_directory, const std::string& driver,
                                     std::string_view instance) {
  return registry_directory + "/" + driver + instance_suffix(instance) + "-reg.sock";
}

std::vector<std::string> remove_dead_sockets(const std::string& plugins_directory,
                                             const std::string& registry_directory,
                                             const std::string& driver) {
  std::vector<std::string> removed;
  remove_dead_sockets_in(plugins_directory + "/" + driver, "dra", ".sock", removed);
  remove_dead_sockets_in(registry_directory, driver, "-reg.sock", removed);
  return removed;
}

}  // namespace gpulet::dra

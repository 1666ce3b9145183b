#include "kubelet/plugin_host.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fcntl.h>

#include <algorithm>
#include <filesystem>

#include "base/backoff.h"
#include "base/log.h"
#include "base/unix_socket.h"
#include "kubelet/client_call.h"
#include "kubelet/directory_watch.h"
#include "kubelet/rpc_core.h"

namespace gpulet::kubelet {
namespace {

// The kubelet binds before it listens: that long a refused connect is asked again, from 1 ms on.
constexpr Duration kListenWait = std::chrono::seconds(1);
constexpr Duration kFirstConnectWait = std::chrono::milliseconds(1);
constexpr Duration kLongestConnectWait = std::chrono::milliseconds(20);
// Somebody else who serves the same path would take it back at once: two such must not fight at full speed.
constexpr BackoffLimits kReplacedBackoff{std::chrono::milliseconds(100), std::chrono::seconds(10)};
constexpr Duration kCalm = std::chrono::seconds(30);

class RealPluginHost final : public PluginHost {
 public:
  RealPluginHost(Loop& loop, std::shared_ptr<Rpc> rpc, PluginHostSettings settings);
  ~RealPluginHost() override;

  Status serve(OfferPtr offer) override;
  void withdraw(const ResourceName& resource) override;
  void register_resource(const ResourceName& resource, std::function<void(Status)> done) override;
  void set_events(Events events) override { events_ = std::move(events); }
  std::map<ResourceName, ResourceCalls> calls() const override { return rpc_->devices().calls(); }

 private:
  struct Connection {
    FileDescriptor socket;  // our own descriptor of what gRPC serves: to end it, and to hear that it ended
    Subscription ended;
    int fd = -1;            // gRPC's
  };
  struct Served {
    FileDescriptor listener;  // none after the socket was lost
    Subscription accepting;
    std::optional<FileIdentity> identity;
    std::uint64_t generation = 0;  // counts listeners
    std::map<std::uint64_t, Connection> connections;
    Backoff replaced{kReplacedBackoff, 0};
    Time last_lost{};
    Subscription loss;
  };
  struct Registering {
    std::function<void(Status)> done;
    std::uint64_t serial = 0;
    std::uint64_t generation = 0;  // of our listener when the call was made
    std::optional<FileIdentity> kubelet;
    Time give_up_connecting{};
    Duration wait = kFirstConnectWait;
    Subscription retry, deadline;
    ClientCall call;
  };

  std::string path_of(const ResourceName& resource) const { return settings_.folder + "/" + socket_name(resource); }
  Status listen(const ResourceName& resource, Served& served);
  void accept_all(const ResourceName& resource);
  void close(Served& served);
  void drop_connections(Served& served);

  void open_watches();
  void on_changed(const std::string& folder, const std::string& name, bool created);
  void rescan();
  void check_kubelet(bool created);
  void check_socket(const ResourceName& resource);
  void lost(const ResourceName& resource);

  void connect(const ResourceName& resource);
  void finish(const ResourceName& resource, std::uint64_t serial, const Status& status);
  void post_done(std::function<void(Status)> done, Status status);

  Loop& loop_;
  std::shared_ptr<Rpc> rpc_;
  PluginHostSettings settings_;
  Events events_;
  std::shared_ptr<Mailbox> mailbox_;
  std::vector<std::unique_ptr<DirectoryWatch>> watches_;
  std::optional<FileIdentity> kubelet_;
  std::map<ResourceName, Served> served_;
  std::map<ResourceName, Registering> registering_;
  std::uint64_t next_serial_ = 1;
};

std::string folder_of(const std::string& path) { return std::filesystem::path(path).parent_path().string(); }
std::string name_of(const std::string& path) { return std::filesystem::path(path).filename().string(); }

RealPluginHost::RealPluginHost(Loop& loop, std::shared_ptr<Rpc> rpc, PluginHostSettings settings)
    : loop_(loop), rpc_(std::move(rpc)), settings_(std::move(settings)), mailbox_(std::make_shared<Mailbox>(loop)) {
  while (settings_.folder.size() > 1 && settings_.folder.back() == '/') settings_.folder.pop_back();
  rpc_->devices().on_watched([this, mailbox = mailbox_](const ResourceName& resource, bool watched) {
    Mailbox::post(mailbox, [this, resource, watched] {
      if (events_.watched) events_.watched(resource, watched);
    });
  });
  rpc_->devices().on_allocated([this, mailbox = mailbox_] {
    Mailbox::post(mailbox, [this] {
      if (events_.allocated) events_.allocated();
    });
  });
  kubelet_ = identify(settings_.kubelet_socket);
  open_watches();
}

RealPluginHost::~RealPluginHost() {
  rpc_->devices().on_watched(nullptr);
  rpc_->devices().on_allocated(nullptr);
  mailbox_->close();
  registering_.clear();
  watches_.clear();
  while (!served_.empty()) withdraw(ResourceName(served_.begin()->first));
}

Status RealPluginHost::serve(OfferPtr offer) {
  const ResourceName resource = offer->resource.name;
  rpc_->devices().put(std::move(offer));
  auto& served = served_[resource];
  if (served.listener.valid()) return {};
  return listen(resource, served);
}

Status RealPluginHost::listen(const ResourceName& resource, Served& served) {
  const std::string path = path_of(resource);
  served.loss.reset();
  GPULET_TRY_ASSIGN(FileDescriptor socket, bind_unix(path));
  served.identity = identify(path);
  GPULET_TRY(start_listening(socket, path));
  served.listener = std::move(socket);
  ++served.generation;
  served.accepting = loop_.watch(served.listener.get(), EPOLLIN, [this, resource](std::uint32_t) {
    accept_all(resource);
  });
  return {};
}

void RealPluginHost::accept_all(const ResourceName& resource) {
  auto& served = served_.at(resource);
  for (;;) {
    FileDescriptor socket(::accept4(served.listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) return;
    if (served.connections.size() >= kMaxConnections) continue;
    FileDescriptor ours(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
    if (!ours.valid()) continue;
    const std::uint64_t serial = next_serial_++;
    auto& connection = served.connections[serial];
    connection.fd = socket.get();
    connection.socket = std::move(ours);
    connection.ended = loop_.watch(connection.socket.get(), EPOLLRDHUP, [this, resource, serial](std::uint32_t) {
      auto& connections = served_.at(resource).connections;
      rpc_->devices().remove_connection(connections.at(serial).fd, serial);
      auto gone = connections.extract(serial);
    });
    rpc_->devices().add_connection(connection.fd, serial, resource);
    rpc_->serve_connection(std::move(socket));
  }
}

void RealPluginHost::drop_connections(Served& served) {
  for (auto& [serial, connection] : served.connections) {
    connection.ended.reset();
    rpc_->devices().remove_connection(connection.fd, serial);
    ::shutdown(connection.socket.get(), SHUT_RDWR);
  }
  served.connections.clear();
}

void RealPluginHost::close(Served& served) {
  served.accepting.reset();
  served.listener.reset();
}

void RealPluginHost::withdraw(const ResourceName& resource) {
  const auto it = served_.find(resource);
  if (it == served_.end()) return;
  auto& served = it->second;
  const std::string path = path_of(resource);
  if (served.listener.valid() && identify(path) == served.identity) ::unlink(path.c_str());
  close(served);
  rpc_->devices().remove(resource);
  drop_connections(served);
  const auto pending = registering_.find(resource);
  if (pending != registering_.end()) {
    post_done(std::move(pending->second.done), fail(Code::kUnavailable, "withdrawn", resource.str()));
    registering_.erase(pending);
  }
  served_.erase(it);
}

// --- what happens in the folders ---

void RealPluginHost::open_watches() {
  std::vector<std::string> folders{settings_.folder};
  if (!settings_.kubelet_socket.empty() && folder_of(settings_.kubelet_socket) != settings_.folder) {
    folders.push_back(folder_of(settings_.kubelet_socket));
  }
  for (const auto& folder : folders) {
    auto watch = DirectoryWatch::open(
        loop_, folder,
        {.changed = [this, folder](const std::string& name, bool created) { on_changed(folder, name, created); },
         .rescan = [this] { rescan(); }});
    if (watch) {
      watches_.push_back(std::move(*watch));
    } else {
      log::error("the kubelet's folder cannot be watched: its restarts go unnoticed", watch.error());
    }
  }
}

void RealPluginHost::on_changed(const std::string& folder, const std::string& name, bool created) {
  if (folder == folder_of(settings_.kubelet_socket) && name == name_of(settings_.kubelet_socket)) {
    check_kubelet(created);
    return;
  }
  if (folder != settings_.folder) return;
  for (const auto& [resource, served] : served_) {
    if (socket_name(resource) != name) continue;
    check_socket(ResourceName(resource));  // a copy: the event may change the map
    return;
  }
}

void RealPluginHost::rescan() {
  std::vector<ResourceName> resources;
  for (const auto& [resource, served] : served_) resources.push_back(resource);
  for (const auto& resource : resources) check_socket(resource);
  check_kubelet(false);
}

// Every creation counts, even where it left the same inode; without one, only a socket that was not there before.
void RealPluginHost::check_kubelet(bool created) {
  if (settings_.kubelet_socket.empty()) return;
  const auto now = identify(settings_.kubelet_socket);
  const bool started = now && (created || now != kubelet_);
  kubelet_ = now;
  if (started && events_.kubelet_started) events_.kubelet_started();
}

void RealPluginHost::check_socket(const ResourceName& resource) {
  const auto it = served_.find(resource);
  if (it == served_.end() || !it->second.listener.valid()) return;
  auto& served = it->second;
  const auto now = identify(path_of(resource));
  // Without an identity of ours it was removed before we could look at it: that there is none now is no comfort.
  if (now && now == served.identity) return;
  close(served);  // streams that are open go on: the kubelet that holds them has lost nothing yet
  if (loop_.now() - served.last_lost > kCalm) served.replaced.reset();
  served.last_lost = loop_.now();
  if (!now) {
    lost(resource);
    return;
  }
  served.loss = loop_.after(served.replaced.next(), [this, resource] { lost(resource); });
}

void RealPluginHost::lost(const ResourceName& resource) {
  if (events_.socket_lost) events_.socket_lost(resource);
}

// --- Register ---

void RealPluginHost::post_done(std::function<void(Status)> done, Status status) {
  Mailbox::post(mailbox_, [done = std::move(done), status = std::move(status)] { done(status); });
}

void RealPluginHost::register_resource(const ResourceName& resource, std::function<void(Status)> done) {
  const auto served = served_.find(resource);
  if (settings_.kubelet_socket.empty() || served == served_.end()) {
    const char* why = served == served_.end() ? "not served" : "no kubelet socket is set";
    post_done(std::move(done), fail(Code::kFailedPrecondition, why, resource.str()));
    return;
  }
  if (const auto it = registering_.find(resource); it != registering_.end()) {
    auto& before = it->second;
    post_done(std::exchange(before.done, std::move(done)),
              fail(Code::kUnavailable, "a newer registration took over", resource.str()));
    // The same kubelet is being told of the same listener: its answer will do.
    if (before.call.open() && before.generation == served->second.generation &&
        before.kubelet == identify(settings_.kubelet_socket)) {
      return;
    }
    done = std::move(before.done);
    registering_.erase(it);
  }
  auto& now = registering_[resource];
  now.done = std::move(done);
  now.serial = next_serial_++;
  now.generation = served->second.generation;
  now.give_up_connecting = loop_.now() + kListenWait;
  now.deadline = loop_.after(kRegisterTimeout, [this, resource, serial = now.serial] {
    finish(resource, serial, fail(Code::kDeadlineExceeded, "the kubelet did not answer in time", resource.str()));
  });
  connect(resource);
}

void RealPluginHost::connect(const ResourceName& resource) {
  auto& now = registering_.at(resource);
  now.kubelet = identify(settings_.kubelet_socket);
  auto socket = connect_unix(settings_.kubelet_socket);
  if (!socket && socket.error().code() == Code::kUnavailable && loop_.now() < now.give_up_connecting) {
    now.retry = loop_.after(now.wait, [this, resource] { connect(resource); });
    now.wait = std::min(now.wait * 2, kLongestConnectWait);
    return;
  }
  if (!socket) {
    // Its creation, when it comes, is told as kubelet_started.
    const bool absent = socket.error().code() == Code::kNotFound;
    const Error error(absent ? Code::kUnavailable : socket.error().code(), socket.error().message(),
                      socket.error().about());
    Mailbox::post(mailbox_, [this, resource, serial = now.serial, error] { finish(resource, serial, fail(error)); });
    return;
  }
  now.call = call_register(*rpc_, mailbox_, std::move(*socket), {socket_name(resource), resource.str()},
                           [this, resource, serial = now.serial](const Status& status) {
                             finish(resource, serial, status);
                           });
}

void RealPluginHost::finish(const ResourceName& resource, std::uint64_t serial, const Status& status) {
  const auto it = registering_.find(resource);
  if (it == registering_.end() || it->second.serial != serial) return;
  auto over = registering_.extract(it);
  over.mapped().done(status);
}

}  // namespace

std::unique_ptr<PluginHost> make_plugin_host(Loop& loop, std::shared_ptr<Rpc> rpc, PluginHostSettings settings) {
  return std::make_unique<RealPluginHost>(loop, std::move(rpc), std::move(settings));
}

std::string socket_name(const ResourceName& resource) {
  const auto& name = resource.str();
  return "nvidia-" + name.substr(name.find('/') + 1) + ".sock";
}

}  // namespace gpulet::kubelet

#include "device_plugin/plugin_host.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/file.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/text.h"
#include "device_plugin/demand_requests.h"
#include "device_plugin/rpc_core.h"

namespace gpulet::device_plugin {
namespace {

constexpr std::uint32_t kCreated = IN_CREATE | IN_MOVED_TO;
constexpr std::uint32_t kRemoved = IN_DELETE | IN_MOVED_FROM;
constexpr std::uint32_t kDirectoryItself = IN_DELETE_SELF | IN_MOVE_SELF;

}  // namespace

Result<std::unique_ptr<DirectoryWatcher>> DirectoryWatcher::open_watcher(Loop& loop, std::string directory,
                                                                         Events events) {
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  std::unique_ptr<DirectoryWatcher> watch(
      new DirectoryWatcher(loop, std::move(directory), std::move(events)));
  GPULET_TRY(watch->attach_watch());
  return watch;
}

DirectoryWatcher::DirectoryWatcher(Loop& loop, std::string directory, Events events)
    : loop_(loop), directory_(std::move(directory)), events_(std::move(events)) {}

Result<bool> DirectoryWatcher::attach_watch() {
  watch_.reset();
  const auto on_folder = [this](const std::string& name, std::uint32_t mask) { on_entry(name, mask); };
  const auto on_above = [this](const std::string&, std::uint32_t mask) { on_ancestor(mask); };
  // Each round ends with a watch, unless the ancestor vanished between two system calls: hence the limit.
  for (int round = 0; round < 64; ++round) {
    auto watch =
        watch_events(loop_, directory_, kCreated | kRemoved | kDirectoryItself | IN_ONLYDIR, on_folder);
    if (watch) {
      watch_ = std::move(*watch);
      return true;
    }
    if (watch.error().code() == Code::kIo) return fail(watch.error());
    std::filesystem::path ancestor = std::filesystem::path(directory_).parent_path();
    std::filesystem::path below(directory_);
    std::error_code ignored;
    while (!std::filesystem::is_directory(ancestor, ignored) && ancestor.has_relative_path()) {
      below = ancestor;
      ancestor = ancestor.parent_path();
    }
    auto above = watch_events(loop_, ancestor.string(), kCreated | kDirectoryItself | IN_ONLYDIR, on_above);
    if (!above) continue;
    watch_ = std::move(*above);
    // It may have been created before the watch.
    if (!std::filesystem::exists(below, ignored)) return false;
  }
  return fail(Code::kIo, "cannot watch: its parent directories keep changing", directory_);
}

// True when the directory itself is watched again.
bool DirectoryWatcher::reattach_watch() {
  const auto attached = attach_watch();
  if (!attached) log::error("the kubelet's directory is no longer watched", attached.error());
  return attached && *attached;
}

void DirectoryWatcher::on_entry(const std::string& name, std::uint32_t mask) {
  if ((mask & (kDirectoryItself | IN_IGNORED | IN_UNMOUNT)) != 0) {
    on_watch_lost();
  } else if ((mask & IN_Q_OVERFLOW) != 0) {
    events_.rescan();
  } else if (!name.empty()) {
    events_.changed(name, (mask & kCreated) != 0);
  }
}

void DirectoryWatcher::on_ancestor(std::uint32_t) {
  if (reattach_watch()) events_.rescan();
}

void DirectoryWatcher::on_watch_lost() {
  reattach_watch();
  events_.rescan();
}

}  // namespace gpulet::device_plugin

namespace gpulet::device_plugin {
namespace {

// The kubelet binds before it listens: a refused connect is retried for this long, from 1 ms on.
constexpr Duration kListenWait = std::chrono::seconds(1);
constexpr Duration kFirstConnectWait = std::chrono::milliseconds(1);
constexpr Duration kLongestConnectWait = std::chrono::milliseconds(20);
// Another process that serves the same path may replace the socket each time: retries must not spin.
constexpr BackoffLimits kReplacedBackoff{std::chrono::milliseconds(100), std::chrono::seconds(10)};
constexpr Duration kReplacedResetAfter = std::chrono::seconds(30);
// Without a free descriptor the socket stays ready, and the loop would spin.
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);

class GrpcPluginHost final : public PluginHost {
 public:
  GrpcPluginHost(Loop& loop, std::shared_ptr<GrpcThread> rpc, PluginHostSettings settings);
  ~GrpcPluginHost() override;

  Status serve_offer(OfferPtr offer) override;
  void withdraw(const ResourceName& resource) override;
  void register_resource(const ResourceName& resource, std::function<void(Status)> done) override;
  void set_events(Events events) override { events_ = std::move(events); }
  std::map<ResourceName, ResourceCalls> call_counts() const override {
    return rpc_->device_service().call_counts();
  }
  bool shows_allocations() const override { return rpc_->device_service().shows_allocations(); }
  void set_demand_source(DemandSource source) override { demands_.set_source(std::move(source)); }

 private:
  struct Connection {
    FileDescriptor socket;  // a duplicate of gRPC's descriptor, to close the connection and to detect its end
    Subscription ended;
    int fd = -1;  // gRPC's
  };
  struct ServedResource {
    FileDescriptor listener;  // none after the socket was lost
    Subscription accepting;
    std::optional<FileIdentity> identity;
    std::uint64_t generation = 0;  // counts listeners
    std::map<std::uint64_t, Connection> connections;
    Backoff replaced{kReplacedBackoff, 0};
    Time last_lost{};
    Subscription loss;
  };
  struct PendingRegistration {
    std::function<void(Status)> done;
    std::uint64_t serial = 0;
    std::uint64_t generation = 0;  // of the listener when the call was sent
    std::optional<FileIdentity> kubelet;
    Time give_up_connecting{};
    Duration wait = kFirstConnectWait;
    Subscription retry, deadline;
    ClientCall call;
  };

  std::string socket_path(const ResourceName& resource) const {
    return settings_.directory + "/" + socket_name(resource);
  }
  Status listen_for_kubelet(const ResourceName& resource, ServedResource& served);
  void watch_listener(const ResourceName& resource, ServedResource& served);
  void accept_all(const ResourceName& resource);
  void close_listener(ServedResource& served);
  void drop_connections(ServedResource& served);

  void open_watches();
  void on_changed(const std::string& directory, const std::string& name, bool created);
  void rescan();
  void check_kubelet(bool created);
  void check_socket(const ResourceName& resource);
  void report_socket_lost(const ResourceName& resource);

  void connect_to_kubelet(const ResourceName& resource);
  void finish_registration(const ResourceName& resource, std::uint64_t serial, const Status& status);
  void post_done(std::function<void(Status)> done, Status status);

  void ask_holders(std::uint64_t call);
  void resume_call(std::uint64_t call, const Result<std::vector<ContainerDevices>>& containers);

  Loop& loop_;
  std::shared_ptr<GrpcThread> rpc_;
  PluginHostSettings settings_;
  Events events_;
  std::shared_ptr<Mailbox> mailbox_;
  DemandRequests demands_;
  std::vector<std::unique_ptr<DirectoryWatcher>> watches_;
  std::optional<FileIdentity> kubelet_;
  std::map<ResourceName, ServedResource> served_;
  std::map<ResourceName, PendingRegistration> registering_;
  std::uint64_t next_serial_ = 1;
  std::map<std::uint64_t, Subscription> asking_;  // the time limit of each call that waits for the kubelet
  Lifetime lifetime_;
};

GrpcPluginHost::GrpcPluginHost(Loop& loop, std::shared_ptr<GrpcThread> rpc, PluginHostSettings settings)
    : loop_(loop),
      rpc_(std::move(rpc)),
      settings_(std::move(settings)),
      mailbox_(std::make_shared<Mailbox>(loop)),
      demands_(loop, rpc_->device_service(), mailbox_) {
  while (settings_.directory.size() > 1 && settings_.directory.back() == '/') settings_.directory.pop_back();
  rpc_->device_service().set_watch_callback(
      [this, mailbox = mailbox_](const ResourceName& resource, bool watched) {
        Mailbox::post_task(mailbox, [this, resource, watched] {
          if (events_.watched) events_.watched(resource, watched);
        });
      });
  rpc_->device_service().set_allocation_callback([this, mailbox = mailbox_] {
    Mailbox::post_task(mailbox, [this] {
      if (events_.allocated) events_.allocated();
    });
  });
  if (settings_.list_containers) {
    rpc_->device_service().set_holder_callback([this, mailbox = mailbox_](std::uint64_t call) {
      Mailbox::post_task(mailbox, [this, call] { ask_holders(call); });
    });
  }
  kubelet_ = file_identity(settings_.kubelet_socket);
  open_watches();
}

GrpcPluginHost::~GrpcPluginHost() {
  rpc_->device_service().set_watch_callback(nullptr);
  rpc_->device_service().set_allocation_callback(nullptr);
  rpc_->device_service().set_holder_callback(nullptr);
  demands_.set_source(nullptr);
  mailbox_->close_mailbox();
  registering_.clear();
  watches_.clear();
  while (!served_.empty()) withdraw(ResourceName(served_.begin()->first));
}

void GrpcPluginHost::ask_holders(std::uint64_t call) {
  asking_[call] = loop_.after(kHolderTimeout, [this, call] {
    resume_call(call, fail(Code::kDeadlineExceeded, "the kubelet did not answer in time"));
  });
  settings_.list_containers([this, alive = lifetime_.watch(), call](const auto& containers) {
    if (alive) resume_call(call, containers);
  });
}

void GrpcPluginHost::resume_call(std::uint64_t call,
                                 const Result<std::vector<ContainerDevices>>& containers) {
  const auto timer = asking_.extract(call);
  if (timer) rpc_->device_service().resume_call(call, containers);
}

Status GrpcPluginHost::serve_offer(OfferPtr offer) {
  const ResourceName resource = offer->resource.name;
  rpc_->device_service().set_offer(std::move(offer));
  auto& served = served_[resource];
  if (served.listener.is_open()) return {};
  return listen_for_kubelet(resource, served);
}

Status GrpcPluginHost::listen_for_kubelet(const ResourceName& resource, ServedResource& served) {
  const std::string path = socket_path(resource);
  served.loss.reset();
  GPULET_TRY_ASSIGN(FileDescriptor socket, bind_unix_socket(path));
  served.identity = file_identity(path);
  GPULET_TRY(start_listening(socket, path));
  served.listener = std::move(socket);
  ++served.generation;
  watch_listener(resource, served);
  return {};
}

void GrpcPluginHost::watch_listener(const ResourceName& resource, ServedResource& served) {
  served.accepting = loop_.watch_descriptor(served.listener.get(), EPOLLIN,
                                            [this, resource](std::uint32_t) { accept_all(resource); });
}

void GrpcPluginHost::accept_all(const ResourceName& resource) {
  auto& served = served_.at(resource);
  for (;;) {
    FileDescriptor socket(::accept4(served.listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.is_open()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      served.accepting =
          loop_.after(kAcceptPause, [this, resource] { watch_listener(resource, served_.at(resource)); });
      return;
    }
    if (served.connections.size() >= kMaxConnections) continue;
    FileDescriptor ours(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
    if (!ours.is_open()) continue;
    const std::uint64_t serial = next_serial_++;
    auto& connection = served.connections[serial];
    connection.fd = socket.get();
    connection.socket = std::move(ours);
    connection.ended =
        loop_.watch_descriptor(connection.socket.get(), EPOLLRDHUP, [this, resource, serial](std::uint32_t) {
          auto& connections = served_.at(resource).connections;
          rpc_->device_service().remove_connection(connections.at(serial).fd, serial);
          auto gone = connections.extract(serial);
        });
    rpc_->device_service().add_connection(connection.fd, serial, resource);
    rpc_->serve_connection(std::move(socket));
  }
}

void GrpcPluginHost::drop_connections(ServedResource& served) {
  for (auto& [serial, connection] : served.connections) {
    connection.ended.reset();
    rpc_->device_service().remove_connection(connection.fd, serial);
    ::shutdown(connection.socket.get(), SHUT_RDWR);
  }
  served.connections.clear();
}

void GrpcPluginHost::close_listener(ServedResource& served) {
  served.accepting.reset();
  served.listener.reset();
}

void GrpcPluginHost::withdraw(const ResourceName& resource) {
  const auto it = served_.find(resource);
  if (it == served_.end()) return;
  auto& served = it->second;
  const std::string path = socket_path(resource);
  if (served.listener.is_open() && file_identity(path) == served.identity) ::unlink(path.c_str());
  close_listener(served);
  rpc_->device_service().remove_offer(resource);
  drop_connections(served);
  const auto pending = registering_.find(resource);
  if (pending != registering_.end()) {
    post_done(std::move(pending->second.done), fail(Code::kUnavailable, "withdrawn", resource.str()));
    registering_.erase(pending);
  }
  served_.erase(it);
}

// --- events in the directories ---

void GrpcPluginHost::open_watches() {
  std::vector<std::string> directories{settings_.directory};
  if (!settings_.kubelet_socket.empty() &&
      text::parent_directory(settings_.kubelet_socket) != settings_.directory) {
    directories.emplace_back(text::parent_directory(settings_.kubelet_socket));
  }
  for (const auto& directory : directories) {
    auto watch = DirectoryWatcher::open_watcher(
        loop_, directory,
        {.changed = [this, directory](const std::string& name,
                                      bool created) { on_changed(directory, name, created); },
         .rescan = [this] { rescan(); }});
    if (watch) {
      watches_.push_back(std::move(*watch));
    } else {
      log::error("cannot watch the kubelet's directory: kubelet restarts go unnoticed", watch.error());
    }
  }
}

void GrpcPluginHost::on_changed(const std::string& directory, const std::string& name, bool created) {
  if (directory == text::parent_directory(settings_.kubelet_socket) &&
      name == text::base_name(settings_.kubelet_socket)) {
    check_kubelet(created);
    return;
  }
  if (directory != settings_.directory) return;
  for (const auto& [resource, served] : served_) {
    if (socket_name(resource) != name) continue;
    check_socket(ResourceName(resource));  // a copy: the event may change the map
    return;
  }
}

void GrpcPluginHost::rescan() {
  std::vector<ResourceName> resources;
  for (const auto& [resource, served] : served_) resources.push_back(resource);
  for (const auto& resource : resources) check_socket(resource);
  check_kubelet(false);
}

// Every creation counts, also with the same inode; without a creation event, only a new socket does.
void GrpcPluginHost::check_kubelet(bool created) {
  if (settings_.kubelet_socket.empty()) return;
  const auto now = file_identity(settings_.kubelet_socket);
  const bool started = now && (created || now != kubelet_);
  kubelet_ = now;
  if (started && events_.kubelet_started) events_.kubelet_started();
}

void GrpcPluginHost::check_socket(const ResourceName& resource) {
  const auto it = served_.find(resource);
  if (it == served_.end() || !it->second.listener.is_open()) return;
  auto& served = it->second;
  const auto now = file_identity(socket_path(resource));
  // Without a recorded identity, the socket was removed before it could be inspected: then no socket is not
  // the expected state.
  if (now && now == served.identity) return;
  close_listener(served);  // open streams continue: the kubelet still has them
  if (loop_.now() - served.last_lost > kReplacedResetAfter) served.replaced.reset();
  served.last_lost = loop_.now();
  if (!now) {
    report_socket_lost(resource);
    return;
  }
  served.loss = loop_.after(served.replaced.next_delay(), [this, resource] { report_socket_lost(resource); });
}

void GrpcPluginHost::report_socket_lost(const ResourceName& resource) {
  if (events_.socket_lost) events_.socket_lost(resource);
}

// --- Register ---

void GrpcPluginHost::post_done(std::function<void(Status)> done, Status status) {
  Mailbox::post_task(mailbox_, [done = std::move(done), status = std::move(status)] { done(status); });
}

void GrpcPluginHost::register_resource(const ResourceName& resource, std::function<void(Status)> done) {
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
    // A registration of the same listener with the same kubelet is in progress: its result is used.
    if (before.call.is_open() && before.generation == served->second.generation &&
        before.kubelet == file_identity(settings_.kubelet_socket)) {
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
    finish_registration(resource, serial,
                        fail(Code::kDeadlineExceeded, "the kubelet did not answer in time", resource.str()));
  });
  connect_to_kubelet(resource);
}

void GrpcPluginHost::connect_to_kubelet(const ResourceName& resource) {
  auto& now = registering_.at(resource);
  now.kubelet = file_identity(settings_.kubelet_socket);
  auto socket = connect_unix_socket(settings_.kubelet_socket);
  if (!socket && socket.error().code() == Code::kUnavailable && loop_.now() < now.give_up_connecting) {
    now.retry = loop_.after(now.wait, [this, resource] { connect_to_kubelet(resource); });
    now.wait = std::min(now.wait * 2, kLongestConnectWait);
    return;
  }
  if (!socket) {
    // Its creation is reported as kubelet_started.
    const bool absent = socket.error().code() == Code::kNotFound;
    const Error error(absent ? Code::kUnavailable : socket.error().code(), socket.error().message(),
                      socket.error().subject());
    Mailbox::post_task(mailbox_, [this, resource, serial = now.serial, error] {
      finish_registration(resource, serial, fail(error));
    });
    return;
  }
  now.call = call_register(*rpc_, mailbox_, std::move(*socket), {socket_name(resource), resource.str()},
                           [this, resource, serial = now.serial](const Status& status) {
                             finish_registration(resource, serial, status);
                           });
}

void GrpcPluginHost::finish_registration(const ResourceName& resource, std::uint64_t serial,
                                         const Status& status) {
  const auto it = registering_.find(resource);
  if (it == registering_.end() || it->second.serial != serial) return;
  auto over = registering_.extract(it);
  over.mapped().done(status);
}

}  // namespace

std::unique_ptr<PluginHost> make_plugin_host(Loop& loop, std::shared_ptr<GrpcThread> rpc,
                                             PluginHostSettings settings) {
  return std::make_unique<GrpcPluginHost>(loop, std::move(rpc), std::move(settings));
}

std::string socket_name(const ResourceName& resource) {
  const auto& name = resource.str();
  return "nvidia-" + name.substr(name.find('/') + 1) + ".sock";
}

}  // namespace gpulet::device_plugin

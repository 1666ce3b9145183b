#include "sim/kubelet/kubelet.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "sim/kubelet/kubelet_impl.h"

namespace gpulet::sim {

std::size_t KubeletResource::allocatable() const {
  const auto healthy = [](const auto& entry) { return entry.second.healthy; };
  return static_cast<std::size_t>(std::ranges::count_if(devices, healthy));
}

Kubelet::Kubelet(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Kubelet::~Kubelet() {
  stop_kubelet();
  std::error_code ignored;
  std::filesystem::remove(kubelet_socket(), ignored);
  std::filesystem::remove(pod_resources_socket(), ignored);
}

Result<std::unique_ptr<Kubelet>> Kubelet::start_kubelet(KubeletSettings settings) {
  auto impl = std::make_unique<Impl>();
  impl->settings = std::move(settings);
  auto* raw = impl.get();
  impl->registration_service = make_registration_service(
      [raw](const RegisterArguments& arguments, const std::function<bool()>& cancelled) {
        return raw->on_register(arguments, cancelled);
      });
  impl->pod_resources_service = make_pod_resources_service({
      .pods =
          [raw] {
            std::lock_guard lock(raw->mutex);
            raw->update_allocated();
            return raw->listed_pods();
          },
      .allocatable =
          [raw] {
            std::lock_guard lock(raw->mutex);
            return raw->listed_devices();
          },
  });
  std::unique_ptr<Kubelet> kubelet(new Kubelet(std::move(impl)));
  GPULET_TRY(kubelet->resume_kubelet());
  return kubelet;
}

Status Kubelet::resume_kubelet() {
  std::lock_guard lifecycle(impl_->lifecycle);
  if (impl_->registration) return fail(Code::kFailedPrecondition, "the kubelet runs already");
  return impl_->start_servers();
}

void Kubelet::stop_kubelet() {
  std::lock_guard lifecycle(impl_->lifecycle);
  impl_->stop_servers();
}

Status Kubelet::Impl::start_servers() {
  GPULET_TRY(make_directories(plugin_dir(), 0750));
  GPULET_TRY(make_directories(settings.dir + "/pod-resources", 0750));
  {
    std::lock_guard lock(mutex);
    load_checkpoint();
    state.running = true;
    ++state.starts;
  }
  clear_sockets();
  GPULET_TRY_ASSIGN(pod_resources,
                    SocketServer::start_socket_server(pod_resources_socket(), *pod_resources_service,
                                                      settings.listen_delay));
  GPULET_TRY_ASSIGN(registration, SocketServer::start_socket_server(kubelet_socket(), *registration_service,
                                                                    settings.listen_delay));
  changed.notify_all();
  return {};
}

void Kubelet::Impl::stop_servers() {
  std::map<std::string, std::shared_ptr<PluginClient>> leaving;
  {
    std::lock_guard lock(mutex);
    state.running = false;
    leaving.swap(clients);
    for (auto& [name, resource] : state.resources) {
      resource.connected = false;
      resource.devices.clear();
    }
  }
  changed.notify_all();
  registration.reset();
  pod_resources.reset();
  for (auto& [name, client] : leaving) client->close_client();
}

// Removes sockets only, as the real kubelet does at its start.
void Kubelet::Impl::clear_sockets() const {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(plugin_dir(), ignored)) {
    if (entry.is_socket(ignored)) std::filesystem::remove(entry.path(), ignored);
  }
}

void Kubelet::Impl::load_checkpoint() {
  entries.clear();
  state.grants.clear();
  const auto text = read_file(checkpoint_file());
  if (text) {
    if (auto checkpoint = read_checkpoint(*text)) {
      entries = std::move(checkpoint->entries);
      for (const auto& [name, devices] : checkpoint->registered) state.resources[name].devices.clear();
    } else {
      log::warning("the kubelet's checkpoint cannot be read: its allocations are forgotten",
                   checkpoint.error());
    }
  }
  rebuild_allocated();
  for (const auto& [uid, pod] : state.pods) rebuild_grant(pod);
}

void Kubelet::Impl::save_checkpoint() const {
  Checkpoint checkpoint{entries, {}};
  for (const auto& [name, resource] : state.resources) {
    auto& ids = checkpoint.registered[name];
    for (const auto& [id, device] : resource.devices) {
      if (device.healthy) ids.push_back(id);
    }
  }
  if (const auto status = write_file_atomic(checkpoint_file(), write_checkpoint(checkpoint), 0600); !status) {
    log::warning("the kubelet's checkpoint cannot be written", status.error());
  }
}

void Kubelet::Impl::rebuild_grant(const PodRequest& pod) {
  PodGrant grant{pod.uid, {}};
  for (const auto& container : pod.containers) {
    ContainerGrant out;
    out.name = container.name;
    for (const auto& entry : entries) {
      if (entry.pod_uid != pod.uid || entry.container != container.name) continue;
      for (const auto& [node, ids] : entry.devices) {
        out.devices[entry.resource].insert(out.devices[entry.resource].end(), ids.begin(), ids.end());
      }
      add_response(entry.allocate_response, out);
    }
    grant.containers.push_back(std::move(out));
  }
  state.grants[pod.uid] = std::move(grant);
}

void Kubelet::Impl::record_latency(CallLatency latency) {
  auto& all = state.latencies;
  if (all.size() >= kMaxLatencies) all.erase(all.begin(), all.begin() + kMaxLatencies / 2);
  all.push_back(std::move(latency));
}

std::vector<ListedPod> Kubelet::Impl::listed_pods() const {
  std::vector<ListedPod> pods;
  for (const auto& [uid, pod] : state.pods) {
    ListedPod listed{pod.name_space, pod.name, {}};
    for (const auto& container : pod.containers) {
      ListedContainer out{container.name, {}, listed_claims(pod, container)};
      for (const auto& entry : entries) {
        if (entry.pod_uid != uid || entry.container != container.name) continue;
        for (const auto& [node, ids] : entry.devices) {
          for (const auto& id : ids) {
            ListedDevice device{entry.resource, id, {}};
            if (node >= 0) device.numa_nodes.insert(static_cast<int>(node));
            out.devices.push_back(std::move(device));
          }
        }
      }
      listed.containers.push_back(std::move(out));
    }
    pods.push_back(std::move(listed));
  }
  if (settings.pod_resources_padding_bytes > 0) {
    pods.push_back({"padding", "padding", {{std::string(settings.pod_resources_padding_bytes, 'x'), {}}}});
  }
  return pods;
}

// As the real kubelet: all devices of a claim, whichever of its requests the container names, and no claim of
// a container that has one which is not prepared.
std::vector<PreparedClaim> Kubelet::Impl::listed_claims(const PodRequest& pod,
                                                        const ContainerRequest& container) const {
  std::vector<PreparedClaim> listed;
  for (const auto& name : container.claims) {
    const auto found = claims.find({pod.name_space, name});
    if (found == claims.end()) return {};
    listed.push_back(found->second);
  }
  return listed;
}

std::vector<ListedDevice> Kubelet::Impl::listed_devices() const {
  std::vector<ListedDevice> devices;
  for (const auto& [name, resource] : state.resources) {
    for (const auto& [id, device] : resource.devices) {
      if (device.healthy) devices.push_back({name, id, device.numa_nodes});
    }
  }
  return devices;
}

void Kubelet::add_prepared_claim(PreparedClaim claim) {
  std::lock_guard lock(impl_->mutex);
  std::pair key(claim.name_space, claim.name);
  impl_->claims.insert_or_assign(std::move(key), std::move(claim));
}

void Kubelet::remove_prepared_claim(const std::string& name_space, const std::string& name) {
  std::lock_guard lock(impl_->mutex);
  impl_->claims.erase({name_space, name});
}

void Kubelet::set_register_behavior(RegisterBehavior mood) {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->register_behavior = mood;
  }
  impl_->changed.notify_all();
}

void Kubelet::set_topology_policy(TopologyPolicy policy) {
  std::lock_guard lock(impl_->mutex);
  impl_->settings.topology = policy;
}

KubeletState Kubelet::kubelet_state() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->state;
}

bool Kubelet::wait_for(const std::function<bool(const KubeletState&)>& done,
                       std::chrono::milliseconds timeout) const {
  std::unique_lock lock(impl_->mutex);
  return impl_->changed.wait_for(lock, timeout, [&] { return done(impl_->state); });
}

bool Kubelet::wait_for_allocatable(const std::string& resource, std::size_t count,
                                   std::chrono::milliseconds timeout) const {
  return wait_for(
      [&](const KubeletState& state) {
        const auto it = state.resources.find(resource);
        return it != state.resources.end() && it->second.connected && it->second.allocatable() == count;
      },
      timeout);
}

void Kubelet::clear_latencies() {
  std::lock_guard lock(impl_->mutex);
  impl_->state.latencies.clear();
}

std::string Kubelet::plugin_dir() const { return impl_->plugin_dir(); }
std::string Kubelet::kubelet_socket() const { return impl_->kubelet_socket(); }
std::string Kubelet::pod_resources_socket() const { return impl_->pod_resources_socket(); }

// Registration of plugins and their device lists.
// Source: Kubernetes 1.36, devicemanager/plugin/v1beta1 (server.go, handler.go) and manager.go.

namespace {

constexpr std::string_view kVersion = "v1beta1";
// How soon a cancelled call is noticed.
constexpr std::chrono::milliseconds kCancelPoll{10};

}  // namespace

Status Kubelet::Impl::apply_register_behavior(const std::function<bool()>& cancelled) {
  std::unique_lock lock(mutex);
  const auto mood_then = register_behavior;
  if (mood_then == RegisterBehavior::kRefuse) {
    ++state.refused_registrations;
    changed.notify_all();
    return fail(Code::kUnavailable, "registration is refused");
  }
  if (mood_then == RegisterBehavior::kDelay) {
    changed.wait_for(lock, settings.register_delay, [&] { return !state.running; });
  }
  while (mood_then == RegisterBehavior::kIgnore && state.running && !cancelled())
    changed.wait_for(lock, kCancelPoll);
  if (!state.running || cancelled()) return fail(Code::kUnavailable, "the caller has cancelled the call");
  return {};
}

Status Kubelet::Impl::on_register(const RegisterArguments& arguments,
                                  const std::function<bool()>& cancelled) {
  const auto began = std::chrono::steady_clock::now();
  GPULET_TRY(apply_register_behavior(cancelled));
  if (arguments.version != kVersion) {
    return fail(Code::kInvalidArgument,
                "requested API version \"" + arguments.version +
                    "\" is not supported by kubelet. Supported version is [\"v1beta1\"]");
  }
  if (arguments.resource.find('/') == std::string::npos) {
    return fail(Code::kInvalidArgument, "the ResourceName \"" + arguments.resource + "\" is invalid");
  }
  std::uint64_t life = 0;
  {
    std::lock_guard lock(mutex);
    life = state.starts;
  }
  auto connected = PluginClient::connect_plugin(plugin_dir() + "/" + arguments.endpoint);
  if (!connected) return fail(connected.error().with_context("failed to dial device plugin"));
  const auto client = std::move(*connected);
  GPULET_TRY_ASSIGN(const auto options, timed_call(*this, "GetDevicePluginOptions", arguments.resource,
                                                   [&] { return client->get_plugin_options(); }));
  std::shared_ptr<PluginClient> before;
  {
    std::lock_guard lock(mutex);
    if (!state.running || state.starts != life) return fail(Code::kUnavailable, "the kubelet is ending");
    auto& current = clients[arguments.resource];
    before = std::exchange(current, client);
    auto& resource = state.resources[arguments.resource];
    resource.connected = true;
    resource.endpoint = arguments.endpoint;
    resource.preferred_allocation_available = options.preferred_allocation_available;
    ++resource.registrations;
    const auto now = std::chrono::steady_clock::now();
    record_latency({"Register", arguments.resource, now - began, true});
    client->start_list_and_watch(
        [this, raw = client.get(), name = arguments.resource, now,
         first = true](PluginClient::List list) mutable {
          on_list(raw, name, std::move(list), now, std::exchange(first, false));
        },
        [this, raw = client.get(), name = arguments.resource] { on_list_and_watch_end(raw, name); });
  }
  changed.notify_all();
  if (before) before->close_client();
  return {};
}

void Kubelet::Impl::on_list(const PluginClient* client, const std::string& resource, PluginClient::List list,
                            std::chrono::steady_clock::time_point registered, bool first) {
  {
    std::lock_guard lock(mutex);
    const auto it = clients.find(resource);
    if (it == clients.end() || it->second.get() != client) return;
    auto& known = state.resources[resource];
    known.devices = std::move(list);
    ++known.lists;
    if (first) record_latency({"FirstList", resource, std::chrono::steady_clock::now() - registered, true});
    save_checkpoint();
  }
  changed.notify_all();
}

// The devices stay, as unhealthy. The real kubelet removes them after five minutes.
void Kubelet::Impl::on_list_and_watch_end(const PluginClient* client, const std::string& resource) {
  {
    std::lock_guard lock(mutex);
    const auto it = clients.find(resource);
    if (it == clients.end() || it->second.get() != client) return;
    auto& known = state.resources[resource];
    known.connected = false;
    for (auto& [id, device] : known.devices) device.healthy = false;
  }
  changed.notify_all();
}

}  // namespace gpulet::sim

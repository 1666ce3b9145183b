// Plugins come, list their devices, and go.
// Source: Kubernetes 1.36, devicemanager/plugin/v1beta1 (server.go, handler.go) and manager.go.
#include "sim/kubelet/kubelet_impl.h"

namespace gpulet::sim {
namespace {

constexpr std::string_view kVersion = "v1beta1";
// A caller that has given up is noticed this soon.
constexpr std::chrono::milliseconds kCancelPoll{10};

}  // namespace

Status Kubelet::Impl::wait_by_mood(const std::function<bool()>& cancelled) {
  std::unique_lock lock(mutex);
  const auto mood_then = mood;
  if (mood_then == RegisterMood::kRefuses) {
    ++state.refused_registrations;
    changed.notify_all();
    return fail(Code::kUnavailable, "registration is refused");
  }
  if (mood_then == RegisterMood::kLate) {
    changed.wait_for(lock, settings.late_by, [&] { return !state.running; });
  }
  while (mood_then == RegisterMood::kNever && state.running && !cancelled()) changed.wait_for(lock, kCancelPoll);
  if (!state.running || cancelled()) return fail(Code::kUnavailable, "nobody waits for the answer");
  return {};
}

Status Kubelet::Impl::on_register(const RegisterArguments& arguments, const std::function<bool()>& cancelled) {
  const auto began = std::chrono::steady_clock::now();
  GPULET_TRY(wait_by_mood(cancelled));
  if (arguments.version != kVersion) {
    return fail(Code::kInvalidArgument, "requested API version \"" + arguments.version +
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
  auto connected = PluginClient::connect(plugin_dir() + "/" + arguments.endpoint);
  if (!connected) return fail(connected.error().with("failed to dial device plugin"));
  const auto client = std::move(*connected);
  GPULET_TRY_ASSIGN(const auto options, timed(*this, "GetDevicePluginOptions", arguments.resource,
                                              [&] { return client->options(); }));
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
    record({"Register", arguments.resource, now - began, true});
    client->watch(
        [this, raw = client.get(), name = arguments.resource, now, first = true](PluginClient::List list) mutable {
          on_list(raw, name, std::move(list), now, std::exchange(first, false));
        },
        [this, raw = client.get(), name = arguments.resource] { on_end(raw, name); });
  }
  changed.notify_all();
  if (before) before->close();
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
    if (first) record({"FirstList", resource, std::chrono::steady_clock::now() - registered, true});
    save_checkpoint();
  }
  changed.notify_all();
}

// The devices stay known, as unhealthy: the real one removes them five minutes later.
void Kubelet::Impl::on_end(const PluginClient* client, const std::string& resource) {
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

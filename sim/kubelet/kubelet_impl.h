// The state of the simulated kubelet, for kubelet.cpp (lifecycle, plugins) and admission.cpp (Pods).
#pragma once

#include <condition_variable>
#include <mutex>
#include <utility>

#include "sim/kubelet/admission.h"
#include "sim/kubelet/kubelet.h"
#include "sim/kubelet/rpc.h"

namespace gpulet::sim {

struct Kubelet::Impl {
  KubeletSettings settings;

  std::mutex admitting;      // one Pod at a time, as in the real kubelet; locked before `mutex`
  mutable std::mutex mutex;  // guards all members below but the servers; not held during calls to plugins
  mutable std::condition_variable changed;
  KubeletState state;
  RegisterBehavior register_behavior = RegisterBehavior::kAccept;
  std::vector<CheckpointEntry> entries;  // what is allocated
  std::string admitted;                  // uid of the Pod that is being admitted
  // By resource: what is not allocated again. The devices of `entries`, and of an Allocate in progress until
  // update_allocated() forgets it.
  std::map<std::string, std::set<std::string>> allocated;
  std::map<std::string, std::shared_ptr<PluginClient>> clients;
  std::map<std::pair<std::string, std::string>, PreparedClaim> claims;  // by namespace and name

  std::mutex lifecycle;  // start and stop
  std::shared_ptr<grpc::Service> registration_service, pod_resources_service;
  std::unique_ptr<SocketServer> registration, pod_resources;

  std::string plugin_dir() const { return settings.dir + "/device-plugins"; }
  std::string kubelet_socket() const { return plugin_dir() + "/kubelet.sock"; }
  std::string pod_resources_socket() const { return settings.dir + "/pod-resources/kubelet.sock"; }
  std::string checkpoint_file() const { return plugin_dir() + "/kubelet_internal_checkpoint"; }

  Status start_servers();
  void stop_servers();
  void clear_sockets() const;

  // The caller holds `mutex`.
  void load_checkpoint();
  void save_checkpoint() const;
  // Drops the entries of Pods that are gone. As in the real kubelet, that recomputes `allocated` from the
  // entries, without an Allocate in progress.
  void update_allocated();
  void rebuild_allocated();
  void rebuild_grant(const PodRequest& pod);
  void record_latency(CallLatency latency);
  std::vector<ListedPod> listed_pods() const;
  std::vector<PreparedClaim> listed_claims(const PodRequest& pod, const ContainerRequest& container) const;
  std::vector<ListedDevice> listed_devices() const;

  // The caller does not hold `mutex`.
  Status on_register(const RegisterArguments& arguments, const std::function<bool()>& cancelled);
  Status apply_register_behavior(const std::function<bool()>& cancelled);
  void on_list(const PluginClient* client, const std::string& resource, PluginClient::List list,
               std::chrono::steady_clock::time_point registered, bool first);
  void on_list_and_watch_end(const PluginClient* client, const std::string& resource);

  Status admit_container(const PodRequest& pod, const ContainerRequest& container);
  Status allocate_devices(const PodRequest& pod, const ContainerRequest& container,
                          const std::string& resource, std::size_t count,
                          const std::optional<std::set<int>>& affinity);
  Result<std::vector<std::string>> choose_devices(std::unique_lock<std::mutex>& lock,
                                                  const std::string& resource, std::size_t count,
                                                  const std::optional<std::set<int>>& affinity);
  // The caller holds `mutex`.
  std::set<std::string> free_devices(const std::string& resource) const;
  std::shared_ptr<PluginClient> find_client(const std::string& resource) const;
};

// Times one call and records it.
template <class Call>
auto timed_call(Kubelet::Impl& kubelet, const char* name, const std::string& resource, Call call) {
  const auto began = std::chrono::steady_clock::now();
  auto result = call();
  const auto took = std::chrono::steady_clock::now() - began;
  std::lock_guard lock(kubelet.mutex);
  kubelet.record_latency({name, resource, took, result.has_value()});
  return result;
}

}  // namespace gpulet::sim

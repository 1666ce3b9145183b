// For tests: a health view with chosen faults, and an API server's Pods and evictions.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/loop.h"
#include "device_plugin/pod_resources.h"
#include "health/policy/test_eviction.h"
#include "health/report/node_health.h"
#include "k8s/object_reader.h"
#include "k8s/pods.h"

namespace gpulet::agent {

inline health::Scope gpu_scope(unsigned index) { return {DeviceUuid("GPU-" + std::to_string(index))}; }

// `gpus` GPUs; those in `classes` have such a fault, opened at `opened`.
inline health::HealthView view_with(unsigned gpus, const std::map<unsigned, health::FaultClass>& classes,
                                    Time opened = Time{}) {
  health::HealthView view;
  for (unsigned i = 0; i < gpus; ++i) {
    health::DeviceView device;
    device.scope = gpu_scope(i);
    device.uuid = device.scope.gpu;
    device.gpu_index = i;
    if (const auto found = classes.find(i); found != classes.end()) {
      device.status = health::faulty_device(device.scope, found->second, opened).status;
      device.status.reason = device.status.faults.front().fault_text();
    }
    view.devices.push_back(std::move(device));
  }
  return view;
}

inline ContainerDevices container_with_devices(const std::string& pod, std::vector<std::string> ids,
                                               const std::string& name_space = "default") {
  ContainerDevices devices{{name_space, pod}, "main", {}};
  for (auto& id : ids) devices.devices[ResourceName("nvidia.com/gpu")].emplace_back(std::move(id));
  return devices;
}

// Answers on the loop's next turn; its data can be changed at any time.
class FakeReader final : public k8s::ObjectReader {
 public:
  explicit FakeReader(Loop& loop) : loop_(loop) {}

  void read_pod(const std::string& name_space, const std::string& name,
                std::function<void(Result<std::optional<k8s::PodMetadata>>)> done) override {
    asked.push_back(name_space + "/" + name);
    if (unanswered.contains(asked.back())) return;
    loop_.post([this, key = asked.back(), done = std::move(done)] {
      if (error) return done(fail(*error));
      const auto found = pods.find(key);
      done(found == pods.end() ? std::nullopt : std::optional(found->second));
    });
  }
  void read_namespace_annotations(const std::string& name_space,
                                  std::function<void(Result<k8s::Annotations>)> done) override {
    asked.push_back(name_space);
    loop_.post([this, name_space, done = std::move(done)] {
      if (namespace_error) return done(fail(*namespace_error));
      done(namespaces[name_space]);
    });
  }
  void count_nodes(const std::string&, std::function<void(Result<std::size_t>)> done) override {
    loop_.post([done = std::move(done)] { done(fail(Code::kUnsupported, "not here")); });
  }

  void add_pod(const std::string& name, k8s::Annotations annotations = {}, const std::string& uid = "") {
    pods["default/" + name] = {.pod = {"default", name, uid.empty() ? "uid-" + name : uid},
                               .owner = "ReplicaSet",
                               .annotations = std::move(annotations),
                               .labels = {}};
  }

  std::map<std::string, k8s::PodMetadata> pods;
  std::map<std::string, k8s::Annotations> namespaces;
  std::optional<Error> error, namespace_error;
  std::vector<std::string> asked;
  std::set<std::string> unanswered;  // Pods whose reads hang

 private:
  Loop& loop_;
};

// Evictions whose results a test sets. One that is destroyed is no longer pending.
class FakeEvictions {
 public:
  std::unique_ptr<k8s::Eviction> start_eviction(const std::string& pod,
                                                k8s::Eviction::UpdateCallback on_update) {
    return std::make_unique<Pending>(pending_, pod, std::move(on_update));
  }
  void answer(const std::string& pod, k8s::EvictionUpdate::Kind kind, const std::string& why = "") {
    ASSERT_TRUE(is_pending(pod));
    const auto on_update = pending_.at(pod);
    on_update({"default/" + pod, kind, why});
  }
  bool is_pending(const std::string& pod) const { return pending_.contains(pod); }
  // The Pods, in order of their names.
  std::vector<std::string> pods() const {
    std::vector<std::string> all;
    for (const auto& [pod, on_update] : pending_) all.push_back(pod);
    return all;
  }

 private:
  using Callbacks = std::map<std::string, k8s::Eviction::UpdateCallback>;
  class Pending final : public k8s::Eviction {
   public:
    Pending(Callbacks& all, std::string pod, k8s::Eviction::UpdateCallback on_update)
        : all_(all), pod_(std::move(pod)) {
      all_[pod_] = std::move(on_update);
    }
    ~Pending() override { all_.erase(pod_); }

   private:
    Callbacks& all_;
    std::string pod_;
  };
  Callbacks pending_;
};

}  // namespace gpulet::agent

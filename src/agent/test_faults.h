// For tests: a node's view with faults at will, and an API server's answers about Pods.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/manual_loop.h"
#include "cluster/reader.h"
#include "health/telling.h"
#include "health/test_moving.h"
#include "health/view.h"
#include "kubelet/pod_resources.h"

namespace gpulet::agent {

inline health::Scope gpu(unsigned index) { return {DeviceUuid("GPU-" + std::to_string(index))}; }

// `gpus` GPUs, those of `classes` with such a fault, opened at `opened`.
inline health::View view_with(unsigned gpus, const std::map<unsigned, health::FaultClass>& classes,
                              Time opened = Time{}) {
  health::View view;
  for (unsigned i = 0; i < gpus; ++i) {
    health::DeviceView device;
    device.scope = gpu(i);
    device.uuid = device.scope.gpu;
    device.gpu_index = i;
    if (const auto found = classes.find(i); found != classes.end()) {
      device.standing = health::broken(device.scope, found->second, opened).standing;
      device.standing.reason = device.standing.faults.front().text();
    }
    view.devices.push_back(std::move(device));
  }
  return view;
}

inline kubelet::ContainerDevices container(const std::string& pod, std::vector<std::string> ids,
                                           const std::string& name_space = "default") {
  kubelet::ContainerDevices devices{name_space, pod, "main", {}};
  for (auto& id : ids) devices.devices[ResourceName("nvidia.com/gpu")].emplace_back(std::move(id));
  return devices;
}

// Answers on the loop's next turn; what it answers can be changed at any time.
class FakeReader final : public cluster::Reader {
 public:
  explicit FakeReader(Loop& loop) : loop_(loop) {}

  void pod(const std::string& name_space, const std::string& name,
           std::function<void(Result<std::optional<cluster::PodFacts>>)> done) override {
    asked.push_back(name_space + "/" + name);
    loop_.post([this, key = asked.back(), done = std::move(done)] {
      if (trouble) return done(fail(*trouble));
      const auto found = pods.find(key);
      done(found == pods.end() ? std::nullopt : std::optional(found->second));
    });
  }
  void namespace_annotations(const std::string& name_space,
                             std::function<void(Result<cluster::Annotations>)> done) override {
    asked.push_back(name_space);
    loop_.post([this, name_space, done = std::move(done)] {
      if (namespace_trouble) return done(fail(*namespace_trouble));
      done(namespaces[name_space]);
    });
  }
  void count_nodes(const std::string&, std::function<void(Result<std::size_t>)> done) override {
    loop_.post([done = std::move(done)] { done(fail(Code::kUnsupported, "not here")); });
  }

  void add(const std::string& name, cluster::Annotations annotations = {}, const std::string& uid = "") {
    pods["default/" + name] = {.pod = {"default", name, uid.empty() ? "uid-" + name : uid},
                               .owner = "ReplicaSet",
                               .annotations = std::move(annotations),
                               .labels = {}};
  }

  std::map<std::string, cluster::PodFacts> pods;
  std::map<std::string, cluster::Annotations> namespaces;
  std::optional<Error> trouble, namespace_trouble;
  std::vector<std::string> asked;

 private:
  Loop& loop_;
};

}  // namespace gpulet::agent

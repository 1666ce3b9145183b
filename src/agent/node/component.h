// One part of what a node's agent runs: the device stack, MPS daemons, labels, the node page, ... The agent
// is a list of them (assemble_node in node/node.cpp), started in order and stopped in reverse order by
// ComponentList.
//
// A component comes after those that it uses. Everything after the start goes from the last to the first, so
// that a consumer has a new policy, or is gone, before its source acts on it. Loop's thread only.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "health/report/node_health.h"

namespace gpulet::agent {

struct NodeCounts;

// The destructor ends what a component does.
class Component {
 public:
  virtual ~Component() = default;

  // Once. What takes long is posted: the kubelet waits for the components that come later.
  virtual void start() {}
  // Node::config has changed.
  virtual void apply_config() {}
  // Driver and kubelet clients are about to be replaced.
  virtual void detach_devices() {}
  // They are there: the first time this comes before start() of the components after Devices.
  virtual void attach_devices() {}
  // The snapshot, what is offered, a registration, or the node's labels differ: once for all changes of a
  // turn of the loop.
  virtual void on_state_changed() {}
  // After every round that changed a device's health status, and once after the first snapshot.
  virtual void on_health_changed(const health::HealthViewPtr&, const std::vector<health::StatusChange>&) {}
  // Node::labels has changed, or is known for the first time.
  virtual void on_node_labels() {}
  // Device nodes of the driver have appeared or disappeared.
  virtual void on_device_nodes_changed() {}
  // The kubelet got devices for a container, or those of claims, or claims were unprepared.
  virtual void on_allocated() {}
  // Adds what the component counts, and what keeps it from serving, for the pages.
  virtual void add_counts(NodeCounts&) const {}
  // Before the process ends: what takes time to end, ends now; `done` is called once, from here or later.
  // May be called again when the operator is impatient.
  virtual void stop(std::function<void()> done) { done(); }
};

class ComponentList {
 public:
  ComponentList() = default;
  // Destroys them from the last to the first.
  ~ComponentList() { destroy_all(); }
  ComponentList(const ComponentList&) = delete;

  void add(std::unique_ptr<Component> component) { components_.push_back(std::move(component)); }
  template <class T, class... Args>
  T& emplace(Args&&... args) {
    auto component = std::make_unique<T>(std::forward<Args>(args)...);
    T& added = *component;
    add(std::move(component));
    return added;
  }

  void start_all() {
    for (const auto& component : components_) component->start();
  }
  // `notify(component)` for each, from the last to the first.
  template <class Notify>
  void for_each_reversed(Notify notify) const {
    for (auto it = components_.rbegin(); it != components_.rend(); ++it) notify(**it);
  }
  // stop() of each, one after the other from the last to the first, then `done`.
  void stop_all(std::function<void()> done) { stop_next(components_.size(), std::move(done)); }
  void destroy_all() {
    while (!components_.empty()) components_.pop_back();
  }

 private:
  void stop_next(std::size_t left, std::function<void()> done) {
    if (left == 0) return done();
    components_[left - 1]->stop([this, left, done = std::move(done)] { stop_next(left - 1, done); });
  }

  std::vector<std::unique_ptr<Component>> components_;
};

}  // namespace gpulet::agent

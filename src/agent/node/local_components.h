// Components that work on the node itself: MPS daemons, CDI specs, the operator's commands, MIG layouts, and
// the pages that the node serves.
#pragma once

#include <memory>

#include "agent/node/component.h"
#include "agent/node/node.h"
#include "agent/observe/node_pages.h"
#include "agent/resources/cdi_controller.h"
#include "agent/resources/mps_controller.h"

namespace gpulet::agent {

class MpsComponent final : public Component {
 public:
  explicit MpsComponent(Node& node);
  MpsController& controller() { return controller_; }
  void stop(std::function<void()> done) override;

 private:
  Node& node_;
  MpsController controller_;
};

class CdiComponent final : public Component {
 public:
  explicit CdiComponent(Node& node);
  CdiController& controller() { return controller_; }

 private:
  CdiController controller_;
};

class PagesComponent final : public Component {
 public:
  explicit PagesComponent(Node& node);
  const NodePages& pages() const { return pages_; }
  void start() override;
  void apply_config() override;
  void detach_devices() override;
  void attach_devices() override;
  void on_state_changed() override;
  void on_health_changed(const health::HealthViewPtr& view,
                         const std::vector<health::StatusChange>& changes) override;

 private:
  Node& node_;
  NodePages pages_;
};

// `gpulet health` and `gpulet cordon` on the node.
std::unique_ptr<Component> make_operator_component(Node& node);
std::unique_ptr<Component> make_mig_component(Node& node);

}  // namespace gpulet::agent

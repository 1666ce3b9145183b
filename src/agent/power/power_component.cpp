#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "agent/node/components.h"
#include "agent/node/devices.h"
#include "agent/power/pod_power_index.h"
#include "agent/power/power_controller.h"
#include "agent/power/power_restore.h"
#include "agent/power/wall_timer.h"
#include "agent/remediation/pod_evictor.h"
#include "k8s/event_recorder.h"

namespace gpulet::agent {
namespace {

class PowerComponent final : public Component {
 public:
  explicit PowerComponent(Node& node) : node_(node), controller_(power_ports()) {}

  void start() override { follow_config(); }
  void apply_config() override { follow_config(); }
  void detach_devices() override {
    is_attached_ = false;
    controller_.drop_calls();
    pods_.reset();
  }
  void attach_devices() override {
    is_attached_ = true;
    follow_config();
  }
  void on_state_changed() override { update_targets(); }
  void on_node_labels() override {
    are_labels_known_ = true;
    update_targets();
  }
  void on_allocated() override {
    if (pods_) pods_->refresh_soon();
  }
  void add_counts(NodeCounts& counts) const override { counts.power = controller_.statuses(); }
  // Limits stay where the next agent takes over: it adopts the record.
  void stop(std::function<void()> done) override {
    is_stopping_ = true;
    timer_.reset();
    pods_.reset();
    if (node_.has_successor || !is_attached_) return done();
    controller_.restore_all(kPowerDeadline, std::move(done));
  }

 private:
  PowerPorts power_ports() {
    auto ports = make_power_ports(
        *node_.reporter, [this] { return node_.devices->driver(); }, node_.loop,
        [this] { return node_.config.gpulet.driver_call_timeout; });
    ports.on_pod_problem = [this](const DeviceUuid& gpu, const std::string& problem) {
      if (pods_) pods_->report_problem(gpu, problem);
    };
    return ports;
  }

  const config::PowerSettings& settings() const { return node_.config.gpulet.power; }

  void follow_config() {
    if (node_.is_config_pending || is_stopping_) return;
    controller_.set_state_dir(node_.config.gpulet.state_dir);
    const bool asks_pods =
        is_attached_ && node_.client_config && settings().pod_annotation && !settings().rules.empty();
    if (!asks_pods) pods_.reset();
    if (asks_pods && !pods_) watch_pods();
    update_targets();
  }

  void watch_pods() {
    if (!reader_) {
      reader_ = k8s::ObjectReader::start_reader(node_.loop, *node_.client_config);
      events_ = k8s::EventRecorder::start_recorder(node_.loop, *node_.client_config);
    }
    pods_.emplace(
        PodPowerPorts{.loop = node_.loop,
                      .holders = [this](auto done) { node_.devices->list_containers(std::move(done)); },
                      .reader = *reader_,
                      .on_invalid =
                          [this](const PodRef& pod, const std::string& why) {
                            send_eviction_event(*events_, "power limit",
                                                {.pod = pod, .reason = kPowerReason, .message = why});
                          },
                      .changed = [this] { update_targets(); }});
  }

  void update_targets() {
    const auto* agent = node_.devices->agent();
    const auto snapshot = agent != nullptr ? agent->status().snapshot : nullptr;
    if (!snapshot || !is_attached_ || is_stopping_ || node_.is_config_pending) return;
    const auto& rules = settings().rules;
    timer_.reset();
    if (rules.empty() && !controller_.has_work()) return;
    // Without them rules seem to select nothing: limits that an earlier agent set would be restored.
    const bool has_label =
        std::ranges::any_of(rules, [](const auto& rule) { return rule.node_label.has_value(); });
    if (has_label && !are_labels_known_) return;
    const auto now = node_.loop.wall_now();
    const auto selected = partition::select_power_rules(*snapshot, rules, node_.labels);
    std::map<DeviceUuid, partition::PowerTarget> targets;
    std::set<DeviceUuid> gpus;
    for (std::size_t i = 0; i < selected.size(); ++i) {
      if (selected[i]) gpus.insert(snapshot->gpus[i].uuid);
    }
    if (pods_) pods_->use_gpus(snapshot, gpus);
    for (std::size_t i = 0; i < selected.size(); ++i) {
      if (!selected[i]) continue;
      const auto& gpu = snapshot->gpus[i].uuid;
      targets[gpu] = partition::make_power_target(settings(), rules[*selected[i]], now, requests_of(gpu));
    }
    controller_.set_targets(std::move(targets), snapshot,
                            pods_ ? pods_->awaited_gpus() : std::set<DeviceUuid>());
    if (const auto next = partition::next_schedule_change(rules, now))
      timer_ = run_at_wall_time(node_.loop, *next, [this] { update_targets(); });
  }

  std::span<const partition::PodPowerRequest> requests_of(const DeviceUuid& gpu) const {
    if (!pods_) return {};
    const auto found = pods_->requests().find(gpu);
    if (found == pods_->requests().end()) return {};
    return found->second;
  }

  Node& node_;
  bool is_attached_ = false, is_stopping_ = false, are_labels_known_ = false;
  std::unique_ptr<k8s::ObjectReader> reader_;
  std::unique_ptr<k8s::EventRecorder> events_;
  PowerController controller_;
  std::optional<PodPowerIndex> pods_;
  Subscription timer_;
};

}  // namespace

std::unique_ptr<Component> make_power_component(Node& node) { return std::make_unique<PowerComponent>(node); }

}  // namespace gpulet::agent

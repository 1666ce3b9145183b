// Joins PreflightController to the node: `gpulet.preflight`.
#include <memory>
#include <utility>

#include "agent/mig/mig_manager.h"
#include "agent/node/components.h"
#include "agent/node/devices.h"
#include "agent/node/gpu_processes.h"
#include "agent/observe/node_metrics.h"
#include "agent/preflight/preflight_controller.h"
#include "agent/preflight/preflight_runner.h"
#include "agent/preflight/unfit_gpus.h"
#include "base/log.h"
#include "health/state/persisted_state.h"

namespace gpulet::agent {
namespace {

using WithdrawnFor = Devices::WithdrawnFor;

constexpr Duration kStopLimit = std::chrono::seconds(2);

metrics::GpuPreflight preflight_numbers(const DeviceUuid& gpu, const PreflightStatus& status, Time now) {
  metrics::GpuPreflight numbers{.gpu = gpu};
  if (status.at) numbers.age = now - *status.at;
  numbers.results.push_back({"all", "", std::string(enum_name(status.verdict.kind))});
  if (!status.verdict.report) return numbers;
  for (const auto& check : status.verdict.report->checks) {
    const bool is_known = check.outcome != preflight::Outcome::kNotRun;
    numbers.results.push_back({std::string(enum_name(check.check)), check.peer,
                               is_known ? std::string(enum_name(check.outcome)) : "unknown",
                               check.bytes_per_second});
  }
  return numbers;
}

// The arguments of one run. The checks themselves stop early enough to report what they have found.
std::vector<std::string> preflight_arguments(const DeviceUuid& gpu, const std::vector<DeviceUuid>& peers,
                                             const preflight::Policy& policy,
                                             const std::string& driver_root) {
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(policy.timeout).count();
  std::string checks;
  for (const auto check : policy.checks)
    checks += (checks.empty() ? "" : ",") + std::string(enum_name(check));
  std::vector<std::string> arguments = {"gpulet",
                                        "preflight",
                                        gpu.str(),
                                        "--driver-root",
                                        driver_root,
                                        "--memory",
                                        std::to_string(policy.memory_mib),
                                        "--timeout",
                                        std::to_string(limit * 3 / 5) + "ms",
                                        "--output",
                                        "json",
                                        "--checks",
                                        checks};
  for (const auto& peer : peers) arguments.insert(arguments.end(), {"--peer", peer.str()});
  return arguments;
}

class PreflightComponent final : public Component {
 public:
  explicit PreflightComponent(Node& node) : node_(node), store_(node.loop) {
    node_.devices->set_before_close([this](auto done) { end_runs(std::move(done)); });
  }
  ~PreflightComponent() override {
    stop_controller();
    node_.devices->set_before_close(nullptr);
  }
  PreflightComponent(const PreflightComponent&) = delete;

  void apply_config() override {
    unfit_generation_.reset();
    if (!is_enabled() || node_.config.gpulet.state_dir != state_dir_) stop_controller();
    start_controller();
    if (!is_enabled() && node_.devices->has_before_offer()) {
      node_.devices->set_before_offer(nullptr);
      node_.devices->set_preflights({});
      node_.devices->replan();
    }
    update_soon();
  }
  void detach_devices() override { stop_controller(); }
  void attach_devices() override {
    if (!is_enabled()) node_.devices->set_before_offer(nullptr);
    start_controller();
  }
  void on_state_changed() override { update_soon(); }
  void on_health_changed(const health::HealthViewPtr&, const std::vector<health::StatusChange>&) override {
    update_soon();
  }

  // What runs now is no result, and is due for the next agent.
  void stop(std::function<void()> done) override {
    is_stopped_ = true;
    const bool has_record = controller_ && !state_dir_.empty();
    stop_controller();
    if (!has_record) return done();
    const auto ended = std::make_shared<std::function<void()>>(std::move(done));
    const auto end_once = [ended] {
      if (const auto call = std::exchange(*ended, nullptr)) call();
    };
    stop_limit_ = node_.loop.after(kStopLimit, end_once);  // a disk may hang
    store_.save_record(preflight::boot_record_path(state_dir_), *last_record_, end_once);
  }

  void add_counts(NodeCounts& counts) const override {
    if (!controller_) return;
    for (const auto& [gpu, status] : controller_->results())
      counts.preflights.push_back(preflight_numbers(gpu, status, node_.loop.now()));
  }

 private:
  bool is_enabled() const { return node_.config.gpulet.preflight.enabled; }

  // Before the agent offers anything.
  void start_controller() {
    if (!is_enabled() || is_stopped_ || controller_ || node_.devices->agent() == nullptr) return;
    state_dir_ = node_.config.gpulet.state_dir;
    runner_.emplace(node_.loop);
    controller_.emplace(make_preflight_ports(), read_record());
    node_.devices->set_before_offer([this](const inventory::Snapshot& snapshot) {
      return controller_->gpus_before_offer(snapshot, node_.config.gpulet.preflight, unfit_gpus(snapshot));
    });
    show_results({});
  }
  // What waits for its preflight goes on to wait until the next controller, or none is wanted.
  void stop_controller() {
    if (!controller_) return;
    node_.devices->set_before_offer([waiting = node_.devices->withdrawn_for(WithdrawnFor::kPreflight)](
                                        const inventory::Snapshot&) { return waiting; });
    last_record_ = controller_->record_at_end();
    controller_.reset();
    runner_.reset();
  }

  // The driver is released: the update ends what runs, and nothing begins after it.
  void end_runs(std::function<void()> done) {
    node_.loop.post([this, done = std::move(done), alive = lifetime_.watch()]() mutable {
      if (!alive) return;
      if (!controller_) return done();
      controller_->update_preflights();
      runner_->end_runs(std::move(done));
    });
  }

  // What this agent has recorded may not be on the disk yet.
  preflight::BootRecord read_record() {
    if (last_record_ || state_dir_.empty()) return last_record_.value_or(preflight::BootRecord());
    auto record = preflight::read_boot_record(preflight::boot_record_path(state_dir_));
    if (record) return std::move(*record);
    log::warning("cannot read the record of preflights; starting without it", record.error());
    return {};
  }

  // Once for all changes of a turn, and never from inside the change.
  void update_soon() {
    if (!controller_ || std::exchange(is_update_posted_, true)) return;
    node_.loop.post([this, alive = lifetime_.watch()] {
      if (!alive) return;
      is_update_posted_ = false;
      if (controller_) controller_->update_preflights();
    });
  }

  // A layout file is read once for each snapshot and target.
  const UnfitGpus& unfit_gpus(const inventory::Snapshot& snapshot) const {
    auto targets = mig_targets(snapshot, node_.config, node_.labels);
    if (unfit_generation_ == snapshot.generation && targets == unfit_targets_) return unfit_;
    unfit_ = find_unfit(snapshot, targets, [this](const auto& name, auto gpus) {
      return mig_layouts(node_.config, name, gpus);
    });
    unfit_generation_ = snapshot.generation;
    unfit_targets_ = std::move(targets);
    return unfit_;
  }

  std::optional<PreflightNode> read_preflight_node() const {
    const auto* agent = node_.devices->agent();
    if (agent == nullptr) return std::nullopt;
    const auto status = agent->status();
    PreflightNode state{
        .view = agent->health_view(), .snapshot = status.snapshot, .policy = node_.config.gpulet.preflight};
    if (!state.view || !state.snapshot) return std::nullopt;
    if (!status.driver_answers || state.view->release) state.paused = "for the driver";
    // It closes the driver.
    if (!node_.devices->withdrawn_for(WithdrawnFor::kReset).empty()) state.paused = "for a reset to end";
    for (const auto& [gpu, reason] : node_.devices->withdrawn_for(WithdrawnFor::kMigChange))
      state.paused_gpus[gpu] = "for the change of its MIG to end";
    state.unfit = unfit_gpus(*state.snapshot);
    return state;
  }

  void show_results(std::map<DeviceUuid, Preflights::OfGpu> gpus) const {
    Preflights shown{.absent = std::nullopt, .gpus = std::move(gpus)};
    if (!node_.config.gpulet.preflight.on_return) shown.absent = kNoReturn;
    node_.devices->set_preflights(std::move(shown));
  }

  PreflightPorts make_preflight_ports() {
    return {
        .loop = node_.loop,
        .reporter = *node_.reporter,
        .read_node = [this] { return read_preflight_node(); },
        .pods = [this](auto done) { node_.devices->list_holders(std::move(done)); },
        .processes =
            [this](auto gpus, auto done) {
              read_gpu_processes(node_, ProcessKind::kWithContexts, std::move(gpus), std::move(done));
            },
        .replan = [this] { node_.devices->replan(); },
        .run =
            [this](const auto& gpu, const auto& peers, const auto& policy, auto done) {
              runner_->start_run(
                  gpu, "/proc/self/exe",
                  preflight_arguments(gpu, peers, policy, node_.config.flags.container_driver_root),
                  policy.timeout, std::move(done));
            },
        .stop = [this](const auto& gpu) { runner_->kill_runs(gpu); },
        .submit =
            [this](const DeviceUuid& gpu, const health::ProbeReading& reading) {
              node_.devices->submit_evidence({{gpu}, node_.loop.now(), reading});
            },
        .show = [this](auto gpus) { show_results(std::move(gpus)); },
        .save =
            [this](const auto& record, auto done) {
              if (!state_dir_.empty())
                return store_.save_record(preflight::boot_record_path(state_dir_), record, std::move(done));
              if (done) done();
            },
        .boot_id = health::read_boot_id().value_or(""),
    };
  }

  Node& node_;
  bool is_update_posted_ = false, is_stopped_ = false;
  mutable std::optional<std::uint64_t> unfit_generation_;  // of the snapshot for which these hold
  mutable std::vector<MigTarget> unfit_targets_;
  mutable UnfitGpus unfit_;
  std::string state_dir_;
  std::optional<preflight::BootRecord> last_record_;
  std::optional<PreflightRunner> runner_;
  PreflightRecordStore store_;
  Subscription stop_limit_;
  std::optional<PreflightController> controller_;  // goes first: it uses those above
  Lifetime lifetime_;
};

}  // namespace

std::unique_ptr<Component> make_preflight_component(Node& node) {
  return std::make_unique<PreflightComponent>(node);
}

}  // namespace gpulet::agent

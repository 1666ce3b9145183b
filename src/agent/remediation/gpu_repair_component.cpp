// Joins GpuRepairer to the node: `gpulet.repair`.
#include <utility>

#include "agent/driver/driver_rights.h"
#include "agent/driver/gpu_reset.h"
#include "agent/mig/mig_manager.h"
#include "agent/node/components.h"
#include "agent/node/devices.h"
#include "agent/node/gpu_processes.h"
#include "agent/observe/node_metrics.h"
#include "agent/remediation/gpu_repairer.h"
#include "agent/remediation/repair_outputs.h"
#include "base/log.h"
#include "health/state/persisted_state.h"

namespace gpulet::agent {
namespace {

class GpuRepairComponent final : public Component {
 public:
  explicit GpuRepairComponent(Node& node) : node_(node) {}

  void start() override {
    is_started_ = true;
    start_repairer();
  }
  void apply_config() override {
    rights_generation_.reset();
    if (state_dir_ != node_.config.gpulet.state_dir) stop_repairer();
    start_repairer();
    update_soon();
  }
  // A reset in progress ends with the driver: the record says so.
  void detach_devices() override { stop_repairer(); }
  void attach_devices() override { start_repairer(); }
  void on_state_changed() override { update_soon(); }
  void on_health_changed(const health::HealthViewPtr&, const std::vector<health::StatusChange>&) override {
    update_soon();
  }
  void add_counts(NodeCounts& counts) const override {
    if (repairer_ && node_.config.gpulet.repair.is_enabled()) counts.repairs = repairer_->counts();
  }

 private:
  // While it is disabled, only what an earlier agent left is ended: a request for a reboot, a reset.
  void start_repairer() {
    if (!is_started_ || repairer_ || node_.devices->agent() == nullptr) return;
    const bool is_enabled = node_.config.gpulet.repair.is_enabled();
    if (!is_enabled && is_leftover_read_) return;
    is_leftover_read_ = true;
    state_dir_ = node_.config.gpulet.state_dir;
    const auto path = state_dir_.empty() ? std::string() : repair::record_path(state_dir_);
    auto record = path.empty() ? Result<repair::Record>(repair::Record{}) : repair::read_record(path);
    if (!record) {
      log::warning("cannot read the record of repairs; starting without it", record.error());
      record = repair::Record{};
    }
    if (interrupted_) record->resetting = std::exchange(interrupted_, std::nullopt);
    if (!is_enabled && !record->reboot && !record->resetting) {
      node_.devices->set_withdrawn(Devices::WithdrawnFor::kReset, {});
      return;
    }
    store_.emplace(node_.loop, path);
    requester_.emplace(node_.loop, node_.client_config, record->reboot.has_value());
    if (!record->resetting) node_.devices->set_withdrawn(Devices::WithdrawnFor::kReset, {});
    repairer_.emplace(make_repair_ports(), std::move(*record), node_.config.gpulet.repair.reset.timeout);
    update_soon();
  }
  void stop_repairer() {
    if (!repairer_) return;
    // nvidia-smi may still run: the next repairer ends the withdrawal, and the pause of MPS daemons.
    is_leftover_read_ = false;
    if (repairer_->is_resetting()) interrupted_ = repairer_->record().resetting;
    repairer_.reset();
    requester_.reset();
    store_.reset();
    if (interrupted_) return;
    node_.devices->set_withdrawn(Devices::WithdrawnFor::kReset, {});
    node_.devices->resume_mps_after_reset();
  }

  // Once for all changes of a turn, and never from inside the change.
  void update_soon() {
    if (!repairer_ || std::exchange(is_update_posted_, true)) return;
    node_.loop.post([this, alive = lifetime_.watch()] {
      if (!alive) return;
      is_update_posted_ = false;
      if (repairer_) repairer_->update_repairs();
    });
  }

  std::optional<RepairNode> read_repair_node() const {
    const auto* agent = node_.devices->agent();
    if (agent == nullptr) return std::nullopt;
    const auto status = agent->status();
    RepairNode state{
        .view = agent->health_view(),
        .snapshot = status.snapshot,
        .policy = node_.config.gpulet.repair,
        .max_unhealthy_gpus_percent = node_.config.gpulet.faults.eviction.max_unhealthy_gpus_percent,
        .busy = {}};
    if (!state.view || !state.snapshot) return std::nullopt;
    if (state.policy.reset.enabled) {
      state.busy = missing_reset_right(*state.snapshot);
      if (node_.config.gpulet.state_dir.empty()) state.busy = "gpulet.stateDir is empty";
    }
    if (!status.driver_answers || state.view->release) state.busy = "the driver is not available";
    if (node_.is_mig_busy && node_.is_mig_busy()) state.busy = "a MIG layout is being changed";
    const auto targets = mig_targets(*state.snapshot, node_.config, node_.labels);
    for (const auto& gpu : state.snapshot->gpus) {
      if (!gpu.mig_devices.empty() && std::ranges::find(targets, gpu.uuid, &MigTarget::gpu) == targets.end())
        state.unmanaged_instances.push_back(gpu.uuid);
    }
    return state;
  }

  // Read once for each snapshot: a few file operations.
  std::string missing_reset_right(const inventory::Snapshot& snapshot) const {
    if (rights_generation_ == snapshot.generation) return reset_refusal_;
    rights_generation_ = snapshot.generation;
    reset_refusal_.clear();
    const auto missing =
        missing_rights(collect_rights_evidence(node_.config, snapshot), node_.config, snapshot, false);
    for (const auto& one : missing) {
      if (one.right == DriverRight::kReset || one.right == DriverRight::kResetProgram)
        reset_refusal_ = one.message();
    }
    return reset_refusal_;
  }

  void reset_group(std::vector<DeviceUuid> gpus, Duration limit, std::function<void(Status)> done) const {
    node_.devices->driver()->run_closed<bool>(
        "resetting GPUs", limit,
        [gpus = std::move(gpus), limit, root = node_.config.flags.container_driver_root]() -> Result<bool> {
          GPULET_TRY(reset_gpus(root, gpus, limit));
          return true;
        },
        [done = std::move(done)](const Result<bool>& reset) {
          done(reset ? Status() : fail(reset.error()));
        });
  }

  GpuRepairPorts make_repair_ports() {
    return {
        .loop = node_.loop,
        .reporter = *node_.reporter,
        .read_node = [this] { return read_repair_node(); },
        .pods = [this](auto done) { node_.devices->list_holders(std::move(done)); },
        .processes =
            [this](auto gpus, auto done) {
              read_gpu_processes(node_, ProcessKind::kAll, std::move(gpus), std::move(done));
            },
        .withdraw =
            [this](auto gpus) {
              node_.devices->set_withdrawn(Devices::WithdrawnFor::kReset, std::move(gpus));
            },
        .pause_daemons = [this](const auto& gpus,
                                auto done) { node_.devices->pause_mps_for_reset(gpus, std::move(done)); },
        .resume_daemons = [this] { node_.devices->resume_mps_after_reset(); },
        .reset = [this](auto gpus, Duration limit,
                        auto done) { reset_group(std::move(gpus), limit, std::move(done)); },
        .submit_reset =
            [this](const DeviceUuid& gpu) {
              node_.devices->submit_evidence({{gpu}, node_.loop.now(), health::ResetDone{}});
            },
        .request_snapshot = [this] { node_.devices->request_reading(); },
        .show_notes = [this](auto notes) { node_.devices->set_repair_notes(std::move(notes)); },
        .request_reboot = [this](const auto& policy,
                                 const auto& text) { requester_->set_request(policy, text); },
        .save = [this](const auto& record, auto done) { store_->save_record(record, std::move(done)); },
        .boot_id = health::read_boot_id().value_or(""),
    };
  }

  Node& node_;
  bool is_started_ = false, is_update_posted_ = false, is_leftover_read_ = false;
  mutable std::optional<std::uint64_t> rights_generation_;  // of the snapshot for which the next one holds
  mutable std::string reset_refusal_;
  std::string state_dir_;
  std::optional<repair::Record::Reset> interrupted_;  // while there is no repairer
  std::optional<RepairRecordStore> store_;
  std::optional<RebootRequester> requester_;
  std::optional<GpuRepairer> repairer_;  // goes first: it uses those above
  Lifetime lifetime_;
};

}  // namespace

std::unique_ptr<Component> make_gpu_repair_component(Node& node) {
  return std::make_unique<GpuRepairComponent>(node);
}

}  // namespace gpulet::agent

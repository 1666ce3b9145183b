// Cuts MIG devices for Pods that wait (gpulet.mig.onDemand), on the GPUs whose rule has `mig.onDemand`. It
// reads the GPUs and their holders, decides (mig/on_demand.h), and replaces these GPUs' targets: the MIG
// manager applies them as any other, withdraws the GPU first, plans again with the holders of that moment,
// and rolls back or resumes. The demand comes from the extender with the node's GpuNode; what could be cut
// goes back there as the offer.
//
// Nothing is decided while an allocation may be unknown (Devices::shows_allocations()), and nothing is kept
// over a restart: a GPU that differs from its rule's layout was cut, counts as changed and wanted when the
// agent first sees it, and keeps its layout until it has been looked at. Loop's thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/mig/mig_ports.h"
#include "base/loop.h"
#include "config/gpulet_settings.h"
#include "inventory/snapshot.h"
#include "metrics/gpulet_page.h"
#include "mig/on_demand.h"
#include "scheduler/model/mig_demand.h"

namespace gpulet::agent {

// A demand that the extender has not renewed for this long is void: the extender may have ended.
inline constexpr Duration kMigDemandLifetime = std::chrono::minutes(3);
// Nothing announces that a Pod has released its devices.
inline constexpr Duration kMigDemandInterval = std::chrono::seconds(15);
// From a change until it is looked at: the kubelet records an allocation after its answer.
inline constexpr Duration kMigDemandSettle = std::chrono::milliseconds(500);

struct MigDemandPorts {
  Loop& loop;
  MigHardware& hardware;
  // As in MigPorts.
  std::function<void(std::function<void(Result<mig::PodsByDevice>)>)> pods;
  std::function<Result<std::vector<std::optional<mig::Layout>>>(const std::string& name,
                                                                std::span<const mig::State> gpus)>
      layouts;
  // The resource that offers devices of the profile; nullopt: none does.
  std::function<std::optional<ResourceName>(const std::string& profile)> resource_name;
  // The MIG manager changes a GPU.
  std::function<bool()> is_busy;
  // adjust_targets() or offer() differ. From the loop.
  std::function<void()> changed;
  // As Devices::shows_allocations(): until then nothing is known to be idle. Empty: always.
  std::function<bool()> shows_allocations{};
};

using metrics::MigReconfigurations;

class MigDemandController {
 public:
  explicit MigDemandController(MigDemandPorts ports) : ports_(std::move(ports)) {}
  MigDemandController(const MigDemandController&) = delete;

  // All targets, of which those with MigTarget::on_demand count, and the current snapshot.
  void set_targets(const std::vector<MigTarget>& targets, const config::MigOnDemand& settings,
                   const inventory::SnapshotPtr& snapshot);
  // As read from the GpuNode, whenever it was read. What is there at first counts once it is renewed: nobody
  // knows how old it is.
  void set_demand(const scheduler::MigDemand& demand);
  // The MIG manager's round has ended. A GPU whose change on demand failed counts as changed now.
  void on_round_ended(const std::vector<DeviceUuid>& failed);
  // A Pod got devices.
  void on_devices_allocated() { evaluate_after(kMigDemandSettle); }

  // The targets, with the layouts of GPUs that are cut on demand. A GPU that has not been looked at has none.
  std::vector<MigTarget> adjust_targets(std::vector<MigTarget> targets) const;
  const scheduler::MigOffer& offer() const { return offer_; }
  const MigReconfigurations& reconfigurations() const { return counts_; }

 private:
  // What becomes of a GPU: its rule's layout, or another one.
  struct Goal {
    std::optional<mig::Layout> layout;
    std::string source;
    friend bool operator==(const Goal&, const Goal&) = default;
  };
  struct Record {
    std::optional<mig::Layout> configured, seen;  // at the last look
    bool is_cut = false;                          // differs from its rule's layout
    std::optional<Time> changed_at;
    Time needed_at{};
    std::optional<Goal> goal;  // nullopt: not looked at
  };

  // One look at the GPUs. The targets may change meanwhile.
  struct Look {
    std::vector<MigTarget> targets;
    inventory::SnapshotPtr snapshot;
    mig::PodsByDevice pods;
    std::vector<std::pair<MigTarget, mig::State>> read;
  };

  void evaluate_after(Duration delay);
  void evaluate();
  void read_next(std::size_t next, Look look);
  bool are_allocations_listed() const { return !ports_.shows_allocations || ports_.shows_allocations(); }
  bool is_demand_valid(Time now) const;
  std::vector<mig::DeviceDemand> valid_demands(const std::map<std::string, ResourceName>& resources,
                                               Time now) const;
  unsigned count_unread_cuts(const std::vector<std::pair<MigTarget, mig::State>>& read) const;
  void choose_goals(const std::vector<std::pair<MigTarget, mig::State>>& read);
  void end_evaluation(bool changed);
  void note_change(Record& record, const mig::Layout& present, const std::optional<mig::Layout>& configured,
                   Time now);
  mig::OnDemandGpu observe(const MigTarget& target, const mig::State& state, Time now);
  std::optional<mig::Layout> configured_layout(const MigTarget& target, const mig::State& state) const;
  bool is_usable(const DeviceUuid& gpu) const;
  std::map<std::string, ResourceName> resources_of(const std::vector<mig::OnDemandGpu>& gpus) const;
  bool set_goal(Record& record, Goal goal);
  Goal make_goal(const mig::OnDemandChange& change, const mig::State& state,
                 const std::map<std::string, ResourceName>& resources) const;

  MigDemandPorts ports_;
  std::vector<MigTarget> targets_;  // on demand
  config::MigOnDemand settings_;
  inventory::SnapshotPtr snapshot_;
  std::uint64_t generation_ = 0;
  std::map<DeviceUuid, Record> records_;
  scheduler::MigDemand demand_;
  bool has_demand_ = false;         // read at least once
  std::optional<Time> renewed_at_;  // nullopt: not since the first read
  scheduler::MigOffer offer_;
  MigReconfigurations counts_;
  bool evaluating_ = false, again_ = false;
  bool awaits_round_ = false;  // of the MIG manager
  std::optional<Time> due_;
  Subscription timer_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent

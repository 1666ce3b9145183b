#include "agent/mig/demand_controller.h"

#include <algorithm>

#include "base/log.h"

namespace gpulet::agent {

void MigDemandController::set_targets(const std::vector<MigTarget>& targets,
                                      const config::MigOnDemand& settings,
                                      const inventory::SnapshotPtr& snapshot) {
  std::vector<MigTarget> on_demand;
  for (const auto& target : targets) {
    if (target.on_demand) on_demand.push_back(target);
  }
  const bool is_changed = on_demand != targets_ || settings != settings_;
  targets_ = std::move(on_demand);
  settings_ = settings;
  snapshot_ = snapshot;
  // A GPU that cannot be read now has no target, and stays as it was cut.
  std::erase_if(records_, [&](const auto& record) {
    const auto* gpu = snapshot ? snapshot->find(record.first) : nullptr;
    return std::ranges::find(targets_, record.first, &MigTarget::gpu) == targets_.end() &&
           (gpu == nullptr || !gpu->unreadable);
  });
  const auto generation = snapshot ? snapshot->generation : 0;
  if (std::exchange(generation_, generation) != generation || is_changed) evaluate_after(Duration::zero());
}

void MigDemandController::set_demand(const scheduler::MigDemand& demand) {
  const Time now = ports_.loop.now();
  const bool was_valid = is_demand_valid(now), is_changed = demand.requests != demand_.requests;
  if (std::exchange(has_demand_, true) && demand.renewed != demand_.renewed) renewed_at_ = now;
  demand_ = demand;
  if (is_changed || is_demand_valid(now) != was_valid) evaluate_after(Duration::zero());
}

bool MigDemandController::is_demand_valid(Time now) const {
  return renewed_at_ && now - *renewed_at_ < kMigDemandLifetime;
}

void MigDemandController::on_round_ended(const std::vector<DeviceUuid>& failed) {
  for (const auto& gpu : failed) {
    const auto found = records_.find(gpu);
    if (found == records_.end() || !found->second.goal) continue;
    auto& record = found->second;
    const auto& layout = record.goal->layout;
    const bool is_on_demand = layout ? layout != record.seen : record.is_cut;
    if (!is_on_demand) continue;
    record.changed_at = ports_.loop.now();
    awaits_round_ = true;  // another GPU may do
  }
  if (std::exchange(awaits_round_, false)) evaluate_after(Duration::zero());
}

std::vector<MigTarget> MigDemandController::adjust_targets(std::vector<MigTarget> targets) const {
  std::erase_if(targets, [&](const MigTarget& target) {
    const auto record = records_.find(target.gpu);
    return target.on_demand && (record == records_.end() || !record->second.goal);
  });
  for (auto& target : targets) {
    if (!target.on_demand) continue;
    const auto& goal = *records_.at(target.gpu).goal;
    if (!goal.layout) continue;
    target.layout.clear();
    target.exact = goal.layout;
    target.source = goal.source;
  }
  return targets;
}

void MigDemandController::evaluate_after(Duration delay) {
  const Time at = ports_.loop.now() + delay;
  if (timer_ && due_ && *due_ <= at) return;
  due_ = at;
  timer_ = ports_.loop.after(delay, [this] { evaluate(); });
}

void MigDemandController::evaluate() {
  timer_.reset();
  due_.reset();
  if (evaluating_) {
    again_ = true;
    return;
  }
  if (targets_.empty() || !snapshot_) {
    if (!std::exchange(offer_, {}).resources.empty()) ports_.changed();
    return;
  }
  if (ports_.is_busy()) {
    awaits_round_ = true;
    return evaluate_after(kMigDemandInterval);
  }
  evaluating_ = true;
  ports_.pods([this, alive = lifetime_.watch()](Result<mig::PodsByDevice> pods) {
    if (!alive) return;
    // Without the holders nothing is known to be idle.
    if (!pods || !are_allocations_listed() || !snapshot_) return end_evaluation(false);
    read_next(0, {targets_, snapshot_, std::move(*pods), {}});
  });
}

void MigDemandController::read_next(std::size_t next, Look look) {
  while (next < look.targets.size() && (look.snapshot->find(look.targets[next].gpu) == nullptr ||
                                        look.snapshot->find(look.targets[next].gpu)->unreadable)) {
    ++next;
  }
  if (next >= look.targets.size()) {
    // A GPU that is being changed is read in the middle.
    if (ports_.is_busy()) {
      awaits_round_ = true;
      return end_evaluation(false);
    }
    if (!are_allocations_listed() || !snapshot_) return end_evaluation(false);
    std::erase_if(look.read, [&](const auto& entry) {
      return std::ranges::find(targets_, entry.first) == targets_.end();
    });
    return choose_goals(look.read);
  }
  const auto gpu = look.targets[next].gpu;
  ports_.hardware.read_mig_state(
      gpu, [this, next, look = std::move(look), alive = lifetime_.watch()](Result<mig::State> state) mutable {
        if (!alive) return;
        if (state) {
          mig::add_pod_holders(*state, look.pods);
          look.read.emplace_back(look.targets[next], std::move(*state));
        }
        read_next(next + 1, std::move(look));
      });
}

std::optional<mig::Layout> MigDemandController::configured_layout(const MigTarget& target,
                                                                  const mig::State& state) const {
  if (target.exact) return target.exact;
  const auto layouts = ports_.layouts(target.layout, {&state, 1});
  return layouts ? layouts->front() : std::nullopt;
}

bool MigDemandController::is_usable(const DeviceUuid& gpu) const {
  const auto* found = snapshot_->find(gpu);
  return found != nullptr && found->health.healthy;
}

// A GPU that gets its rule's layout for the first time has not been changed on demand.
void MigDemandController::note_change(Record& record, const mig::Layout& present,
                                      const std::optional<mig::Layout>& configured, Time now) {
  const bool is_configured = present == configured;
  if (!is_configured || record.is_cut) record.changed_at = record.needed_at = now;
  if (record.goal && record.goal->layout == present) {
    ++counts_.for_demand;
  } else if (is_configured && record.is_cut) {
    ++counts_.returned;
  }
  record.is_cut = !is_configured && present.enabled && !present.devices.empty();
}

mig::OnDemandGpu MigDemandController::observe(const MigTarget& target, const mig::State& state, Time now) {
  auto& record = records_[target.gpu];
  const auto configured = configured_layout(target, state);
  mig::OnDemandGpu gpu{
      .state = state, .configured = configured.value_or(mig::current_layout(state)), .usable = false};
  auto present = mig::current_layout(state);
  if (!record.seen) {
    record.is_cut = mig::is_cut_on_demand(gpu);
    if (record.is_cut) record.changed_at = record.needed_at = now;
  } else if (*record.seen != present) {
    note_change(record, present, configured, now);
  }
  // The operator's new layout does not wait.
  if (record.seen && record.configured != configured) {
    record.changed_at.reset();
    record.needed_at = now - settings_.idle;
  }
  record.seen = std::move(present);
  record.configured = configured;
  gpu.usable = configured.has_value() && configured->enabled && is_usable(target.gpu);
  gpu.changed_at = record.changed_at;
  return gpu;
}

std::map<std::string, ResourceName> MigDemandController::resources_of(
    const std::vector<mig::OnDemandGpu>& gpus) const {
  std::map<std::string, ResourceName> resources;
  for (const auto& gpu : gpus) {
    for (const auto& profile : gpu.state.profiles) {
      if (const auto name = ports_.resource_name(profile.name)) resources.emplace(profile.name, *name);
    }
  }
  return resources;
}

MigDemandController::Goal MigDemandController::make_goal(
    const mig::OnDemandChange& change, const mig::State& state,
    const std::map<std::string, ResourceName>& resources) const {
  if (change.reason == mig::OnDemandReason::kReturn) return {};
  const auto& resource = resources.at(change.profile);
  std::string source = "GPU " + std::to_string(state.index) + " for a Pod that waits for " + resource.str();
  for (const auto& request : demand_.requests) {
    if (request.resource == resource && !request.pods.empty())
      source = "GPU " + std::to_string(state.index) + " for Pod " + request.pods.front() +
               ", which waits for " + resource.str();
  }
  return {change.layout, std::move(source)};
}

bool MigDemandController::set_goal(Record& record, Goal goal) {
  // The goal that has been reached keeps its source, so that the target stays the same.
  if (record.goal && record.goal->layout == goal.layout) return false;
  record.goal = std::move(goal);
  return true;
}

std::vector<mig::DeviceDemand> MigDemandController::valid_demands(
    const std::map<std::string, ResourceName>& resources, Time now) const {
  std::vector<mig::DeviceDemand> demands;
  if (!is_demand_valid(now)) return demands;
  for (const auto& request : demand_.requests) {
    for (const auto& [profile, name] : resources) {
      if (name != request.resource) continue;
      demands.push_back({profile, request.count});
      break;
    }
  }
  return demands;
}

// GPUs that were cut when they were last read, and cannot be read now.
unsigned MigDemandController::count_unread_cuts(
    const std::vector<std::pair<MigTarget, mig::State>>& read) const {
  unsigned count = 0;
  for (const auto& [gpu, record] : records_) {
    const bool is_read =
        std::ranges::any_of(read, [&uuid = gpu](const auto& entry) { return entry.first.gpu == uuid; });
    if (!is_read && record.is_cut) ++count;
  }
  return count;
}

void MigDemandController::choose_goals(const std::vector<std::pair<MigTarget, mig::State>>& read) {
  const Time now = ports_.loop.now();
  std::vector<mig::OnDemandGpu> gpus;
  for (const auto& [target, state] : read) gpus.push_back(observe(target, state, now));
  const auto resources = resources_of(gpus);
  const auto demands = valid_demands(resources, now);
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    auto& record = records_[read[i].first.gpu];
    if (mig::is_needed(gpus[i], demands)) record.needed_at = now;
    gpus[i].needed_at = record.needed_at;
  }
  const unsigned unread = count_unread_cuts(read);
  const mig::OnDemandLimits limits{settings_.max_gpus - std::min(settings_.max_gpus, unread),
                                   settings_.min_interval, settings_.idle};
  const auto changes = mig::decide_changes(gpus, demands, limits, now);
  bool changed = false;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const auto& gpu = gpus[i];
    auto& record = records_[read[i].first.gpu];
    const auto change = std::ranges::find(changes, i, &mig::OnDemandChange::gpu);
    Goal goal;
    if (change != changes.end()) {
      goal = make_goal(*change, gpu.state, resources);
    } else if (mig::is_cut_on_demand(gpu)) {
      goal = {mig::current_layout(gpu.state),
              "GPU " + std::to_string(gpu.state.index) + " as it was cut on demand"};
    }
    const bool is_new = set_goal(record, std::move(goal));
    changed = changed || is_new;
    if (is_new && change != changes.end()) {
      log::info(change->reason == mig::OnDemandReason::kDemand ? "cutting MIG devices on demand"
                                                               : "a GPU returns to its rule's MIG layout",
                {{"gpu", gpu.state.uuid.str()},
                 {"layout", mig::layout_text(change->layout)},
                 {"for", record.goal->source}});
    }
  }
  scheduler::MigOffer offer;
  for (const auto& [profile, name] : resources) {
    if (offer.find(name) != nullptr) continue;
    auto potential = mig::device_potential(gpus, profile, demands, limits, now);
    offer.resources.push_back({name, potential.count, std::move(potential.why_no_more)});
  }
  if (std::exchange(offer_, offer) != offer) changed = true;
  end_evaluation(changed);
}

void MigDemandController::end_evaluation(bool changed) {
  evaluating_ = false;
  evaluate_after(std::exchange(again_, false) ? Duration::zero() : kMigDemandInterval);
  if (changed) ports_.changed();
}

}  // namespace gpulet::agent

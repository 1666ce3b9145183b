#include "partition/resources.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "partition/by_rule.h"
#include "partition/devices.h"
#include "partition/names.h"
#include "partition/selection.h"
#include "partition/sharing.h"

namespace gpulet::partition {
namespace {

using config::MigStrategy;
using inventory::Gpu;
using inventory::Snapshot;

// What a GPU is cut into, as strategy single compares it: "" whole, a profile, nullopt for several profiles.
std::optional<std::string> uniform_kind(const Gpu& gpu) {
  if (!gpu.mig_enabled) return "";
  const std::string& first = gpu.mig_devices.front().profile;
  for (const auto& mig : gpu.mig_devices) {
    if (mig.profile != first) return std::nullopt;
  }
  return first;
}

class Planner {
 public:
  Planner(const Snapshot& snapshot, const config::Config& config, const NodeFacts& facts)
      : snapshot_(snapshot),
        config_(config),
        facts_(facts),
        strategy_(config.flags.mig_strategy),
        selection_(select_rules(snapshot, config, facts.labels)),
        notes_(selection_.notes) {}

  Plan run() {
    std::vector<std::size_t> gpus = usable();
    std::vector<std::size_t> ruled;
    std::ranges::copy_if(gpus, std::back_inserter(ruled),
                         [&](auto i) { return selection_.rule[i].has_value(); });
    std::erase_if(gpus, [&](auto i) { return selection_.rule[i].has_value(); });
    if (strategy_ == MigStrategy::kSingle) gpus = alike(std::move(gpus));
    for (const std::size_t index : gpus) add(index);
    std::map<ResourceName, Resource> resources;
    for (auto& resource : share(snapshot_, config_, std::move(unshared_), notes_)) {
      resources.emplace(resource.name, std::move(resource));
    }
    // By rule, then by GPU: a name is the earlier rule's.
    std::ranges::stable_sort(ruled, {}, [&](auto i) { return *selection_.rule[i]; });
    for (const std::size_t index : ruled) {
      const auto& rule = config_.gpulet.partition[*selection_.rule[index]];
      for (auto& made : by_rule(snapshot_, index, rule, config_, migs_, notes_)) {
        add_resource(resources, std::move(made), snapshot_, rule, notes_);
      }
    }
    Plan plan;
    for (auto& [name, resource] : resources) plan.resources.push_back(std::move(resource));
    plan.notes = std::move(notes_);
    return plan;
  }

 private:
  void note(std::string message) { notes_.push_back({std::move(message)}); }

  // GPUs that can be offered as something at all, by index.
  std::vector<std::size_t> usable() {
    std::vector<std::size_t> gpus;
    std::set<DeviceUuid> seen;
    for (std::size_t i = 0; i < snapshot_.gpus.size(); ++i) {
      const auto& gpu = snapshot_.gpus[i];
      if (gpu.uuid.empty()) {
        note("GPU " + std::to_string(gpu.index) + " does not say its UUID" +
             (gpu.unreadable ? ": " + gpu.unreadable->message() : "") + ": it is not offered");
      } else if (display_adapter(gpu)) {
        note(name_of(gpu) + " is a display adapter: it is not offered");
      } else if (!seen.insert(gpu.uuid).second) {
        note(name_of(gpu) + " has the UUID of another: it is not offered");
      } else if (const auto out = facts_.withdrawn.find(gpu.uuid); out != facts_.withdrawn.end()) {
        note(name_of(gpu) + " " + out->second + ": it is not offered");
      } else if (!selection_.rule[i] && strategy_ != MigStrategy::kNone && gpu.mig_enabled &&
                 gpu.mig_devices.empty()) {
        note(name_of(gpu) + " has MIG on and no instance: it is not offered");
      } else {
        gpus.push_back(i);
      }
    }
    return gpus;
  }

  // Strategy single means one kind of device on the whole node. Where GPUs differ, the kind that most of them
  // have is offered (whole GPUs, then the lowest index, where as many have each), so that one GPU that
  // somebody cut up does not take the node away, and no Pod gets a slice for a GPU or the other way round.
  std::vector<std::size_t> alike(std::vector<std::size_t> gpus) {
    std::map<std::string, std::size_t> count;
    std::vector<std::string> order = {""};
    for (const std::size_t i : gpus) {
      const auto kind = uniform_kind(snapshot_.gpus[i]);
      if (!kind || unknown(snapshot_.gpus[i])) continue;
      if (count[*kind]++ == 0 && !kind->empty()) order.push_back(*kind);
    }
    const std::string kept =
        *std::ranges::max_element(order, {}, [&](const auto& kind) { return count[kind]; });
    std::erase_if(gpus, [&](std::size_t i) {
      const auto& gpu = snapshot_.gpus[i];
      const auto kind = uniform_kind(gpu);
      if (kind == kept || unknown(gpu)) return false;
      note(name_of(gpu) +
           (kind && kind->empty() ? " is whole"
            : !kind               ? " has more than one MIG profile"
                                  : " has MIG profile " + *kind) +
           ", and others on the node " + (kept.empty() ? "are whole" : "have " + kept) +
           ": with MIG strategy single it is not offered");
      return true;
    });
    return gpus;
  }

  void add(std::size_t index) {
    const auto& gpu = snapshot_.gpus[index];
    if (strategy_ == MigStrategy::kNone || !gpu.mig_enabled) {
      unshared_[gpu_resource(gpu, config_)].push_back(whole_gpu(snapshot_, index));
      return;
    }
    for (std::size_t j = 0; j < gpu.mig_devices.size(); ++j) {
      const auto& mig = gpu.mig_devices[j];
      const auto name = mig_resource(mig, config_, strategy_);
      if (mig.uuid.empty() || !migs_.insert(mig.uuid).second) {
        note("MIG device " + std::to_string(gpu.index) + ":" + std::to_string(mig.index) +
             " has no UUID of its own: it is not offered");
      } else if (!name) {
        note(name_of(gpu, mig) + ": profile " + mig.profile +
             " does not match any resource patterns: it is not offered");
      } else {
        unshared_[*name].push_back(mig_device(snapshot_, index, j));
      }
    }
  }

  const Snapshot& snapshot_;
  const config::Config& config_;
  const NodeFacts& facts_;
  MigStrategy strategy_;
  Selection selection_;
  Unshared unshared_;
  std::set<DeviceUuid> migs_;
  std::vector<Note> notes_;
};

}  // namespace

Plan plan(const Snapshot& snapshot, const config::Config& config, const NodeFacts& facts) {
  return Planner(snapshot, config, facts).run();
}

}  // namespace gpulet::partition

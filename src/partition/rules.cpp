#include "partition/rules.h"

#include <algorithm>
#include <set>
#include <variant>

#include "base/dns_name.h"
#include "config/values.h"
#include "partition/resources.h"

namespace gpulet::partition {
namespace {

using config::GpuRef;
using config::PartitionRule;
using inventory::Gpu;

bool index_list(const GpuRef& ref, const Gpu& gpu) {
  if (ref.pci) return gpu.pci == *ref.pci;
  return ref.uuid.empty() ? ref.first <= gpu.index && gpu.index <= ref.last : ref.uuid == gpu.uuid;
}

// The entries of an explicit list that are not on the node, as written.
void note_missing(const PartitionRule& rule, const inventory::Snapshot& snapshot, std::vector<Note>& notes) {
  const auto* refs = std::get_if<config::GpuRefs>(&rule.devices);
  if (!refs) return;
  for (const auto& ref : *refs) {
    const auto there =
        std::ranges::count_if(snapshot.gpus, [&](const Gpu& gpu) { return index_list(ref, gpu); });
    const unsigned wanted = ref.last - ref.first + 1;
    if (static_cast<std::size_t>(there) >= wanted) continue;
    notes.push_back({rule.position + ": the node " +
                     (wanted > 1 ? "does not have all of GPUs " : "has no GPU ") + ref.ref_text()});
  }
}

bool is_excluding(const PartitionRule& rule) { return std::holds_alternative<config::Exclude>(rule.mode); }

// A GPU with the UUID of an excluded one is excluded too.
void exclude_duplicates(const inventory::Snapshot& snapshot, std::vector<std::string>& excluded) {
  for (std::size_t g = 0; g < excluded.size(); ++g) {
    if (excluded[g].empty()) continue;
    for (std::size_t other = g + 1; other < excluded.size(); ++other) {
      if (snapshot.gpus[other].uuid == snapshot.gpus[g].uuid) excluded[other] = excluded[g];
    }
  }
}

// Whether the rule's conditions hold for the GPU.
bool admits(const PartitionRule& rule, const Gpu& gpu) {
  return is_listed(rule.devices, gpu) && (!rule.model || is_model(*rule.model, gpu.model)) &&
         (!rule.display || rule.display == gpu.display);
}

// A GPU that a rule excludes by name is offered if an earlier rule took it.
void note_offered(const PartitionRule& rule, const Gpu& gpu, const PartitionRule& earlier,
                  std::vector<Note>& notes) {
  if (!is_excluding(rule) || is_excluding(earlier) ||
      !std::holds_alternative<config::GpuRefs>(rule.devices) || !admits(rule, gpu))
    return;
  notes.push_back({rule.position + ": " + display_name(gpu) + " is not excluded: the earlier rule at " +
                   earlier.position + " applies to it"});
}

}  // namespace

bool is_listed(const config::GpuSelection& selection, const Gpu& gpu) {
  const auto* refs = std::get_if<config::GpuRefs>(&selection);
  return !refs || std::ranges::any_of(*refs, [&](const GpuRef& ref) { return index_list(ref, gpu); });
}

bool is_model(const std::string& pattern, const std::string& model) {
  return matches_pattern(pattern, model) || matches_pattern(pattern, label_characters(model));
}

bool has_label(const config::NodeLabel& wanted, const std::map<std::string, std::string>& labels) {
  const auto found = labels.find(wanted.key);
  return found != labels.end() && (!wanted.value || found->second == *wanted.value);
}

bool is_display_adapter(const Gpu& gpu) {
  return gpu.model == "DGX Display" || gpu.model == "NVIDIA DGX Display";
}

Selection select_rules(const inventory::Snapshot& snapshot, const config::Config& config,
                       const std::map<std::string, std::string>& labels) {
  Selection selection;
  selection.rule.resize(snapshot.gpus.size());
  selection.excluded.resize(snapshot.gpus.size());
  selection.side.resize(snapshot.gpus.size(), config.gpulet.dra.enabled ? config::OfferSide::kClaims
                                                                        : config::OfferSide::kDevicePlugin);
  selection.dynamic_profiles.resize(snapshot.gpus.size());
  selection.shares.resize(snapshot.gpus.size());
  const auto& rules = config.gpulet.partition;
  for (std::size_t r = 0; r < rules.size(); ++r) {
    const auto& rule = rules[r];
    if (rule.node_label && !has_label(*rule.node_label, labels)) continue;
    if (!is_excluding(rule)) note_missing(rule, snapshot, selection.notes);
    bool is_used = false;
    std::size_t left = snapshot.gpus.size();
    const auto* count = std::get_if<config::DeviceCount>(&rule.devices);
    if (count) left = count->count;
    std::set<DeviceUuid> seen;
    for (std::size_t g = 0; g < snapshot.gpus.size() && left > 0; ++g) {
      const auto& gpu = snapshot.gpus[g];
      if (gpu.uuid.empty() || is_display_adapter(gpu) || !seen.insert(gpu.uuid).second) continue;
      if (selection.rule[g]) {
        note_offered(rule, gpu, rules[*selection.rule[g]], selection.notes);
        continue;
      }
      if (!admits(rule, gpu)) continue;
      selection.rule[g] = r;
      if (rule.offer) selection.side[g] = *rule.offer;
      if (const auto* dynamic = std::get_if<config::DynamicMig>(&rule.mode))
        selection.dynamic_profiles[g] = dynamic->profiles;
      if (const auto* whole = std::get_if<config::Whole>(&rule.mode))
        selection.shares[g] = whole->consumable_shares;
      if (is_excluding(rule)) selection.excluded[g] = "is excluded by the rule at " + rule.position;
      is_used = true;
      --left;
    }
    if (is_excluding(rule)) {
      if (!is_used) selection.remarks.push_back({rule.position + ": the rule excludes no GPU of this node"});
    } else if (count && left > 0) {
      selection.notes.push_back({rule.position + ": " + std::to_string(count->count) +
                                 " GPUs are wanted, and " + std::to_string(count->count - left) +
                                 " are left that it applies to"});
    }
  }
  exclude_duplicates(snapshot, selection.excluded);
  return selection;
}

void mark_excluded_gpus(inventory::Snapshot& snapshot, const config::Config& config,
                        const std::map<std::string, std::string>& labels) {
  auto selection = select_rules(snapshot, config, labels);
  for (std::size_t i = 0; i < snapshot.gpus.size(); ++i)
    snapshot.gpus[i].excluded = std::move(selection.excluded[i]);
}

bool selects_by_display(const config::Config& config) {
  return std::ranges::any_of(config.gpulet.partition,
                             [](const auto& rule) { return rule.display.has_value(); });
}

namespace {

using config::SharingStrategy;
using inventory::Gpu;

std::string counted(const std::map<std::string, unsigned>& devices) {
  std::string out;
  for (const auto& [profile, count] : devices) {
    if (count == 0) continue;
    out += (out.empty() ? "" : ", ") + std::to_string(count) + " x " + profile;
  }
  return out.empty() ? "no instance" : out;
}

std::map<std::string, unsigned> instances_of(const Gpu& gpu) {
  std::map<std::string, unsigned> count;
  for (const auto& mig : gpu.mig_devices) ++count[mig.profile];
  return count;
}

std::string target_of(const config::Mig& mig) {
  return mig.layout.empty() ? counted(mig.devices) : "MIG layout " + mig.layout;
}

class RulePlanner {
 public:
  RulePlanner(const inventory::Snapshot& snapshot, std::size_t gpu, const config::PartitionRule& rule,
              const config::Config& config, std::set<DeviceUuid>& migs, std::vector<Note>& notes)
      : snapshot_(snapshot), index_(gpu), rule_(rule), config_(config), migs_(migs), notes_(notes) {}

  std::vector<Resource> plan_rule() {
    std::visit([&](const auto& how) { plan_mode(how); }, rule_.mode);
    std::vector<Resource> out;
    for (auto& [name, resource] : made_) out.push_back(std::move(resource));
    return out;
  }

 private:
  const Gpu& selected_gpu() const { return snapshot_.gpus[index_]; }
  void add_rule_note(const std::string& what) {
    notes_.push_back({rule_.position + ": " + what + ": it is not offered"});
  }

  Resource& resource_named(const ResourceName& name) {
    auto& made = made_[name];
    made.name = name;
    return made;
  }

  // `given`, else the GPU's name by resources.gpus plus `suffix`; nullopt with a note if that is not a valid
  // name.
  std::optional<ResourceName> resource_name(const std::optional<ResourceName>& given,
                                            const std::string& suffix) {
    if (given && suffix.empty()) return given;
    auto name = config::parse_resource_name(
        (given ? *given : gpu_resource_name(selected_gpu(), config_)).str() + suffix);
    if (name) return std::move(*name);
    add_rule_note(display_name(selected_gpu()) + ": " + name.error().message() + "; set a name");
    return std::nullopt;
  }

  // A GPU whose rule is whole or shared must not be partitioned.
  bool is_whole(const char* wanted) {
    if (!selected_gpu().mig_enabled) return true;
    add_rule_note(display_name(selected_gpu()) + " has MIG on, and its rule wants it " + wanted +
                  (config_.gpulet.mig.manage ? "" : " (gpulet.mig.manage is false: it stays so)"));
    return false;
  }

  void plan_mode(const config::Exclude&) {}

  // Only while Pods keep what they have of a GPU that moves to claims.
  void plan_mode(const config::DynamicMig&) {
    if (!selected_gpu().mig_enabled) return plan_mode(config::Whole{});
    plan_devices(config::Mig{});
  }

  void plan_mode(const config::Whole& whole) {
    if (!is_whole("whole")) return;
    if (const auto name = resource_name(whole.name, ""))
      resource_named(*name).devices = {make_gpu_device(snapshot_, index_)};
  }

  void plan_mode(const config::TimeSlicing& slicing) {
    if (!is_whole("time-sliced")) return;
    const auto name = resource_name(slicing.name, slicing.name ? "" : std::string(config::kSharedSuffix));
    if (!name) return;
    auto& made = resource_named(*name);
    made.sharing = SharingStrategy::kTimeSlicing;
    made.replicas = slicing.replicas;
    made.fail_requests_greater_than_one = slicing.fail_requests_greater_than_one;
    made.shares_on = slicing.shares_on;
    const auto whole = make_gpu_device(snapshot_, index_);
    for (unsigned n = 0; n < slicing.replicas; ++n) made.devices.push_back(make_replica(whole, n));
  }

  void plan_mode(const config::Mps& mps) {
    if (!is_whole("shared with MPS")) return;
    const auto count = mps.shares.empty() ? mps.replicas : static_cast<unsigned>(mps.shares.size());
    if (selected_gpu().compute_major != 0 && count > max_mps_replicas(selected_gpu())) {
      add_rule_note(display_name(selected_gpu()) + ": MPS serves at most " +
                    std::to_string(max_mps_replicas(selected_gpu())) + " clients on it, not " +
                    std::to_string(count));
      return;
    }
    const bool equal = config::has_equal_shares(mps);
    const auto daemon = resource_name(
        mps.name, mps.name ? "" : std::string(equal ? config::kSharedSuffix : config::kMpsSuffix));
    if (!daemon) return;
    const auto whole = make_gpu_device(snapshot_, index_);
    for (unsigned n = 0; n < count; ++n) {
      const auto* share = mps.shares.empty() ? nullptr : &mps.shares[n];
      auto name = daemon;
      if (share && share->name) {
        name = share->name;
      } else if (!equal) {
        name = resource_name(daemon, config::share_suffix(share->size));
        if (!name) continue;
      }
      auto& made = resource_named(*name);
      made.sharing = SharingStrategy::kMps;
      made.fail_requests_greater_than_one = mps.fail_requests_greater_than_one;
      made.shares_on = mps.shares_on;
      made.mps_daemon = daemon->str();
      made.is_mps_by_rule = true;
      made.has_sm_partitions = mps.sm_partitions;
      made.devices.push_back(make_replica(whole, n));
      if (share) made.devices.back().share = share->size;
      made.devices.back().has_memory_limit = mps.memory_limit;
      made.replicas = static_cast<unsigned>(made.devices.size());
    }
  }

  // Whether the GPU is partitioned as the rule requires, as far as it is known here: the MIG manager, which
  // resolves layout names, reports the rest (NodeFacts::withdrawn).
  bool is_cut(const config::Mig& mig) {
    if (is_unknown(selected_gpu())) {
      add_rule_note(display_name(selected_gpu()) + " cannot be read, and its rule wants " + target_of(mig));
    } else if (!selected_gpu().mig_capable) {
      add_rule_note(display_name(selected_gpu()) + " has no MIG, and its rule wants " + target_of(mig));
    } else if (!selected_gpu().mig_enabled || (selected_gpu().mig_devices.empty() && !mig.on_demand)) {
      add_rule_note(display_name(selected_gpu()) +
                    (selected_gpu().mig_enabled ? " has no MIG instance yet" : " has MIG off") +
                    ", and its rule wants " + target_of(mig));
    } else if (!mig.on_demand && mig.layout.empty() &&
               counted(instances_of(selected_gpu())) != counted(mig.devices)) {
      add_rule_note(display_name(selected_gpu()) + " has " + counted(instances_of(selected_gpu())) +
                    ", and its rule wants " + target_of(mig));
    } else if ((mig.name || mig.strategy == config::MigStrategy::kSingle) &&
               instances_of(selected_gpu()).size() > 1) {
      add_rule_note(display_name(selected_gpu()) + " has " + counted(instances_of(selected_gpu())) +
                    ", more than one profile for one resource (use strategy mixed without a name)");
    } else {
      return true;
    }
    return false;
  }

  void plan_mode(const config::Mig& mig) {
    if (is_cut(mig)) plan_devices(mig);
  }

  void plan_devices(const config::Mig& mig) {
    for (std::size_t i = 0; i < selected_gpu().mig_devices.size(); ++i) {
      const auto& device = selected_gpu().mig_devices[i];
      if (device.uuid.empty() || !migs_.insert(device.uuid).second) {
        add_rule_note(display_name(selected_gpu(), device) + " has no UUID of its own");
        continue;
      }
      const auto name = mig.name ? mig.name : mig_resource_name(device, config_, mig.strategy);
      if (!name) {
        add_rule_note(display_name(selected_gpu(), device) + ": profile " + device.profile +
                      " does not match any resource patterns");
        continue;
      }
      resource_named(*name).devices.push_back(make_mig_device(snapshot_, index_, i));
    }
  }

  const inventory::Snapshot& snapshot_;
  std::size_t index_;
  const config::PartitionRule& rule_;
  const config::Config& config_;
  std::set<DeviceUuid>& migs_;
  std::vector<Note>& notes_;
  std::map<ResourceName, Resource> made_;
};

std::string profile_of(const Device& device, const inventory::Snapshot& snapshot) {
  return device.mig ? snapshot.gpus[device.gpu].mig_devices[*device.mig].profile : "";
}

// Whether all devices of both are equivalent to a container.
bool same_kind(const Resource& a, const Resource& b, const inventory::Snapshot& snapshot) {
  if (a.sharing != b.sharing || a.replicas != b.replicas || a.mps_daemon != b.mps_daemon ||
      a.fail_requests_greater_than_one != b.fail_requests_greater_than_one || a.shares_on != b.shares_on) {
    return false;
  }
  const Device& like = b.devices.front();
  return std::ranges::all_of(a.devices, [&](const Device& device) {
    return device.replica.has_value() == like.replica.has_value() && device.share == like.share &&
           profile_of(device, snapshot) == profile_of(like, snapshot);
  });
}

}  // namespace

std::vector<Resource> plan_by_rule(const inventory::Snapshot& snapshot, std::size_t gpu,
                                   const config::PartitionRule& rule, const config::Config& config,
                                   std::set<DeviceUuid>& migs, std::vector<Note>& notes) {
  return RulePlanner(snapshot, gpu, rule, config, migs, notes).plan_rule();
}

void add_resource(std::map<ResourceName, Resource>& resources, Resource more,
                  const inventory::Snapshot& snapshot, const config::PartitionRule& rule,
                  std::vector<Note>& notes) {
  if (more.devices.empty()) return;
  const auto found = resources.find(more.name);
  if (found == resources.end()) {
    const ResourceName name = more.name;
    resources.emplace(name, std::move(more));
  } else if (same_kind(found->second, more, snapshot)) {
    auto& devices = found->second.devices;
    devices.insert(devices.end(), more.devices.begin(), more.devices.end());
    sort_devices(devices);
  } else {
    const auto& gpu = snapshot.gpus[more.devices.front().gpu];
    notes.push_back({rule.position + ": " + display_name(gpu) + ": " + more.name.str() +
                     " is taken by devices cut or shared in another way; set a name: it is not offered"});
  }
}

std::vector<DesiredMig> desired_mig(const inventory::Snapshot& snapshot, const config::Config& config,
                                    const std::map<std::string, std::string>& labels) {
  const auto selection = select_rules(snapshot, config, labels);
  std::vector<DesiredMig> desired;
  for (std::size_t i = 0; i < snapshot.gpus.size(); ++i) {
    const auto& gpu = snapshot.gpus[i];
    if (!selection.rule[i] || !selection.excluded[i].empty() || !gpu.mig_capable) continue;
    if (!selection.dynamic_profiles[i].empty()) continue;
    const auto& rule = config.gpulet.partition[*selection.rule[i]];
    DesiredMig& wanted = desired.emplace_back();
    wanted.index = gpu.index;
    wanted.uuid = gpu.uuid;
    wanted.position = rule.position;
    if (const auto* mig = std::get_if<config::Mig>(&rule.mode)) {
      wanted.enabled = true;
      wanted.layout = mig->layout;
      // Who holds a device by a claim, and who waits for one, is not seen here.
      wanted.on_demand = mig->on_demand && selection.side[i] == config::OfferSide::kDevicePlugin;
      for (const auto& [profile, count] : mig->devices) {
        if (count > 0) wanted.devices.emplace(profile, count);
      }
    }
  }
  std::ranges::sort(desired, {}, &DesiredMig::index);
  return desired;
}

}  // namespace gpulet::partition

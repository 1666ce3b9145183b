#include "partition/by_rule.h"

#include <algorithm>
#include <variant>

#include "config/values.h"
#include "partition/devices.h"
#include "partition/names.h"
#include "partition/sharing.h"

namespace gpulet::partition {
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

std::string wanted_of(const config::Mig& mig) {
  return mig.layout.empty() ? counted(mig.devices) : "MIG layout " + mig.layout;
}

class Maker {
 public:
  Maker(const inventory::Snapshot& snapshot, std::size_t gpu, const config::PartitionRule& rule,
        const config::Config& config, std::set<DeviceUuid>& migs, std::vector<Note>& notes)
      : snapshot_(snapshot), index_(gpu), rule_(rule), config_(config), migs_(migs), notes_(notes) {}

  std::vector<Resource> run() {
    std::visit([&](const auto& how) { make(how); }, rule_.how);
    std::vector<Resource> out;
    for (auto& [name, resource] : made_) out.push_back(std::move(resource));
    return out;
  }

 private:
  const Gpu& gpu() const { return snapshot_.gpus[index_]; }
  void note(const std::string& what) {
    notes_.push_back({rule_.place + ": " + what + ": it is not offered"});
  }

  Resource& resource(const ResourceName& name) {
    auto& made = made_[name];
    made.name = name;
    return made;
  }

  // `given`, or what resources.gpus calls the GPU with `suffix`; nullopt, with a note, when that is no name.
  std::optional<ResourceName> named(const std::optional<ResourceName>& given, const std::string& suffix) {
    if (given && suffix.empty()) return given;
    auto name = config::parse_resource_name((given ? *given : gpu_resource(gpu(), config_)).str() + suffix);
    if (name) return std::move(*name);
    note(name_of(gpu()) + ": " + name.error().message() + "; set a name");
    return std::nullopt;
  }

  // A GPU that its rule wants whole or shared must not be cut up.
  bool is_whole(const char* wanted) {
    if (!gpu().mig_enabled) return true;
    note(name_of(gpu()) + " has MIG on, and its rule wants it " + wanted +
         (config_.gpulet.mig.manage ? "" : " (gpulet.mig.manage is false: it stays so)"));
    return false;
  }

  void make(const config::Whole& whole) {
    if (!is_whole("whole")) return;
    if (const auto name = named(whole.name, "")) resource(*name).devices = {whole_gpu(snapshot_, index_)};
  }

  void make(const config::TimeSlicing& slicing) {
    if (!is_whole("time-sliced")) return;
    const auto name = named(slicing.name, slicing.name ? "" : std::string(config::kSharedSuffix));
    if (!name) return;
    auto& made = resource(*name);
    made.sharing = SharingStrategy::kTimeSlicing;
    made.replicas = slicing.replicas;
    made.fail_requests_greater_than_one = slicing.fail_requests_greater_than_one;
    const auto whole = whole_gpu(snapshot_, index_);
    for (unsigned n = 0; n < slicing.replicas; ++n) made.devices.push_back(replica_of(whole, n));
  }

  void make(const config::Mps& mps) {
    if (!is_whole("shared with MPS")) return;
    const auto count = mps.shares.empty() ? mps.replicas : static_cast<unsigned>(mps.shares.size());
    if (gpu().compute_major != 0 && count > max_mps_replicas(gpu())) {
      note(name_of(gpu()) + ": MPS serves at most " + std::to_string(max_mps_replicas(gpu())) +
           " clients on it, not " + std::to_string(count));
      return;
    }
    const bool equal = config::equal_shares(mps);
    const auto daemon =
        named(mps.name, mps.name ? "" : std::string(equal ? config::kSharedSuffix : config::kMpsSuffix));
    if (!daemon) return;
    const auto whole = whole_gpu(snapshot_, index_);
    for (unsigned n = 0; n < count; ++n) {
      const auto* share = mps.shares.empty() ? nullptr : &mps.shares[n];
      auto name = daemon;
      if (share && share->name) {
        name = share->name;
      } else if (!equal) {
        name = named(daemon, config::share_suffix(share->size));
        if (!name) continue;
      }
      auto& made = resource(*name);
      made.sharing = SharingStrategy::kMps;
      made.fail_requests_greater_than_one = mps.fail_requests_greater_than_one;
      made.mps_daemon = daemon->str();
      made.devices.push_back(replica_of(whole, n));
      if (share) made.devices.back().share = share->size;
      made.replicas = static_cast<unsigned>(made.devices.size());
    }
  }

  // Whether the GPU is cut up as the rule wants it, as far as that can be told here: what a layout's name
  // means is told by who changes the GPU (NodeFacts::withdrawn).
  bool is_cut(const config::Mig& mig) {
    if (unknown(gpu())) {
      note(name_of(gpu()) + " cannot be read, and its rule wants " + wanted_of(mig));
    } else if (!gpu().mig_capable) {
      note(name_of(gpu()) + " has no MIG, and its rule wants " + wanted_of(mig));
    } else if (!gpu().mig_enabled || gpu().mig_devices.empty()) {
      note(name_of(gpu()) + (gpu().mig_enabled ? " has no MIG instance yet" : " has MIG off") +
           ", and its rule wants " + wanted_of(mig));
    } else if (mig.layout.empty() && counted(instances_of(gpu())) != counted(mig.devices)) {
      note(name_of(gpu()) + " has " + counted(instances_of(gpu())) + ", and its rule wants " +
           wanted_of(mig));
    } else if ((mig.name || mig.strategy == config::MigStrategy::kSingle) && instances_of(gpu()).size() > 1) {
      note(name_of(gpu()) + " has " + counted(instances_of(gpu())) +
           ", more than one profile for one resource (strategy mixed without a name would do)");
    } else {
      return true;
    }
    return false;
  }

  void make(const config::Mig& mig) {
    if (!is_cut(mig)) return;
    for (std::size_t i = 0; i < gpu().mig_devices.size(); ++i) {
      const auto& device = gpu().mig_devices[i];
      if (device.uuid.empty() || !migs_.insert(device.uuid).second) {
        note(name_of(gpu(), device) + " has no UUID of its own");
        continue;
      }
      const auto name = mig.name ? mig.name : mig_resource(device, config_, mig.strategy);
      if (!name) {
        note(name_of(gpu(), device) + ": profile " + device.profile +
             " does not match any resource patterns");
        continue;
      }
      resource(*name).devices.push_back(mig_device(snapshot_, index_, i));
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

// Whether all devices of both are the same kind of thing to who gets one.
bool same_kind(const Resource& a, const Resource& b, const inventory::Snapshot& snapshot) {
  if (a.sharing != b.sharing || a.replicas != b.replicas || a.mps_daemon != b.mps_daemon ||
      a.fail_requests_greater_than_one != b.fail_requests_greater_than_one) {
    return false;
  }
  const Device& like = b.devices.front();
  return std::ranges::all_of(a.devices, [&](const Device& device) {
    return device.replica.has_value() == like.replica.has_value() && device.share == like.share &&
           profile_of(device, snapshot) == profile_of(like, snapshot);
  });
}

}  // namespace

std::vector<Resource> by_rule(const inventory::Snapshot& snapshot, std::size_t gpu,
                              const config::PartitionRule& rule, const config::Config& config,
                              std::set<DeviceUuid>& migs, std::vector<Note>& notes) {
  return Maker(snapshot, gpu, rule, config, migs, notes).run();
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
    notes.push_back({rule.place + ": " + name_of(gpu) + ": " + more.name.str() +
                     " is taken by devices cut or shared in another way; set a name: it is not offered"});
  }
}

}  // namespace gpulet::partition

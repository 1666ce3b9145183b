#include "metrics/usage_accounting.h"
#include "base/device_id.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

namespace gpulet::metrics {
namespace {

void add_to(UsageAmount& sum, const UsageAmount& more) {
  sum.millijoules += more.millijoules;
  sum.busy += more.busy;
  sum.held += more.held;
  sum.idle += more.idle;
}

std::chrono::nanoseconds part_of(std::chrono::nanoseconds whole, double fraction) {
  return std::chrono::nanoseconds(static_cast<std::chrono::nanoseconds::rep>(
      static_cast<double>(whole.count()) * std::clamp(fraction, 0.0, 1.0)));
}

// Takes the fractions of `device` from `left`, as far as they are there.
UsageAmount take_part(const UsageAmount& device, double used, double held, UsageAmount& left) {
  UsageAmount part;
  part.millijoules = std::min(
      left.millijoules,
      static_cast<std::uint64_t>(static_cast<double>(device.millijoules) * std::clamp(used, 0.0, 1.0)));
  part.busy = std::min(left.busy, part_of(device.busy, used));
  part.held = std::min(left.held, part_of(device.held, held));
  left.millijoules -= part.millijoules;
  left.busy -= part.busy;
  left.held -= part.held;
  return part;
}

// Energy is the GPU's already.
UsageAmount in_gpus(UsageAmount amount, double gpu_part) {
  if (gpu_part == 1) return amount;
  amount.busy = part_of(amount.busy, gpu_part);
  amount.held = part_of(amount.held, gpu_part);
  amount.idle = part_of(amount.idle, gpu_part);
  return amount;
}

}  // namespace

void UsageAccounting::add_usage(const DeviceUuid& uuid, const UsageAmount& device, const PodShares& shares,
                                const HeldInterval& held) {
  auto& account = usage_by_device_[uuid];
  UsageAmount whole = device;
  whole.held = held.time;
  double busy = shares.unattributed_busy;
  for (const auto& pod : shares.pods) busy += pod.busy;
  UsageAmount left = whole;
  std::map<PodName, UsageAmount> pods;
  for (const auto& pod : shares.pods) {
    const auto& name = pod.holder.pod;
    auto& charge = pods[name];
    if (const auto before = account.pods.find(name); before != account.pods.end()) {
      charge = before->second;
      account.pods.erase(before);
    }
    const double alone = shares.pods.size() == 1 ? 1 : 0;
    const double used = !shares.is_busy_known ? 0 : busy > 0 ? pod.busy / busy : alone;
    const auto part = held.parts.find(name);
    UsageAmount more = take_part(whole, used, part == held.parts.end() ? 0 : part->second, left);
    if (held.is_busy_measured && shares.is_busy_known && more.held > more.busy)
      more.idle = more.held - more.busy;
    whole.idle += more.idle;
    add_to(charge, more);
    if (more == UsageAmount{}) continue;
    add_to(namespace_usage(name.name_space), in_gpus(more, held.gpu_part));
    ++revision_;
  }
  add_to(account.total, whole);
  if (!account.pods.empty()) ++revision_;
  for (const auto& [pod, charge] : account.pods) add_to(account.departed, charge);
  account.pods = std::move(pods);
  add_to(account.unattributed, left);
  add_to(namespace_usage(""), in_gpus(left, held.gpu_part));
  account.gpu_part = held.gpu_part;
  account.parts = held.parts;
}

void UsageAccounting::add_unattributed(const DeviceUuid& uuid, const UsageAmount& device) {
  auto& account = usage_by_device_[uuid];
  add_to(account.total, device);
  add_to(account.unattributed, device);
  add_to(namespace_usage(""), device);
}

UsageAmount& UsageAccounting::namespace_usage(const std::string& name) {
  if (const auto found = usage_by_namespace_.find(name); found != usage_by_namespace_.end())
    return found->second;
  const bool is_full = !name.empty() && usage_by_namespace_.size() >= kMaxUsageNamespaces;
  return usage_by_namespace_[is_full ? kOtherNamespaces : name];
}

void UsageAccounting::retain_devices(const std::vector<DeviceUuid>& devices) {
  std::erase_if(usage_by_device_, [&](const auto& one) {
    return std::find(devices.begin(), devices.end(), one.first) == devices.end();
  });
}

UsageRecord UsageAccounting::to_record() const {
  UsageRecord record;
  record.namespaces = usage_by_namespace_;
  for (const auto& [uuid, account] : usage_by_device_)
    record.devices[uuid] = {account.departed, account.unattributed, account.pods};
  return record;
}

void UsageAccounting::restore_record(const UsageRecord& record) {
  usage_by_namespace_ = record.namespaces;
  usage_by_device_.clear();
  for (const auto& [uuid, device] : record.devices) {
    auto& account = usage_by_device_[uuid];
    account.pods = device.pods;
    account.departed = device.departed;
    account.unattributed = device.unattributed;
    account.total = device.departed;
    add_to(account.total, device.unattributed);
    for (const auto& [pod, amount] : device.pods) add_to(account.total, amount);
  }
}

std::map<PodName, PodUsage> usage_by_pod(const UsageAccounting& accounting) {
  std::map<PodName, PodUsage> all;
  for (const auto& [uuid, account] : accounting.usage_by_device()) {
    for (const auto& [pod, amount] : account.pods) {
      auto& usage = all[pod];
      add_to(usage.used, in_gpus(amount, account.gpu_part));
      const auto part = account.parts.find(pod);
      if (part != account.parts.end()) usage.gpus += part->second * account.gpu_part;
    }
  }
  return all;
}

ShareCounts count_shares(const std::map<ResourceName, std::vector<DeviceId>>& devices) {
  ShareCounts counts;
  for (const auto& [resource, ids] : devices) {
    for (const auto& id : ids) {
      const auto device = without_share(id.str());
      if (device.size() != id.str().size()) ++counts[resource][std::string(device)];
    }
  }
  return counts;
}

namespace {

using SharesByResource = std::map<ResourceName, std::set<std::string>>;

SharesByResource shares_of(std::span<const Holder> holders) {
  SharesByResource shares;
  for (const auto& holder : holders) {
    for (const auto& held : holder.held_shares) shares[held.resource].insert(held.share);
  }
  return shares;
}

std::size_t share_count(const ShareCounts& shares, const ResourceName& resource, const DeviceUuid& device) {
  const auto of_resource = shares.find(resource);
  if (of_resource == shares.end()) return 0;
  const auto found = of_resource->second.find(device.str());
  return found == of_resource->second.end() ? 0 : found->second;
}

}  // namespace

std::map<PodName, double> held_parts(const DeviceUuid& device, const std::vector<Holder>& holders,
                                     const ShareCounts& shares) {
  std::map<PodName, double> parts;
  const auto all = shares_of(holders);
  double sum = 0;
  for (const auto& holder : holders) {
    double part = holder.held_shares.empty() ? 1 : 0;  // a MIG device that it holds through its GPU
    for (const auto& [resource, mine] : shares_of({&holder, 1})) {
      const auto count = std::max(share_count(shares, resource, device), all.at(resource).size());
      const bool is_whole = mine.contains("");
      part = std::max(part, is_whole ? 1 : static_cast<double>(mine.size()) / static_cast<double>(count));
    }
    parts[holder.pod] = part;
    sum += part;
  }
  if (sum > 1) {
    for (auto& [pod, part] : parts) part /= sum;
  }
  return parts;
}

double gpu_part_of(const DeviceUuid& device, const inventory::Snapshot& snapshot) {
  constexpr double kEighths = 8;
  for (const auto& gpu : snapshot.gpus) {
    for (const auto& mig : gpu.mig_devices) {
      if (mig.uuid != device || gpu.memory.value == 0) continue;
      const double memory = static_cast<double>(mig.memory.value) / static_cast<double>(gpu.memory.value);
      const double part = std::clamp(std::round(memory * kEighths), 1.0, kEighths) / kEighths;
      if (mig.gpu_slices == 0 || mig.compute_slices >= mig.gpu_slices) return part;
      return part * mig.compute_slices / mig.gpu_slices;
    }
  }
  return 1;
}

std::map<DeviceUuid, HeldInterval> held_intervals(const Sample& sample, const inventory::Snapshot& snapshot,
                                                  const Holders& holders, const ShareCounts& shares,
                                                  std::chrono::nanoseconds since) {
  std::map<DeviceUuid, HeldInterval> all;
  const auto add = [&](const DeviceUuid& device, bool is_busy_measured) {
    HeldInterval& held = all[device];
    held = {since, is_busy_measured, gpu_part_of(device, snapshot), {}};
    const auto found = holders.find(device);
    if (found != holders.end()) held.parts = held_parts(device, found->second, shares);
  };
  for (const auto& gpu : sample.gpus) {
    if (gpu.error) continue;
    if (!gpu.mig) {
      add(gpu.uuid, gpu.values.contains(Field::kGpuUtil));
      continue;
    }
    for (const auto& instance : gpu.instances) {
      const bool is_measured =
          instance.devices.size() == 1 && instance.values.contains(Field::kGraphicsActive);
      for (const auto& device : instance.devices) add(device.uuid, is_measured);
    }
  }
  return all;
}

namespace {

constexpr double kWhole = 100;

std::optional<std::uint64_t> unsigned_field(const Values& values, Field field) {
  const auto found = values.find(field);
  const auto* whole = found == values.end() ? nullptr : std::get_if<std::uint64_t>(&found->second);
  return whole == nullptr ? std::nullopt : std::optional(*whole);
}

// In percent.
double busy_of(const Values& values, bool instance) {
  const double busy = instance ? numeric_field(values, Field::kGraphicsActive).value_or(0) * kWhole
                               : numeric_field(values, Field::kGpuUtil).value_or(0);
  return std::clamp(busy, 0.0, kWhole);
}

Bytes total_memory(const std::vector<ProcessSample>& processes) {
  Bytes sum;
  for (const auto& process : processes) sum.value += process.memory.value_or(Bytes{}).value;
  return sum;
}

std::chrono::nanoseconds fraction_of(std::chrono::nanoseconds whole, double percent) {
  return std::chrono::nanoseconds(
      static_cast<std::chrono::nanoseconds::rep>(static_cast<double>(whole.count()) * percent / kWhole));
}

}  // namespace

std::map<DeviceUuid, PodShares> attribute_sample(const Sample& sample, const Holders& holders,
                                                 const PodByPid& pods) {
  std::map<DeviceUuid, PodShares> all;
  const auto add = [&](const DeviceUuid& device, const DeviceActivity& use) {
    const auto found = holders.find(device);
    all[device] = attribute(use, found == holders.end() ? std::span<const Holder>() : found->second, pods);
  };
  for (const auto& gpu : sample.gpus) {
    if (gpu.error) continue;
    if (!gpu.mig) {
      const Bytes used = mebibytes(unsigned_field(gpu.values, Field::kFbUsed).value_or(0));
      add(gpu.uuid, {used, busy_of(gpu.values, false), gpu.has_process_times, gpu.processes});
      continue;
    }
    for (const auto& instance : gpu.instances) {
      const Bytes used = mebibytes(unsigned_field(instance.values, Field::kFbUsed).value_or(0));
      const bool alone = instance.devices.size() == 1;
      for (const auto& device : instance.devices) {
        add(device.uuid, {alone ? used : std::min(used, total_memory(device.processes)),
                          alone ? busy_of(instance.values, true) : 0, false, device.processes});
      }
    }
  }
  return all;
}

std::map<DeviceUuid, UsageAmount> usage_since_last_sample(const Sample& sample,
                                                          std::chrono::nanoseconds since,
                                                          EnergyCounters& counters) {
  std::map<DeviceUuid, UsageAmount> all;
  for (const auto& gpu : sample.gpus) {
    if (gpu.error) continue;
    auto& charge = all[gpu.uuid];
    if (const auto energy = unsigned_field(gpu.values, Field::kEnergy)) {
      const auto before = counters.find(gpu.uuid);
      // Lower than before: the driver was reloaded.
      if (before != counters.end() && *energy >= before->second)
        charge.millijoules = *energy - before->second;
      counters[gpu.uuid] = *energy;
    }
    if (!gpu.mig) {
      charge.busy = fraction_of(since, busy_of(gpu.values, false));
      continue;
    }
    for (const auto& instance : gpu.instances) {
      const bool alone = instance.devices.size() == 1;
      for (const auto& device : instance.devices)
        all[device.uuid].busy =
            alone ? fraction_of(since, busy_of(instance.values, true)) : std::chrono::nanoseconds{};
    }
  }
  std::erase_if(counters, [&](const auto& one) {
    return std::none_of(sample.gpus.begin(), sample.gpus.end(),
                        [&](const GpuSample& gpu) { return gpu.uuid == one.first; });
  });
  return all;
}

}  // namespace gpulet::metrics

#include "metrics/aggregator.h"

#include <algorithm>
#include <set>
#include <utility>

#include "metrics/gpulet_page.h"

namespace gpulet::metrics {
namespace {

using std::chrono::seconds;

struct ClockEvent {
  std::uint64_t bit;
  const char* name;
};
constexpr ClockEvent kClockEvents[] = {
    {0x1, "gpu_idle"},    {0x2, "clocks_setting"},  {0x4, "power_cap"},
    {0x8, "hw_slowdown"}, {0x10, "sync_boost"},     {0x20, "sw_thermal"},
    {0x40, "hw_thermal"}, {0x80, "hw_power_brake"}, {0x100, "display_clocks"},
};

}  // namespace

std::vector<std::string> clock_event_names(std::uint64_t reasons) {
  std::vector<std::string> names;
  for (const auto& event : kClockEvents) {
    if ((reasons & event.bit) != 0) names.emplace_back(event.name);
  }
  return names;
}

void EventWindows::WindowCount::add_event(Time now) {
  if (seconds_.empty() || now - seconds_.back().first >= seconds(1)) seconds_.emplace_back(now, 0);
  ++seconds_.back().second;
}

std::uint64_t EventWindows::WindowCount::count_since(Time begin) {
  while (!seconds_.empty() && seconds_.front().first <= begin) seconds_.pop_front();
  std::uint64_t sum = 0;
  for (const auto& [when, count] : seconds_) sum += count;
  return sum;
}

void EventWindows::record_xid(const DeviceUuid& gpu, std::optional<unsigned> gpu_instance, std::uint64_t code,
                              std::string text, Time now) {
  auto& part = gpus_[gpu].parts[gpu_instance];
  part.last = {code, std::move(text)};
  part.xids[code].add_event(now);
}

void EventWindows::fill_counts(EventHistory* part, LastXid& last, EventCounts& counts, Time begin) {
  last = part == nullptr ? LastXid() : part->last;
  counts.xids.clear();
  if (part == nullptr) return;
  for (auto xid = part->xids.begin(); xid != part->xids.end();) {
    const auto count = xid->second.count_since(begin);
    if (count > 0) counts.xids[xid->first] = count;
    xid = count > 0 ? std::next(xid) : part->xids.erase(xid);
  }
}

void EventWindows::fill_counts(Sample& sample, Time now) {
  sample.windows = sizes_;
  const Time begin = now - sizes_.xids;
  std::set<DeviceUuid> there;
  for (auto& gpu : sample.gpus) {
    there.insert(gpu.uuid);
    auto& kept = gpus_[gpu.uuid];
    if (const auto bits = gpu.values.find(Field::kClockEvents); bits != gpu.values.end()) {
      if (const auto* reasons = std::get_if<std::uint64_t>(&bits->second)) {
        for (const auto& name : clock_event_names(*reasons)) kept.clocks[name].add_event(now);
      }
    }
    gpu.counts.clock_events.clear();
    for (auto& [name, count] : kept.clocks) {
      if (const auto sum = count.count_since(now - sizes_.clock_events); sum > 0)
        gpu.counts.clock_events[name] = sum;
    }
    const auto part = [&](std::optional<unsigned> instance) {
      const auto found = kept.parts.find(instance);
      return found == kept.parts.end() ? nullptr : &found->second;
    };
    fill_counts(part(std::nullopt), gpu.xid, gpu.counts, begin);
    for (auto& instance : gpu.instances) {
      // An XID of the whole GPU counts for each of its instances.
      fill_counts(part(part(instance.id) == nullptr ? std::nullopt : std::optional(instance.id)),
                  instance.xid, instance.counts, begin);
    }
    if (gpu.error) continue;
    std::erase_if(kept.parts, [&](const auto& one) {
      return one.first &&
             std::none_of(gpu.instances.begin(), gpu.instances.end(),
                          [&](const InstanceSample& instance) { return instance.id == *one.first; });
    });
  }
  std::erase_if(gpus_, [&](const auto& one) { return !there.contains(one.first); });
}

void Aggregator::set_options(Counters counters, PageOptions options, WindowSizes windows) {
  windows_.set_window_sizes(windows);
  counters_ = std::move(counters);
  options_ = std::move(options);
}

void Aggregator::ingest_sample(inventory::SnapshotPtr snapshot, Sample sample, PodContext pods, Time now) {
  windows_.fill_counts(sample, now);
  pods_ = std::move(pods);
  attribution_ = {attribute_sample(sample, pods_.holders, pods_.processes), pods_.details};
  const auto since = snapshot_ ? now - when_ : Duration{};
  const bool is_gap = std::exchange(is_restored_, false);
  const auto held = held_intervals(sample, *snapshot, pods_.holders, pods_.shares, since);
  for (const auto& [device, charge] : usage_since_last_sample(sample, since, energy_)) {
    if (!pods_.are_holders_known) {
      usage_accounting_.add_unattributed(device, charge);
      continue;
    }
    // A GPU in MIG mode is used by its instances: its energy is unattributed.
    const auto found = attribution_.devices.find(device);
    auto shares = found == attribution_.devices.end() ? PodShares{} : found->second;
    if (is_gap) shares.is_busy_known = false;
    const auto interval = held.find(device);
    usage_accounting_.add_usage(device, charge, shares,
                                interval == held.end() ? HeldInterval{} : interval->second);
  }
  std::vector<DeviceUuid> there;
  for (const auto& gpu : snapshot->gpus) {
    there.push_back(gpu.uuid);
    for (const auto& mig : gpu.mig_devices) there.push_back(mig.uuid);
  }
  usage_accounting_.retain_devices(there);
  snapshot_ = std::move(snapshot);
  sample_ = std::move(sample);
  when_ = now;
}

UsageRecord Aggregator::usage_record() const {
  auto record = usage_accounting_.to_record();
  for (const auto& [device, energy] : energy_) {
    if (record.devices.contains(device)) record.energy[device] = energy;
  }
  return record;
}

void Aggregator::restore_usage(const UsageRecord& record, const std::string& boot_id) {
  usage_accounting_.restore_record(record);
  energy_ = record.boot_id == boot_id ? record.energy : EnergyCounters{};
  is_restored_ = true;
}

void Aggregator::clear() {
  snapshot_.reset();
  sample_ = {};
  attribution_ = {};
}

void Aggregator::add_metrics_to(Exposition& page) const {
  if (!snapshot_) return;
  add_dcgm_metrics(page, sample_, counters_, attribution_, options_);
  add_device_metrics(page, *snapshot_, pods_.holders, attribution_, usage_accounting_);
  add_link_metrics(page, *snapshot_, sample_);
  add_namespace_metrics(page, usage_accounting_);
}

}  // namespace gpulet::metrics

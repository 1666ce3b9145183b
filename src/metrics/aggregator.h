// Turns samples into metric pages: keeps counts of recent events (the last XID, counts within a window) and
// usage sums, and drops devices that are gone. Pure; time is an argument.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/loop.h"
#include "base/types.h"
#include "inventory/snapshot.h"
#include "metrics/attribution.h"
#include "metrics/counters.h"
#include "metrics/dcgm_page.h"
#include "metrics/exposition.h"
#include "metrics/fields.h"
#include "metrics/usage_accounting.h"

namespace gpulet::metrics {

// DCGM's names of the set bits of nvmlDeviceGetCurrentClocksEventReasons: "power_cap", …
// Source: dcgm-exporter, clock_events_collector.
std::vector<std::string> clock_event_names(std::uint64_t reasons);

class EventWindows {
 public:
  // Applies from now on. Events that a shorter window has dropped do not return.
  void set_window_sizes(WindowSizes sizes) { sizes_ = sizes; }

  // Records an XID of a GPU or a GPU instance; `text` is its meaning.
  void record_xid(const DeviceUuid& gpu, std::optional<unsigned> gpu_instance, std::uint64_t code,
                  std::string text, Time now);
  // Counts the sample's clock events and fills in all counts within the windows. Drops GPUs and instances
  // that are not in the sample.
  void fill_counts(Sample& sample, Time now);

 private:
  // Counts by second, so that a storm of events needs one entry per second.
  class WindowCount {
   public:
    void add_event(Time now);
    std::uint64_t count_since(Time begin);  // drops older entries

   private:
    std::deque<std::pair<Time, std::uint64_t>> seconds_;
  };
  struct EventHistory {
    LastXid last;
    std::map<std::uint64_t, WindowCount> xids;
  };
  struct Gpu {
    std::map<std::optional<unsigned>, EventHistory> parts;  // by GPU instance
    std::map<std::string, WindowCount> clocks;
  };
  void fill_counts(EventHistory* part, LastXid& last, EventCounts& counts, Time begin);

  WindowSizes sizes_;
  std::map<DeviceUuid, Gpu> gpus_;
};

class Aggregator {
 public:
  // Sets what pages show. Usage sums stay.
  void set_options(Counters counters, PageOptions options, WindowSizes windows = {});

  void record_xid(const DeviceUuid& gpu, std::optional<unsigned> gpu_instance, std::uint64_t code,
                  std::string text, Time now) {
    windows_.record_xid(gpu, gpu_instance, code, std::move(text), now);
  }

  // The holders of the devices at the time of a sample.
  struct PodContext {
    Holders holders;
    PodByPid processes;
    std::map<PodName, PodDetails> details;
    ShareCounts shares{};           // of the resources that this node serves
    bool are_holders_known = true;  // false: not listed yet, and `holders` is empty
  };
  // Adds a sample with its Pods and the snapshot that it was read with.
  void ingest_sample(inventory::SnapshotPtr snapshot, Sample sample, PodContext pods, Time now);

  // What is kept over restarts: the sums, and the energy counters of the last sample.
  UsageRecord usage_record() const;
  // Before the first sample: goes on with the sums. Energy counters go on where `boot_id` is the record's;
  // what GPUs used since then is nobody's.
  void restore_usage(const UsageRecord& record, const std::string& boot_id);

  // Shows nothing until the next sample. Usage sums stay.
  void clear();

  // Adds all metrics to the page; nothing before the first sample.
  void add_metrics_to(Exposition& page) const;

  const Sample& last_sample() const { return sample_; }
  const Attribution& attribution() const { return attribution_; }
  const PodByPid& pods_by_pid() const { return pods_.processes; }
  const UsageAccounting& usage_accounting() const { return usage_accounting_; }

 private:
  Counters counters_ = default_counters();
  PageOptions options_;
  EventWindows windows_;
  UsageAccounting usage_accounting_;
  EnergyCounters energy_;
  bool is_restored_ = false;  // without a sample since then
  inventory::SnapshotPtr snapshot_;
  Sample sample_;
  PodContext pods_;
  Attribution attribution_;
  Time when_{};
};

}  // namespace gpulet::metrics

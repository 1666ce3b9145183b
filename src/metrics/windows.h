// What happened to each GPU lately: the last XID, and counts within a window of time. What DCGM's gauges of
// events are made of. Pure.
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
#include "base/strong.h"
#include "metrics/sample.h"

namespace gpulet::metrics {

// DCGM's names of the bits of nvmlDeviceGetCurrentClocksEventReasons that are set: "power_cap", …
// Source: dcgm-exporter, clock_events_collector.
std::vector<std::string> clock_events(std::uint64_t reasons);

class Windows {
 public:
  // From now on. What a shorter window has let go of does not come back.
  void use(WindowSizes sizes) { sizes_ = sizes; }

  // An XID of a GPU, or of one GPU instance of it; `text` is what it means.
  void xid(const DeviceUuid& gpu, std::optional<unsigned> gpu_instance, std::uint64_t code, std::string text,
           Time now);
  // Counts what a new sample tells of clocks, then fills in what happened within the windows until now. GPUs
  // that are no longer in it are forgotten, instances too.
  void fill(Sample& sample, Time now);

 private:
  // Counts of one thing by the second, so that a storm costs no more than its seconds.
  class Count {
   public:
    void add(Time now);
    std::uint64_t since(Time begin);  // forgets what is older

   private:
    std::deque<std::pair<Time, std::uint64_t>> seconds_;
  };
  struct Part {
    LastXid last{0, "No Error"};
    std::map<std::uint64_t, Count> xids;
  };
  struct Gpu {
    std::map<std::optional<unsigned>, Part> parts;  // by GPU instance
    std::map<std::string, Count> clocks;
  };
  void fill(Part* part, LastXid& last, EventCounts& counts, Time begin);

  WindowSizes sizes_;
  std::map<DeviceUuid, Gpu> gpus_;
};

}  // namespace gpulet::metrics

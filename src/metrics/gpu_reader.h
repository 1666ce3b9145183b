// Reads samples of GPUs from the driver. In metrics/, only this and link_reader.h use it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>

#include "inventory/snapshot.h"
#include "metrics/fields.h"
#include "metrics/link_reader.h"
#include "nvml/gpm.h"
#include "nvml/session.h"
#include "nvml/usage.h"

namespace gpulet::metrics {

// Mean utilisation of each process since `since_us` on the driver's clock, in percent by pid; 0: now.
// `samples`: the later samples, by pid and time, from Usage::process_utilization. The driver has a sample for
// each of its periods in which the process was active; idle periods are inferred from the period's length.
std::map<unsigned, double> mean_utilization(std::span<const nvml::ProcessUtilization> samples,
                                            std::uint64_t since_us);

//

// Reads one GPU and its MIG devices repeatedly and keeps the state that rates need. One instance per GPU, so
// that a hanging GPU does not block the others.
class GpuReader {
 public:
  // Reads the `wanted` fields and what attribution needs: processes, memory, utilisation, energy. PCIe
  // throughput costs 40 ms of driver time and is read only if wanted.
  explicit GpuReader(std::set<Field> wanted) : wanted_(std::move(wanted)), links_(wanted_) {}

  // Samples the GPU with that index in `snapshot`; without XIDs and event counts. Blocks in the driver: call
  // it on the driver's thread. Rates start with the second sample of a Session. `now`: any steady clock.
  // Failed readings are left out; `error` is set if the GPU is lost, needs a reset, is another card than the
  // snapshot's, or answers nothing.
  GpuSample sample_gpu(const nvml::Session& session, const inventory::Snapshot& snapshot, std::size_t index,
                       std::chrono::nanoseconds now);

 private:
  struct Round;
  void read_texts(Round& round);
  void read_numbers(Round& round);
  void read_power(Round& round);
  void read_limits(Round& round);
  void read_bus(Round& round);
  void read_fields(Round& round);
  void read_nvlinks(Round& round);
  void read_peers(Round& round);
  void read_memory(Round& round, nvml::Device device, Values& values);
  void read_gpm(Round& round, std::optional<unsigned> gpu_instance, Values& values);
  void read_processes(Round& round);
  void read_instances(Round& round);

  bool is_wanted(Field field) const { return wanted_.contains(field); }
  template <class... Fields>
  bool is_any_wanted(Fields... fields) const {
    return (... || wanted_.contains(fields));
  }

  struct Taken {
    nvml::GpmSample sample;
    std::chrono::nanoseconds when{};
  };
  struct Traffic {
    std::uint64_t kib = 0;
    std::chrono::nanoseconds when{};
  };

  std::set<Field> wanted_;
  // For the current Session and card.
  std::uint64_t generation_ = 0;
  DeviceUuid uuid_;
  std::optional<bool> has_gpm_;
  std::map<std::optional<unsigned>, Taken> gpm_;  // by GPU instance
  std::optional<Traffic> nvlink_;
  LinkReader links_;
  std::uint64_t utilization_seen_us_ = 0;
  Values texts_;  // constant
};

}  // namespace gpulet::metrics

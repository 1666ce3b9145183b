// Asks the driver what a sample is made of. The one file of this room that sees the driver.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "inventory/snapshot.h"
#include "metrics/sample.h"
#include "nvml/gpm.h"
#include "nvml/session.h"

namespace gpulet::metrics {

// Reads one GPU and its MIG devices, again and again: it keeps what rates are computed from. One for each
// GPU, so that one that hangs is the only one that is not read.
class GpuReader {
 public:
  // `wanted`: nothing else is asked for, but always what attribution needs: processes, memory, utilisation,
  // energy. PCIe throughput takes the driver 40 ms and is only asked for by name.
  explicit GpuReader(std::set<Field> wanted) : wanted_(std::move(wanted)) {}

  // The GPU of that index in `snapshot`, with what the snapshot knows of it; XIDs and event counts are not
  // the driver's to tell here. Blocks in the driver: call it on the driver's thread. Rates begin with the
  // second read, and with the first of another Session. `now`: any clock that runs evenly. A reading that
  // fails is left out; when the GPU is lost, needs a reset, is another card than the snapshot's, or nothing
  // at all was answered, `failed` says so.
  GpuSample read(const nvml::Session& session, const inventory::Snapshot& snapshot, std::size_t index,
                 std::chrono::nanoseconds now);

 private:
  struct Round;
  void read_texts(Round& round);
  void read_numbers(Round& round);
  void read_power(Round& round);
  void read_limits(Round& round);
  void read_bus(Round& round);
  void read_fields(Round& round);
  void read_peers(Round& round);
  void read_memory(Round& round, nvml::Device device, Values& values);
  void read_gpm(Round& round, std::optional<unsigned> gpu_instance, Values& values);
  void read_processes(Round& round);
  void read_instances(Round& round);

  bool wants(Field field) const { return wanted_.contains(field); }
  template <class... Fields>
  bool wants_any(Fields... fields) const {
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
  // Of this Session and this card.
  std::uint64_t generation_ = 0;
  DeviceUuid uuid_;
  std::optional<bool> has_gpm_;
  std::map<std::optional<unsigned>, Taken> gpm_;  // by GPU instance
  std::optional<Traffic> nvlink_;
  std::uint64_t utilization_seen_us_ = 0;
  Values texts_;  // which do not change
};

}  // namespace gpulet::metrics

// What runs on the driver's thread beside the Driver port: samples of GPUs (metrics) and MIG changes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "agent/driver/nvml_driver.h"
#include "agent/fraction/memory_auditor.h"
#include "agent/mig/mig_manager.h"
#include "agent/observe/metrics_collector.h"
#include "base/loop.h"
#include "metrics/gpu_reader.h"

namespace gpulet::agent {

class NvmlSampler final : public Sampler {
 public:
  // `driver` outlives it. `limit`: for one GPU. `proc`: where the cgroups of processes are.
  NvmlSampler(NvmlDriver& driver, Duration limit, std::string proc = "/proc")
      : driver_(driver), limit_(limit), proc_(std::move(proc)) {}

  void set_fields(std::set<metrics::Field> fields) override;
  void sample_gpu(inventory::SnapshotPtr snapshot, std::size_t index, Time now, Done done) override;

 private:
  NvmlDriver& driver_;
  Duration limit_;
  std::string proc_;
  std::set<metrics::Field> fields_;
  // Each is used by one call at a time. One whose call timed out may still be in use, and is dropped.
  std::map<DeviceUuid, std::shared_ptr<metrics::GpuReader>> readers_;
  Lifetime lifetime_;
};

// The memory of GPUs by process, for MemoryAuditorPorts::read_memory: one driver call for a GPU whose use is
// the known one, else two. Does not block; `done` is called once on the loop, not after the driver's
// destruction. Errors: those of NvmlDriver::run_on_gpus() and nvml::Usage.
void read_gpu_memory(NvmlDriver& driver, std::vector<GpuMemoryQuestion> questions,
                     std::function<void(Result<GpuMemoryReadings>)> done);

// MemoryAuditorPorts::watch_memory: one driver call for each GPU every kAuditInterval.
Subscription watch_gpu_memory(NvmlDriver& driver, std::vector<GpuMemoryQuestion> known, unsigned intervals,
                              std::function<void(Result<unsigned>)> ended);

// MIG of the node's GPUs over the driver's thread, for the MigManager. A change of the MIG mode is made while
// the agent has no other session, as the driver activates it only on a GPU that no other client holds.

// Creating or destroying an instance takes seconds on some boards, and a plan has up to twenty such steps.
// After this limit the GPU counts as hanging.
inline constexpr Duration kMigLimit = std::chrono::minutes(5);

class NvmlMigHardware final : public MigHardware {
 public:
  // `driver` is called for each operation; null while there is none.
  NvmlMigHardware(Loop& loop, std::function<NvmlDriver*()> driver)
      : loop_(loop), driver_(std::move(driver)) {}

  void read_mig_state(const DeviceUuid& gpu, std::function<void(Result<mig::State>)> done) override;
  void apply_mig_plan(const DeviceUuid& gpu, const mig::Plan& plan,
                      std::function<void(Result<MigApplied>)> done) override;

 private:
  // Null: `done` gets an error.
  template <class Done>
  NvmlDriver* find_driver(const Done& done);
  Loop& loop_;
  std::function<NvmlDriver*()> driver_;
};

}  // namespace gpulet::agent

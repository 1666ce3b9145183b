// Samples one GPU at a time through NVML, on the driver's thread.
#pragma once

#include <map>
#include <memory>

#include "agent/metrics_care.h"
#include "agent/nvml_driver.h"
#include "metrics/read.h"

namespace gpulet::agent {

class NvmlSampler final : public Sampler {
 public:
  // `driver` outlives it. `limit`: how long one GPU may take. `proc`: where processes' cgroups are.
  NvmlSampler(NvmlDriver& driver, Duration limit, std::string proc = "/proc")
      : driver_(driver), limit_(limit), proc_(std::move(proc)) {}

  void want(std::set<metrics::Field> fields) override;
  void sample(inventory::SnapshotPtr snapshot, std::size_t index, Time now, Done done) override;

 private:
  NvmlDriver& driver_;
  Duration limit_;
  std::string proc_;
  std::set<metrics::Field> wanted_;
  // Each is in the hands of one call at a time. One whose call did not come back in time may still be in it,
  // and is left to it.
  std::map<DeviceUuid, std::shared_ptr<metrics::GpuReader>> readers_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace gpulet::agent

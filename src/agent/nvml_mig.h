// MIG of the node's GPUs over the driver's thread, for the MigManager.
#pragma once

#include <functional>

#include "agent/mig_manager.h"
#include "agent/nvml_driver.h"

namespace gpulet::agent {

// Making and destroying instances takes the driver seconds on some boards, and a plan has up to twenty such
// steps. Past it the GPU counts as hanging.
inline constexpr Duration kMigLimit = std::chrono::minutes(5);

class NvmlMig final : public MigHardware {
 public:
  // `driver` is asked anew for each call; null while there is none.
  NvmlMig(Loop& loop, std::function<NvmlDriver*()> driver) : loop_(loop), driver_(std::move(driver)) {}

  void read(const DeviceUuid& gpu, std::function<void(Result<mig::State>)> done) override;
  void apply(const DeviceUuid& gpu, const mig::Plan& plan,
             std::function<void(Result<MigApplied>)> done) override;

 private:
  template <class T>
  void about(const DeviceUuid& gpu, const std::string& what, Duration limit,
             std::function<Result<T>(const NvmlDriver::SessionPtr&, unsigned)> work,
             std::function<void(Result<T>)> done);
  Loop& loop_;
  std::function<NvmlDriver*()> driver_;
};

}  // namespace gpulet::agent

// Schedules the driver's health polls: the liveness of each GPU every liveness_interval; all readings every
// poll_interval; all readings of a withdrawn GPU every unhealthy_poll_interval and at its next recovery time.
// One timer serves all GPUs, so that an idle node wakes no more often than the shortest interval. A GPU with
// a call outstanding is skipped and delays no other. Loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "agent/node/ports.h"
#include "base/loop.h"
#include "health/policy/health_policy.h"
#include "inventory/snapshot.h"

namespace gpulet::agent {

class HealthPoller {
 public:
  // `on_evidence` gets the evidence of one GPU's poll, with its MIG devices.
  HealthPoller(Loop& loop, Driver& driver, std::function<void(const Driver::Evidence&)> on_evidence);
  ~HealthPoller();
  HealthPoller(const HealthPoller&) = delete;

  // Sets the GPUs to poll; new ones, and those that were unreadable, are polled at once.
  void set_gpus(const inventory::Snapshot& snapshot);
  // Stops new polls; results of outstanding calls are still used.
  void pause_polling();
  // Polls it as soon as it has no call outstanding.
  void poll_soon(const DeviceUuid& gpu);
  // After each round, with the machine's withdrawn_gpus() and next_recovery_time(). `liveness_only`: no poll
  // but liveness.
  void schedule_polls(const health::Policy& policy, bool liveness_only,
                      const std::vector<DeviceUuid>& withdrawn_gpus, std::optional<Time> due);

 private:
  struct PolledGpu {
    std::vector<health::Scope> scopes;  // the GPU, then its MIG devices
    bool withdrawn = false;
    bool poll_soon = false;
    std::size_t pending_calls = 0;  // calls outstanding
    Time last_polled{};             // all readings
    Driver::Evidence gathered;
  };

  void poll_due_gpus();
  void arm_timer();
  void check_liveness(const DeviceUuid& gpu, PolledGpu& asked);
  void poll_gpu(PolledGpu& asked);
  Time next_unhealthy_poll(const PolledGpu& asked) const;
  std::function<void(Driver::Evidence)> result_handler(const DeviceUuid& gpu);
  void on_result(const DeviceUuid& gpu, const Driver::Evidence& evidence);

  Loop& loop_;
  Driver& driver_;
  std::function<void(const Driver::Evidence&)> on_evidence_;
  health::Policy policy_;
  std::map<DeviceUuid, PolledGpu> gpus_;
  bool paused_ = true, liveness_only_ = false;
  Time next_liveness_check_{}, next_poll_{};
  std::optional<Time> due_;
  std::optional<Time> armed_;  // the timer's time
  Subscription timer_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent

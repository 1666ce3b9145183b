// When the driver is asked about which GPU: each whether it answers, every alive_interval; each everything,
// every poll_interval; one that is withdrawn everything, every suspect_interval, and at the moment at which
// it could be offered again. One timer for all GPUs, so that an idle node wakes no oftener than the shortest
// of these; a GPU whose answer is still out is passed over, and holds no other up. Loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "agent/ports.h"
#include "base/loop.h"
#include "health/policy.h"
#include "inventory/snapshot.h"

namespace gpulet::agent {

class HealthPolls {
 public:
  // `answered` gets what one GPU's question or round of polls brought, MIG devices and all.
  HealthPolls(Loop& loop, Driver& driver, std::function<void(const Driver::Evidence&)> answered);
  ~HealthPolls();
  HealthPolls(const HealthPolls&) = delete;

  // These GPUs there are, in this driver: each that is new or was unreadable is polled at once.
  void follow(const inventory::Snapshot& snapshot);
  // No driver is there to be asked. Answers that are out are still taken.
  void pause();
  // Polls it as soon as no answer is out: something says that it is not what it was.
  void poll_soon(const DeviceUuid& gpu);
  // After each round. `suspects` as Machine::suspects, `due` as Machine::next_due. `ask_only`: nothing is
  // asked but whether each answers.
  void plan(const health::Policy& policy, bool ask_only, const std::vector<DeviceUuid>& suspects,
            std::optional<Time> due);

 private:
  struct Asked {
    std::vector<health::Scope> scopes;  // itself, then its MIG devices
    bool suspect = false;
    bool soon = false;    // poll_soon
    std::size_t out = 0;  // answers to come
    Time polled{};        // when it was last asked everything
    Driver::Evidence gathered;
  };

  void tick();
  void arm();
  void ask(const DeviceUuid& gpu, Asked& asked);
  void poll(Asked& asked);
  Time suspect_time(const Asked& asked) const;
  std::function<void(Driver::Evidence)> answer_of(const DeviceUuid& gpu);
  void take(const DeviceUuid& gpu, const Driver::Evidence& evidence);

  Loop& loop_;
  Driver& driver_;
  std::function<void(const Driver::Evidence&)> answered_;
  health::Policy policy_;
  std::map<DeviceUuid, Asked> gpus_;
  bool paused_ = true, ask_only_ = false;
  Time next_alive_{}, next_poll_{};
  std::optional<Time> due_;
  std::optional<Time> armed_;  // what the timer is set to
  Subscription timer_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace gpulet::agent

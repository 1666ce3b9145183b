// What each Pod has used of a device since the agent began: energy and busy time, added up from sample to
// sample. What all Pods, those that have gone and nobody have is always what the device has, to the
// millijoule and nanosecond. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>

#include "base/strong.h"
#include "metrics/attribution.h"

namespace gpulet::metrics {

struct Charge {
  std::uint64_t millijoules = 0;
  std::chrono::nanoseconds busy{};
  friend bool operator==(const Charge&, const Charge&) = default;
};

class Accounts {
 public:
  struct Account {
    std::map<PodName, Charge> pods;  // that hold it
    Charge former;                   // of Pods that held it once
    Charge nobody;
    Charge device;  // the sum
  };

  // What a device used since the sample before (`device`), shared as `shares` of it says. Energy follows busy
  // time: a Pod alone on a device is charged with its idle time too, of several nobody is. Where the time of
  // each is not known, nobody is charged.
  void add(const DeviceUuid& uuid, const Charge& device, const Shares& shares);
  // Forgets devices that are no longer there.
  void keep_only(const std::vector<DeviceUuid>& devices);

  const std::map<DeviceUuid, Account>& all() const { return accounts_; }

 private:
  std::map<DeviceUuid, Account> accounts_;
};

}  // namespace gpulet::metrics

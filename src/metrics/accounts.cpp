#include "metrics/accounts.h"

#include <algorithm>

namespace gpulet::metrics {
namespace {

void move(Charge& from, Charge& to, const Charge& what) {
  from.millijoules -= what.millijoules;
  from.busy -= what.busy;
  to.millijoules += what.millijoules;
  to.busy += what.busy;
}

// That part of it, of what is left at most.
Charge part_of(const Charge& whole, double fraction, const Charge& left) {
  const auto part = [&](std::uint64_t all, std::uint64_t most) {
    return std::min(most,
                    static_cast<std::uint64_t>(static_cast<double>(all) * std::clamp(fraction, 0.0, 1.0)));
  };
  return {part(whole.millijoules, left.millijoules),
          std::chrono::nanoseconds(part(static_cast<std::uint64_t>(whole.busy.count()),
                                        static_cast<std::uint64_t>(left.busy.count())))};
}

}  // namespace

void Accounts::add(const DeviceUuid& uuid, const Charge& device, const Shares& shares) {
  auto& account = accounts_[uuid];
  account.device.millijoules += device.millijoules;
  account.device.busy += device.busy;
  double whole = shares.rest_busy;
  for (const auto& pod : shares.pods) whole += pod.busy;
  Charge left = device;
  std::map<PodName, Charge> pods;
  for (const auto& pod : shares.pods) {
    auto& charge = pods[pod.holder.pod];
    if (const auto before = account.pods.find(pod.holder.pod); before != account.pods.end()) {
      charge = before->second;
      account.pods.erase(before);
    }
    const double idle = shares.pods.size() == 1 ? 1 : 0;
    const double fraction = !shares.busy_known ? 0 : whole > 0 ? pod.busy / whole : idle;
    move(left, charge, part_of(device, fraction, left));
  }
  for (auto& [pod, charge] : account.pods) move(charge, account.former, Charge(charge));
  account.pods = std::move(pods);
  move(left, account.nobody, Charge(left));
}

void Accounts::keep_only(const std::vector<DeviceUuid>& devices) {
  std::erase_if(accounts_, [&](const auto& one) {
    return std::find(devices.begin(), devices.end(), one.first) == devices.end();
  });
}

}  // namespace gpulet::metrics

#include "metrics/meter.h"

#include "metrics/own_page.h"

namespace gpulet::metrics {

void Meter::use(Counters counters, PageOptions options, WindowSizes windows) {
  windows_.use(windows);
  counters_ = std::move(counters);
  options_ = std::move(options);
}

void Meter::take(inventory::SnapshotPtr snapshot, Sample sample, Pods pods, Time now) {
  windows_.fill(sample, now);
  pods_ = std::move(pods);
  uses_ = {shares_of(sample, pods_.holders, pods_.processes), pods_.facts};
  const auto since = snapshot_ ? now - when_ : Duration{};
  for (const auto& [device, charge] : charges_of(sample, since, energy_)) {
    // A GPU in MIG mode is used by its parts: its energy is nobody's.
    const auto shares = uses_.devices.find(device);
    accounts_.add(device, charge, shares == uses_.devices.end() ? Shares{} : shares->second);
  }
  std::vector<DeviceUuid> there;
  for (const auto& gpu : snapshot->gpus) {
    there.push_back(gpu.uuid);
    for (const auto& mig : gpu.mig_devices) there.push_back(mig.uuid);
  }
  accounts_.keep_only(there);
  snapshot_ = std::move(snapshot);
  sample_ = std::move(sample);
  when_ = now;
}

void Meter::clear() {
  snapshot_.reset();
  sample_ = {};
  uses_ = {};
}

void Meter::add_to(Exposition& page) const {
  if (!snapshot_) return;
  add_dcgm(page, sample_, counters_, uses_, options_);
  add_devices(page, *snapshot_, pods_.holders, uses_, accounts_);
}

}  // namespace gpulet::metrics

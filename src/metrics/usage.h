// From samples to who used what: the shares of every device in a sample, and what each device used between
// two. Pure.
#pragma once

#include <chrono>
#include <map>

#include "metrics/accounts.h"
#include "metrics/attribution.h"
#include "metrics/sample.h"

namespace gpulet::metrics {

// Of each GPU, or in MIG mode each MIG device, that answered, held or not. A MIG device that shares its GPU
// instance with others has as much of the instance's memory as its processes hold.
std::map<DeviceUuid, Shares> shares_of(const Sample& sample, const Holders& holders,
                                       const PodOfProcess& pods);

// What the energy counter of each GPU said last.
using EnergyCounters = std::map<DeviceUuid, std::uint64_t>;

// What each of those used since the sample before `sample`, which was so long ago: busy time as `sample` has
// it, energy since its counter was last seen, which `counters` keeps. Energy is the GPU's: its MIG devices
// have none, and the busy time of a GPU in MIG mode is theirs.
std::map<DeviceUuid, Charge> charges_of(const Sample& sample, std::chrono::nanoseconds since,
                                        EnergyCounters& counters);

}  // namespace gpulet::metrics

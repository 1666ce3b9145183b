// The document /api/now, the numbers of one sample as JSON of one line:
//   at, gpus {uuid: {util, sm, memory_util (percent), memory (bytes used), temperature, memory_temperature
//   (°C), power, power_limit (W), sm_clock, memory_clock (MHz), pcie_rx, pcie_tx, nvlink_rx, nvlink_tx
//   (bytes per second), nvlink (both directions over all links; also of GPUs that do not tell them apart),
//   ecc_corrected, ecc_uncorrected (errors since the driver's start)}}, mig {uuid: {util, sm, memory}}
// `at` is in milliseconds since 1970. Unknown values are absent.
#pragma once

#include <set>
#include <string>

#include "base/loop.h"
#include "metrics/fields.h"

namespace gpulet::agent {

// The fields of a sample that now_json needs. It also has PCIe throughput of GPUs without GPM, where the
// metrics page serves it.
std::set<metrics::Field> now_json_fields();

// Without GPUs that failed. A MIG device has the values of its GPU instance.
std::string now_json(const metrics::Sample& sample, WallTime at);

}  // namespace gpulet::agent

// Which fields are served, under which names: dcgm-exporter's counters file, as a file or as the key
// `metrics` of a ConfigMap.
//
//   # comment
//   DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).
//
// Three columns, blanks around them ignored, quoted as in CSV where a text has a comma. The type is gauge,
// counter or label; a label is on every metric of the device. Source: dcgm-exporter, internal/pkg/counters.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "metrics/fields.h"

namespace gpulet::metrics {

// More are no list of counters.
inline constexpr std::size_t kMostCountersBytes = 1 << 20;

struct Counter {
  Field field{};
  Type type = Type::kGauge;
  std::string name;  // as the file has it: the metric's, or the label's
  std::string help;
  friend bool operator==(const Counter&, const Counter&) = default;
};

struct Counters {
  std::vector<Counter> all;           // by field, then name; each name once
  std::vector<std::string> left_out;  // rows that are right and yet not served, one line each
};

// What dcgm-exporter serves by default and NVML has.
Counters default_counters();

// `about`: the file, or "configmap NAMESPACE/NAME", for the error.
// Errors: kInvalidArgument: which row is bad, what it is and what would do; also when there is none at all.
Result<Counters> parse_counters(std::string_view text, const std::string& about);

}  // namespace gpulet::metrics

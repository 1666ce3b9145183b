// What DCGM's page serves: the devices (dcgm-exporter's --devices) and the fields (its counters file). Pure.
//
//   f             GPUs, and of a GPU in MIG mode its GPU instances
//   g, g:0,2-4    GPUs, in MIG mode too: all, or those of these indices
//   i, i:1,3-5    GPU instances: all, or those of these numbers (GPU_I_ID) on each GPU
// Source: dcgm-exporter, pkg/cmd/app.go, which counts instances over the whole node.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "metrics/fields.h"

namespace gpulet::metrics {

class DeviceFilter {
 public:
  DeviceFilter() = default;  // f
  // Errors: kInvalidArgument about `about`, with the expected form.
  static Result<DeviceFilter> parse_filter(std::string_view text, const std::string& about);

  bool includes_gpu(unsigned index, bool mig) const;
  bool includes_instance(unsigned id) const;  // of a GPU in MIG mode
  friend bool operator==(const DeviceFilter&, const DeviceFilter&) = default;

 private:
  enum class Scope { kFlexible, kGpus, kInstances };
  bool in_ranges(unsigned number) const;

  Scope scope_ = Scope::kFlexible;
  std::vector<std::pair<unsigned, unsigned>> ranges_;  // first and last; none: all
};

// dcgm-exporter's counters file, as a file or as the key `metrics` of a ConfigMap:
//
//   # comment
//   DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).
//
// Three columns; blanks around them are ignored; quoted as in CSV if a text has a comma. The type is gauge,
// counter or label; a label appears on every metric of the device. Source: dcgm-exporter,
// internal/pkg/counters.

// Limit of a counters file.
inline constexpr std::size_t kMaxCountersBytes = 1 << 20;

struct Counter {
  Field field{};
  Type type = Type::kGauge;
  std::string name;  // the metric's or the label's name in the file
  std::string help;
  std::optional<unsigned> link{};  // the NVLink of one of link_fields()
  friend bool operator==(const Counter&, const Counter&) = default;
};

struct Counters {
  std::vector<Counter> all;           // by field, then name; names are unique
  std::vector<std::string> unserved;  // valid rows that cannot be served, one line each
};

// dcgm-exporter's default counters that NVML has.
Counters default_counters();
// What dcgm-exporter's image has in the counters file of this name, for images without these files: below
// /etc/dcgm-exporter, dcp-metrics-included.csv is default_counters(), and default-counters.csv is the same
// without DCGM_FI_PROF_* fields. nullopt for any other path. Source: dcgm-exporter, etc/.
std::optional<Counters> builtin_counters(std::string_view path);

// `about`: the file, or "configmap NAMESPACE/NAME". Errors: kInvalidArgument with the bad row and the
// expected form, or if there are no rows.
Result<Counters> parse_counters(std::string_view text, const std::string& about);

}  // namespace gpulet::metrics

// dcgm-exporter's options and what becomes of them. Its flags have variables too; the agent accepts those
// that mean the same under the same name (docs/metrics.md).
#pragma once

#include <span>
#include <string_view>

namespace gpulet::config {

struct ExporterOption {
  std::string_view flag, letter, variable;
  bool is_switch = false;      // a boolean without value
  std::string_view note = {};  // for options that the agent does not accept: why, or what to do
  bool lost = false;           // whether that is a loss
};

// Source: dcgm-exporter 4.5 to 4.8, pkg/cmd/app.go.
std::span<const ExporterOption> exporter_options();
// By flag or letter; null if unknown.
const ExporterOption* find_exporter_flag(std::string_view name);
const ExporterOption* find_exporter_variable(std::string_view name);

}  // namespace gpulet::config

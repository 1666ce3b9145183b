// dcgm-exporter's options, and what becomes of each: its flags have variables too, and those that mean the
// same here are taken by the agent under the very same name (docs/metrics.md).
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace gpulet::migrate {

struct ExporterOption {
  std::string_view flag, letter, variable;
  bool is_switch = false;      // takes no value
  std::string_view note = {};  // for what the agent does not take: why, or what to do
  bool lost = false;           // and whether that is a loss
};

// Source: dcgm-exporter 4.5, pkg/cmd/app.go.
std::span<const ExporterOption> exporter_options();
// By flag or letter; null for none.
const ExporterOption* exporter_flag(std::string_view name);
const ExporterOption* exporter_variable(std::string_view name);

}  // namespace gpulet::migrate

#include "config/labels_settings.h"

#include <array>

#include "base/text.h"
#include "config/assign.h"
#include "config/values.h"

namespace gpulet::config {
namespace {

constexpr std::string_view kNone = "none";
// The first is for none of them; then in the order of LabelOutput.
constexpr std::array<std::string_view, 4> kOutputs = {kNone, "node", "file", "node-feature"};
constexpr std::string_view kInfinite = "infinite";

void assign_outputs(Config& config, const Value& value) {
  config.gpulet.labels.outputs.clear();
  for (const auto& item : texts(value)) {
    if (item == kNone) continue;
    config.gpulet.labels.outputs.push_back(choice<LabelOutput>(item, std::span(kOutputs).subspan(1)));
  }
}

void assign_interval(Config& config, const Value& value) {
  config.gfd.sleep_interval.reset();
  if (text(value) != kInfinite) config.gfd.sleep_interval = parse_duration(text(value));
}

}  // namespace

std::vector<Setting> labels_settings() {
  return {
      {.flag = "labels",
       .environment = {"GPULET_LABELS"},
       .path = "gpulet.labels.outputs",
       .kind = Kind::kChoices,
       .choices = kOutputs,
       .help = "where the node's labels go: node, file, node-feature or none; node, or none as a drop-in",
       .assign = assign_outputs},
      {.flag = "labels-own",
       .environment = {"GPULET_LABELS_OWN"},
       .path = "gpulet.labels.own",
       .kind = Kind::kBool,
       .default_text = "true",
       .help = "gpulet.io/… beside nvidia.com/…",
       .assign = [](Config& c, const Value& v) { c.gpulet.labels.own = flag(v); }},
  };
}

std::vector<Setting> feature_discovery_settings() {
  return {
      {.flag = "oneshot",
       .environment = {"GFD_ONESHOT"},
       .path = "flags.gfd.oneshot",
       .kind = Kind::kBool,
       .help = "label once, and end; for gpu-feature-discovery",
       .discovery_only = true,
       .assign = [](Config& c, const Value& v) { c.gfd.oneshot = flag(v); }},
      {.flag = "no-timestamp",
       .environment = {"GFD_NO_TIMESTAMP"},
       .path = "flags.gfd.noTimestamp",
       .kind = Kind::kBool,
       .help = "no label nvidia.com/gfd.timestamp",
       .discovery_only = true,
       .assign = [](Config& c, const Value& v) { c.gfd.no_timestamp = flag(v); }},
      {.flag = "sleep-interval",
       .environment = {"GFD_SLEEP_INTERVAL"},
       .path = "flags.gfd.sleepInterval",
       .kind = Kind::kInterval,
       .help = "how often gpu-feature-discovery looks without a reason; 60s, or infinite",
       .discovery_only = true,
       .assign = assign_interval},
      {.flag = "output-file",
       .flag_aliases = {"output", "o"},
       .environment = {"GFD_OUTPUT_FILE"},
       .path = "flags.gfd.outputFile",
       .help = "the file of labels, /etc/kubernetes/node-feature-discovery/features.d/gfd; empty: standard "
               "output",
       .discovery_only = true,
       .assign = [](Config& c, const Value& v) { c.gfd.output_file = text(v); }},
      {.flag = "machine-type-file",
       .environment = {"GFD_MACHINE_TYPE_FILE"},
       .path = "flags.gfd.machineTypeFile",
       .help = "the machine's name, /sys/class/dmi/id/product_name; empty: unknown",
       .discovery_only = true,
       .assign = [](Config& c, const Value& v) { c.gfd.machine_type_file = text(v); }},
  };
}

}  // namespace gpulet::config

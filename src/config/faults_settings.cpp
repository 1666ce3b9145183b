#include "config/faults_settings.h"

#include <array>
#include <string>

#include "base/text.h"
#include "config/assign.h"
#include "config/values.h"
#include "health/rules.h"

namespace gpulet::config {
namespace {

using health::Grace;
using health::MovingPolicy;
using health::Severity;

constexpr std::array<std::string_view, 4> kTaints = {"none", "PreferNoSchedule", "NoSchedule", "NoExecute"};
constexpr std::uint64_t kDay = 86'400'000;  // milliseconds

Grace grace(const Value& value) { return health::parse_grace(text(value)).value_or(Grace{}); }
unsigned count(const Value& value) {
  return static_cast<unsigned>(text::parse_unsigned(text(value)).value_or(0));
}

Setting taint(std::string_view flag, std::string_view variable, std::string_view path, Severity severity) {
  return {.flag = flag,
          .environment = {variable},
          .path = path,
          .kind = Kind::kChoice,
          .choices = kTaints,
          .default_text = "none",
          .help = "effect of the node's taint gpulet.io/gpu-fault while its worst GPU is so",
          .assign = [severity](Config& c, const Value& v) {
            c.gpulet.faults.taints.erase(severity);
            if (text(v) != kTaints[0]) c.gpulet.faults.taints[severity] = text(v);
          }};
}

std::vector<Setting> telling_settings() {
  return {
      {.flag = "faults-condition",
       .environment = {"GPULET_FAULTS_CONDITION"},
       .path = "gpulet.faults.condition",
       .kind = Kind::kBool,
       .default_text = "true",
       .help = "tell the node's condition GpuHealthy",
       .assign = [](Config& c, const Value& v) { c.gpulet.faults.condition = flag(v); }},
      {.flag = "faults-label",
       .environment = {"GPULET_FAULTS_LABEL"},
       .path = "gpulet.faults.label",
       .kind = Kind::kBool,
       .default_text = "true",
       .help = "set the node's label gpulet.io/gpu-health",
       .assign = [](Config& c, const Value& v) { c.gpulet.faults.label = flag(v); }},
      {.flag = "faults-pod-events",
       .environment = {"GPULET_FAULTS_POD_EVENTS"},
       .path = "gpulet.faults.podEvents",
       .kind = Kind::kBool,
       .default_text = "true",
       .help = "events of the Pods that hold a GPU with a fault",
       .assign = [](Config& c, const Value& v) { c.gpulet.faults.pod_events = flag(v); }},
      {.flag = "faults-pod-notes",
       .environment = {"GPULET_FAULTS_POD_NOTES"},
       .path = "gpulet.faults.podNotes",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "the annotation gpulet.io/gpu-fault on these Pods; needs the right to patch Pods",
       .assign = [](Config& c, const Value& v) { c.gpulet.faults.pod_notes = flag(v); }},
      taint("faults-taint-degraded", "GPULET_FAULTS_TAINT_DEGRADED", "gpulet.faults.taints.degraded",
            Severity::kDegraded),
      taint("faults-taint-withdrawn", "GPULET_FAULTS_TAINT_WITHDRAWN", "gpulet.faults.taints.withdrawn",
            Severity::kWithdrawn),
      taint("faults-taint-lost", "GPULET_FAULTS_TAINT_LOST", "gpulet.faults.taints.lost", Severity::kLost),
  };
}

Setting grace_of(std::string_view flag, std::string_view variable, std::string_view path,
                 std::string_view standard, std::string_view help, Grace MovingPolicy::* field) {
  return {.flag = flag,
          .environment = {variable},
          .path = path,
          .kind = Kind::kGrace,
          .default_text = standard,
          .help = help,
          .assign = [field](Config& c, const Value& v) { c.gpulet.faults.moving.*field = grace(v); }};
}

std::vector<Setting> whether_settings() {
  return {
      {.flag = "faults-moving",
       .environment = {"GPULET_FAULTS_MOVING"},
       .path = "gpulet.faults.moving.enabled",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "evict Pods from GPUs that a fault has withdrawn",
       .assign = [](Config& c, const Value& v) { c.gpulet.faults.moving.enabled = flag(v); }},
      {.flag = "faults-moving-dry-run",
       .environment = {"GPULET_FAULTS_MOVING_DRY_RUN"},
       .path = "gpulet.faults.moving.dryRun",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "only say who would be evicted",
       .assign = [](Config& c, const Value& v) { c.gpulet.faults.moving.dry_run = flag(v); }},
      grace_of("faults-moving-drained", "GPULET_FAULTS_MOVING_DRAINED", "gpulet.faults.moving.drained",
               "finish", "how long a Pod may stay on a GPU that is draining: stay, finish, finish=30m, evict",
               &MovingPolicy::drained),
      grace_of("faults-moving-quarantined", "GPULET_FAULTS_MOVING_QUARANTINED",
               "gpulet.faults.moving.quarantined", "finish=5m", "the same for one that is quarantined",
               &MovingPolicy::quarantined),
      grace_of("faults-moving-lost", "GPULET_FAULTS_MOVING_LOST", "gpulet.faults.moving.lost", "evict",
               "the same for one that is lost", &MovingPolicy::lost),
      {.flag = "faults-moving-bare-pods",
       .environment = {"GPULET_FAULTS_MOVING_BARE_PODS"},
       .path = "gpulet.faults.moving.barePods",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "evict also Pods without an owner, which nobody starts again",
       .assign = [](Config& c, const Value& v) { c.gpulet.faults.moving.bare_pods = flag(v); }},
  };
}

std::vector<Setting> limit_settings() {
  return {
      {.flag = "faults-moving-rate",
       .environment = {"GPULET_FAULTS_MOVING_RATE"},
       .path = "gpulet.faults.moving.rate",
       .kind = Kind::kUnsigned,
       .default_text = "16",
       .help = "no more Pods leave the node within the rate window; 0: none",
       .bounds = Setting::Bounds{0, 1000},
       .assign = [](Config& c, const Value& v) { c.gpulet.faults.moving.rate = count(v); }},
      {.flag = "faults-moving-rate-window",
       .environment = {"GPULET_FAULTS_MOVING_RATE_WINDOW"},
       .path = "gpulet.faults.moving.rateWindow",
       .kind = Kind::kDuration,
       .default_text = "5m",
       .help = "the window of the rate",
       .bounds = Setting::Bounds{1000, kDay},
       .assign = [](Config& c, const Value& v) { c.gpulet.faults.moving.rate_window = duration(v); }},
      {.flag = "faults-moving-breaker-percent",
       .environment = {"GPULET_FAULTS_MOVING_BREAKER_PERCENT"},
       .path = "gpulet.faults.moving.breakerPercent",
       .kind = Kind::kUnsigned,
       .default_text = "50",
       .help = "faults on more of the node's GPUs move nobody; one GPU is never too many",
       .bounds = Setting::Bounds{0, 100},
       .assign = [](Config& c, const Value& v) { c.gpulet.faults.moving.breaker_percent = count(v); }},
      {.flag = "faults-moving-breaker-window",
       .environment = {"GPULET_FAULTS_MOVING_BREAKER_WINDOW"},
       .path = "gpulet.faults.moving.breakerWindow",
       .kind = Kind::kDuration,
       .default_text = "5m",
       .help = "how long a GPU counts after Pods were moved from it",
       .bounds = Setting::Bounds{1000, kDay},
       .assign = [](Config& c, const Value& v) { c.gpulet.faults.moving.breaker_window = duration(v); }},
      {.flag = "faults-moving-cluster-percent",
       .environment = {"GPULET_FAULTS_MOVING_CLUSTER_PERCENT"},
       .path = "gpulet.faults.moving.clusterPercent",
       .kind = Kind::kUnsigned,
       .default_text = "0",
       .help = "broken GPUs on more of the cluster's nodes move nobody; 0: not asked; needs faults.label",
       .bounds = Setting::Bounds{0, 100},
       .assign = [](Config& c, const Value& v) { c.gpulet.faults.cluster_percent = count(v); }},
  };
}

// One for each class of fault; their paths are kept here, where rows refer to them.
std::vector<Setting> class_settings() {
  static const std::vector<std::string> paths = [] {
    std::vector<std::string> made;
    for (const auto& rule : health::fault_rules()) {
      made.push_back("gpulet.faults.moving.graces." + std::string(rule.name));
    }
    return made;
  }();
  std::vector<Setting> rows;
  for (const auto& rule : health::fault_rules()) {
    const auto fault_class = rule.fault_class;
    rows.push_back({.path = paths[rows.size()],
                    .kind = Kind::kGrace,
                    .help = "how long a Pod may stay on a GPU with a fault of this class",
                    .assign = [fault_class](Config& c, const Value& v) {
                      c.gpulet.faults.moving.graces[fault_class] = grace(v);
                    }});
  }
  return rows;
}

}  // namespace

std::vector<Setting> faults_settings() {
  std::vector<Setting> rows;
  for (auto&& part : {telling_settings(), whether_settings(), limit_settings(), class_settings()}) {
    rows.insert(rows.end(), part.begin(), part.end());
  }
  return rows;
}

}  // namespace gpulet::config

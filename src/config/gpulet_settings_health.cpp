#include "config/gpulet_settings.h"

#include <array>
#include <cctype>
#include <deque>
#include <string>

#include "base/text.h"
#include "config/config.h"
#include "config/schema.h"
#include "health/policy/health_policy.h"

namespace gpulet::config {
namespace {

using Names = std::string_view;
// In the order of the enumerations in health/policy/health_policy.h.
constexpr std::array<Names, 3> kTrust = {"linked", "always", "never"};
constexpr std::array<Names, 5> kEffects = {"ignore", "flag", "drain", "quarantine", "lose"};
constexpr std::uint64_t kMillisecondsADay = 86'400'000;

// Rows refer to their texts, so these texts are never freed.
std::string_view intern_text(std::string text) {
  static std::deque<std::string> texts;
  return texts.emplace_back(std::move(text));
}

// "poll-interval" → "pollInterval".
std::string camel_case(std::string_view key) {
  std::string out;
  bool upper = false;
  for (const char c : key) {
    if (c == '-') {
      upper = true;
      continue;
    }
    out += upper ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    upper = false;
  }
  return out;
}

// "poll-interval" → "GPULET_HEALTH_POLL_INTERVAL".
std::string environment_name(std::string_view key) {
  std::string out = "GPULET_HEALTH_";
  for (const char c : key)
    out += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

// As health::set_policy_value takes it: milliseconds, or the count.
std::uint64_t milliseconds_or_count(const Value& value, bool is_duration) {
  if (!is_duration) return text::parse_unsigned(text_value(value)).value_or(0);
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(duration_value(value)).count());
}

Setting setting_row(const health::PolicySetting& setting) {
  const bool is_duration = std::holds_alternative<Duration health::Policy::*>(setting.field);
  const auto standard = policy_value(health::Policy{}, setting);
  return {.flag = intern_text("health-" + std::string(setting.key)),
          .environment = {intern_text(environment_name(setting.key))},
          .path = intern_text("gpulet.health." + camel_case(setting.key)),
          .kind = is_duration ? Kind::kDuration : Kind::kUnsigned,
          .default_text = intern_text(is_duration ? format_duration(std::chrono::milliseconds(standard))
                                                  : std::to_string(standard)),
          .help = setting.help,
          .bounds = Setting::Bounds{setting.least, setting.most},
          .assign = [&setting, is_duration](Config& c, const Value& v) {
            // Cannot fail: the value is within the bounds.
            (void)health::set_policy_value(c.gpulet.health, setting, milliseconds_or_count(v, is_duration));
          }};
}

void add_class(const health::FaultRule& rule, std::vector<Setting>& rows) {
  const std::string path = "gpulet.health.classes." + std::string(rule.name);
  const auto fault_class = rule.fault_class;
  rows.push_back({.path = intern_text(path + ".effect"),
                  .kind = Kind::kChoice,
                  .choices = kEffects,
                  .help = "effect of a fault of this class on the device",
                  .assign = [fault_class](Config& c, const Value& v) {
                    c.gpulet.health.class_effects[fault_class] =
                        enum_value<health::Effect>(text_value(v), kEffects);
                  }});
  rows.push_back({.path = intern_text(path + ".recoveryHold"),
                  .kind = Kind::kDuration,
                  .help = "how long health checks must pass after such a fault",
                  .bounds = Setting::Bounds{0, 30 * kMillisecondsADay},
                  .assign = [fault_class](Config& c, const Value& v) {
                    c.gpulet.health.class_holds[fault_class] = duration_value(v);
                  }});
}

}  // namespace

std::vector<Setting> health_settings() {
  std::vector<Setting> rows;
  for (const auto& setting : health::policy_settings()) rows.push_back(setting_row(setting));
  rows.push_back({.flag = "health-trust-recovery-action",
                  .environment = {"GPULET_HEALTH_TRUST_RECOVERY_ACTION"},
                  .path = "gpulet.health.trustRecoveryAction",
                  .kind = Kind::kChoice,
                  .choices = kTrust,
                  .default_text = "linked",
                  .help = "XIDs whose reset the driver's recovery action proves: those that NVIDIA links to "
                          "it, always, never",
                  .assign = [](Config& c, const Value& v) {
                    c.gpulet.health.trust_recovery_action =
                        enum_value<health::RecoveryActionTrust>(text_value(v), kTrust);
                  }});
  for (const auto& rule : health::fault_rules()) add_class(rule, rows);
  return rows;
}

namespace {

using health::EvictionPolicy;
using health::Grace;
using health::Severity;

constexpr std::array<std::string_view, 4> kTaints = {"none", "PreferNoSchedule", "NoSchedule", "NoExecute"};
constexpr std::uint64_t kDay = 86'400'000;  // milliseconds

Grace grace_value(const Value& value) { return health::parse_grace(text_value(value)).value_or(Grace{}); }
unsigned count_value(const Value& value) {
  return static_cast<unsigned>(text::parse_unsigned(text_value(value)).value_or(0));
}

Setting taint_setting(std::string_view flag, std::string_view variable, std::string_view path,
                      std::string_view help, Severity severity) {
  return {.flag = flag,
          .environment = {variable},
          .path = path,
          .kind = Kind::kChoice,
          .choices = kTaints,
          .default_text = "none",
          .help = help,
          .assign = [severity](Config& c, const Value& v) {
            c.gpulet.faults.taints.erase(severity);
            if (text_value(v) != kTaints[0]) c.gpulet.faults.taints[severity] = text_value(v);
          }};
}

std::vector<Setting> reporting_settings() {
  return {
      {.flag = "faults-condition",
       .environment = {"GPULET_FAULTS_CONDITION"},
       .path = "gpulet.faults.condition",
       .kind = Kind::kBool,
       .default_text = "true",
       .help = "publish the Node condition GpuHealthy",
       .assign = [](Config& c, const Value& v) { c.gpulet.faults.condition = bool_value(v); }},
      {.flag = "faults-label",
       .environment = {"GPULET_FAULTS_LABEL"},
       .path = "gpulet.faults.label",
       .kind = Kind::kBool,
       .default_text = "true",
       .help = "publish the Node label gpulet.io/gpu-health",
       .assign = [](Config& c, const Value& v) { c.gpulet.faults.label = bool_value(v); }},
      {.flag = "faults-pod-events",
       .environment = {"GPULET_FAULTS_POD_EVENTS"},
       .path = "gpulet.faults.podEvents",
       .kind = Kind::kBool,
       .default_text = "true",
       .help = "send Events about Pods that hold a GPU with a fault",
       .assign = [](Config& c, const Value& v) { c.gpulet.faults.pod_events = bool_value(v); }},
      {.flag = "faults-pod-annotations",
       .environment = {"GPULET_FAULTS_POD_ANNOTATIONS"},
       .path = "gpulet.faults.podAnnotations",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "annotate these Pods with gpulet.io/gpu-fault; needs patch on pods",
       .assign = [](Config& c, const Value& v) { c.gpulet.faults.pod_annotations = bool_value(v); }},
      {.flag = "faults-delete-rejected-pods",
       .environment = {"GPULET_FAULTS_DELETE_REJECTED_PODS"},
       .path = "gpulet.faults.deleteRejectedPods",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "delete Pods with a controller that the kubelet rejected for lack of an offered resource",
       .assign = [](Config& c, const Value& v) { c.gpulet.faults.delete_rejected_pods = bool_value(v); }},
      taint_setting("faults-taint-degraded", "GPULET_FAULTS_TAINT_DEGRADED", "gpulet.faults.taints.degraded",
                    "taint effect while the node\'s worst GPU is degraded", Severity::kDegraded),
      taint_setting("faults-taint-withdrawn", "GPULET_FAULTS_TAINT_WITHDRAWN",
                    "gpulet.faults.taints.withdrawn", "taint effect while the node\'s worst GPU is withdrawn",
                    Severity::kWithdrawn),
      taint_setting("faults-taint-lost", "GPULET_FAULTS_TAINT_LOST", "gpulet.faults.taints.lost",
                    "taint effect while the node\'s worst GPU is lost", Severity::kLost),
  };
}

Setting grace_setting(std::string_view flag, std::string_view variable, std::string_view path,
                      std::string_view default_text, std::string_view help,
                      Grace health::EvictionPolicy::* field) {
  return {.flag = flag,
          .environment = {variable},
          .path = path,
          .kind = Kind::kGrace,
          .default_text = default_text,
          .help = help,
          .assign = [field](Config& c, const Value& v) { c.gpulet.faults.eviction.*field = grace_value(v); }};
}

std::vector<Setting> eviction_settings() {
  return {
      {.flag = "faults-eviction",
       .environment = {"GPULET_FAULTS_EVICTION"},
       .path = "gpulet.faults.eviction.enabled",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "evict Pods from GPUs that a fault took out of service",
       .assign = [](Config& c, const Value& v) { c.gpulet.faults.eviction.enabled = bool_value(v); }},
      {.flag = "faults-eviction-dry-run",
       .environment = {"GPULET_FAULTS_EVICTION_DRY_RUN"},
       .path = "gpulet.faults.eviction.dryRun",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "only report which Pods would be evicted",
       .assign = [](Config& c, const Value& v) { c.gpulet.faults.eviction.dry_run = bool_value(v); }},
      grace_setting("faults-eviction-draining", "GPULET_FAULTS_EVICTION_DRAINING",
                    "gpulet.faults.eviction.draining", "finish",
                    "how long Pods may stay on a draining GPU: stay, finish, finish=30m, evict",
                    &EvictionPolicy::draining),
      grace_setting("faults-eviction-quarantined", "GPULET_FAULTS_EVICTION_QUARANTINED",
                    "gpulet.faults.eviction.quarantined", "finish=5m",
                    "how long Pods may stay on a quarantined GPU", &EvictionPolicy::quarantined),
      grace_setting("faults-eviction-lost", "GPULET_FAULTS_EVICTION_LOST", "gpulet.faults.eviction.lost",
                    "evict", "how long Pods may stay on a lost GPU", &EvictionPolicy::lost),
      grace_setting("faults-eviction-access-lost", "GPULET_FAULTS_EVICTION_ACCESS_LOST",
                    "gpulet.faults.eviction.accessLost", "stay",
                    "how long Pods may stay whose container may no longer open its GPU",
                    &EvictionPolicy::access_lost),
      {.flag = "faults-eviction-bare-pods",
       .environment = {"GPULET_FAULTS_EVICTION_BARE_PODS"},
       .path = "gpulet.faults.eviction.barePods",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "also evict Pods without a controller, which are not recreated",
       .assign = [](Config& c, const Value& v) { c.gpulet.faults.eviction.bare_pods = bool_value(v); }},
  };
}

std::vector<Setting> eviction_limit_settings() {
  return {
      {.flag = "faults-eviction-max-evictions",
       .environment = {"GPULET_FAULTS_EVICTION_MAX_EVICTIONS"},
       .path = "gpulet.faults.eviction.maxEvictions",
       .kind = Kind::kUnsigned,
       .default_text = "16",
       .help = "evict at most N Pods per window; 0: none",
       .bounds = Setting::Bounds{0, 1000},
       .assign = [](Config& c, const Value& v) { c.gpulet.faults.eviction.max_evictions = count_value(v); }},
      {.flag = "faults-eviction-max-evictions-window",
       .environment = {"GPULET_FAULTS_EVICTION_MAX_EVICTIONS_WINDOW"},
       .path = "gpulet.faults.eviction.maxEvictionsWindow",
       .kind = Kind::kDuration,
       .default_text = "5m",
       .help = "window of the eviction limit",
       .bounds = Setting::Bounds{1000, kDay},
       .assign = [](Config& c,
                    const Value& v) { c.gpulet.faults.eviction.max_evictions_window = duration_value(v); }},
      {.flag = "faults-eviction-max-unhealthy-gpus-percent",
       .environment = {"GPULET_FAULTS_EVICTION_MAX_UNHEALTHY_GPUS_PERCENT"},
       .path = "gpulet.faults.eviction.maxUnhealthyGpusPercent",
       .kind = Kind::kUnsigned,
       .default_text = "50",
       .help = "evict no Pod while more of the node's GPUs are unhealthy; one GPU never counts as too many",
       .bounds = Setting::Bounds{0, 100},
       .assign =
           [](Config& c, const Value& v) {
             c.gpulet.faults.eviction.max_unhealthy_gpus_percent = count_value(v);
           }},
      {.flag = "faults-eviction-unhealthy-gpus-window",
       .environment = {"GPULET_FAULTS_EVICTION_UNHEALTHY_GPUS_WINDOW"},
       .path = "gpulet.faults.eviction.unhealthyGpusWindow",
       .kind = Kind::kDuration,
       .default_text = "5m",
       .help = "how long a GPU counts as unhealthy after an eviction",
       .bounds = Setting::Bounds{1000, kDay},
       .assign = [](Config& c,
                    const Value& v) { c.gpulet.faults.eviction.unhealthy_gpus_window = duration_value(v); }},
      {.flag = "faults-eviction-max-unhealthy-nodes-percent",
       .environment = {"GPULET_FAULTS_EVICTION_MAX_UNHEALTHY_NODES_PERCENT"},
       .path = "gpulet.faults.eviction.maxUnhealthyNodesPercent",
       .kind = Kind::kUnsigned,
       .default_text = "0",
       .help = "evict no Pod while more of the cluster's nodes have unhealthy GPUs; 0: not checked; needs "
               "faults.label",
       .bounds = Setting::Bounds{0, 100},
       .assign = [](Config& c,
                    const Value& v) { c.gpulet.faults.max_unhealthy_nodes_percent = count_value(v); }},
  };
}

// A row for each fault class.
std::vector<Setting> class_settings() {
  std::vector<Setting> rows;
  for (const auto& rule : health::fault_rules()) {
    const auto fault_class = rule.fault_class;
    rows.push_back({.path = intern_text("gpulet.faults.eviction.classes." + std::string(rule.name)),
                    .kind = Kind::kGrace,
                    .help = "how long Pods may stay on a GPU with a fault of this class",
                    .assign = [fault_class](Config& c, const Value& v) {
                      c.gpulet.faults.eviction.class_graces[fault_class] = grace_value(v);
                    }});
  }
  return rows;
}

}  // namespace

std::vector<Setting> faults_settings() {
  std::vector<Setting> rows;
  for (auto&& part :
       {reporting_settings(), eviction_settings(), eviction_limit_settings(), class_settings()}) {
    rows.insert(rows.end(), part.begin(), part.end());
  }
  return rows;
}

std::vector<Setting> rebalance_settings() {
  return {
      {.flag = "rebalance",
       .environment = {"GPULET_REBALANCE"},
       .path = "gpulet.rebalance.enabled",
       .kind = Kind::kBool,
       .default_text = "false",
       .help =
           "evict a Pod from a shared GPU that is hot for long, if another GPU of the node has room for it",
       .assign = [](Config& c, const Value& v) { c.gpulet.rebalance.enabled = bool_value(v); }},
      {.flag = "rebalance-dry-run",
       .environment = {"GPULET_REBALANCE_DRY_RUN"},
       .path = "gpulet.rebalance.dryRun",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "only report which Pods would be evicted from hot GPUs",
       .assign = [](Config& c, const Value& v) { c.gpulet.rebalance.dry_run = bool_value(v); }},
      {.flag = "rebalance-threshold-percent",
       .environment = {"GPULET_REBALANCE_THRESHOLD_PERCENT"},
       .path = "gpulet.rebalance.thresholdPercent",
       .kind = Kind::kUnsigned,
       .default_text = "95",
       .help = "a GPU is hot while its utilization is at least this",
       .bounds = Setting::Bounds{50, 100},
       .assign = [](Config& c, const Value& v) { c.gpulet.rebalance.threshold_percent = count_value(v); }},
      {.flag = "rebalance-hot-for",
       .environment = {"GPULET_REBALANCE_HOT_FOR"},
       .path = "gpulet.rebalance.hotFor",
       .kind = Kind::kDuration,
       .default_text = "10m",
       .help =
           "how long a GPU is hot before a Pod is evicted, and again after each; at least metrics.interval",
       .bounds = Setting::Bounds{1000, kDay},
       .assign = [](Config& c, const Value& v) { c.gpulet.rebalance.hot_for = duration_value(v); }},
      {.flag = "rebalance-horizon",
       .environment = {"GPULET_REBALANCE_HORIZON"},
       .path = "gpulet.rebalance.horizon",
       .kind = Kind::kDuration,
       .default_text = "30m",
       .help = "a GPU whose forecast cools within this time keeps its Pods",
       .bounds = Setting::Bounds{1000, kDay},
       .assign = [](Config& c, const Value& v) { c.gpulet.rebalance.horizon = duration_value(v); }},
  };
}

}  // namespace gpulet::config

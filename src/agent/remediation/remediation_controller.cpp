#include "agent/remediation/remediation_controller.h"

#include <algorithm>
#include <set>

#include "base/log.h"
#include "health/report/node_health.h"

namespace gpulet::agent {
namespace {

using ConditionStatus = k8s::Condition::Status;

ConditionStatus condition_status_of(const std::optional<bool>& healthy) {
  if (!healthy) return ConditionStatus::kUnknown;
  return *healthy ? ConditionStatus::kTrue : ConditionStatus::kFalse;
}

}  // namespace

NodeConditionWriter::NodeConditionWriter(Loop& loop, const k8s::ClientConfig& access,
                                         const NodeConditionTiming& timing)
    : status_(k8s::NodeConditions::start_conditions(loop, access, timing.status)),
      patch_(k8s::NodeLabelPatcher::start_label_patcher(loop, access, timing.patch)),
      taints_(k8s::NodeTaints::start_taints(loop, access, {health::kFaultTaint}, timing.taints)) {}

void NodeConditionWriter::update_node(const health::HealthView& view, const config::FaultSettings& settings) {
  const auto summary = health::summarize_node_health(view);
  const std::string severity(health::enum_name(summary.severity));
  if (settings.condition) {
    status_->set_condition(
        {health::kCondition, condition_status_of(summary.healthy), summary.reason, summary.message});
  } else if (condition_ != false) {
    status_->remove_condition(health::kCondition);
  }
  condition_ = settings.condition;
  patch_->set_label(health::kHealthLabel, settings.label ? std::optional(severity) : std::nullopt);
  patch_->set_label(health::kPreflightLabel, settings.label ? health::preflight_label(view) : std::nullopt);
  std::vector<k8s::Taint> taints;
  const auto effect = settings.taints.find(summary.severity);
  if (effect != settings.taints.end()) taints.push_back({health::kFaultTaint, severity, effect->second});
  if (const auto set = taints_->set_taints(std::move(taints)); !set) {
    log::warning("cannot set the node's taint", set.error());
  }
}

namespace {

using health::DeviceView;

std::string reason_of(health::Severity severity) {
  return severity == health::Severity::kDegraded ? "GpuDegraded" : "GpuFault";
}

// The faulty devices that the Pod holds, each once.
std::vector<const DeviceView*> faulty(const health::HealthView& view, const HeldPod& held) {
  std::vector<const DeviceView*> devices;
  for (const auto& scope : held.pod.devices) {
    const auto* device = health::find_device_or_gpu(view, scope);
    if (device && health::has_reportable_fault(*device) && std::ranges::count(devices, device) == 0)
      devices.push_back(device);
  }
  return devices;
}

}  // namespace

void PodNotifier::notify_pods(const health::HealthView& view, const std::vector<HeldPod>& pods,
                              PodNotifierOptions wants) {
  std::set<PodRef> there;
  for (const auto& held : pods) {
    const PodRef pod{held.pod.name_space, held.pod.name, held.pod.uid};
    there.insert(pod);
    notify_pod(pod, view, held, wants);
  }
  std::erase_if(notified_, [&](const auto& entry) { return !there.contains(entry.first); });
  std::erase_if(annotated_, [&](const auto& pod) {
    if (there.contains(pod)) return false;
    ports_.forget(pod);
    return true;
  });
}

void PodNotifier::notify_pod(const PodRef& pod, const health::HealthView& view, const HeldPod& held,
                             PodNotifierOptions wants) {
  const auto devices = faulty(view, held);
  const bool known = notified_.contains(pod);
  if (devices.empty() && !known && !held.annotation) return;
  Notified& notified = notified_[pod];
  if (!known) notified.annotation = held.annotation;
  std::map<health::Scope, std::string> now;
  for (const auto* device : devices) {
    const std::string text = health::device_health_text(*device);
    now[device->scope] = text;
    const auto before = notified.devices.find(device->scope);
    const bool same = before != notified.devices.end() && before->second == text;
    if (!same && wants.events) {
      ports_.send_event({.warning = true,
                         .reason = reason_of(health::severity_of(device->status)),
                         .message = text,
                         .pod = pod});
    }
  }
  for (const auto& [scope, text] : notified.devices) {
    const auto* device = now.contains(scope) ? nullptr : health::find_device_or_gpu(view, scope);
    if (device && wants.events) {
      ports_.send_event({.warning = false,
                         .reason = "GpuRecovered",
                         .message = health::device_health_text(*device),
                         .pod = pod});
    }
  }
  notified.devices = std::move(now);
  std::optional<std::string> note;
  if (wants.annotations && !devices.empty()) note = health::devices_health_text(devices);
  if (notified.annotation != note) {
    annotated_.insert(pod);
    ports_.annotate(pod, note);
  }
  notified.annotation = std::move(note);
  if (notified.devices.empty() && !notified.annotation) notified_.erase(pod);
}

namespace {

// Selectors of the nodes that publish their GPU health.
std::string all_nodes() { return health::kHealthLabel; }
std::string broken_nodes() {
  return std::string(health::kHealthLabel) + " in (" + std::string(enum_name(health::Severity::kLost)) + "," +
         std::string(enum_name(health::Severity::kWithdrawn)) + ")";
}

}  // namespace

RemediationController::RemediationController(RemediationPorts ports, config::FaultSettings settings,
                                             std::uint64_t seed, RemediationTiming timing)
    : ports_(std::move(ports)),
      settings_(std::move(settings)),
      timing_(timing),
      reader_(k8s::ObjectReader::start_reader(ports_.loop, ports_.access, timing.read_limit)),
      events_(k8s::EventRecorder::start_recorder(ports_.loop, ports_.access, timing.events)),
      annotations_(k8s::PodAnnotations::start_annotations(ports_.loop, ports_.access, timing.annotations)),
      condition_writer_(ports_.loop, ports_.access, timing.node),
      pods_({ports_.loop, ports_.holders, *reader_, [this] { on_pods_changed(); }}, seed),
      notifier_({[this](k8s::Event event) { events_->record_event(std::move(event)); },
                 [this](const PodRef& pod, std::optional<std::string> note) {
                   if (const auto set =
                           annotations_->set_annotation(pod, health::kFaultAnnotation, std::move(note));
                       !set) {
                     log::warning("cannot annotate a Pod", set.error());
                   }
                 },
                 [this](const PodRef& pod) { annotations_->forget_pod(pod); }}),
      evictor_(evictor_ports()) {}

void RemediationController::on_health_view(health::HealthViewPtr view) {
  view_ = std::move(view);
  update_all();
}

void RemediationController::apply_settings(config::FaultSettings settings) {
  settings_ = std::move(settings);
  if (view_) update_all();
}

void RemediationController::update_all() {
  condition_writer_.update_node(*view_, settings_);
  // Pods are needed only for Events, annotations and evictions.
  const bool matter = settings_.pod_events || settings_.pod_annotations || settings_.eviction.enabled;
  pods_.update_index(matter ? *view_ : health::HealthView{},
                     {.namespaces = settings_.eviction.enabled, .all_pods = settings_.pod_annotations});
  on_pods_changed();
}

void RemediationController::on_pods_changed() {
  const auto pods = pods_.held_pods();
  notifier_.notify_pods(*view_, pods,
                        {.events = settings_.pod_events, .annotations = settings_.pod_annotations});
  evictor_.update_evictions(view_, pods, {settings_.eviction, settings_.max_unhealthy_nodes_percent});
}

PodEvictorPorts RemediationController::evictor_ports() {
  return {.loop = ports_.loop,
          .evict =
              [this](const PodRef& pod, k8s::Eviction::UpdateCallback on_update) {
                return k8s::Eviction::start_eviction(ports_.loop, ports_.access, std::vector{pod},
                                                     std::move(on_update), timing_.eviction);
              },
          .share = [this](auto done) { count_broken_nodes(std::move(done)); },
          .notify =
              [this](const EvictionEvent& event) {
                send_eviction_event(*events_, "Pod on a faulty device", event);
              }};
}

void RemediationController::count_broken_nodes(std::function<void(Result<ClusterShare>)> done) {
  reader_->count_nodes(all_nodes(), [this, done = std::move(done)](const Result<std::size_t>& nodes) {
    if (!nodes) return done(fail(nodes.error()));
    reader_->count_nodes(broken_nodes(), [done, all = *nodes](const Result<std::size_t>& broken) {
      if (!broken) return done(fail(broken.error()));
      done(ClusterShare{all, *broken});
    });
  });
}

}  // namespace gpulet::agent

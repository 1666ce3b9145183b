#include "agent/node_metrics.h"

#include <algorithm>

#include "health/xid_catalogue.h"

namespace gpulet::agent {
namespace {

metrics::HostLabel host_label(config::HostLabel label) {
  switch (label) {
    case config::HostLabel::kNone:
      return metrics::HostLabel::kNone;
    case config::HostLabel::kUpper:
      return metrics::HostLabel::kUpper;
    case config::HostLabel::kLower:
      break;
  }
  return metrics::HostLabel::kLower;
}

std::string meaning(std::uint64_t code) {
  const auto* xid = health::find_xid(code);
  return xid ? std::string(xid->description) : "not in NVIDIA's catalogue";
}

}  // namespace

NodeMetrics::NodeMetrics(Loop& loop, Reporter& reporter, std::string node, std::set<metrics::Field> more,
                         std::function<void()> sampled)
    : loop_(loop),
      reporter_(reporter),
      node_(std::move(node)),
      more_(std::move(more)),
      sampled_(std::move(sampled)),
      counters_(loop, reporter, [this] { set(); }) {}

void NodeMetrics::attach(NvmlDriver& driver, kubelet::PodResources& pod_resources,
                         const config::Config& config) {
  detach();
  driver_ = &driver;
  sampler_ = std::make_unique<NvmlSampler>(driver, config.gpulet.driver_call_timeout);
  care_ = std::make_unique<MetricsCare>(
      loop_, MetricsCare::Ports{
                 .sampler = *sampler_,
                 .pod_resources = pod_resources,
                 .pods = [this] { return metrics::pods_of_logs(settings_.pod_logs); },
                 .sampled = [this] { on_sampled(); },
             });
  driver.set_on_xid([this](const health::Scope& scope, std::uint64_t code) {
    const auto instance = scope.whole() ? std::nullopt : std::optional(scope.gpu_instance);
    if (care_) care_->on_xid(scope.gpu, instance, code, meaning(code));
  });
  apply(config);
}

void NodeMetrics::detach() {
  pod_labels_.reset();
  if (driver_) driver_->set_on_xid(nullptr);
  care_.reset();
  sampler_.reset();
  driver_ = nullptr;
  snapshot_.reset();
  snapshot_at_.reset();
}

void NodeMetrics::apply(const config::Config& config) {
  settings_ = config.gpulet.metrics;
  counters_.apply(settings_.counters_file, settings_.counters_config_map);
  take(shown_, metrics::Shown::parse(settings_.devices, "gpulet.metrics.devices"), shown_error_);
  take(patterns_,
       metrics::LabelPatterns::parse(settings_.pod_label_patterns, "gpulet.metrics.podLabelPatterns"),
       patterns_error_);
  follow_pod_labels();
  set();
}

void NodeMetrics::watch(bool watched) {
  if (watched == watched_) return;
  watched_ = watched;
  set();
}

void NodeMetrics::on_snapshot(const inventory::SnapshotPtr& snapshot) {
  if (snapshot == snapshot_) return;
  snapshot_ = snapshot;
  snapshot_at_ = snapshot ? std::optional(loop_.now()) : std::nullopt;
  if (care_) care_->on_snapshot(snapshot);
}

// One that is bad leaves what is in force.
template <class Value>
void NodeMetrics::take(Value& mine, Result<Value> now, std::string& told) {
  const std::string error = now ? std::string() : now.error().text();
  if (now) mine = std::move(*now);
  if (std::exchange(told, error) != error && !error.empty())
    reporter_.event(Reporter::Severity::kWarning, "Metrics", error + "; what is shown stays as it is");
}

void NodeMetrics::set_access(const cluster::Access& access) {
  counters_.set_access(access);
  reader_ = cluster::Reader::start(loop_, access);
  follow_pod_labels();
}

void NodeMetrics::follow_pod_labels() {
  if (!settings_.pod_labels || !reader_) return pod_labels_.reset();
  if (pod_labels_) return;
  pod_labels_ = std::make_unique<PodLabels>(loop_, *reader_, [this](const PodLabels::Labels& labels) {
    if (care_) care_->on_pod_labels(labels);
  });
}

void NodeMetrics::on_sampled() {
  const auto* containers = care_ ? care_->containers() : nullptr;
  if (pod_labels_ && containers) pod_labels_->on_containers(*containers);
  sampled_();
}

void NodeMetrics::set() {
  if (!care_) return;
  MetricsSettings settings;
  settings.interval = settings_.enabled ? Duration(settings_.interval) : Duration{};
  if (watched_) settings.interval = std::min(settings.interval, kWatchedInterval);
  settings.more = more_;
  settings.counters = counters_.counters();
  settings.windows = {settings_.xid_window, settings_.clock_events_window};
  settings.page = {.host_label = host_label(settings_.host_label),
                   .hostname = node_,
                   .old_namespace = settings_.old_namespace,
                   .replace_blanks = settings_.replace_blanks,
                   .virtual_gpus = settings_.virtual_gpus,
                   .shown = shown_};
  settings.pod_uid = settings_.pod_uid;
  settings.pod_labels = settings_.pod_labels;
  settings.patterns = patterns_;
  care_->set(std::move(settings));
}

void NodeMetrics::add_to(metrics::Exposition& page, const State& state, const health::ViewPtr& view,
                         const Counts& counts) const {
  if (!care_) return;
  care_->add_to(page);
  if (view && state.snapshot) metrics::add_health(page, *view, *state.snapshot);
  auto numbers = care_->numbers();
  numbers.driver_calls = driver_->worker().calls();
  numbers.driver_time = driver_->worker().time();
  numbers.driver_hanging = driver_->worker().abandoned();
  if (snapshot_at_) numbers.snapshot_age = loop_.now() - *snapshot_at_;
  if (snapshot_) numbers.snapshot_generation = snapshot_->generation;
  numbers.pods_moved = counts.pods_moved;
  numbers.rights_missing = counts.rights_missing;
  for (const auto& [resource, asked] : counts.kubelet) {
    for (const auto& [call, count] : asked.calls)
      numbers.kubelet_calls.push_back(
          {resource.str(), std::string(call), count.answered, count.refused, count.time});
    if (asked.score) numbers.placement_scores[resource.str()] = *asked.score;
  }
  metrics::add_agent(page, numbers);
}

}  // namespace gpulet::agent

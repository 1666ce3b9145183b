#include "agent/node_metrics.h"

#include <algorithm>

#include "base/file.h"
#include "base/log.h"
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
      sampled_(std::move(sampled)) {}

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
                 .sampled = sampled_,
             });
  driver.set_on_xid([this](const health::Scope& scope, std::uint64_t code) {
    const auto instance = scope.whole() ? std::nullopt : std::optional(scope.gpu_instance);
    if (care_) care_->on_xid(scope.gpu, instance, code, meaning(code));
  });
  apply(config);
}

void NodeMetrics::detach() {
  if (driver_) driver_->set_on_xid(nullptr);
  care_.reset();
  sampler_.reset();
  driver_ = nullptr;
  snapshot_.reset();
  snapshot_at_.reset();
}

void NodeMetrics::apply(const config::Config& config) {
  settings_ = config.gpulet.metrics;
  follow_counters();
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

void NodeMetrics::follow_counters() {
  if (settings_.counters_file == counters_file_) return;
  counters_file_ = settings_.counters_file;
  counters_watch_.reset();
  counters_error_.clear();
  if (counters_file_.empty()) {
    counters_ = metrics::default_counters();
    return;
  }
  auto watch = FileWatch::start(loop_, counters_file_, [this] {
    read_counters();
    set();
  });
  if (watch) {
    counters_watch_ = std::move(*watch);
  } else {
    log::warning("changes of the counters file are not seen", watch.error());
  }
  read_counters();
}

void NodeMetrics::read_counters() {
  auto text = read_file(counters_file_, metrics::kMostCountersBytes);
  auto counters =
      text ? metrics::parse_counters(*text, counters_file_) : Result<metrics::Counters>(fail(text.error()));
  if (!counters) {
    if (const auto error = counters.error().text(); std::exchange(counters_error_, error) != error)
      reporter_.event(Reporter::Severity::kWarning, "CountersFile", error + "; the metrics stay as they are");
    return;
  }
  counters_error_.clear();
  if (counters->all == counters_.all) return;
  counters_ = std::move(*counters);
  for (const auto& row : counters_.left_out) log::info(row);
  log::info("the counters file is in force", {{"file", counters_file_}, {"metrics", counters_.all.size()}});
}

void NodeMetrics::set() {
  if (!care_) return;
  MetricsSettings settings;
  settings.interval = settings_.enabled ? Duration(settings_.interval) : Duration{};
  if (watched_) settings.interval = std::min(settings.interval, kWatchedInterval);
  settings.more = more_;
  settings.counters = counters_;
  settings.page = {.host_label = host_label(settings_.host_label),
                   .hostname = node_,
                   .old_namespace = settings_.old_namespace,
                   .replace_blanks = settings_.replace_blanks,
                   .virtual_gpus = settings_.virtual_gpus};
  settings.pod_uid = settings_.pod_uid;
  care_->set(std::move(settings));
}

void NodeMetrics::add_to(metrics::Exposition& page, const State& state, const health::ViewPtr& view) const {
  if (!care_) return;
  care_->add_to(page);
  if (view && state.snapshot) metrics::add_health(page, *view, *state.snapshot);
  auto numbers = care_->numbers();
  numbers.driver_calls = driver_->worker().calls();
  numbers.driver_time = driver_->worker().time();
  numbers.driver_hanging = driver_->worker().abandoned();
  if (snapshot_at_) numbers.snapshot_age = loop_.now() - *snapshot_at_;
  metrics::add_agent(page, numbers);
}

}  // namespace gpulet::agent

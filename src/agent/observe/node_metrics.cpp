#include "agent/observe/node_metrics.h"

#include <unistd.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/dns_name.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "health/state/persisted_state.h"
#include "health/xid/xid_catalogue.h"
#include "k8s/objects.h"
#include "nvml/return_codes.h"

namespace gpulet::agent {
namespace {

constexpr const char* kCountersKey = "metrics";  // as dcgm-exporter reads it

Result<metrics::Counters> counters_from_config_map(const nlohmann::json& config_map,
                                                   const std::string& about) {
  if (config_map.is_null()) return fail(Code::kNotFound, "ConfigMap not found", about);
  const auto& text = json_member(json_member(config_map, "data"), kCountersKey);
  if (!text.is_string())
    return fail(Code::kInvalidArgument,
                std::string("it has no key ") + kCountersKey + ", the list of counters", about);
  return metrics::parse_counters(text.get_ref<const std::string&>(), about);
}

}  // namespace

CountersSource::CountersSource(Loop& loop, Reporter& reporter, std::function<void()> changed)
    : loop_(loop), reporter_(reporter), changed_(std::move(changed)) {}

void CountersSource::set_source(const std::string& file, const std::string& config_map) {
  if (file == file_ && config_map == config_map_) return;
  file_ = file;
  config_map_ = config_map;
  watch_source();
}

void CountersSource::set_access(k8s::ClientConfig access) {
  access_ = std::move(access);
  if (!config_map_.empty()) watch_source();
}

void CountersSource::watch_source() {
  file_watch_.reset();
  config_map_watch_.reset();
  reported_error_.clear();
  if (!config_map_.empty()) {
    watch_config_map();
  } else if (!file_.empty()) {
    watch_counters_file();
  } else {
    counters_ = metrics::default_counters();
  }
}

void CountersSource::watch_counters_file() {
  if (const auto builtin = metrics::builtin_counters(file_); builtin && ::access(file_.c_str(), F_OK) != 0)
    return use_counters(*builtin, file_ + " (built in)");
  auto watch = FileWatcher::watch_path(loop_, file_, [this] { reread_file(); });
  if (watch) {
    file_watch_ = std::move(*watch);
  } else {
    log::warning("cannot watch the counters file", watch.error());
  }
  reread_file();
}

void CountersSource::reread_file() {
  const auto text = read_file(file_, metrics::kMaxCountersBytes);
  use_counters(text ? metrics::parse_counters(*text, file_) : Result<metrics::Counters>(fail(text.error())),
               file_);
}

void CountersSource::watch_config_map() {
  const auto parts = text::split(config_map_, ':');
  const std::string about = "ConfigMap " + config_map_;
  if (parts.size() != 2 || !is_dns_label(parts[0]) || !is_dns_subdomain(parts[1])) {
    return use_counters(
        fail(Code::kInvalidArgument, "expected NAMESPACE:NAME, such as monitoring:gpu-counters",
             "gpulet.metrics.countersConfigMap '" + config_map_ + "'"),
        about);
  }
  if (!access_) return;  // set_access() follows, or make_reporter() has logged the reason
  config_map_watch_ =
      k8s::ObjectWatcher::watch_object(loop_, *access_,
                                       {.collection = "/api/v1/namespaces/" + parts[0] + "/configmaps",
                                        .name = parts[1],
                                        .description = about,
                                        .resource = "configmaps"},
                                       {}, [this, about](const nlohmann::json& found) {
                                         use_counters(counters_from_config_map(found, about), about);
                                       });
}

void CountersSource::use_counters(const Result<metrics::Counters>& counters, const std::string& where) {
  if (!counters) {
    if (const auto error = counters.error().full_message(); std::exchange(reported_error_, error) != error)
      reporter_.report_event(Reporter::Severity::kWarning, "Counters",
                             error + "; the previous counters stay in force");
    return;
  }
  reported_error_.clear();
  if (counters->all == counters_.all) return;
  counters_ = *counters;
  for (const auto& row : counters_.unserved) log::info(row);
  log::info("counters loaded", {{"from", where}, {"metrics", counters_.all.size()}});
  loop_.post([changed = changed_] { changed(); });
}

namespace {

metrics::HostLabel host_label(config::HostLabel label) {
  switch (label) {
    case config::HostLabel::kNone:
      return metrics::HostLabel::kNone;
    case config::HostLabel::kLower:
      return metrics::HostLabel::kLower;
    case config::HostLabel::kUpper:
      break;
  }
  return metrics::HostLabel::kUpper;
}

std::string xid_meaning(std::uint64_t code) {
  const auto* xid = health::find_xid(code);
  return xid ? std::string(xid->description) : "not in NVIDIA's catalogue";
}

}  // namespace

NodeMetrics::NodeMetrics(Loop& loop, Reporter& reporter, std::string node, std::set<metrics::Field> more,
                         std::function<void()> sampled,
                         std::function<device_plugin::DevicesByResource()> devices)
    : loop_(loop),
      reporter_(reporter),
      node_(std::move(node)),
      extra_fields_(std::move(more)),
      sampled_(std::move(sampled)),
      devices_(std::move(devices)),
      counters_(loop, reporter, [this] { push_settings(); }),
      usage_(loop, health::read_boot_id().value_or("")) {}

void NodeMetrics::attach_driver(NvmlDriver& driver, device_plugin::PodResources& pod_resources,
                                const config::Config& config) {
  detach_driver();
  driver_ = &driver;
  sampler_ = std::make_unique<NvmlSampler>(driver, config.gpulet.driver_call_timeout);
  host_engine_ = std::make_unique<HostEngineSampler>(loop_, *sampler_);
  collector_ = std::make_unique<MetricsCollector>(
      loop_, MetricsCollector::Ports{
                 .sampler = *host_engine_,
                 .pod_resources = pod_resources,
                 .pod_uids = [this] { return metrics::read_pod_uids(settings_.pod_logs_dir); },
                 .sampled = [this] { on_sampled(); },
                 .devices = devices_,
             });
  usage_.attach(collector_->aggregator());
  driver.set_on_xid([this](const health::Scope& scope, std::uint64_t code) {
    const auto instance = scope.is_whole_gpu() ? std::nullopt : std::optional(scope.gpu_instance);
    if (collector_) collector_->on_xid(scope.gpu, instance, code, xid_meaning(code));
  });
  apply_metrics_config(config);
}

void NodeMetrics::detach_driver() {
  pod_labels_.reset();
  if (driver_) driver_->set_on_xid(nullptr);
  usage_.detach();
  collector_.reset();
  host_engine_.reset();
  sampler_.reset();
  driver_ = nullptr;
  snapshot_.reset();
  snapshot_at_.reset();
}

void NodeMetrics::apply_metrics_config(const config::Config& config) {
  settings_ = config.gpulet.metrics;
  driver_root_ = config.flags.container_driver_root;
  counters_.set_source(settings_.counters_file, settings_.counters_config_map);
  replace_if_valid(device_filter_,
                   metrics::DeviceFilter::parse_filter(settings_.devices, "gpulet.metrics.devices"),
                   device_filter_error_);
  replace_if_valid(patterns_,
                   metrics::PodLabelPatterns::compile_patterns(settings_.pod_label_patterns,
                                                               "gpulet.metrics.podLabelPatterns"),
                   patterns_error_);
  watch_pod_labels();
  push_settings();
}

void NodeMetrics::set_watched(bool watched) {
  if (watched == watched_) return;
  watched_ = watched;
  push_settings();
}

void NodeMetrics::set_snapshot(const inventory::SnapshotPtr& snapshot) {
  if (snapshot == snapshot_) return;
  snapshot_ = snapshot;
  snapshot_at_ = snapshot ? std::optional(loop_.now()) : std::nullopt;
  if (collector_) collector_->set_snapshot(snapshot);
}

// An invalid one changes nothing.
template <class Value>
void NodeMetrics::replace_if_valid(Value& mine, Result<Value> now, std::string& reported) {
  const std::string error = now ? std::string() : now.error().full_message();
  if (now) mine = std::move(*now);
  if (std::exchange(reported, error) != error && !error.empty())
    reporter_.report_event(Reporter::Severity::kWarning, "Metrics",
                           error + "; the previous setting stays in force");
}

void NodeMetrics::set_access(const k8s::ClientConfig& access) {
  counters_.set_access(access);
  reader_ = k8s::ObjectReader::start_reader(loop_, access);
  watch_pod_labels();
}

void NodeMetrics::watch_pod_labels() {
  if (!settings_.pod_labels || !reader_) return pod_labels_.reset();
  if (pod_labels_) return;
  pod_labels_ = std::make_unique<PodLabelCache>(loop_, *reader_, [this](const PodLabelCache::Labels& labels) {
    if (collector_) collector_->on_pod_labels(labels);
  });
}

void NodeMetrics::on_sampled() {
  const auto* containers = collector_ ? collector_->containers() : nullptr;
  if (pod_labels_ && containers) pod_labels_->on_containers(*containers);
  usage_.save_if_changed();
  sampled_();
}

void NodeMetrics::push_settings() {
  if (!collector_) return;
  host_engine_->use_host_engine({.address = settings_.enabled ? settings_.host_engine : std::string(),
                                 .driver_root = driver_root_,
                                 .interval = settings_.interval});
  CollectorSettings settings;
  settings.interval = settings_.enabled ? Duration(settings_.interval) : Duration{};
  if (watched_) settings.interval = std::min(settings.interval, kWatchedInterval);
  settings.extra_fields = extra_fields_;
  if (settings_.nvlinks) settings.extra_fields.insert(metrics::Field::kLinks);
  settings.counters = counters_.counters();
  settings.windows = {settings_.xid_window, settings_.clock_events_window};
  settings.page = {.host_label = host_label(settings_.host_label),
                   .hostname = node_,
                   .old_namespace = settings_.old_namespace,
                   .replace_blanks = settings_.replace_blanks,
                   .virtual_gpus = settings_.virtual_gpus,
                   .device_filter = device_filter_};
  settings.pod_uid = settings_.pod_uid;
  settings.pod_labels = settings_.pod_labels;
  settings.patterns = patterns_;
  collector_->apply_settings(std::move(settings));
}

void NodeMetrics::add_to(metrics::Exposition& page, const AgentStatus& state,
                         const health::HealthViewPtr& view, const NodeCounts& counts) const {
  if (!collector_) return;
  collector_->add_to(page);
  if (view && state.snapshot) metrics::add_health_metrics(page, *view, *state.snapshot);
  auto numbers = collector_->agent_numbers();
  numbers.driver_calls = driver_->worker().completed_calls();
  numbers.driver_time = driver_->worker().driver_time();
  numbers.driver_hanging = driver_->worker().abandoned();
  numbers.driver_released = view && view->release;
  for (auto& call : nvml::call_counts()) {
    if (call.code != "SUCCESS")
      numbers.nvml_errors.push_back({std::move(call.function), std::move(call.code), call.count});
  }
  if (snapshot_at_) numbers.snapshot_age = loop_.now() - *snapshot_at_;
  if (snapshot_) numbers.snapshot_generation = snapshot_->generation;
  numbers.pods_evicted = counts.pods_evicted;
  numbers.rebalanced = counts.rebalanced;
  numbers.mig_reconfigurations = counts.mig_reconfigurations;
  numbers.rejected_pods_deleted = counts.rejected_pods_deleted;
  if (counts.containers_cut_off) numbers.containers_cut_off = counts.containers_cut_off->size();
  numbers.permissions_missing = counts.permissions_missing;
  if (counts.repairs) {
    numbers.repairs = metrics::RepairStats{counts.repairs->done, counts.repairs->failed,
                                           counts.repairs->dry_run, counts.repairs->is_reboot_requested};
  }
  numbers.claims = counts.claims;
  numbers.host_engine_connected = host_engine_->is_connected();
  for (const auto& [resource, stats] : counts.kubelet) {
    for (const auto& [call, count] : stats.calls)
      numbers.kubelet_calls.push_back(
          {resource.str(), std::string(call), count.answered, count.refused, count.time});
    if (stats.score) numbers.placement_scores[resource.str()] = *stats.score;
  }
  metrics::add_agent_metrics(page, numbers);
  if (counts.memory_audit && snapshot_)
    metrics::add_memory_audit_metrics(page, *snapshot_, *counts.memory_audit);
  if (!snapshot_) return;
  std::vector<metrics::GpuPowerLimit> limits;
  for (const auto& status : counts.power)
    limits.push_back({status.gpu, status.limit, status.source, !status.problems.empty()});
  metrics::add_power_metrics(page, *snapshot_, limits);
  metrics::add_preflight_metrics(page, *snapshot_, counts.preflights);
}

}  // namespace gpulet::agent

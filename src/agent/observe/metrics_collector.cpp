#include "agent/observe/metrics_collector.h"

#include <algorithm>

namespace gpulet::agent {
namespace {

bool holds_shares(const metrics::Holders& holders) {
  return std::ranges::any_of(holders, [](const auto& device) {
    return std::ranges::any_of(device.second, [](const auto& holder) { return !holder.shares.empty(); });
  });
}

}  // namespace

using metrics::GpuSample;

// One sample of all GPUs, started and published together.
struct MetricsCollector::Round {
  inventory::SnapshotPtr snapshot;
  std::vector<std::optional<Sampler::Sampled>> gpus;  // as the snapshot's
  std::size_t waiting = 0;
};

MetricsCollector::MetricsCollector(Loop& loop, Ports ports) : loop_(loop), ports_(std::move(ports)) {}
MetricsCollector::~MetricsCollector() = default;

void MetricsCollector::apply_settings(CollectorSettings settings) {
  const bool begins = settings_.interval <= Duration{} && settings.interval > Duration{};
  settings_ = std::move(settings);
  aggregator_.set_options(settings_.counters, settings_.page, settings_.windows);
  std::set<metrics::Field> fields = settings_.extra_fields;
  for (const auto& counter : settings_.counters.all) fields.insert(counter.field);
  ports_.sampler.set_fields(std::move(fields));
  schedule_round();
  if (settings_.interval <= Duration{}) {
    clear_samples();
    sampled_at_.reset();
  }
  if (begins) start_round();
}

void MetricsCollector::set_snapshot(inventory::SnapshotPtr snapshot) {
  const bool first = snapshot && !snapshot_;
  snapshot_ = std::move(snapshot);
  if (!snapshot_) clear_samples();
  if (first && settings_.interval > Duration{}) start_round();
}

// The page shows no values that are no longer measured, but still their age.
void MetricsCollector::clear_samples() {
  round_.reset();
  round_timeout_.reset();
  aggregator_.clear();
}

void MetricsCollector::on_xid(const DeviceUuid& gpu, std::optional<unsigned> gpu_instance, std::uint64_t code,
                              std::string text) {
  aggregator_.record_xid(gpu, gpu_instance, code, std::move(text), loop_.now());
}

void MetricsCollector::on_pod_labels(std::map<PodName, std::map<std::string, std::string>> labels) {
  labels_ = std::move(labels);
}

void MetricsCollector::add_to(metrics::Exposition& page) const { aggregator_.add_metrics_to(page); }

metrics::AgentStats MetricsCollector::agent_numbers() const {
  metrics::AgentStats numbers;
  if (sampled_at_) numbers.sample_age = loop_.now() - *sampled_at_;
  if (containers_at_) numbers.pod_resources_age = loop_.now() - *containers_at_;
  numbers.pod_resources_errors = list_errors_;
  numbers.pod_resources_time = list_duration_;
  return numbers;
}

void MetricsCollector::schedule_round() {
  timer_.reset();
  if (settings_.interval <= Duration{}) return;
  timer_ = loop_.after(settings_.interval, [this] {
    schedule_round();
    start_round();
  });
}

void MetricsCollector::start_round() {
  if (!snapshot_) return;
  // The previous round has reached its time limit: missing results are left out.
  if (round_) finish_round();
  if (!snapshot_ || round_) return;  // the callback may have changed the snapshot
  auto round = std::make_shared<Round>();
  round->snapshot = snapshot_;
  round->gpus.resize(snapshot_->gpus.size());
  round_ = round;
  for (std::size_t i = 0; i < snapshot_->gpus.size(); ++i) {
    const auto& uuid = snapshot_->gpus[i].uuid;
    if (uuid.empty() || !in_flight_.insert(uuid).second) continue;
    ++round->waiting;
    ports_.sampler.sample_gpu(
        snapshot_, i, loop_.now(),
        [this, alive = lifetime_.watch(), round, i, uuid](Result<Sampler::Sampled> sampled) {
          if (!alive) return;
          in_flight_.erase(uuid);
          if (sampled) round->gpus[i] = std::move(*sampled);
          --round->waiting;
          finish_if_complete(round);
        });
  }
  list_containers();
  round_timeout_ = loop_.after(std::min(kSampleTimeout, settings_.interval / 2), [this] { finish_round(); });
}

void MetricsCollector::list_containers() {
  if (listing_containers_) return;
  listing_containers_ = true;
  const Time requested_at = loop_.now();
  ports_.pod_resources.list_containers([this, alive = lifetime_.watch(), round = round_,
                                        requested_at](Result<std::vector<ContainerDevices>> listed) {
    if (!alive) return;
    listing_containers_ = false;
    if (listed) {
      containers_ = std::move(*listed);
      containers_at_ = loop_.now();
      list_duration_ = *containers_at_ - requested_at - ports_.pod_resources.list_delay();
    } else {
      ++list_errors_;
    }
    finish_if_complete(round);
  });
}

// Once all results are there.
void MetricsCollector::finish_if_complete(const std::shared_ptr<Round>& round) {
  if (round_ == round && round->waiting == 0 && !listing_containers_) finish_round();
}

void MetricsCollector::finish_round() {
  if (!round_) return;
  const auto round = std::exchange(round_, nullptr);
  round_timeout_.reset();
  metrics::Sample sample;
  auto pods = pods_in_round(*round);
  for (std::size_t i = 0; i < round->gpus.size(); ++i) {
    const auto& gpu = round->snapshot->gpus[i];
    if (round->gpus[i]) {
      sample.gpus.push_back(std::move(round->gpus[i]->gpu));
      continue;
    }
    GpuSample silent;
    silent.index = gpu.index;
    silent.uuid = gpu.uuid;
    silent.error = Error(Code::kDeadlineExceeded, "the driver did not respond", gpu.uuid.str());
    sample.gpus.push_back(std::move(silent));
  }
  // A round without any result does not renew the age of the sample.
  const bool any_result =
      sample.gpus.empty() || std::ranges::any_of(sample.gpus, [](const auto& gpu) { return !gpu.error; });
  if (any_result) sampled_at_ = loop_.now();
  aggregator_.ingest_sample(round->snapshot, std::move(sample), std::move(pods), loop_.now());
  if (ports_.sampled) ports_.sampled();
}

metrics::Aggregator::PodContext MetricsCollector::pods_in_round(const Round& round) {
  metrics::Aggregator::PodContext pods;
  pods.holders = metrics::find_holders(containers_, *round.snapshot);
  pods.are_holders_known = containers_at_.has_value();
  if (ports_.devices && holds_shares(pods.holders)) pods.shares = metrics::count_shares(ports_.devices());
  const bool wants_uids = settings_.pod_uid || std::ranges::any_of(round.gpus, [](const auto& gpu) {
                            return gpu && !gpu->cgroups.empty();
                          });
  if (wants_uids && ports_.pod_uids) {
    // UIDs that cannot be read now stay as last known.
    if (auto known = ports_.pod_uids()) uids_ = std::move(*known);
  }
  for (const auto& gpu : round.gpus) {
    if (gpu) metrics::match_processes_to_pods(gpu->cgroups, uids_, pods.processes);
  }
  if (settings_.pod_uid) {
    for (const auto& [uid, pod] : uids_) pods.details[pod].uid = uid;
  }
  if (settings_.pod_labels) {
    for (const auto& [pod, labels] : labels_)
      pods.details[pod].labels = metrics::pod_metric_labels(labels, settings_.patterns);
  }
  return pods;
}

}  // namespace gpulet::agent

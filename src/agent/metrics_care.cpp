#include "agent/metrics_care.h"

#include <algorithm>

namespace gpulet::agent {

using metrics::GpuSample;

// One sample of all GPUs: begun together, and shown together.
struct MetricsCare::Round {
  inventory::SnapshotPtr snapshot;
  std::vector<std::optional<Sampler::Sampled>> gpus;  // as the snapshot's
  std::size_t waiting = 0;
};

MetricsCare::MetricsCare(Loop& loop, Ports ports) : loop_(loop), ports_(std::move(ports)) {}
MetricsCare::~MetricsCare() = default;

void MetricsCare::set(MetricsSettings settings) {
  const bool begins = settings_.interval <= Duration{} && settings.interval > Duration{};
  settings_ = std::move(settings);
  meter_.use(settings_.counters, settings_.page, settings_.windows);
  std::set<metrics::Field> wanted = settings_.more;
  for (const auto& counter : settings_.counters.all) wanted.insert(counter.field);
  ports_.sampler.want(std::move(wanted));
  arm();
  if (settings_.interval <= Duration{}) {
    forget();
    sampled_at_.reset();
  }
  if (begins) begin();
}

void MetricsCare::on_snapshot(inventory::SnapshotPtr snapshot) {
  const bool first = snapshot && !snapshot_;
  snapshot_ = std::move(snapshot);
  if (!snapshot_) forget();
  if (first && settings_.interval > Duration{}) begin();
}

// Nothing is shown that is not measured any more; since when is.
void MetricsCare::forget() {
  round_.reset();
  patience_.reset();
  meter_.clear();
}

void MetricsCare::on_xid(const DeviceUuid& gpu, std::optional<unsigned> gpu_instance, std::uint64_t code,
                         std::string text) {
  meter_.xid(gpu, gpu_instance, code, std::move(text), loop_.now());
}

void MetricsCare::on_pod_labels(std::map<metrics::PodName, std::map<std::string, std::string>> labels) {
  labels_ = std::move(labels);
}

void MetricsCare::add_to(metrics::Exposition& page) const { meter_.add_to(page); }

metrics::AgentNumbers MetricsCare::numbers() const {
  metrics::AgentNumbers numbers;
  if (sampled_at_) numbers.sample_age = loop_.now() - *sampled_at_;
  if (containers_at_) numbers.pod_resources_age = loop_.now() - *containers_at_;
  numbers.pod_resources_errors = pod_errors_;
  numbers.pod_resources_time = pods_took_;
  return numbers;
}

void MetricsCare::arm() {
  timer_.reset();
  if (settings_.interval <= Duration{}) return;
  timer_ = loop_.after(settings_.interval, [this] {
    arm();
    begin();
  });
}

void MetricsCare::begin() {
  if (!snapshot_) return;
  // The one before has waited for its whole patience: what has not come is not in it.
  if (round_) finish();
  if (!snapshot_ || round_) return;  // who was told of it may have told what is new
  auto round = std::make_shared<Round>();
  round->snapshot = snapshot_;
  round->gpus.resize(snapshot_->gpus.size());
  round_ = round;
  for (std::size_t i = 0; i < snapshot_->gpus.size(); ++i) {
    const auto& uuid = snapshot_->gpus[i].uuid;
    if (uuid.empty() || !out_.insert(uuid).second) continue;
    ++round->waiting;
    ports_.sampler.sample(
        snapshot_, i, loop_.now(),
        [this, alive = std::weak_ptr(alive_), round, i, uuid](Result<Sampler::Sampled> sampled) {
          if (alive.expired()) return;
          out_.erase(uuid);
          if (sampled) round->gpus[i] = std::move(*sampled);
          --round->waiting;
          conclude(round);
        });
  }
  ask_pods();
  patience_ = loop_.after(std::min(kSamplePatience, settings_.interval / 2), [this] { finish(); });
}

void MetricsCare::ask_pods() {
  if (pods_out_) return;
  pods_out_ = true;
  const Time asked = loop_.now();
  ports_.pod_resources.list([this, alive = std::weak_ptr(alive_), round = round_,
                             asked](Result<std::vector<kubelet::ContainerDevices>> listed) {
    if (alive.expired()) return;
    pods_out_ = false;
    if (listed) {
      containers_.clear();
      for (const auto& one : *listed)
        containers_.push_back({{one.name_space, one.pod}, one.container, one.devices});
      listed_ = std::move(*listed);
      containers_at_ = loop_.now();
      pods_took_ = *containers_at_ - asked;
    } else {
      ++pod_errors_;
    }
    conclude(round);
  });
}

// When everybody has answered.
void MetricsCare::conclude(const std::shared_ptr<Round>& round) {
  if (round_ == round && round->waiting == 0 && !pods_out_) finish();
}

void MetricsCare::finish() {
  if (!round_) return;
  const auto round = std::exchange(round_, nullptr);
  patience_.reset();
  metrics::Sample sample;
  auto pods = pods_of(*round);
  for (std::size_t i = 0; i < round->gpus.size(); ++i) {
    const auto& gpu = round->snapshot->gpus[i];
    if (round->gpus[i]) {
      sample.gpus.push_back(std::move(round->gpus[i]->gpu));
      continue;
    }
    GpuSample silent;
    silent.index = gpu.index;
    silent.uuid = gpu.uuid;
    silent.failed = Error(Code::kDeadlineExceeded, "the driver has not answered", gpu.uuid.str());
    sample.gpus.push_back(std::move(silent));
  }
  // A round that no GPU answered makes nothing younger.
  const bool answered =
      sample.gpus.empty() || std::ranges::any_of(sample.gpus, [](const auto& gpu) { return !gpu.failed; });
  if (answered) sampled_at_ = loop_.now();
  meter_.take(round->snapshot, std::move(sample), std::move(pods), loop_.now());
  if (ports_.sampled) ports_.sampled();
}

metrics::Meter::Pods MetricsCare::pods_of(const Round& round) {
  metrics::Meter::Pods pods;
  pods.holders = metrics::holders_of(containers_, *round.snapshot);
  // One that cannot be read now: as last known.
  if (auto known = ports_.pods ? ports_.pods() : Result<metrics::PodUids>(metrics::PodUids{}))
    uids_ = std::move(*known);
  for (const auto& gpu : round.gpus) {
    if (gpu) metrics::add_pods(gpu->cgroups, uids_, pods.processes);
  }
  if (settings_.pod_uid) {
    for (const auto& [uid, pod] : uids_) pods.facts[pod].uid = uid;
  }
  if (settings_.pod_labels) {
    for (const auto& [pod, labels] : labels_)
      pods.facts[pod].labels = metrics::to_labels(labels, settings_.patterns);
  }
  return pods;
}

}  // namespace gpulet::agent

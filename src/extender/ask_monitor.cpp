#include "extender/ask_monitor.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "k8s/objects.h"

namespace gpulet::extender {
namespace {

using Outcome = k8s::RetryingSender::Outcome;

constexpr std::string_view kAsked = "asked.", kMissed = "missed.";
constexpr std::size_t kMaxKeyBytes = 253;  // of a ConfigMap

// A ConfigMap's keys have no '/', and a resource's domain no '_'.
std::string key_of(const std::string& scheduler, const std::string& resource) {
  std::string key = scheduler + "." + resource;
  std::ranges::replace(key, '/', '_');
  return key.size() + kMissed.size() <= kMaxKeyBytes ? key : "";
}

template <class Map>
auto value_or_default(const Map& map, const std::string& key) {
  const auto found = map.find(key);
  return found == map.end() ? typename Map::mapped_type{} : found->second;
}

}  // namespace

AskRecord parse_ask_record(const std::map<std::string, std::string>& data) {
  AskRecord record;
  for (const auto& [name, value] : data) {
    if (record.asked.size() + record.missed.size() >= 2 * kMaxAskKeys) break;
    const auto words = text::split(value, ' ');
    const auto at = words.empty() ? std::nullopt : parse_wall_time(words.front());
    if (!at) continue;
    if (name.starts_with(kAsked)) record.asked[name.substr(kAsked.size())] = *at;
    if (name.starts_with(kMissed) && words.size() == 4)
      record.missed[name.substr(kMissed.size())] = {*at, words[1], words[2], words[3]};
  }
  return record;
}

std::vector<MissedPod> current_misses(const AskRecord& record) {
  std::vector<MissedPod> all;
  for (const auto& [key, missed] : record.missed) {
    if (value_or_default(record.asked, key) < missed.at) all.push_back(missed);
  }
  return all;
}

namespace {

class ConfigMapStore final : public AskRecordStore {
 public:
  ConfigMapStore(Loop& loop, k8s::ClientConfig access, const std::string& config_map, k8s::SendTiming timing)
      : path_("/api/v1/namespaces/" + access.pod_namespace + "/configmaps/" + config_map),
        right_("get and patch on the ConfigMap " + access.pod_namespace + "/" + config_map),
        sending_(loop, std::move(access), timing, "the extender's record", [this] { send_next(); }) {}

  void set_entry(std::string key, std::string value) override {
    entries_[std::move(key)] = std::move(value);
    sending_.wake();
  }
  void read_record(std::function<void(AskRecord)> done) override {
    done_ = std::move(done);
    sending_.wake();
  }

 private:
  void send_next() {
    if (!entries_.empty()) return write_entries();
    if (!done_) return sending_.idle();
    sending_.send_request(
        {.method = "GET", .path = path_}, right_, [this](const http::ClientResponse& response) {
          if (response.status != 200) return Outcome::kError;
          std::exchange(done_,
                        nullptr)(parse_ask_record(k8s::json_text_map(parse_json(response.body), "data")));
          return Outcome::kDone;
        });
  }

  void write_entries() {
    sending_.send_request({.method = "PATCH",
                           .path = path_,
                           .content_type = "application/merge-patch+json",
                           .body = k8s::serialize_json({{"data", entries_}}),
                           .accept = k8s::kMetadataOnly},
                          right_, [this, sent = entries_](const http::ClientResponse& response) {
                            if (response.status != 200) return Outcome::kError;
                            std::erase_if(entries_, [&](const auto& entry) {
                              const auto written = sent.find(entry.first);
                              return written != sent.end() && written->second == entry.second;
                            });
                            return Outcome::kDone;
                          });
  }

  const std::string path_, right_;
  std::map<std::string, std::string> entries_;  // to be written
  std::function<void(AskRecord)> done_;
  k8s::RetryingSender sending_;
};

}  // namespace

std::unique_ptr<AskRecordStore> AskRecordStore::start_store(Loop& loop, k8s::ClientConfig access,
                                                            const std::string& config_map,
                                                            k8s::SendTiming timing) {
  return std::make_unique<ConfigMapStore>(loop, std::move(access), config_map, timing);
}

AskMonitor::AskMonitor(AskMonitorPorts ports, std::set<std::string> schedulers, AskTiming timing)
    : ports_(std::move(ports)), schedulers_(std::move(schedulers)), timing_(timing) {}

void AskMonitor::on_asked(const scheduler::PodRequest& pod) {
  if (!schedulers_.contains(pod.scheduler)) return;
  const auto now = ports_.loop.wall_now();
  for (const auto& container : pod.containers) {
    for (const auto& device : container.devices) {
      const auto key = key_of(pod.scheduler, device.resource.str());
      if (key.empty() || (!asked_.contains(key) && asked_.size() >= kMaxAskKeys)) continue;
      asked_[key] = now;
      if (ports_.record == nullptr || now < value_or_default(recorded_, key) + timing_.record_every) continue;
      recorded_[key] = now;
      ports_.record->set_entry(std::string(kAsked) + key, format_wall_time(now));
    }
  }
}

void AskMonitor::on_bound(const scheduler::PodRequest& pod, const std::set<std::string>& resources) {
  // The API server sets the condition PodScheduled when a scheduler binds the Pod.
  if (!schedulers_.contains(pod.scheduler) || pod.bound_at.empty()) return;
  BoundPod bound{.pod = {pod.name_space, pod.name, pod.uid},
                 .node = pod.node,
                 .scheduler = pod.scheduler,
                 .resources = {},
                 .at = ports_.loop.wall_now(),
                 .judged_at = ports_.loop.now() + timing_.settle};
  for (const auto& resource : resources) {
    const auto key = key_of(pod.scheduler, resource);
    if (!key.empty() && value_or_default(asked_, key) + timing_.window < bound.at)
      bound.resources[key] = resource;
  }
  if (bound.resources.empty() || unjudged_.size() >= kMaxUnjudgedPods) return;
  unjudged_.push_back(std::move(bound));
  judge_later();
}

void AskMonitor::judge_later() {
  if (next_ || unjudged_.empty()) return;
  const auto wait = std::max(Duration::zero(), Duration(unjudged_.front().judged_at - ports_.loop.now()));
  next_ = ports_.loop.after(wait, [this] {
    // next_ stays until the record is there: one request for all.
    if (ports_.record == nullptr) return judge_pods({});
    ports_.record->read_record([this, alive = lifetime_.watch()](const AskRecord& record) {
      if (alive) judge_pods(record);
    });
  });
}

void AskMonitor::judge_pods(const AskRecord& record) {
  next_.reset();
  const Time now = ports_.loop.now();
  while (!unjudged_.empty() && unjudged_.front().judged_at <= now) {
    const auto pod = std::move(unjudged_.front());
    unjudged_.pop_front();
    bool missed = false;
    for (const auto& [key, resource] : pod.resources) {
      const auto asked = std::max(value_or_default(asked_, key), value_or_default(record.asked, key));
      if (asked + timing_.window >= pod.at) continue;
      missed = true;
      report_missed(pod, key, resource, record);
    }
    if (missed) ++missed_count_;
  }
  judge_later();
}

void AskMonitor::report_missed(const BoundPod& pod, const std::string& key, const std::string& resource,
                               const AskRecord& record) {
  const auto reported = std::max(value_or_default(reported_, key), value_or_default(record.missed, key).at);
  if (pod.at < reported + timing_.report_every) return;
  reported_[key] = pod.at;
  const std::string name = pod.pod.name_space + "/" + pod.pod.name;
  log::warning("a Pod with GPUs was bound without a question to the extender",
               {{"pod", name}, {"node", pod.node}, {"scheduler", pod.scheduler}, {"resource", resource}});
  if (ports_.record != nullptr)
    ports_.record->set_entry(std::string(kMissed) + key,
                             format_wall_time(pod.at) + " " + pod.scheduler + " " + resource + " " + name);
  if (!ports_.send_event) return;
  ports_.send_event(
      {.warning = true,
       .reason = kNotAskedReason,
       .message = pod.scheduler + " bound the Pod to " + pod.node +
                  " without asking gpulet scheduler about " + resource +
                  ": it is not configured to, or cannot reach it; see `gpulet scheduler config`",
       .pod = pod.pod});
}

}  // namespace gpulet::extender

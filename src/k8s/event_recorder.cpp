// Sends the events of events.h: a bounded queue of records, one request at a time.
#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/dns_name.h"
#include "base/log.h"
#include "k8s/api_client.h"
#include "k8s/event_recorder.h"
#include "k8s/objects.h"

namespace gpulet::k8s {
namespace {

using nlohmann::json;

constexpr const char* kRequiredPermission = " (the agent needs create and patch on events)";
constexpr std::size_t kMaxNameBytes =
    253 - 17;  // of an object's name, before the suffix that makes event names unique

// One Event object of the API server, with the number of repeats.
struct Record {
  Event event;
  std::uint64_t count = 1;
  WallTime first{}, last{};
  Time last_seen{};
  std::string name;      // the object's
  bool created = false;  // the API server has it: repeats are patches
  bool queued = false;
  Subscription delay;  // until a burst of repeats is sent
};
using RecordPtr = std::shared_ptr<Record>;

// Orders events by the fields that make two events equal.
struct EventOrder {
  using is_transparent = void;
  static const Event& event(const Event& event) { return event; }
  static const Event& event(const RecordPtr& record) { return record->event; }
  static auto key(const Event& event) {
    return std::tie(event.pod, event.warning, event.reason, event.message);
  }
  bool operator()(const auto& a, const auto& b) const { return key(event(a)) < key(event(b)); }
};

std::string event_namespace(const Event& event) { return event.pod ? event.pod->name_space : "default"; }

std::string events_path(const Event& event) {
  return "/api/v1/namespaces/" + event_namespace(event) + "/events";
}

class QueueingEventRecorder final : public EventRecorder {
 public:
  QueueingEventRecorder(Loop& loop, ClientConfig access, EventTiming timing)
      : loop_(loop),
        access_(access),
        timing_(timing),
        client_(loop, std::move(access), timing.request_limit),
        backoff_(timing.backoff, static_cast<std::uint64_t>(loop.now().time_since_epoch().count())),
        instance_(static_cast<std::uint64_t>(loop.wall_now().time_since_epoch().count())) {}

  void record_event(Event event) override {
    event.message = truncate_utf8(std::move(event.message), kMaxMessageBytes);
    if (event.pod && (!is_dns_label(event.pod->name_space) || !is_dns_subdomain(event.pod->name))) {
      ++dropped_;  // the name would change the request's path
      return;
    }
    const Time now = loop_.now();
    if (const auto it = records_.find(event); it != records_.end()) return count_repeat(*it, now);
    drop_oldest();
    auto record = std::make_shared<Record>();
    record->event = std::move(event);
    record->first = record->last = loop_.wall_now();
    record->last_seen = now;
    record->name = make_event_name(record->event);
    records_.insert(record);
    if (!forget_) schedule_expiry(timing_.repeat_window);
    enqueue(record);
  }

  std::uint64_t sent() const override { return sent_; }
  std::uint64_t dropped() const override { return dropped_; }
  std::size_t queued() const override { return queue_.size() + (under_way_ ? 1 : 0); }
  std::size_t remembered_count() const override { return records_.size(); }

 private:
  std::string make_event_name(const Event& event) {
    char suffix[40];
    std::snprintf(suffix, sizeof suffix, ".%016llx",
                  static_cast<unsigned long long>(instance_) + next_name_++);
    std::string name = (event.pod ? event.pod->name : access_.node_name).substr(0, kMaxNameBytes);
    while (name.ends_with('.') || name.ends_with('-')) name.pop_back();
    return name + suffix;
  }

  void count_repeat(const RecordPtr& record, Time now) {
    ++record->count;
    record->last = loop_.wall_now();
    record->last_seen = now;
    schedule_repeat(record);
  }

  void schedule_repeat(const RecordPtr& record) {
    if (record->queued || record->delay) return;  // the pending request will include this repeat
    record->delay = loop_.after(timing_.repeat_delay, [this, weak = std::weak_ptr(record)] {
      const auto due = weak.lock();
      if (!due) return;
      due->delay.reset();
      if (!due->queued) enqueue(due);
    });
  }

  // Whether a request for it is queued or scheduled.
  static bool is_pending(const Record& record) { return record.delay || record.queued; }

  // Drops records without a repeat within the window, also if no further event arrives.
  void drop_expired() {
    const Time now = loop_.now();
    std::optional<Time> next;
    std::erase_if(records_, [&](const RecordPtr& record) {
      const bool old = now - record->last_seen >= timing_.repeat_window;
      if (old && !is_pending(*record)) return true;
      const Time until = (old ? now : record->last_seen) + timing_.repeat_window;
      if (!next || until < *next) next = until;
      return false;
    });
    if (next) schedule_expiry(std::max(*next - now, timing_.repeat_delay));
  }

  void schedule_expiry(Duration delay) {
    forget_ = loop_.after(delay, [this] {
      forget_.reset();
      drop_expired();
    });
  }

  void drop_oldest() {
    if (records_.size() < kMaxRemembered) return;
    records_.erase(std::ranges::min_element(records_, {}, [](const RecordPtr& record) {
      return std::pair(is_pending(*record), record->last_seen);
    }));
  }

  void enqueue(const RecordPtr& record) {
    record->queued = true;
    queue_.push_back(record);
    if (queue_.size() > kMaxQueued) {
      drop_event(queue_.front());
      queue_.pop_front();
    }
    send_next_event();
  }

  void drop_event(const RecordPtr& record) {
    record->queued = false;
    dropped_ += 1;
    // A later equal event becomes a new record.
    if (const auto it = records_.find(record->event); it != records_.end()) records_.erase(it);
  }

  void send_next_event() {
    if (under_way_ || retry_) return;
    if (queue_.empty()) return client_.close_connection();
    under_way_ = queue_.front();
    queue_.pop_front();
    under_way_->queued = false;  // a later repeat causes its own request
    warned_ = under_way_->count;
    client_.send_request(
        under_way_->created ? make_patch(*under_way_) : make_post(*under_way_),
        [this](const Result<http::ClientResponse>& response) { on_event_response(response); });
  }

  json involved_object(const Event& event) const {
    if (event.pod) {
      return {{"apiVersion", "v1"},
              {"kind", "Pod"},
              {"namespace", event.pod->name_space},
              {"name", event.pod->name},
              {"uid", event.pod->uid}};
    }
    // As in the kubelet's own events: `kubectl describe node` looks for the node's name as the uid.
    return {{"apiVersion", "v1"}, {"kind", "Node"}, {"name", access_.node_name}, {"uid", access_.node_name}};
  }

  ApiRequest make_post(const Record& record) const {
    const json source = {{"component", "gpulet"}, {"host", access_.node_name}};
    const json object = {{"apiVersion", "v1"},
                         {"kind", "Event"},
                         {"metadata", {{"name", record.name}, {"namespace", event_namespace(record.event)}}},
                         {"involvedObject", involved_object(record.event)},
                         {"type", record.event.warning ? "Warning" : "Normal"},
                         {"reason", record.event.reason},
                         {"message", record.event.message},
                         {"count", record.count},
                         {"firstTimestamp", format_rfc3339(record.first)},
                         {"lastTimestamp", format_rfc3339(record.last)},
                         {"source", source},
                         {"reportingComponent", "gpulet"},
                         {"reportingInstance", access_.node_name}};
    return {"POST", events_path(record.event), "application/json", serialize_json(object)};
  }

  ApiRequest make_patch(const Record& record) const {
    const json change = {{"count", record.count}, {"lastTimestamp", format_rfc3339(record.last)}};
    return {"PATCH", events_path(record.event) + "/" + record.name, "application/merge-patch+json",
            serialize_json(change)};
  }

  void on_event_response(const Result<http::ClientResponse>& response) {
    const RecordPtr record = std::move(under_way_);
    under_way_.reset();
    if (!response) return schedule_retry(record, response.error());
    const int status = response->status;
    if (status / 100 == 2 ||
        (status == 409 && !record->created)) {  // 409: an earlier request succeeded but its response was lost
      record->created = true;
      ++sent_;
      backoff_.reset();
      logged_error_.clear();
      // Repeats during the request.
      if (record->count > warned_) schedule_repeat(record);
      return send_next_event();
    }
    if (status == 404 && record->created) {  // the API server keeps events for an hour by default
      record->created = false;
      record->name = make_event_name(record->event);
      record->queued = true;
      queue_.push_front(record);
      return send_next_event();
    }
    const Error refused(Code::kUnavailable,
                        describe_response(*response) + (status == 403 ? kRequiredPermission : ""));
    // A terminating namespace refuses new objects, and a retry would delay all other events.
    const bool ending = has_cause(*response, "NamespaceTerminating");
    const bool worth_another_try =
        !ending && (status >= 500 || status == 401 || status == 403 || status == 408 || status == 429);
    if (worth_another_try) return schedule_retry(record, refused);
    log::warning("the API server rejected an event", refused, {{"reason", record->event.reason}});
    drop_event(record);
    send_next_event();
  }

  // Queues the record first again, after a delay. Each kind of failure is logged once; a missing permission
  // is one kind, whatever the message.
  void schedule_retry(const RecordPtr& record, const Error& error) {
    const bool right = error.message().ends_with(kRequiredPermission);
    const std::string kind = right ? kRequiredPermission : error.full_message();
    if (logged_error_ != kind) {
      logged_error_ = kind;
      log::warning("cannot send events to the API server; retrying", error);
    }
    record->queued = true;
    record->delay.reset();
    queue_.push_front(record);
    if (queue_.size() > kMaxQueued) {
      drop_event(queue_.front());
      queue_.pop_front();
    }
    client_.close_connection();
    retry_ = loop_.after(backoff_.next_delay(), [this] {
      retry_.reset();
      send_next_event();
    });
  }

  Loop& loop_;
  ClientConfig access_;
  EventTiming timing_;
  ApiClient client_;
  Backoff backoff_;
  std::uint64_t instance_;
  std::uint64_t next_name_ = 0, sent_ = 0, dropped_ = 0, warned_ = 0;
  std::set<RecordPtr, EventOrder> records_;
  std::deque<RecordPtr> queue_;
  RecordPtr under_way_;
  std::string logged_error_;
  Subscription retry_, forget_;
};

}  // namespace

std::unique_ptr<EventRecorder> EventRecorder::start_recorder(Loop& loop, ClientConfig access,
                                                             EventTiming timing) {
  return std::make_unique<QueueingEventRecorder>(loop, std::move(access), timing);
}

}  // namespace gpulet::k8s

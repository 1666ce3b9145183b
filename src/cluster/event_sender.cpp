// The sender of events.h: a bounded queue of records, one request at a time.
#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/log.h"
#include "cluster/api_client.h"
#include "cluster/events.h"
#include "cluster/objects.h"

namespace gpulet::cluster {
namespace {

using nlohmann::json;

constexpr const char* kNeeds = " (the agent needs create and patch on events)";
constexpr std::size_t kMaxNameBytes = 253 - 17;  // of an object, before what tells its events apart

// One Event object of the API server, and the repeats that it stands for.
struct Record {
  Event event;
  std::uint64_t count = 1;
  WallTime first{}, last{};
  Time last_seen{};
  std::string name;      // the object's
  bool created = false;  // the API server has it: repeats are patches
  bool queued = false;
  Subscription delay;  // until a burst of repeats is told
};
using RecordPtr = std::shared_ptr<Record>;

// By what makes two events the same one.
struct Before {
  using is_transparent = void;
  static const Event& event(const Event& event) { return event; }
  static const Event& event(const RecordPtr& record) { return record->event; }
  static auto key(const Event& event) {
    return std::tie(event.pod, event.warning, event.reason, event.message);
  }
  bool operator()(const auto& a, const auto& b) const { return key(event(a)) < key(event(b)); }
};

std::string namespace_of(const Event& event) { return event.pod ? event.pod->name_space : "default"; }

std::string path_of(const Event& event) { return "/api/v1/namespaces/" + namespace_of(event) + "/events"; }

class Sender final : public EventSender {
 public:
  Sender(Loop& loop, Access access, EventTiming timing)
      : loop_(loop),
        access_(access),
        timing_(timing),
        client_(loop, std::move(access), timing.request_limit),
        backoff_(timing.backoff, static_cast<std::uint64_t>(loop.now().time_since_epoch().count())),
        instance_(static_cast<std::uint64_t>(loop.wall_now().time_since_epoch().count())) {}

  void send(Event event) override {
    event.message = shortened(std::move(event.message), kMaxMessageBytes);
    if (event.pod && (!is_name(event.pod->name_space) || !is_name(event.pod->name))) {
      ++dropped_;  // it would lead elsewhere
      return;
    }
    const Time now = loop_.now();
    if (const auto it = records_.find(event); it != records_.end()) return repeat(*it, now);
    make_room();
    auto record = std::make_shared<Record>();
    record->event = std::move(event);
    record->first = record->last = loop_.wall_now();
    record->last_seen = now;
    record->name = new_name(record->event);
    records_.insert(record);
    if (!forget_) forget_later(timing_.repeat_window);
    enqueue(record);
  }

  std::uint64_t sent() const override { return sent_; }
  std::uint64_t dropped() const override { return dropped_; }
  std::size_t waiting() const override { return queue_.size() + (under_way_ ? 1 : 0); }
  std::size_t remembered() const override { return records_.size(); }

 private:
  std::string new_name(const Event& event) {
    char suffix[40];
    std::snprintf(suffix, sizeof suffix, ".%016llx",
                  static_cast<unsigned long long>(instance_) + next_name_++);
    std::string name = (event.pod ? event.pod->name : access_.node_name).substr(0, kMaxNameBytes);
    while (name.ends_with('.') || name.ends_with('-')) name.pop_back();
    return name + suffix;
  }

  void repeat(const RecordPtr& record, Time now) {
    ++record->count;
    record->last = loop_.wall_now();
    record->last_seen = now;
    tell_later(record);
  }

  void tell_later(const RecordPtr& record) {
    if (record->queued || record->delay) return;  // what waits will tell this one too
    record->delay = loop_.after(timing_.repeat_delay, [this, weak = std::weak_ptr(record)] {
      const auto due = weak.lock();
      if (!due) return;
      due->delay.reset();
      if (!due->queued) enqueue(due);
    });
  }

  // Whether something is still to be told of it: its queue or its timer holds it.
  static bool busy(const Record& record) { return record.delay || record.queued; }

  // Those that nothing repeated within the window, also where no event comes any more.
  void forget_old() {
    const Time now = loop_.now();
    std::optional<Time> next;
    std::erase_if(records_, [&](const RecordPtr& record) {
      const bool old = now - record->last_seen >= timing_.repeat_window;
      if (old && !busy(*record)) return true;
      const Time until = (old ? now : record->last_seen) + timing_.repeat_window;
      if (!next || until < *next) next = until;
      return false;
    });
    if (next) forget_later(std::max(*next - now, timing_.repeat_delay));
  }

  void forget_later(Duration delay) {
    forget_ = loop_.after(delay, [this] {
      forget_.reset();
      forget_old();
    });
  }

  void make_room() {
    if (records_.size() < kMaxRemembered) return;
    records_.erase(std::ranges::min_element(
        records_, {}, [](const RecordPtr& record) { return std::pair(busy(*record), record->last_seen); }));
  }

  void enqueue(const RecordPtr& record) {
    record->queued = true;
    queue_.push_back(record);
    if (queue_.size() > kMaxQueued) {
      drop(queue_.front());
      queue_.pop_front();
    }
    pump();
  }

  void drop(const RecordPtr& record) {
    record->queued = false;
    dropped_ += 1;
    // A later one like it starts anew.
    if (const auto it = records_.find(record->event); it != records_.end()) records_.erase(it);
  }

  void pump() {
    if (under_way_ || retry_) return;
    if (queue_.empty()) return client_.close();
    under_way_ = queue_.front();
    queue_.pop_front();
    under_way_->queued = false;  // a repeat from here on is told by a request of its own
    told_ = under_way_->count;
    client_.request(under_way_->created ? patch_of(*under_way_) : post_of(*under_way_),
                    [this](const Result<ApiResponse>& response) { on_response(response); });
  }

  json involved(const Event& event) const {
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

  ApiRequest post_of(const Record& record) const {
    const json source = {{"component", "gpulet"}, {"host", access_.node_name}};
    const json object = {{"apiVersion", "v1"},
                         {"kind", "Event"},
                         {"metadata", {{"name", record.name}, {"namespace", namespace_of(record.event)}}},
                         {"involvedObject", involved(record.event)},
                         {"type", record.event.warning ? "Warning" : "Normal"},
                         {"reason", record.event.reason},
                         {"message", record.event.message},
                         {"count", record.count},
                         {"firstTimestamp", rfc3339(record.first)},
                         {"lastTimestamp", rfc3339(record.last)},
                         {"source", source},
                         {"reportingComponent", "gpulet"},
                         {"reportingInstance", access_.node_name}};
    return {"POST", path_of(record.event), "application/json", body_of(object)};
  }

  ApiRequest patch_of(const Record& record) const {
    const json change = {{"count", record.count}, {"lastTimestamp", rfc3339(record.last)}};
    return {"PATCH", path_of(record.event) + "/" + record.name, "application/merge-patch+json",
            body_of(change)};
  }

  void on_response(const Result<ApiResponse>& response) {
    const RecordPtr record = std::move(under_way_);
    under_way_.reset();
    if (!response) return later(record, response.error());
    const int status = response->status;
    if (status / 100 == 2 || (status == 409 && !record->created)) {  // 409: an answer of before was lost
      record->created = true;
      ++sent_;
      backoff_.reset();
      told_trouble_.clear();
      // Repeats that came while it was under way.
      if (record->count > told_) tell_later(record);
      return pump();
    }
    if (status == 404 && record->created) {  // the API server keeps events for an hour by default
      record->created = false;
      record->name = new_name(record->event);
      record->queued = true;
      queue_.push_front(record);
      return pump();
    }
    const Error refused(Code::kUnavailable, said(*response) + (status == 403 ? kNeeds : ""));
    // A namespace that is being taken away refuses all that is new, and would hold back all others' events.
    const bool ending = has_cause(*response, "NamespaceTerminating");
    const bool worth_another_try =
        !ending && (status >= 500 || status == 401 || status == 403 || status == 408 || status == 429);
    if (worth_another_try) return later(record, refused);
    log::warning("an event is refused for good", refused, {{"reason", record->event.reason}});
    drop(record);
    pump();
  }

  // First in the queue again, after a while. Said once for one kind of trouble; a right that is missing is
  // missing for all, whatever the words.
  void later(const RecordPtr& record, const Error& error) {
    const bool right = error.message().ends_with(kNeeds);
    const std::string kind = right ? kNeeds : error.text();
    if (told_trouble_ != kind) {
      told_trouble_ = kind;
      log::warning("cannot send events to the API server; trying again", error);
    }
    record->queued = true;
    record->delay.reset();
    queue_.push_front(record);
    if (queue_.size() > kMaxQueued) {
      drop(queue_.front());
      queue_.pop_front();
    }
    client_.close();
    retry_ = loop_.after(backoff_.next(), [this] {
      retry_.reset();
      pump();
    });
  }

  Loop& loop_;
  Access access_;
  EventTiming timing_;
  ApiClient client_;
  Backoff backoff_;
  std::uint64_t instance_;
  std::uint64_t next_name_ = 0, sent_ = 0, dropped_ = 0, told_ = 0;
  std::set<RecordPtr, Before> records_;
  std::deque<RecordPtr> queue_;
  RecordPtr under_way_;
  std::string told_trouble_;
  Subscription retry_, forget_;
};

}  // namespace

std::unique_ptr<EventSender> EventSender::start(Loop& loop, Access access, EventTiming timing) {
  return std::make_unique<Sender>(loop, std::move(access), timing);
}

}  // namespace gpulet::cluster

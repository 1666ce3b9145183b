#include "k8s/node_status.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "base/loop.h"
#include "k8s/api_client.h"
#include "k8s/objects.h"
#include "k8s/watcher.h"

namespace gpulet::k8s {
namespace {

using nlohmann::json;
using Outcome = RetryingSender::Outcome;

const char* condition_status_name(Condition::Status status) {
  switch (status) {
    case Condition::Status::kTrue:
      return "True";
    case Condition::Status::kFalse:
      return "False";
    case Condition::Status::kUnknown:
      return "Unknown";
  }
  return "Unknown";
}

// One of the agent's conditions as the API server has it.
struct PublishedCondition {
  std::string status, reason, message, since;
  bool has_same_content(const Condition& condition) const {
    return status == condition_status_name(condition.status) && reason == condition.reason &&
           message == condition.message;
  }
};

class ConditionWriter final : public NodeConditions {
 public:
  ConditionWriter(Loop& loop, ClientConfig access, NodeConditionsTiming timing)
      : loop_(loop),
        path_("/api/v1/nodes/" + access.node_name),
        heartbeat_(timing.heartbeat),
        sending_(loop, std::move(access), timing.sending, "the node's conditions",
                 [this] { update_conditions(); }) {}

  void set_condition(Condition condition) override {
    condition.message = truncate_utf8(std::move(condition.message), kMaxConditionBytes);
    Entry& entry = find_or_add_entry(condition.type);
    if (entry.desired == condition) return;
    if (!entry.desired || entry.desired->status != condition.status)
      entry.since = format_rfc3339(loop_.wall_now());
    entry.desired = std::move(condition);
    sending_.wake();
  }

  void remove_condition(const std::string& type) override {
    find_or_add_entry(type).desired.reset();
    sending_.wake();
  }

  SendStatus condition_status() const override {
    SendStatus delivery = sending_.send_status();
    delivery.pending =
        std::ranges::any_of(entries_, [](const auto& entry) { return !entry.second.is_settled(); });
    return delivery;
  }

 private:
  struct Entry {
    std::optional<Condition> desired;  // nullopt: to be removed
    std::string since;                 // last transition time of the desired status
    std::optional<PublishedCondition> published;
    bool is_settled() const { return desired && published && published->has_same_content(*desired); }
  };

  // The published state of a new entry must be read first.
  Entry& find_or_add_entry(const std::string& type) {
    const auto [entry, is_new] = entries_.try_emplace(type);
    if (is_new) known_ = false;
    return entry->second;
  }

  using Sent = std::map<std::string, std::optional<PublishedCondition>>;

  void update_conditions() {
    if (entries_.empty()) return sending_.idle();
    if (!known_) return read_conditions();
    json conditions = json::array();
    Sent sent;
    const std::string now = format_rfc3339(loop_.wall_now());
    for (const auto& [type, entry] : entries_) {
      if (!entry.desired) {
        if (entry.published) conditions.push_back({{"$patch", "delete"}, {"type", type}});
        sent[type] = std::nullopt;
        continue;
      }
      if (entry.is_settled() && !beat_) continue;
      const Condition& wanted = *entry.desired;
      const bool same = entry.published && entry.published->status == condition_status_name(wanted.status) &&
                        !entry.published->since.empty();
      const PublishedCondition there{condition_status_name(wanted.status), wanted.reason, wanted.message,
                                     same ? entry.published->since : entry.since};
      conditions.push_back({{"type", type},
                            {"status", there.status},
                            {"reason", there.reason},
                            {"message", there.message},
                            {"lastTransitionTime", there.since},
                            {"lastHeartbeatTime", now}});
      sent[type] = there;
    }
    beat_ = false;
    if (!conditions.empty()) return send_conditions(conditions, std::move(sent));
    std::erase_if(entries_, [](const auto& entry) { return !entry.second.desired; });
    sending_.idle();
    if (!entries_.empty() && !next_beat_) schedule_heartbeat();
  }

  void read_conditions() {
    sending_.send_request(
        {.method = "GET", .path = path_}, "get on nodes", [this](const http::ClientResponse& response) {
          if (response.status != 200) return Outcome::kError;
          const auto node = parse_json(response.body);
          for (auto& [type, entry] : entries_) entry.published.reset();
          const auto& conditions = json_member(json_member(node, "status"), "conditions");
          for (const auto& one : conditions.is_array() ? conditions : json::array()) {
            const auto entry = entries_.find(json_text(json_member(one, "type")));
            if (entry == entries_.end()) continue;
            entry->second.published = PublishedCondition{
                json_text(json_member(one, "status")), json_text(json_member(one, "reason")),
                json_text(json_member(one, "message")), json_text(json_member(one, "lastTransitionTime"))};
          }
          known_ = true;
          return Outcome::kNext;
        });
  }

  void send_conditions(const json& conditions, Sent sent) {
    next_beat_.reset();
    sending_.send_request({.method = "PATCH",
                           .path = path_ + "/status",
                           .content_type = "application/strategic-merge-patch+json",
                           .body = serialize_json({{"status", {{"conditions", conditions}}}}),
                           .accept = kMetadataOnly},
                          "patch on nodes/status",
                          [this, sent = std::move(sent)](const http::ClientResponse& response) {
                            if (response.status == 200) return on_conditions_written(sent);
                            if (response.status == 404)
                              known_ = false;  // a Node created later is another one
                            return response.status == 409 ? Outcome::kRetry : Outcome::kError;
                          });
  }

  Outcome on_conditions_written(const Sent& sent) {
    for (const auto& [type, there] : sent) {
      const auto entry = entries_.find(type);
      if (entry != entries_.end()) entry->second.published = there;
    }
    schedule_heartbeat();
    return Outcome::kDone;
  }

  void schedule_heartbeat() {
    next_beat_ = loop_.after(heartbeat_, [this] {
      next_beat_.reset();
      beat_ = true;
      sending_.wake();
    });
  }

  Loop& loop_;
  const std::string path_;
  const Duration heartbeat_;
  RetryingSender sending_;
  std::map<std::string, Entry> entries_;
  bool known_ = false;  // `published` is the state of the API server
  bool beat_ = false;
  Subscription next_beat_;
};

}  // namespace

std::unique_ptr<NodeConditions> NodeConditions::start_conditions(Loop& loop, ClientConfig access,
                                                                 NodeConditionsTiming timing) {
  return std::make_unique<ConditionWriter>(loop, std::move(access), timing);
}

namespace {

using nlohmann::json;
using Outcome = RetryingSender::Outcome;

constexpr std::array<std::string_view, 3> kEffects = {"NoSchedule", "PreferNoSchedule", "NoExecute"};

bool is_same(const json& there, const Taint& taint) {
  return json_text(json_member(there, "key")) == taint.key &&
         json_text(json_member(there, "value")) == taint.value &&
         json_text(json_member(there, "effect")) == taint.effect;
}

class TaintWriter final : public NodeTaints {
 public:
  TaintWriter(Loop& loop, ClientConfig access, std::set<std::string> keys, NodeTaintsTiming timing)
      : loop_(loop),
        path_("/api/v1/nodes/" + access.node_name),
        keys_(std::move(keys)),
        check_(timing.check),
        sending_(loop, std::move(access), timing.sending, "the node's taints", [this] { update_taints(); }) {}

  Status set_taints(std::vector<Taint> taints) override {
    std::ranges::sort(taints);
    for (std::size_t i = 0; i < taints.size(); ++i) {
      const auto& [key, value, effect] = taints[i];
      if (!keys_.contains(key))
        return fail(Code::kInvalidArgument, "is not a taint key that gpulet owns", key);
      if (std::ranges::find(kEffects, effect) == kEffects.end()) {
        return fail(Code::kInvalidArgument, "unknown effect of a taint: \"" + effect + "\"", key);
      }
      const auto rest = std::span(taints).subspan(i + 1);
      if (std::ranges::any_of(rest, [&](const Taint& o) { return o.key == key && o.effect == effect; })) {
        return fail(Code::kInvalidArgument, "two taints with the effect " + effect, key);
      }
    }
    if (wanted_ == taints) return {};
    wanted_ = std::move(taints);
    settled_ = false;
    sending_.wake();
    return {};
  }

  SendStatus taint_status() const override {
    SendStatus delivery = sending_.send_status();
    delivery.pending = wanted_ && !settled_;
    return delivery;
  }

 private:
  struct TaintedNode {
    json taints;
    std::string version;
  };

  void update_taints() {
    if (!wanted_ || settled_) return sending_.idle();
    next_check_.reset();
    if (!node_) return read_taints();
    const TaintedNode node = std::move(*std::exchange(node_, std::nullopt));
    const json taints = merge_taints(node.taints);
    if (taints == node.taints) return finish_taint_write();
    sending_.send_request({.method = "PATCH",
                           .path = path_,
                           .content_type = "application/merge-patch+json",
                           .body = serialize_json({{"metadata", {{"resourceVersion", node.version}}},
                                                   {"spec", {{"taints", taints}}}})},
                          "patch on nodes", [this, sent = *wanted_](const http::ClientResponse& response) {
                            if (response.status == 409) return Outcome::kRetry;
                            if (response.status != 200) return Outcome::kError;
                            if (wanted_ == sent) finish_taint_write();
                            return Outcome::kDone;
                          });
  }

  void read_taints() {
    sending_.send_request(
        {.method = "GET", .path = path_}, "get on nodes", [this](const http::ClientResponse& response) {
          if (response.status != 200) return Outcome::kError;
          const auto object = parse_json(response.body);
          TaintedNode node{json_member(json_member(object, "spec"), "taints"),
                           json_text(json_member(json_member(object, "metadata"), "resourceVersion"))};
          // Without a resource version, a concurrent write would be overwritten.
          if (node.version.empty()) return Outcome::kError;
          if (!node.taints.is_array()) node.taints = json::array();
          node_ = std::move(node);
          return Outcome::kNext;
        });
  }

  // Taints that already match stay unchanged, with the time added of a NoExecute taint.
  json merge_taints(const json& there) const {
    json taints = json::array();
    std::vector<Taint> missing = *wanted_;
    for (const auto& taint : there) {
      if (keys_.contains(json_text(json_member(taint, "key")))) {
        const auto same =
            std::ranges::find_if(missing, [&](const Taint& one) { return is_same(taint, one); });
        if (same == missing.end()) continue;
        missing.erase(same);
      }
      taints.push_back(taint);
    }
    for (const auto& [key, value, effect] : missing) {
      json taint = {{"key", key}, {"effect", effect}};
      if (!value.empty()) taint["value"] = value;
      taints.push_back(std::move(taint));
    }
    return taints;
  }

  void finish_taint_write() {
    settled_ = true;
    sending_.wake();
    if (wanted_->empty()) return;
    next_check_ = loop_.after(check_, [this] {
      next_check_.reset();
      settled_ = false;
      sending_.wake();
    });
  }

  Loop& loop_;
  const std::string path_;
  const std::set<std::string> keys_;
  const Duration check_;
  RetryingSender sending_;
  std::optional<std::vector<Taint>> wanted_;
  std::optional<TaintedNode> node_;  // as just read
  bool settled_ = true;
  Subscription next_check_;
};

}  // namespace

std::unique_ptr<NodeTaints> NodeTaints::start_taints(Loop& loop, ClientConfig access,
                                                     std::set<std::string> keys, NodeTaintsTiming timing) {
  return std::make_unique<TaintWriter>(loop, std::move(access), std::move(keys), timing);
}

namespace {

using nlohmann::json;

class AllocatableAnnouncer final : public ShutdownAnnouncer {
 public:
  AllocatableAnnouncer(Loop& loop, ClientConfig access, std::vector<std::string> resources,
                       std::function<void()> close, std::function<void()> done, ShutdownTiming timing)
      : loop_(loop),
        path_("/api/v1/nodes/" + access.node_name),
        resources_(std::move(resources)),
        close_(std::move(close)),
        done_(std::move(done)),
        timing_(timing),
        client_(loop, access, timing.limit),
        watch_(ObjectWatcher::watch_object(loop, access,
                                           {.collection = "/api/v1/nodes",
                                            .name = access.node_name,
                                            .description = "this node's allocatable devices",
                                            .resource = "nodes"},
                                           {.request_limit = timing.limit},
                                           [this](const json& node) { on_node(node); })),
        limit_(loop.after(timing.limit, [this] { finish_announcement(); })) {
    patch_allocatable();
  }

 private:
  void patch_allocatable() {
    if (!done_) return;  // the time limit has passed
    is_requesting_ = true;
    is_overwritten_ = false;
    json allocatable = json::object();
    for (const auto& resource : resources_) allocatable[resource] = "0";
    client_.send_request({.method = "PATCH",
                          .path = path_ + "/status",
                          .content_type = "application/strategic-merge-patch+json",
                          .body = serialize_json({{"status", {{"allocatable", std::move(allocatable)}}}}),
                          .accept = kMetadataOnly},
                         [this](const Result<http::ClientResponse>& response) {
                           is_requesting_ = false;
                           if (!is_accepted(response)) return finish_announcement();
                           // What the Node said before the first patch is no overwrite.
                           const bool is_first = !std::exchange(is_announced_, true);
                           if (is_overwritten_) return is_first ? patch_allocatable() : correct_overwrite();
                           quiet_ = loop_.after(settle_time(), [this] { verify_allocatable(); });
                         });
  }

  Duration settle_time() const {
    if (!close_) return timing_.settle_after_close;
    if (!overwritten_at_) return timing_.overwrite_wait;
    return is_overwritten_often_ ? timing_.settle_after_overwrite : timing_.settle_time;
  }

  // The kubelet's own write reaches the scheduler too: it is corrected at once, not after the settle time.
  void on_node(const json& node) {
    if (!done_ || !offers_devices(node)) return;
    if (is_requesting_) {
      is_overwritten_ = true;
      return;
    }
    quiet_.reset();
    correct_overwrite();
  }

  // The same write may be seen twice.
  void correct_overwrite() {
    const Time now = loop_.now();
    if (!overwritten_at_ || now - *overwritten_at_ >= timing_.settle_after_overwrite) {
      is_overwritten_often_ = overwritten_at_ && now - *overwritten_at_ < timing_.settle_time;
      overwritten_at_ = now;
    }
    patch_allocatable();
  }

  bool offers_devices(const json& node) const {
    const auto& allocatable = json_member(json_member(node, "status"), "allocatable");
    return std::ranges::any_of(resources_, [&](const auto& resource) {
      const auto count = json_text(json_member(allocatable, resource.c_str()));
      return !count.empty() && count != "0";
    });
  }

  // The watch may lag behind, or be refused.
  void verify_allocatable() {
    is_requesting_ = true;
    client_.send_request({.method = "GET", .path = path_},
                         [this](const Result<http::ClientResponse>& response) {
                           if (!is_accepted(response)) return finish_announcement();
                           if (is_overwritten_ || offers_devices(parse_json(response->body)))
                             return correct_overwrite();
                           if (!close_) return finish_announcement();
                           // In the next turn, because closing destroys other users of the loop.
                           loop_.post([this, alive = lifetime_.watch()] {
                             if (!alive) return;
                             if (auto close = std::exchange(close_, nullptr)) close();
                             patch_allocatable();
                           });
                         });
  }

  static bool is_accepted(const Result<http::ClientResponse>& response) {
    if (response && response->status == 200) return true;
    log::info(
        "cannot set the allocatable devices of the Node to zero; Pods bound to it in the next seconds may "
        "fail",
        {{"why", response ? describe_response(*response) : response.error().full_message()}});
    return false;
  }

  void finish_announcement() {
    limit_.reset();
    quiet_.reset();
    watch_.reset();
    client_.close_connection();
    if (auto close = std::exchange(close_, nullptr)) loop_.post(std::move(close));
    if (auto done = std::exchange(done_, nullptr)) loop_.post(std::move(done));
  }

  Loop& loop_;
  const std::string path_;
  const std::vector<std::string> resources_;
  std::function<void()> close_, done_;
  const ShutdownTiming timing_;
  ApiClient client_;
  std::unique_ptr<ObjectWatcher> watch_;
  bool is_requesting_ = false;
  bool is_overwritten_ = false;  // since the last patch was sent
  bool is_announced_ = false;    // the first patch was accepted
  std::optional<Time> overwritten_at_;
  bool is_overwritten_often_ = false;  // twice within the settle time
  Subscription limit_, quiet_;
  Lifetime lifetime_;
};

}  // namespace

std::unique_ptr<ShutdownAnnouncer> ShutdownAnnouncer::announce_shutdown(Loop& loop, ClientConfig access,
                                                                        std::vector<std::string> resources,
                                                                        std::function<void()> close,
                                                                        std::function<void()> done,
                                                                        ShutdownTiming timing) {
  return std::make_unique<AllocatableAnnouncer>(loop, std::move(access), std::move(resources),
                                                std::move(close), std::move(done), timing);
}

}  // namespace gpulet::k8s

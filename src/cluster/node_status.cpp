#include "cluster/node_status.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "cluster/objects.h"

namespace gpulet::cluster {
namespace {

using nlohmann::json;
using Outcome = Sending::Outcome;


const char* name(Condition::Status status) {
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

// What the API server has of one of ours.
struct There {
  std::string status, reason, message, since;
  bool is(const Condition& condition) const {
    return status == name(condition.status) && reason == condition.reason && message == condition.message;
  }
};

class Conditions final : public NodeStatus {
 public:
  Conditions(Loop& loop, Access access, NodeStatusTiming timing)
      : loop_(loop),
        path_("/api/v1/nodes/" + access.node_name),
        heartbeat_(timing.heartbeat),
        sending_(loop, std::move(access), timing.sending, "the node's conditions", [this] { step(); }) {}

  void set(Condition condition) override {
    condition.message = shortened(std::move(condition.message), kMaxConditionBytes);
    Entry& entry = entry_of(condition.type);
    if (entry.wanted == condition) return;
    if (!entry.wanted || entry.wanted->status != condition.status) entry.since = rfc3339(loop_.wall_now());
    entry.wanted = std::move(condition);
    sending_.wake();
  }

  void remove(const std::string& type) override {
    entry_of(type).wanted.reset();
    sending_.wake();
  }

  Delivery delivery() const override {
    Delivery delivery = sending_.delivery();
    delivery.waiting =
        std::ranges::any_of(entries_, [](const auto& entry) { return !entry.second.settled(); });
    return delivery;
  }

 private:
  struct Entry {
    std::optional<Condition> wanted;  // nullopt: to be taken away
    std::string since;                // when `wanted` came to its status
    std::optional<There> there;
    bool settled() const { return wanted && there && there->is(*wanted); }
  };

  // What is there of a new one is to be read.
  Entry& entry_of(const std::string& type) {
    const auto [entry, is_new] = entries_.try_emplace(type);
    if (is_new) known_ = false;
    return entry->second;
  }

  using Sent = std::map<std::string, std::optional<There>>;

  void step() {
    if (entries_.empty()) return sending_.idle();
    if (!known_) return read();
    json conditions = json::array();
    Sent sent;
    const std::string now = rfc3339(loop_.wall_now());
    for (const auto& [type, entry] : entries_) {
      if (!entry.wanted) {
        if (entry.there) conditions.push_back({{"$patch", "delete"}, {"type", type}});
        sent[type] = std::nullopt;
        continue;
      }
      if (entry.settled() && !beat_) continue;
      const Condition& wanted = *entry.wanted;
      const bool same =
          entry.there && entry.there->status == name(wanted.status) && !entry.there->since.empty();
      const There there{name(wanted.status), wanted.reason, wanted.message,
                        same ? entry.there->since : entry.since};
      conditions.push_back({{"type", type},
                            {"status", there.status},
                            {"reason", there.reason},
                            {"message", there.message},
                            {"lastTransitionTime", there.since},
                            {"lastHeartbeatTime", now}});
      sent[type] = there;
    }
    beat_ = false;
    if (!conditions.empty()) return send(conditions, std::move(sent));
    std::erase_if(entries_, [](const auto& entry) { return !entry.second.wanted; });
    sending_.idle();
    if (!entries_.empty() && !next_beat_) beat_later();
  }

  void read() {
    sending_.request({.method = "GET", .path = path_}, "get on nodes", [this](const ApiResponse& response) {
      if (response.status != 200) return Outcome::kTrouble;
      const auto node = json::parse(response.body, nullptr, false);
      for (auto& [type, entry] : entries_) entry.there.reset();
      const auto& conditions = member(member(node, "status"), "conditions");
      for (const auto& one : conditions.is_array() ? conditions : json::array()) {
        const auto entry = entries_.find(text_of(member(one, "type")));
        if (entry == entries_.end()) continue;
        entry->second.there =
            There{text_of(member(one, "status")), text_of(member(one, "reason")),
                  text_of(member(one, "message")), text_of(member(one, "lastTransitionTime"))};
      }
      known_ = true;
      return Outcome::kNext;
    });
  }

  void send(const json& conditions, Sent sent) {
    next_beat_.reset();
    sending_.request({.method = "PATCH",
                      .path = path_ + "/status",
                      .content_type = "application/strategic-merge-patch+json",
                      .body = body_of({{"status", {{"conditions", conditions}}}}),
                      .accept = kMetadataOnly},
                     "patch on nodes/status", [this, sent = std::move(sent)](const ApiResponse& response) {
                       if (response.status == 200) return on_taken(sent);
                       if (response.status == 404) known_ = false;  // another Node, when there is one
                       return response.status == 409 ? Outcome::kAgain : Outcome::kTrouble;
                     });
  }

  Outcome on_taken(const Sent& sent) {
    for (const auto& [type, there] : sent) {
      const auto entry = entries_.find(type);
      if (entry != entries_.end()) entry->second.there = there;
    }
    beat_later();
    return Outcome::kDone;
  }

  void beat_later() {
    next_beat_ = loop_.after(heartbeat_, [this] {
      next_beat_.reset();
      beat_ = true;
      sending_.wake();
    });
  }

  Loop& loop_;
  const std::string path_;
  const Duration heartbeat_;
  Sending sending_;
  std::map<std::string, Entry> entries_;
  bool known_ = false;  // `there` is what the API server has
  bool beat_ = false;
  Subscription next_beat_;
};

}  // namespace

std::unique_ptr<NodeStatus> NodeStatus::start(Loop& loop, Access access, NodeStatusTiming timing) {
  return std::make_unique<Conditions>(loop, std::move(access), timing);
}

}  // namespace gpulet::cluster

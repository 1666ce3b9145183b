#include "k8s/object_applier.h"

#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "k8s/objects.h"

namespace gpulet::k8s {
namespace {

using nlohmann::json;
using Outcome = RetryingSender::Outcome;

constexpr const char* kFieldManager = "?fieldManager=gpulet&force=true";

class SpecApplier final : public ObjectApplier {
 public:
  SpecApplier(Loop& loop, ClientConfig access, ObjectKind kind, ApplyTiming timing,
              std::function<void(const std::string&)> on_object)
      : loop_(loop),
        node_(access.node_name),
        kind_(std::move(kind)),
        refresh_(timing.refresh),
        sending_(loop, std::move(access), timing.sending, "the node's " + kind_.kind,
                 [this] { update_object(); }),
        on_object_(std::move(on_object)),
        is_read_(!on_object_) {
    if (on_object_) sending_.wake();
  }

  void set_spec(std::string spec) override {
    spec_ = std::move(spec);
    sending_.wake();
  }

  SendStatus applier_status() const override {
    SendStatus delivery = sending_.send_status();
    delivery.pending = spec_ != taken_;
    return delivery;
  }

 private:
  void update_object() {
    if (!is_read_) return read_object();
    if (!spec_ || spec_ == taken_) return sending_.idle();
    if (uid_.empty()) return read_node();
    apply_spec();
  }

  void read_object() {
    sending_.send_request({.method = "PATCH",
                           .path = kind_.collection + "/" + node_,
                           .content_type = "application/merge-patch+json",
                           .body = "{}"},
                          right_, [this](const http::ClientResponse& response) {
                            if (response.status >= 500 || response.status == 429) return Outcome::kError;
                            is_read_ = true;
                            on_object_(response.status == 200 ? response.body : std::string());
                            return Outcome::kNext;
                          });
  }

  void read_node() {
    sending_.send_request({.method = "GET", .path = "/api/v1/nodes/" + node_, .accept = kMetadataOnly},
                          "get on nodes", [this](const http::ClientResponse& response) {
                            if (response.status != 200) return Outcome::kError;
                            const auto node = parse_json(response.body);
                            uid_ = json_text(json_member(json_member(node, "metadata"), "uid"));
                            return uid_.empty() ? Outcome::kError : Outcome::kNext;
                          });
  }

  void apply_spec() {
    // Composed as text: the spec is already JSON and need not be parsed.
    const json metadata = {
        {"name", node_},
        {"ownerReferences", {{{"apiVersion", "v1"}, {"kind", "Node"}, {"name", node_}, {"uid", uid_}}}}};
    std::string body = "{\"apiVersion\":" + json(kind_.api_version).dump() +
                       ",\"kind\":" + json(kind_.kind).dump() + ",\"metadata\":" + serialize_json(metadata) +
                       ",\"spec\":" + *spec_ + "}";
    next_refresh_.reset();
    sending_.send_request({.method = "PATCH",
                           .path = kind_.collection + "/" + node_ + kFieldManager,
                           .content_type = "application/apply-patch+yaml",
                           .body = std::move(body),
                           .accept = on_object_ ? "application/json" : kMetadataOnly},
                          right_, [this, sent = *spec_](const http::ClientResponse& response) {
                            if (response.status / 100 != 2) return Outcome::kError;
                            taken_ = sent;
                            schedule_refresh();
                            if (on_object_) on_object_(response.body);
                            return Outcome::kDone;
                          });
  }

  void schedule_refresh() {
    next_refresh_ = loop_.after(refresh_, [this] {
      next_refresh_.reset();
      taken_.reset();
      uid_.clear();
      sending_.wake();
    });
  }

  Loop& loop_;
  const std::string node_;
  const ObjectKind kind_;
  const std::string right_ =
      "create and patch on " + kind_.collection.substr(kind_.collection.rfind('/') + 1);
  const Duration refresh_;
  RetryingSender sending_;
  const std::function<void(const std::string&)> on_object_;
  bool is_read_;  // what an earlier process left
  std::optional<std::string> spec_, taken_;
  std::string uid_;  // of the Node, as last read
  Subscription next_refresh_;
};

}  // namespace

std::unique_ptr<ObjectApplier> ObjectApplier::start_applier(
    Loop& loop, ClientConfig access, ObjectKind kind, ApplyTiming timing,
    std::function<void(const std::string&)> on_object) {
  return std::make_unique<SpecApplier>(loop, std::move(access), std::move(kind), timing,
                                       std::move(on_object));
}

namespace {

using nlohmann::json;
using Outcome = RetryingSender::Outcome;

class NodeCleanupSteps final : public NodeCleanup {
 public:
  NodeCleanupSteps(Loop& loop, ClientConfig access, NodeLeftovers left, std::function<void()> done,
                   SendTiming timing)
      : name_(access.node_name),
        path_("/api/v1/nodes/" + name_),
        left_(std::move(left)),
        done_(std::move(done)),
        sending_(loop, std::move(access), timing, "the removal of what gpulet left on the node",
                 [this] { run_step(); }) {
    sending_.wake();
  }

  SendStatus cleanup_status() const override {
    SendStatus delivery = sending_.send_status();
    delivery.pending = at_ != Step::kDone;
    return delivery;
  }

 private:
  enum class Step { kRead, kApplied, kNamed, kConditions, kObjects, kDone };

  void run_step() {
    switch (at_) {
      case Step::kRead:
        return read_node_state();
      case Step::kApplied:
        return remove_applied_labels();
      case Step::kNamed:
        return remove_named_labels();
      case Step::kConditions:
        return remove_conditions();
      case Step::kObjects:
        return delete_object();
      case Step::kDone:
        break;
    }
    sending_.idle();
    if (auto done = std::exchange(done_, nullptr)) done();
  }

  // The patch contains the Node's uid: without it, applying to a deleted Node would create one.
  void read_node_state() {
    sending_.send_request({.method = "GET", .path = path_, .accept = kMetadataOnly}, "get on nodes",
                          [this](const http::ClientResponse& response) {
                            if (response.status == 404) return continue_with(Step::kObjects);
                            const auto object = parse_json(response.body);
                            uid_ = json_text(json_member(json_member(object, "metadata"), "uid"));
                            return response.status == 200 && !uid_.empty() ? continue_with(Step::kApplied)
                                                                           : Outcome::kError;
                          });
  }

  void remove_applied_labels() {
    const json body = {
        {"apiVersion", "v1"}, {"kind", "Node"}, {"metadata", {{"name", name_}, {"uid", uid_}}}};
    send_node_patch(path_ + "?fieldManager=" + left_.field_manager + "&force=true",
                    "application/apply-patch+yaml", body, "patch on nodes", Step::kNamed);
  }

  void remove_named_labels() {
    json body = json::object();
    for (const auto& label : left_.labels) body["metadata"]["labels"][label] = nullptr;
    for (const auto& key : left_.annotations) body["metadata"]["annotations"][key] = nullptr;
    for (const auto& key : left_.taints)
      body["spec"]["taints"].push_back({{"$patch", "delete"}, {"key", key}});
    send_node_patch(path_, kStrategic, body, "patch on nodes", Step::kConditions);
  }

  void remove_conditions() {
    json body = json::object();
    for (const auto& type : left_.conditions)
      body["status"]["conditions"].push_back({{"$patch", "delete"}, {"type", type}});
    send_node_patch(path_ + "/status", kStrategic, body, "patch on nodes/status", Step::kObjects);
  }

  void delete_object() {
    if (left_.objects.empty()) {
      at_ = Step::kDone;
      return run_step();
    }
    sending_.send_request({.method = "DELETE", .path = left_.objects.back(), .accept = kMetadataOnly},
                          "delete on " + left_.objects.back(), [this](const http::ClientResponse& response) {
                            const bool gone = response.status / 100 == 2 || response.status == 404;
                            if (!gone) return Outcome::kError;
                            left_.objects.pop_back();
                            return Outcome::kNext;
                          });
  }

  void send_node_patch(const std::string& path, const char* type, const json& body, const char* right,
                       Step next) {
    sending_.send_request({.method = "PATCH",
                           .path = path,
                           .content_type = type,
                           .body = serialize_json(body),
                           .accept = kMetadataOnly},
                          right, [this, next](const http::ClientResponse& response) {
                            if (response.status == 404) return continue_with(Step::kObjects);
                            if (response.status == 409) return continue_with(Step::kRead, Outcome::kRetry);
                            return response.status == 200 ? continue_with(next) : Outcome::kError;
                          });
  }

  Outcome continue_with(Step next, Outcome outcome = Outcome::kNext) {
    at_ = next;
    return outcome;
  }

  static constexpr const char* kStrategic = "application/strategic-merge-patch+json";
  const std::string name_, path_;
  NodeLeftovers left_;
  std::function<void()> done_;
  std::string uid_;
  Step at_ = Step::kRead;
  RetryingSender sending_;
};

}  // namespace

std::unique_ptr<NodeCleanup> NodeCleanup::start_cleanup(Loop& loop, ClientConfig access, NodeLeftovers left,
                                                        std::function<void()> done, SendTiming timing) {
  return std::make_unique<NodeCleanupSteps>(loop, std::move(access), std::move(left), std::move(done),
                                            timing);
}

}  // namespace gpulet::k8s

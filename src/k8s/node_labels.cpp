#include "k8s/node_labels.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/dns_name.h"
#include "base/json.h"
#include "base/log.h"
#include "k8s/api_client.h"
#include "k8s/objects.h"

namespace gpulet::k8s {
namespace {

using nlohmann::json;
using Outcome = RetryingSender::Outcome;
using Labels = DesiredLabels::Labels;

class NodeLabelWriter final : public NodeLabels {
 public:
  NodeLabelWriter(Loop& loop, ClientConfig access, std::function<void()> settled, SendTiming timing)
      : name_(access.node_name),
        path_("/api/v1/nodes/" + name_),
        settled_(std::move(settled)),
        sending_(loop, std::move(access), timing, "the node's labels", [this] { update_labels(); }) {}

  void set_labels(Labels labels) override {
    if (!wanted_.set_desired(std::move(labels))) return;
    sending_.wake();
  }

  void recheck_labels() override {
    wanted_.request_recheck();
    sending_.wake();
  }

  SendStatus label_status() const override {
    SendStatus delivery = sending_.send_status();
    delivery.pending = wanted_.needs_write();
    return delivery;
  }

 private:
  struct LabelledNode {
    json labels;
    std::string uid;
  };

  void update_labels() {
    if (!wanted_.needs_write()) return sending_.idle();
    if (!node_) return read_labels();
    const LabelledNode node = std::move(*std::exchange(node_, std::nullopt));
    if (wanted_.is_up_to_date() && has_all_labels(node.labels)) return on_labels_written(*wanted_);
    apply_labels(node);
  }

  void read_labels() {
    sending_.send_request({.method = "GET", .path = path_, .accept = kMetadataOnly}, "get on nodes",
                          [this](const http::ClientResponse& response) {
                            if (response.status != 200) return Outcome::kError;
                            const auto object = parse_json(response.body);
                            const auto& metadata = json_member(object, "metadata");
                            LabelledNode node{json_member(metadata, "labels"),
                                              json_text(json_member(metadata, "uid"))};
                            if (node.uid.empty()) return Outcome::kError;
                            node_ = std::move(node);
                            return Outcome::kNext;
                          });
  }

  void apply_labels(const LabelledNode& node) {
    const json body = {{"apiVersion", "v1"},
                       {"kind", "Node"},
                       {"metadata", {{"name", name_}, {"uid", node.uid}, {"labels", *wanted_}}}};
    sending_.send_request({.method = "PATCH",
                           .path = path_ + "?fieldManager=" + kLabelFieldManager + "&force=true",
                           .content_type = "application/apply-patch+yaml",
                           .body = serialize_json(body),
                           .accept = kMetadataOnly},
                          "patch on nodes", [this, sent = *wanted_](const http::ClientResponse& response) {
                            // Deleted, or replaced by another Node of that name, since it was read.
                            if (response.status == 409) return Outcome::kRetry;
                            if (response.status != 200) return Outcome::kError;
                            on_labels_written(sent);
                            return Outcome::kDone;
                          });
  }

  void on_labels_written(const Labels& sent) {
    if (!wanted_.mark_written(sent)) return;
    sending_.wake();
    if (settled_) settled_();
  }

  bool has_all_labels(const json& there) const {
    return std::ranges::all_of(
        *wanted_, [&](const auto& label) { return there.is_object() && there.contains(label.first); });
  }

  const std::string name_, path_;
  std::function<void()> settled_;
  RetryingSender sending_;
  DesiredLabels wanted_;
  std::optional<LabelledNode> node_;  // as just read
};

}  // namespace

std::unique_ptr<NodeLabels> NodeLabels::start_labels(Loop& loop, ClientConfig access,
                                                     std::function<void()> settled, SendTiming timing) {
  return std::make_unique<NodeLabelWriter>(loop, std::move(access), std::move(settled), timing);
}

namespace {

using nlohmann::json;
using Values = std::map<std::string, std::optional<std::string>>;

class LabelPatchQueue final : public NodeLabelPatcher {
 public:
  // `member`: of the Node's metadata.
  LabelPatchQueue(Loop& loop, ClientConfig access, NodeLabelPatchTiming timing, const char* member)
      : loop_(loop),
        member_(member),
        path_("/api/v1/nodes/" + access.node_name),
        client_(loop, std::move(access), timing.request_limit),
        backoff_(timing.backoff, static_cast<std::uint64_t>(loop.now().time_since_epoch().count())) {}

  void set_label(const std::string& key, std::optional<std::string> value) override {
    wanted_[key] = std::move(value);
    if (!sending_ && !next_) next_ = loop_.after(Duration::zero(), [this] { send_label_patch(); });
  }

 private:
  void send_label_patch() {
    next_.reset();
    sending_ = Values();
    json labels = json::object();
    for (const auto& [key, value] : wanted_) {
      const auto taken = taken_.find(key);
      if (taken != taken_.end() && taken->second == value) continue;
      labels[key] = value ? json(*value) : json(nullptr);
      (*sending_)[key] = value;
    }
    if (labels.empty()) return sending_.reset();
    client_.send_request(
        {.method = "PATCH",
         .path = path_,
         .content_type = "application/merge-patch+json",
         .body =
             json{{"metadata", {{member_, labels}}}}.dump(-1, ' ', false, json::error_handler_t::replace)},
        [this](const Result<http::ClientResponse>& response) { on_label_patch_response(response); });
  }

  void on_label_patch_response(const Result<http::ClientResponse>& response) {
    const auto sent = std::move(*sending_);
    sending_.reset();
    if (response && response->status == 200) {
      logged_ = false;
      backoff_.reset();
      for (const auto& [key, value] : sent) taken_[key] = value;
      next_ = loop_.after(Duration::zero(), [this] { send_label_patch(); });
      return;
    }
    if (!logged_) {
      if (response) {
        log::warning("cannot write this node's " + member_ + "; the agent needs patch on nodes",
                     {{"status", response->status}});
      } else {
        log::warning("cannot write this node's " + member_, response.error());
      }
    }
    logged_ = true;
    next_ = loop_.after(backoff_.next_delay(), [this] { send_label_patch(); });
  }

  Loop& loop_;
  const std::string member_;
  const std::string path_;
  ApiClient client_;
  Backoff backoff_;
  Values wanted_, taken_;
  std::optional<Values> sending_;
  bool logged_ = false;
  Subscription next_;
};

}  // namespace

std::unique_ptr<NodeLabelPatcher> NodeLabelPatcher::start_label_patcher(Loop& loop, ClientConfig access,
                                                                        NodeLabelPatchTiming timing) {
  return std::make_unique<LabelPatchQueue>(loop, std::move(access), timing, "labels");
}

std::unique_ptr<NodeLabelPatcher> NodeLabelPatcher::start_annotation_patcher(Loop& loop, ClientConfig access,
                                                                             NodeLabelPatchTiming timing) {
  return std::make_unique<LabelPatchQueue>(loop, std::move(access), timing, "annotations");
}

namespace {

using nlohmann::json;
using Outcome = RetryingSender::Outcome;
using Labels = DesiredLabels::Labels;

constexpr const char* kNodeFeatureApi = "nfd.k8s-sigs.io/v1alpha1";
constexpr const char* kNodeLabel = "nfd.node.kubernetes.io/node-name";

class NodeFeatureWriter final : public NodeFeature {
 public:
  NodeFeatureWriter(Loop& loop, ClientConfig access, NodeFeatureTarget place, std::function<void()> settled,
                    SendTiming timing)
      : node_(access.node_name),
        name_("nvidia-features-for-" + node_),
        pod_path_("/api/v1/namespaces/" + place.name_space + "/pods/" + place.pod),
        path_("/apis/" + std::string(kNodeFeatureApi) + "/namespaces/" + place.name_space + "/nodefeatures"),
        settled_(std::move(settled)),
        sending_(loop, std::move(access), timing, "the NodeFeature", [this] { update_feature(); }) {
    if (!is_dns_subdomain(place.pod)) owners_ = json::array();
  }

  void set_feature_labels(Labels labels) override {
    if (!wanted_.set_desired(std::move(labels))) return;
    there_.reset();
    sending_.wake();
  }

  void recheck_feature() override {
    wanted_.request_recheck();
    sending_.wake();
  }

  SendStatus feature_status() const override {
    SendStatus delivery = sending_.send_status();
    delivery.pending = wanted_.needs_write();
    return delivery;
  }

 private:
  void update_feature() {
    if (!wanted_.needs_write()) return sending_.idle();
    if (!owners_) return read_owners();
    if (!there_) return read_feature();
    const json there = std::move(*std::exchange(there_, std::nullopt));
    if (there.is_null() && wanted_->empty()) return on_feature_written(*wanted_);
    json object = there.is_null() ? json::object() : there;
    object["apiVersion"] = kNodeFeatureApi;
    object["kind"] = "NodeFeature";
    auto& metadata = object["metadata"];
    metadata["name"] = name_;
    metadata["labels"] = {{kNodeLabel, node_}};
    if (!owners_->empty()) metadata["ownerReferences"] = *owners_;
    object["spec"] = {
        {"features",
         {{"attributes", json::object()}, {"flags", json::object()}, {"instances", json::object()}}},
        {"labels", *wanted_}};
    if (has_same_labels(there, object)) return on_feature_written(*wanted_);
    write_feature(there.is_null(), object);
  }

  void write_feature(bool make, const json& object) {
    sending_.send_request(
        {.method = make ? "POST" : "PUT",
         .path = make ? path_ : path_ + "/" + name_,
         .content_type = "application/json",
         .body = serialize_json(object)},
        make ? "create on nodefeatures.nfd.k8s-sigs.io" : "update on nodefeatures.nfd.k8s-sigs.io",
        [this, make, sent = *wanted_](const http::ClientResponse& response) {
          // Another client created or changed it first.
          if (response.status == 409) return Outcome::kRetry;
          // On creation: the kind does not exist because NFD is not installed.
          if (response.status == 404) return make ? Outcome::kError : Outcome::kRetry;
          if (response.status != 200 && response.status != 201) return Outcome::kError;
          on_feature_written(sent);
          return Outcome::kDone;
        });
  }

  // The API server omits empty objects.
  static bool has_same_labels(const json& there, const json& wanted) {
    const auto labels = [](const json& object) {
      const auto& given = json_member(json_member(object, "spec"), "labels");
      return given.is_object() ? given : json::object();
    };
    return !there.is_null() && labels(there) == labels(wanted) &&
           json_member(json_member(there, "metadata"), "labels") ==
               json_member(json_member(wanted, "metadata"), "labels") &&
           json_member(json_member(there, "metadata"), "ownerReferences") ==
               json_member(json_member(wanted, "metadata"), "ownerReferences");
  }

  void read_feature() {
    sending_.send_request({.method = "GET", .path = path_ + "/" + name_},
                          "get on nodefeatures.nfd.k8s-sigs.io",
                          [this](const http::ClientResponse& response) {
                            if (response.status == 404) {
                              there_ = json();
                              return Outcome::kNext;
                            }
                            auto object = parse_json(response.body);
                            if (response.status != 200 || !object.is_object()) return Outcome::kError;
                            there_ = std::move(object);
                            return Outcome::kNext;
                          });
  }

  // The owners of the agent's Pod, and the Pod: the object stays while the Pod is replaced.
  void read_owners() {
    sending_.send_request(
        {.method = "GET", .path = pod_path_}, "get on pods", [this](const http::ClientResponse& response) {
          const bool answered = response.status == 200 || response.status == 403 || response.status == 404;
          if (!answered) return Outcome::kError;
          owners_ = json::array();
          const auto pod = parse_json(response.body);
          const auto& metadata = json_member(pod, "metadata");
          const auto uid = json_text(json_member(metadata, "uid"));
          if (response.status != 200 || uid.empty()) {
            log::warning(
                "cannot read the agent's own Pod; the NodeFeature has no owner and stays after an uninstall",
                {{"path", pod_path_}, {"status", response.status}});
            return Outcome::kNext;
          }
          const auto& others = json_member(metadata, "ownerReferences");
          if (others.is_array()) owners_ = others;
          owners_->push_back({{"apiVersion", "v1"},
                              {"kind", "Pod"},
                              {"name", json_text(json_member(metadata, "name"))},
                              {"uid", uid}});
          return Outcome::kNext;
        });
  }

  void on_feature_written(const Labels& sent) {
    if (!wanted_.mark_written(sent)) return;
    sending_.wake();
    if (settled_) settled_();
  }

  const std::string node_, name_, pod_path_, path_;
  std::function<void()> settled_;
  RetryingSender sending_;
  DesiredLabels wanted_;
  std::optional<json> owners_;
  std::optional<json> there_;  // as just read; null: none
};

}  // namespace

std::unique_ptr<NodeFeature> NodeFeature::start_node_feature(Loop& loop, ClientConfig access,
                                                             NodeFeatureTarget place,
                                                             std::function<void()> settled,
                                                             SendTiming timing) {
  return std::make_unique<NodeFeatureWriter>(loop, std::move(access), std::move(place), std::move(settled),
                                             timing);
}

}  // namespace gpulet::k8s

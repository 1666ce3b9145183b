#include "cluster/node_feature.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/log.h"
#include "cluster/objects.h"
#include "cluster/wanted_labels.h"

namespace gpulet::cluster {
namespace {

using nlohmann::json;
using Outcome = Sending::Outcome;
using Labels = WantedLabels::Labels;

constexpr const char* kApi = "nfd.k8s-sigs.io/v1alpha1";
constexpr const char* kNodeLabel = "nfd.node.kubernetes.io/node-name";

class Feature final : public NodeFeature {
 public:
  Feature(Loop& loop, Access access, NodeFeaturePlace place, std::function<void()> settled, SendTiming timing)
      : node_(access.node_name),
        name_("nvidia-features-for-" + node_),
        pod_path_("/api/v1/namespaces/" + place.name_space + "/pods/" + place.pod),
        path_("/apis/" + std::string(kApi) + "/namespaces/" + place.name_space + "/nodefeatures"),
        settled_(std::move(settled)),
        sending_(loop, std::move(access), timing, "the NodeFeature", [this] { step(); }) {
    if (place.pod.empty()) owners_ = json::array();
  }

  void set(Labels labels) override {
    if (!wanted_.set(std::move(labels))) return;
    there_.reset();
    sending_.wake();
  }

  void look_again() override {
    wanted_.look_again();
    sending_.wake();
  }

  Delivery delivery() const override {
    Delivery delivery = sending_.delivery();
    delivery.waiting = wanted_.due();
    return delivery;
  }

 private:
  void step() {
    if (!wanted_.due()) return sending_.idle();
    if (!owners_) return read_owners();
    if (!there_) return read();
    const json there = std::move(*std::exchange(there_, std::nullopt));
    if (there.is_null() && wanted_->empty()) return taken(*wanted_);
    json object = there.is_null() ? json::object() : there;
    object["apiVersion"] = kApi;
    object["kind"] = "NodeFeature";
    auto& metadata = object["metadata"];
    metadata["name"] = name_;
    metadata["labels"] = {{kNodeLabel, node_}};
    if (!owners_->empty()) metadata["ownerReferences"] = *owners_;
    object["spec"] = {
        {"features",
         {{"attributes", json::object()}, {"flags", json::object()}, {"instances", json::object()}}},
        {"labels", *wanted_}};
    if (same(there, object)) return taken(*wanted_);
    write(there.is_null(), object);
  }

  void write(bool make, const json& object) {
    sending_.request(
        {.method = make ? "POST" : "PUT",
         .path = make ? path_ : path_ + "/" + name_,
         .content_type = "application/json",
         .body = body_of(object)},
        make ? "create on nodefeatures.nfd.k8s-sigs.io" : "update on nodefeatures.nfd.k8s-sigs.io",
        [this, make, sent = *wanted_](const ApiResponse& response) {
          // Somebody was first, with making it or with writing it.
          if (response.status == 409) return Outcome::kAgain;
          // For making it too: then there is no such kind of object, as NFD is not installed.
          if (response.status == 404) return make ? Outcome::kTrouble : Outcome::kAgain;
          if (response.status != 200 && response.status != 201) return Outcome::kTrouble;
          taken(sent);
          return Outcome::kDone;
        });
  }

  // The API server leaves empty things out.
  static bool same(const json& there, const json& wanted) {
    const auto labels = [](const json& object) {
      const auto& given = member(member(object, "spec"), "labels");
      return given.is_object() ? given : json::object();
    };
    return !there.is_null() && labels(there) == labels(wanted) &&
           member(member(there, "metadata"), "labels") == member(member(wanted, "metadata"), "labels") &&
           member(member(there, "metadata"), "ownerReferences") ==
               member(member(wanted, "metadata"), "ownerReferences");
  }

  void read() {
    sending_.request({.method = "GET", .path = path_ + "/" + name_}, "get on nodefeatures.nfd.k8s-sigs.io",
                     [this](const ApiResponse& response) {
                       if (response.status == 404) {
                         there_ = json();
                         return Outcome::kNext;
                       }
                       auto object = json::parse(response.body, nullptr, false);
                       if (response.status != 200 || !object.is_object()) return Outcome::kTrouble;
                       there_ = std::move(object);
                       return Outcome::kNext;
                     });
  }

  // Our Pod's owners and the Pod: the object stays while the Pod is replaced.
  void read_owners() {
    sending_.request(
        {.method = "GET", .path = pod_path_}, "get on pods", [this](const ApiResponse& response) {
          const bool answered = response.status == 200 || response.status == 403 || response.status == 404;
          if (!answered) return Outcome::kTrouble;
          owners_ = json::array();
          const auto pod = json::parse(response.body, nullptr, false);
          const auto& metadata = member(pod, "metadata");
          const auto uid = text_of(member(metadata, "uid"));
          if (response.status != 200 || uid.empty()) {
            log::warning(
                "our own Pod cannot be read; the NodeFeature has no owner and stays when it is uninstalled",
                {{"path", pod_path_}, {"status", response.status}});
            return Outcome::kNext;
          }
          const auto& others = member(metadata, "ownerReferences");
          if (others.is_array()) owners_ = others;
          owners_->push_back({{"apiVersion", "v1"},
                              {"kind", "Pod"},
                              {"name", text_of(member(metadata, "name"))},
                              {"uid", uid}});
          return Outcome::kNext;
        });
  }

  void taken(const Labels& sent) {
    if (!wanted_.taken(sent)) return;
    sending_.wake();
    if (settled_) settled_();
  }

  const std::string node_, name_, pod_path_, path_;
  std::function<void()> settled_;
  Sending sending_;
  WantedLabels wanted_;
  std::optional<json> owners_;
  std::optional<json> there_;  // as just read; null: none
};

}  // namespace

std::unique_ptr<NodeFeature> NodeFeature::start(Loop& loop, Access access, NodeFeaturePlace place,
                                                std::function<void()> settled, SendTiming timing) {
  return std::make_unique<Feature>(loop, std::move(access), std::move(place), std::move(settled), timing);
}

}  // namespace gpulet::cluster

// What the API server says: who we are, its clock, the rights of the agent, Pods that wait.
//
// Its clock comes with a SelfSubjectReview, which everybody may create: the answer is stamped with the
// server's time. Source: Kubernetes API, authentication.k8s.io/v1, authorization.k8s.io/v1.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "agent/wanted_rights.h"
#include "base/wall_time.h"
#include "cluster/api_client.h"
#include "cluster/objects.h"
#include "cluster/rights.h"
#include "config/load.h"
#include "doctor/probes.h"

namespace gpulet::doctor {
namespace {

using cluster::ApiResponse;
using cluster::member;
using cluster::text_of;
using nlohmann::json;

constexpr std::size_t kMaxPods = 64u << 20;

// What the agent needs in its default settings, but for what it publishes to a scheduler that may not be
// there.
std::vector<agent::WantedRight> needed(const std::string& node) {
  auto loaded = config::load({});
  config::Config config = loaded ? std::move(loaded->config) : config::Config();
  config.gpulet.publish_node = false;
  return agent::wanted_rights(config, {.host = {}, .node_name = node}, true);
}

bool wants_gpu(const json& pod) {
  for (const char* kind : {"containers", "initContainers"}) {
    for (const auto& container : member(member(pod, "spec"), kind)) {
      const auto& limits = member(member(container, "resources"), "limits");
      if (!limits.is_object()) continue;
      for (const auto& [resource, amount] : limits.items()) {
        if (resource.starts_with(kOurs)) return true;
      }
    }
  }
  return false;
}

std::string pod_name(const json& pod) {
  const auto& metadata = member(pod, "metadata");
  return text_of(member(metadata, "namespace")) + "/" + text_of(member(metadata, "name"));
}

// What the scheduler says of a Pod that it has no node for; empty for one that it has not looked at, or has
// placed.
std::string unschedulable(const json& pod) {
  for (const auto& condition : member(member(pod, "status"), "conditions")) {
    if (text_of(member(condition, "type")) == "PodScheduled" &&
        text_of(member(condition, "status")) == "False")
      return text_of(member(condition, "message"));
  }
  return {};
}

class AskingCluster {
 public:
  AskingCluster(Prober& prober, const Places& places)
      : prober_(prober), node_(places.node_name), client_(prober.loop(), *places.access, kProbeLimit) {}

  Result<ApiResponse> request(const cluster::ApiRequest& request) {
    const auto left = deadline_ - prober_.loop().now();
    if (left <= Duration::zero()) return fail(Code::kDeadlineExceeded, "the API server has taken too long");
    return prober_.on_loop<ApiResponse>("the API server", std::min<Duration>(left, 2 * kProbeLimit),
                                        [&](auto done) { client_.request(request, std::move(done)); });
  }

  Result<json> post(const std::string& path, const std::string& body) {
    return parsed(
        request({.method = "POST", .path = path, .content_type = "application/json", .body = body}));
  }
  Result<json> get(const std::string& path) { return parsed(request({.method = "GET", .path = path})); }

  // A list that may be larger than a response may be at once.
  Result<json> list(const std::string& path) {
    std::string text;
    auto response = prober_.on_loop<ApiResponse>("the API server", 2 * kProbeLimit, [&](auto done) {
      client_.stream(
          {.method = "GET", .path = path}, kProbeLimit,
          [&](std::string_view piece) -> Status {
            if (text.size() + piece.size() > kMaxPods)
              return fail(Code::kIo, "too many Pods wait to be read");
            text += piece;
            return {};
          },
          std::move(done));
    });
    client_.close();
    if (response && response->status == 200) response->body = std::move(text);
    return parsed(std::move(response));
  }

  Status who_we_are(Cluster& cluster) {
    const auto before = prober_.loop().wall_now();
    const auto response =
        request({.method = "POST",
                 .path = "/apis/authentication.k8s.io/v1/selfsubjectreviews",
                 .content_type = "application/json",
                 .body = R"({"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"})"});
    if (!response) return fail(response.error());
    const auto now = prober_.loop().wall_now();
    cluster.user = "whoever's credentials these are";
    if (response->status == 401)
      return fail(Code::kPermissionDenied, "the API server does not know these credentials (401)");
    const auto review = json::parse(response->body, nullptr, false);
    if (const auto user = text_of(member(member(member(review, "status"), "userInfo"), "username"));
        !user.empty())
      cluster.user = user;
    std::string stamp = text_of(member(member(review, "metadata"), "creationTimestamp"));
    if (!stamp.ends_with('Z')) return {};
    stamp.insert(stamp.size() - 1, ".000");
    if (const auto server = parse_wall_text(stamp))
      cluster.ahead = std::chrono::duration_cast<std::chrono::seconds>(before + (now - before) / 2 - *server);
    return {};
  }

  Result<std::vector<std::string>> missing_rights() {
    std::vector<std::string> missing;
    for (const auto& [right, without] : needed(node_)) {
      GPULET_TRY_ASSIGN(const auto review, post(cluster::kReviewPath, cluster::review_of(right)));
      const auto& allowed = member(member(review, "status"), "allowed");
      if (!allowed.is_boolean() || !allowed.get<bool>()) missing.push_back(right.text());
    }
    return missing;
  }

  std::string mig_state() {
    if (node_.empty() || !cluster::is_name(node_)) return {};
    const auto node = get("/api/v1/nodes/" + node_);
    if (!node) return {};
    return cluster::texts_of(member(*node, "metadata"), "labels")["nvidia.com/mig.config.state"];
  }

  Result<std::vector<PendingPod>> pods() {
    std::vector<PendingPod> found;
    GPULET_TRY_ASSIGN(const auto pending,
                      list("/api/v1/pods?limit=500&fieldSelector=status.phase%3DPending"));
    for (const auto& pod : member(pending, "items")) {
      const auto message = unschedulable(pod);
      if (!message.empty() && wants_gpu(pod)) found.push_back({pod_name(pod), message});
    }
    if (node_.empty() || !cluster::is_name(node_)) return found;
    GPULET_TRY_ASSIGN(const auto failed, list("/api/v1/pods?limit=500&fieldSelector=spec.nodeName%3D" +
                                              node_ + ",status.phase%3DFailed"));
    for (const auto& pod : member(failed, "items")) {
      const auto& status = member(pod, "status");
      if (text_of(member(status, "reason")) == "UnexpectedAdmissionError" && wants_gpu(pod))
        found.push_back({pod_name(pod), text_of(member(status, "message")), true});
    }
    return found;
  }

 private:
  static Result<json> parsed(Result<ApiResponse> response) {
    if (!response) return fail(response.error());
    if (response->status / 100 != 2) {
      const bool refused = response->status == 401 || response->status == 403;
      return fail(refused ? Code::kPermissionDenied : Code::kUnavailable, cluster::said(*response));
    }
    auto object = json::parse(response->body, nullptr, false);
    if (!object.is_object()) return fail(Code::kIo, "the API server's answer is no object");
    return object;
  }

  Prober& prober_;
  const std::string node_;
  cluster::ApiClient client_;
  const Time deadline_ = prober_.loop().now() + kClusterLimit;
};

}  // namespace

Result<Cluster> ask_cluster(Prober& prober, const Places& places) {
  if (!places.access) return fail(places.access.error());
  AskingCluster asking(prober, places);
  Cluster cluster;
  GPULET_TRY(asking.who_we_are(cluster));
  cluster.missing_rights = asking.missing_rights();
  cluster.mig_state = asking.mig_state();
  cluster.pods = asking.pods();
  return cluster;
}

}  // namespace gpulet::doctor

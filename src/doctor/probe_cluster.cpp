#include "base/json.h"
#include "doctor/probe.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "agent/publish/rbac_check.h"
#include "base/dns_name.h"
#include "base/text.h"
#include "config/load.h"
#include "extender/explain_client.h"
#include "extender/service_name.h"
#include "k8s/api_client.h"
#include "k8s/object_reader.h"
#include "k8s/objects.h"

namespace gpulet::doctor {
namespace {

using http::ClientResponse;
using nlohmann::json;

constexpr std::size_t kMaxPods = 64u << 20;

// The agent's permissions with default settings.
std::vector<agent::RequiredPermission> required_agent_permissions(const std::string& node) {
  auto loaded = config::load({});
  const config::Config config = loaded ? std::move(loaded->config) : config::Config();
  return agent::required_permissions(config, {.host = {}, .node_name = node}, true);
}

bool requests_gpu(const json& pod) {
  for (const char* kind : {"containers", "initContainers"}) {
    for (const auto& container : json_member(json_member(pod, "spec"), kind)) {
      const auto& limits = json_member(json_member(container, "resources"), "limits");
      if (!limits.is_object()) continue;
      for (const auto& [resource, amount] : limits.items()) {
        if (resource.starts_with(kNvidiaPrefix)) return true;
      }
    }
  }
  return false;
}

std::string pod_full_name(const json& pod) {
  const auto& metadata = json_member(pod, "metadata");
  return json_text(json_member(metadata, "namespace")) + "/" + json_text(json_member(metadata, "name"));
}

// The scheduler's message for an unschedulable Pod; empty if the Pod is scheduled or not considered yet.
std::string unschedulable_message(const json& pod) {
  for (const auto& condition : json_member(json_member(pod, "status"), "conditions")) {
    if (json_text(json_member(condition, "type")) == "PodScheduled" &&
        json_text(json_member(condition, "status")) == "False")
      return json_text(json_member(condition, "message"));
  }
  return {};
}

class ClusterClient {
 public:
  ClusterClient(Prober& prober, const ProbeTargets& targets)
      : prober_(prober), node_(targets.node_name), client_(prober.loop(), *targets.access, kProbeTimeout) {}

  Result<ClientResponse> send_request(const k8s::ApiRequest& request) {
    const auto left = deadline_ - prober_.loop().now();
    if (left <= Duration::zero()) return fail(Code::kDeadlineExceeded, "the API server took too long");
    return prober_.run_on_loop<ClientResponse>(
        "the API server", std::min<Duration>(left, 2 * kProbeTimeout),
        [&](auto done) { client_.send_request(request, std::move(done)); });
  }

  Result<json> post_json(const std::string& path, const std::string& body) {
    return parse_response(
        send_request({.method = "POST", .path = path, .content_type = "application/json", .body = body}));
  }
  Result<json> get_json(const std::string& path) {
    return parse_response(send_request({.method = "GET", .path = path}));
  }

  // Streams a list that may exceed the limit of a plain response.
  Result<json> list_json(const std::string& path) {
    std::string text;
    auto response = prober_.run_on_loop<ClientResponse>("the API server", 2 * kProbeTimeout, [&](auto done) {
      client_.stream_response(
          {.method = "GET", .path = path}, kProbeTimeout,
          [&](std::string_view piece) -> Status {
            if (text.size() + piece.size() > kMaxPods)
              return fail(Code::kIo, "the list of Pods is too large");
            text += piece;
            return {};
          },
          std::move(done));
    });
    client_.close_connection();
    if (response && response->status == 200) response->body = std::move(text);
    return parse_response(std::move(response));
  }

  Status identify_user(ClusterFacts& cluster) {
    const auto before = prober_.loop().wall_now();
    const auto response =
        send_request({.method = "POST",
                      .path = "/apis/authentication.k8s.io/v1/selfsubjectreviews",
                      .content_type = "application/json",
                      .body = R"({"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"})"});
    if (!response) return fail(response.error());
    const auto now = prober_.loop().wall_now();
    cluster.user = "the user of these credentials";
    if (response->status == 401)
      return fail(Code::kPermissionDenied, "the API server rejects these credentials (401)");
    const auto review = parse_json(response->body);
    if (const auto user =
            json_text(json_member(json_member(json_member(review, "status"), "userInfo"), "username"));
        !user.empty())
      cluster.user = user;
    std::string stamp = json_text(json_member(json_member(review, "metadata"), "creationTimestamp"));
    if (!stamp.ends_with('Z')) return {};
    stamp.insert(stamp.size() - 1, ".000");
    if (const auto server = parse_wall_time(stamp))
      cluster.clock_ahead =
          std::chrono::duration_cast<std::chrono::seconds>(before + (now - before) / 2 - *server);
    return {};
  }

  Result<std::vector<std::string>> find_missing_permissions() {
    std::vector<std::string> missing;
    for (const auto& [right, without] : required_agent_permissions(node_)) {
      GPULET_TRY_ASSIGN(const auto review, post_json(k8s::kReviewPath, k8s::make_access_review(right)));
      const auto& allowed = json_member(json_member(review, "status"), "allowed");
      if (!allowed.is_boolean() || !allowed.get<bool>()) missing.push_back(right.permission_text());
    }
    return missing;
  }

  std::string read_mig_state() {
    if (node_.empty() || !is_dns_subdomain(node_)) return {};
    const auto node = get_json("/api/v1/nodes/" + node_);
    if (!node) return {};
    return k8s::json_text_map(json_member(*node, "metadata"), "labels")["nvidia.com/mig.config.state"];
  }

  // The record that the replicas of the extender share is named after its Service.
  Result<std::vector<extender::MissedPod>> find_missed_pods(const std::string& service) {
    const auto named = extender::parse_service_name(service);
    if (!named) return fail(Code::kNotFound, "no Service of an extender is given");
    const auto response = send_request({.method = "GET",
                                        .path = "/api/v1/namespaces/" + named->name_space + "/configmaps/" +
                                                named->name + extender::kRecordSuffix});
    if (response && response->status == 404) return fail(Code::kNotFound, "there is no extender", service);
    GPULET_TRY_ASSIGN(const auto record, parse_response(response));
    return extender::current_misses(extender::parse_ask_record(k8s::json_text_map(record, "data")));
  }

  Result<std::vector<PendingPod>> find_pending_pods() {
    std::vector<PendingPod> found;
    GPULET_TRY_ASSIGN(const auto pending,
                      list_json("/api/v1/pods?limit=500&fieldSelector=status.phase%3DPending"));
    for (const auto& pod : json_member(pending, "items")) {
      const auto message = unschedulable_message(pod);
      if (!message.empty() && requests_gpu(pod)) found.push_back({pod_full_name(pod), message});
    }
    if (node_.empty() || !is_dns_subdomain(node_)) return found;
    GPULET_TRY_ASSIGN(const auto failed, list_json("/api/v1/pods?limit=500&fieldSelector=spec.nodeName%3D" +
                                                   node_ + ",status.phase%3DFailed"));
    for (const auto& pod : json_member(failed, "items")) {
      const auto& status = json_member(pod, "status");
      if (json_text(json_member(status, "reason")) == "UnexpectedAdmissionError" && requests_gpu(pod))
        found.push_back({pod_full_name(pod), json_text(json_member(status, "message")), true});
    }
    return found;
  }

 private:
  static Result<json> parse_response(Result<ClientResponse> response) {
    if (!response) return fail(response.error());
    if (response->status / 100 != 2) {
      const bool refused = response->status == 401 || response->status == 403;
      return fail(refused ? Code::kPermissionDenied : Code::kUnavailable, k8s::describe_response(*response));
    }
    auto object = parse_json(response->body);
    if (!object.is_object()) return fail(Code::kIo, "the API server's response is not a JSON object");
    return object;
  }

  Prober& prober_;
  const std::string node_;
  k8s::ApiClient client_;
  const Time deadline_ = prober_.loop().now() + kClusterTimeout;
};

}  // namespace

Result<ClusterFacts> probe_cluster(Prober& prober, const ProbeTargets& targets) {
  if (!targets.access) return fail(targets.access.error());
  ClusterClient asking(prober, targets);
  ClusterFacts cluster;
  GPULET_TRY(asking.identify_user(cluster));
  cluster.missing_permissions = asking.find_missing_permissions();
  cluster.mig_state = asking.read_mig_state();
  cluster.missed_pods = asking.find_missed_pods(targets.service);
  cluster.pods = asking.find_pending_pods();
  return cluster;
}

// Why Pods are pending, node by node, as `gpulet explain` shows it.

namespace {

using nlohmann::json;

constexpr std::size_t kMaxHints = 3;

Result<PodExplanation> fetch_pod_explanation(const ProbeTargets& targets, const PendingPod& pod,
                                             Duration limit) {
  const auto [name_space, name] = parse_pod_name(pod.name);
  GPULET_TRY_ASSIGN(
      const auto response,
      extender::fetch_explanation(
          {.name_space = name_space, .pod = name, .json = true, .service = targets.service, .timeout = limit},
          *targets.access));
  GPULET_TRY_ASSIGN(auto result, parse_explanation(response.text, targets.node_name));
  result.by_extender = response.by_extender;
  return result;
}

}  // namespace

Result<PodExplanation> parse_explanation(const std::string& document, const std::string& node) {
  const auto object = parse_json(document);
  if (!object.is_object() || !json_member(object, "nodes").is_array())
    return fail(Code::kInvalidArgument, "the response is not from a gpulet extender");
  PodExplanation explanation;
  explanation.requests = json_text(json_member(object, "asks"));
  for (const auto& one : json_member(object, "nodes")) {
    const auto& fits = json_member(one, "fits");
    auto name = json_text(json_member(one, "node"));
    if (fits.is_boolean() && fits.get<bool>()) {
      explanation.fitting_nodes.push_back(std::move(name));
    } else {
      explanation.nodes.push_back({std::move(name), json_text(json_member(one, "reason"))});
    }
  }
  std::ranges::stable_partition(explanation.nodes, [&](const auto& one) { return one.node == node; });
  if (explanation.nodes.size() > kMaxReasons) {
    explanation.left_out = explanation.nodes.size() - kMaxReasons;
    explanation.nodes.resize(kMaxReasons);
  }
  for (const auto& hint : json_member(object, "hints")) {
    if (explanation.hints.size() < kMaxHints) explanation.hints.push_back(json_text(hint));
  }
  return explanation;
}

void explain_pending_pods(Prober& prober, const ProbeTargets& targets, std::vector<PendingPod>& pods) {
  const auto end = prober.loop().now() + kExplainTimeout;
  std::size_t count = 0;
  for (auto& pod : pods) {
    const auto left = end - prober.loop().now();
    if (count == kMaxExplained || left <= Duration::zero()) return;
    if (pod.refused) continue;
    ++count;
    pod.explanation = fetch_pod_explanation(targets, pod, std::min<Duration>(left, kProbeTimeout));
    // A deleted Pod does not affect the next one; other errors would repeat.
    if (!*pod.explanation && pod.explanation->error().code() != Code::kNotFound) return;
  }
}

}  // namespace gpulet::doctor

// `gpulet explain claim/NAME`: why a claim is on its node, is not prepared there, or fits no node.

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "agent/observe/claim_status.h"
#include "base/dns_name.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/commands/commands.h"
#include "dra/claim_fit.h"
#include "dra/claim_record.h"
#include "k8s/blocking_reader.h"

namespace gpulet::cli {
namespace {

constexpr const char* kResourceApi = "/apis/resource.k8s.io/v1/";
constexpr Duration kReadLimit = std::chrono::seconds(30);
constexpr Duration kOwnAgentLimit = std::chrono::seconds(2);
constexpr std::size_t kMaxExplainedPods = 8;

class ClaimReader {
 public:
  explicit ClaimReader(const k8s::ClientConfig& access) : reader_(access, kReadLimit) {}

  Result<dra::ClaimFit> explain(const std::string& name_space, const std::string& name) {
    GPULET_TRY_ASSIGN(const auto claim, reader_.get_object(std::string(kResourceApi) + "namespaces/" +
                                                               name_space + "/resourceclaims/" + name,
                                                           "get on resourceclaims"));
    if (!claim) return fail(Code::kNotFound, "the claim does not exist", "claim " + name_space + "/" + name);
    std::map<std::string, std::string> classes;
    for (const auto& one : dra::claim_classes(*claim)) {
      if (!is_dns_subdomain(one)) continue;
      GPULET_TRY_ASSIGN(auto found, reader_.get_object(std::string(kResourceApi) + "deviceclasses/" + one,
                                                       "get on deviceclasses"));
      if (found) classes.emplace(one, std::move(*found));
    }
    std::vector<std::string> slices, claims, taint_rules;
    std::string unread;
    const auto parsed = parse_json(*claim);
    if (json_member(json_member(parsed, "status"), "allocation").is_null()) {
      GPULET_TRY(read_list("resourceslices", slices));
      GPULET_TRY(read_list("resourceclaims", claims));
      GPULET_TRY_ASSIGN(unread, read_taint_rules(taint_rules));
    }
    GPULET_TRY_ASSIGN(auto fit, dra::explain_claim_fit(*claim, classes, slices, claims, taint_rules));
    if (!unread.empty()) fit.unjudged.push_back(std::move(unread));
    return fit;
  }

  // The names of a Pod's claims that exist; none where the Pod does not.
  Result<std::vector<std::string>> read_pod_claims(const std::string& name_space, const std::string& pod) {
    GPULET_TRY_ASSIGN(const auto text,
                      reader_.get_object("/api/v1/namespaces/" + name_space + "/pods/" + pod, "get on pods"));
    const auto parsed = parse_json(text.value_or(""));
    const auto& status = json_member(parsed, "status");
    std::set<std::string> names;
    const auto add = [&](const nlohmann::json& object) {
      auto name = json_text(json_member(object, "resourceClaimName"));
      if (!name.empty()) names.insert(std::move(name));
    };
    for (const auto& one : json_member(json_member(parsed, "spec"), "resourceClaims")) add(one);
    for (const auto& one : json_member(status, "resourceClaimStatuses")) add(one);
    add(json_member(status, "extendedResourceClaimStatus"));
    return std::vector<std::string>(names.begin(), names.end());
  }

  // Of the newest event about the preparation of a Pod's claims; empty if there is none.
  Result<std::string> read_failure(const PodRef& pod) {
    std::string newest_at, message;
    if (!dra::is_valid_uid(pod.uid)) return message;
    const std::string path = "/api/v1/namespaces/" + pod.name_space +
                             "/events?fieldSelector=involvedObject.uid%3D" + pod.uid +
                             "%2Creason%3DFailedPrepareDynamicResources";
    GPULET_TRY(reader_.list_objects(path, "list on events", [&](std::string_view item) {
      const auto event = parse_json(item);
      auto at = json_text(json_member(event, "lastTimestamp"));
      if (at < newest_at) return;
      newest_at = std::move(at);
      message = json_text(json_member(event, "message"));
    }));
    return message;
  }

 private:
  // Of the newest version that the server has: v1 from Kubernetes 1.37, v1beta2 in 1.36, by default in
  // neither. Returns why they are not known, where the right is missing.
  Result<std::string> read_taint_rules(std::vector<std::string>& rules) {
    for (const auto* version : {"v1", "v1beta2"}) {
      const auto exists = reader_.list_objects(
          std::string("/apis/resource.k8s.io/") + version + "/devicetaintrules", "list on devicetaintrules",
          [&](std::string_view item) { rules.emplace_back(item); });
      if (!exists && exists.error().code() == Code::kPermissionDenied)
        return "no DeviceTaintRule: " + exists.error().message();
      if (!exists) return fail(exists.error());
      if (*exists) break;
    }
    return std::string();
  }
  Status read_list(const std::string& resource, std::vector<std::string>& objects) {
    GPULET_TRY(reader_.list_objects(kResourceApi + resource, "list on " + resource,
                                    [&](std::string_view item) { objects.emplace_back(item); }));
    return {};
  }

  k8s::BlockingReader reader_;
};

// By this node's agent, if one runs here; else by the events of its Pods.
std::vector<std::string> find_preparation_problems(ClaimReader& reader, const dra::ClaimFit& fit,
                                                   const std::string& socket) {
  std::vector<std::string> problems;
  if (const auto here = agent::fetch_claim_status(socket, kOwnAgentLimit)) {
    const auto waiting = std::ranges::find(here->waiting, fit.uid, &agent::WaitingClaim::uid);
    if (waiting != here->waiting.end()) return {waiting->reason};
  }
  for (std::size_t i = 0; i < std::min(fit.pods.size(), kMaxExplainedPods); ++i) {
    const auto failure = reader.read_failure(fit.pods[i]);
    if (!failure) return {"unknown: " + failure.error().full_message()};
    if (!failure->empty()) problems.push_back("Pod " + fit.pods[i].name + ": " + *failure);
  }
  return problems;
}

std::string claim_document(const dra::ClaimFit& fit, const std::vector<std::string>& problems) {
  using Json = nlohmann::ordered_json;
  Json pods = Json::array(), nodes = Json::array();
  for (const auto& pod : fit.pods) pods.push_back(pod.name);
  for (const auto& node : fit.nodes)
    nodes.push_back({{"node", node.node}, {"fits", node.fits}, {"reason", node.reason}});
  return document_text(Json{{"claim", fit.claim},
                            {"uid", fit.uid},
                            {"requests", fit.requests},
                            {"allocation", fit.allocation},
                            {"pods", std::move(pods)},
                            {"notPrepared", problems},
                            {"nodes", std::move(nodes)},
                            {"unjudged", fit.unjudged}});
}

}  // namespace

std::optional<std::string> claim_of_argument(const std::string& argument) {
  for (const std::string_view kind : {"claim/", "claims/", "resourceclaim/", "resourceclaims/"}) {
    if (argument.starts_with(kind)) return argument.substr(kind.size());
  }
  return std::nullopt;
}

Result<std::string> explain_claim(const ClaimQuery& query, const k8s::ClientConfig& access) {
  if (!is_dns_label(query.name_space) || !is_dns_subdomain(query.claim))
    return fail(Code::kInvalidArgument, "is not a valid name of a claim",
                query.name_space + "/" + query.claim);
  ClaimReader reader(access);
  GPULET_TRY_ASSIGN(const auto fit, reader.explain(query.name_space, query.claim));
  const auto problems = fit.allocation.empty() ? std::vector<std::string>()
                                               : find_preparation_problems(reader, fit, query.socket);
  if (query.json) return claim_document(fit, problems);
  std::string text = dra::claim_fit_text(fit);
  for (const auto& problem : problems) text += "Not prepared: " + problem + "\n";
  return text;
}

std::string explain_pod_claims(const ClaimQuery& query, const std::string& pod,
                               const k8s::ClientConfig& access) {
  if (!is_dns_label(query.name_space) || !is_dns_subdomain(pod)) return "";
  const auto names = ClaimReader(access).read_pod_claims(query.name_space, pod);
  if (!names) return "Its claims are unknown: " + names.error().full_message() + "\n";
  std::string text;
  for (const auto& name : *names) {
    ClaimQuery one = query;
    one.claim = name;
    const auto explained = explain_claim(one, access);
    text += explained ? *explained : explained.error().full_message() + "\n";
  }
  return text;
}

}  // namespace gpulet::cli

#include "k8s/object_reader.h"

#include <algorithm>
#include <deque>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/dns_name.h"
#include "base/json.h"
#include "k8s/api_client.h"
#include "k8s/objects.h"

namespace gpulet::k8s {
namespace {

using nlohmann::json;

constexpr const char* kInitContainers = "initContainers";
constexpr const char* kTable = "application/json;as=Table;g=meta.k8s.io;v=v1";

std::string controller_kind(const json& metadata) {
  const auto& owners = json_member(metadata, "ownerReferences");
  if (!owners.is_array()) return {};
  for (const auto& owner : owners) {
    if (json_member(owner, "controller") == json(true)) return json_text(json_member(owner, "kind"));
  }
  return {};
}

// A Pod's claims, without a request, by the names that its containers use. Source: core/v1 PodResourceClaim,
// PodResourceClaimStatus, which has those of templates.
std::map<std::string, ContainerClaim> read_claim_names(const json& pod) {
  std::map<std::string, ContainerClaim> names;
  const auto add = [&](const json& list, bool is_named) {
    if (!list.is_array()) return;
    for (const auto& one : list) {
      auto claim = json_text(json_member(one, "resourceClaimName"));
      if (!claim.empty()) names[json_text(json_member(one, "name"))] = {std::move(claim), {}, is_named};
    }
  };
  add(json_member(json_member(pod, "status"), "resourceClaimStatuses"), false);
  add(json_member(json_member(pod, "spec"), "resourceClaims"), true);
  return names;
}

// Source: core/v1 ResourceClaim of a container; PodExtendedResourceClaimStatus,
// ContainerExtendedResourceRequest.
void add_claims(const json& pod, const std::map<std::string, ContainerClaim>& names, const json& spec,
                PodContainer& container) {
  const auto add = [&](ContainerClaim claim, std::string request) {
    claim.request = std::move(request);
    if (!claim.claim.empty() && container.claims.size() < kMaxContainerClaims)
      container.claims.push_back(std::move(claim));
  };
  const auto& claims = json_member(json_member(spec, "resources"), "claims");
  if (claims.is_array()) {
    for (const auto& one : claims) {
      const auto name = names.find(json_text(json_member(one, "name")));
      if (name != names.end()) add(name->second, json_text(json_member(one, "request")));
    }
  }
  const auto& extended = json_member(json_member(pod, "status"), "extendedResourceClaimStatus");
  const auto& mappings = json_member(extended, "requestMappings");
  if (!mappings.is_array()) return;
  for (const auto& one : mappings) {
    if (json_text(json_member(one, "containerName")) == container.name)
      add({json_text(json_member(extended, "resourceClaimName")), {}},
          json_text(json_member(one, "requestName")));
  }
}

void add_containers(const json& pod, const char* field, const char* status_field,
                    std::vector<PodContainer>& containers) {
  const auto claim_names = read_claim_names(pod);
  std::map<std::string, std::string> ids;
  const auto& statuses = json_member(json_member(pod, "status"), status_field);
  if (statuses.is_array()) {
    for (const auto& status : statuses)
      ids[json_text(json_member(status, "name"))] = json_text(json_member(status, "containerID"));
  }
  const auto& specs = json_member(json_member(pod, "spec"), field);
  if (!specs.is_array()) return;
  for (const auto& spec : specs) {
    if (containers.size() >= kMaxPodContainers) return;
    auto name = json_text(json_member(spec, "name"));
    auto id = ids[name];
    containers.push_back({.name = std::move(name),
                          .is_init = std::string_view(field) == kInitContainers,
                          .limits = json_text_map(json_member(spec, "resources"), "limits"),
                          .id = std::move(id)});
    containers.back().is_sidecar =
        containers.back().is_init && json_text(json_member(spec, "restartPolicy")) == "Always";
    add_claims(pod, claim_names, spec, containers.back());
  }
}

}  // namespace

fraction::PodFields fraction_fields(const PodMetadata& pod) {
  fraction::PodFields fields;
  for (const auto& [key, value] : pod.annotations) fields.annotations.push_back({key, value});
  for (const auto& container : pod.containers) {
    fraction::PodContainer one{container.name, container.is_init, {}};
    for (const auto& [key, value] : container.limits) one.limits.push_back({key, value});
    fields.containers.push_back(std::move(one));
  }
  return fields;
}

Result<std::optional<PodMetadata>> parse_pod_metadata(const json& pod, const std::string& node) {
  const auto& metadata = json_member(pod, "metadata");
  PodMetadata facts{
      .pod = {json_text(json_member(metadata, "namespace")), json_text(json_member(metadata, "name")),
              json_text(json_member(metadata, "uid"))},
      .owner = controller_kind(metadata),
      .mirror = false,
      .terminating = json_member(metadata, "deletionTimestamp").is_string(),
      .priority = 0,
      .created = 0,
      .annotations = json_text_map(metadata, "annotations"),
      .labels = json_text_map(metadata, "labels")};
  if (facts.pod.uid.empty()) return fail(Code::kIo, "the API server returned something that is not a Pod");
  if (json_text(json_member(json_member(pod, "spec"), "nodeName")) != node) return std::nullopt;
  const auto& priority = json_member(json_member(pod, "spec"), "priority");
  if (priority.is_number_integer()) facts.priority = priority.get<std::int64_t>();
  if (const auto created = parse_rfc3339(json_text(json_member(metadata, "creationTimestamp"))))
    facts.created = std::chrono::system_clock::to_time_t(*created);
  facts.mirror = facts.annotations.contains(kMirrorPod);
  add_containers(pod, kInitContainers, "initContainerStatuses", facts.containers);
  add_containers(pod, "containers", "containerStatuses", facts.containers);
  facts.access = fraction::parse_container_access(pod);
  return facts;
}

namespace {

class QueueingObjectReader final : public ObjectReader {
 public:
  QueueingObjectReader(Loop& loop, ClientConfig access, Duration limit)
      : loop_(loop), node_(access.node_name), client_(loop, std::move(access), limit) {}

  void read_pod(const std::string& name_space, const std::string& name,
                std::function<void(Result<std::optional<PodMetadata>>)> done) override {
    const std::string path = is_dns_label(name_space) && is_dns_subdomain(name)
                                 ? "/api/v1/namespaces/" + name_space + "/pods/" + name
                                 : "";
    queue_read(
        {path, "application/json", "get on pods", [this, done](const Result<http::ClientResponse>& response) {
           if (!response) return done(fail(response.error()));
           if (response->status == 404) return done(std::nullopt);
           done(parse_pod_metadata(parse_json(response->body), node_));
         }});
  }

  void read_namespace_annotations(const std::string& name_space,
                                  std::function<void(Result<Annotations>)> done) override {
    const std::string path = is_dns_label(name_space) ? "/api/v1/namespaces/" + name_space : "";
    queue_read(
        {path, kMetadataOnly, "get on namespaces", [done](const Result<http::ClientResponse>& response) {
           if (!response) return done(fail(response.error()));
           if (response->status == 404) return done(Annotations());
           const auto object = parse_json(response->body);
           const auto& metadata = json_member(object, "metadata");
           if (!metadata.is_object()) {
             return done(fail(Code::kIo, "the API server returned something that is not a namespace"));
           }
           done(json_text_map(metadata, "annotations"));
         }});
  }

  void count_nodes(const std::string& selector, std::function<void(Result<std::size_t>)> done) override {
    count_page("/api/v1/nodes?limit=" + std::to_string(kCountPage) +
                   "&includeObject=None&labelSelector=" + encode_query_value(selector),
               "", 0, std::move(done));
  }

 private:
  struct QueuedRead {
    std::string path;  // empty: the name is not valid in a path
    std::string accept, right;
    // Gets only responses with status 200 or 404.
    std::function<void(const Result<http::ClientResponse>&)> answered;
  };

  void count_page(const std::string& path, const std::string& from, std::size_t sum,
                  std::function<void(Result<std::size_t>)> done) {
    queue_read({path + (from.empty() ? "" : "&continue=" + encode_query_value(from)), kTable, "list on nodes",
                [this, path, sum, done = std::move(done)](const Result<http::ClientResponse>& response) {
                  if (!response) return done(fail(response.error()));
                  const auto table = parse_json(response->body);
                  if (json_text(json_member(table, "kind")) != "Table")
                    return done(fail(Code::kIo, "the API server returned something that is not a table"));
                  const auto& rows = json_member(table, "rows");
                  const std::size_t total = sum + (rows.is_array() ? rows.size() : 0);
                  const std::string more = json_text(json_member(json_member(table, "metadata"), "continue"));
                  if (more.empty() || total >= kMaxCounted) return done(std::min(total, kMaxCounted));
                  count_page(path, more, total, done);
                }});
  }

  void queue_read(QueuedRead read) {
    if (reads_.size() >= kMaxReads || read.path.empty()) {
      const Error error = read.path.empty()
                              ? Error(Code::kInvalidArgument, "not the name of an object")
                              : Error(Code::kUnavailable, "too many requests wait for the API server");
      answers_.push_back([answered = std::move(read.answered), error] { answered(fail(error)); });
    } else {
      reads_.push_back(std::move(read));
    }
    wake();
  }

  void wake() {
    if (!next_) next_ = loop_.after(Duration::zero(), [this] { send_next_read(); });
  }

  // In its own turn of the loop: the callback may destroy this object.
  void send_next_read() {
    next_.reset();
    if (!answers_.empty()) {
      const auto tell = std::move(answers_.front());
      answers_.pop_front();
      wake();
      return tell();
    }
    if (busy_) return;
    if (reads_.empty()) return client_.close_connection();
    busy_ = true;
    client_.send_request(
        {.method = "GET", .path = reads_.front().path, .accept = reads_.front().accept},
        [this](const Result<http::ClientResponse>& response) { on_read_response(response); });
  }

  void on_read_response(const Result<http::ClientResponse>& response) {
    busy_ = false;
    auto read = std::move(reads_.front());
    reads_.pop_front();
    auto answer = check_read_response(response, read);
    answers_.push_back(
        [answered = std::move(read.answered), answer = std::move(answer)] { answered(answer); });
    wake();
  }

  static Result<http::ClientResponse> check_read_response(const Result<http::ClientResponse>& response,
                                                          const QueuedRead& read) {
    if (!response || response->status == 200 || response->status == 404) return response;
    if (response->status != 403) return fail(Code::kUnavailable, describe_response(*response));
    return fail(Code::kPermissionDenied, "permission denied: " + describe_response(*response), read.right);
  }

  Loop& loop_;
  const std::string node_;
  ApiClient client_;
  std::deque<QueuedRead> reads_;  // the first is in progress while busy_
  bool busy_ = false;
  std::deque<std::function<void()>> answers_;
  Subscription next_;
};

}  // namespace

std::unique_ptr<ObjectReader> ObjectReader::start_reader(Loop& loop, ClientConfig access,
                                                         Duration request_limit) {
  return std::make_unique<QueueingObjectReader>(loop, std::move(access), request_limit);
}

namespace {

using nlohmann::json;
using Outcome = RetryingSender::Outcome;

class SequentialReview final : public AccessReview {
 public:
  SequentialReview(Loop& loop, ClientConfig access, std::function<void(std::vector<Permission>)> done,
                   SendTiming timing)
      : done_(std::move(done)),
        sending_(loop, std::move(access), timing, "the review of the agent's permissions",
                 [this] { review_next(); }) {}

  void review_permissions(std::vector<Permission> rights) override {
    rights_ = std::move(rights);
    refused_.clear();
    next_ = 0;
    ++round_;
    asking_ = true;
    sending_.wake();
  }

 private:
  void review_next() {
    if (!asking_) return sending_.idle();
    if (next_ == rights_.size()) {
      asking_ = false;
      sending_.idle();
      return done_(std::exchange(refused_, {}));
    }
    sending_.send_request({.method = "POST",
                           .path = kReviewPath,
                           .content_type = "application/json",
                           .body = make_access_review(rights_[next_])},
                          "create on selfsubjectaccessreviews.authorization.k8s.io",
                          [this, round = round_](const http::ClientResponse& response) {
                            return on_review_response(response, round);
                          });
  }

  Outcome on_review_response(const http::ClientResponse& response, unsigned round) {
    if (round != round_) return Outcome::kNext;
    if (response.status != 200 && response.status != 201) return Outcome::kError;
    const auto review = parse_json(response.body);
    const auto& allowed = json_member(json_member(review, "status"), "allowed");
    if (!allowed.is_boolean()) return Outcome::kError;
    if (!allowed.get<bool>()) refused_.push_back(rights_[next_]);
    ++next_;
    return Outcome::kNext;
  }

  std::function<void(std::vector<Permission>)> done_;
  std::vector<Permission> rights_, refused_;
  std::size_t next_ = 0;
  unsigned round_ = 0;
  bool asking_ = false;
  RetryingSender sending_;
};

}  // namespace

std::string Permission::permission_text() const {
  return verb + " on " + resource + (group.empty() ? "" : "." + group) +
         (name_space.empty() ? "" : " in " + name_space);
}

std::string make_access_review(const Permission& right) {
  const auto slash = right.resource.find('/');
  json attributes = {{"verb", right.verb}, {"resource", right.resource.substr(0, slash)}};
  if (slash != std::string::npos) attributes["subresource"] = right.resource.substr(slash + 1);
  if (!right.group.empty()) attributes["group"] = right.group;
  if (!right.name_space.empty()) attributes["namespace"] = right.name_space;
  if (!right.name.empty()) attributes["name"] = right.name;
  return serialize_json({{"apiVersion", "authorization.k8s.io/v1"},
                         {"kind", "SelfSubjectAccessReview"},
                         {"spec", {{"resourceAttributes", attributes}}}});
}

std::unique_ptr<AccessReview> AccessReview::start_review(Loop& loop, ClientConfig access,
                                                         std::function<void(std::vector<Permission>)> done,
                                                         SendTiming timing) {
  return std::make_unique<SequentialReview>(loop, std::move(access), std::move(done), timing);
}

}  // namespace gpulet::k8s

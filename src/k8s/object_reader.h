// Reads single objects of the API server, counts nodes, and reviews the agent's permissions. Source:
// Kubernetes API concepts, "Receiving resources as Tables"; authorization.k8s.io/v1
// SelfSubjectAccessReview.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration

#include "base/loop.h"
#include "base/result.h"
#include "fraction/container_rules.h"
#include "fraction/fraction_request.h"
#include "k8s/api_client.h"
#include "k8s/client_config.h"
#include "k8s/objects.h"

namespace gpulet::k8s {

inline constexpr std::size_t kMaxReads = 1024;  // that are queued
inline constexpr std::size_t kCountPage = 500;  // nodes per request
inline constexpr std::size_t kMaxCounted = 100 * kCountPage;

using Annotations = std::map<std::string, std::string>;

// What a container names of a claim.
struct ContainerClaim {
  std::string claim;    // the name of the ResourceClaim, in the Pod's namespace
  std::string request;  // of the claim, without an alternative; empty: all
  // By the Pod, as other Pods can name it too; else it was made for the Pod, by a template or for its
  // extended resources.
  bool is_named = false;
  friend auto operator<=>(const ContainerClaim&, const ContainerClaim&) = default;
};

struct PodContainer {
  std::string name;
  bool is_init = false;
  std::map<std::string, std::string> limits;  // resources.limits
  std::string id;  // of the running one: "containerd://4f1c…"; empty: not known yet
  // As the engine names its cgroup: "4f1c…".
  std::string engine_id() const {
    const auto at = id.find("://");
    return at == std::string::npos ? id : id.substr(at + 3);
  }
  // Also those of its extended resources. A claim that the Pod's status does not name yet is left out.
  std::vector<ContainerClaim> claims{};
  bool is_sidecar = false;  // an init container that runs beside the others
  friend bool operator==(const PodContainer&, const PodContainer&) = default;
};
inline constexpr std::size_t kMaxPodContainers = 512;   // of a Pod, that are read
inline constexpr std::size_t kMaxContainerClaims = 64;  // likewise, of a container

struct PodMetadata {
  PodRef pod;
  std::string owner;         // the kind of its controller: "ReplicaSet"; empty without one
  bool mirror = false;       // a static Pod
  bool terminating = false;  // it is being deleted
  std::int64_t priority = 0;
  std::int64_t created = 0;  // seconds since 1970; 0: unknown
  Annotations annotations;
  std::map<std::string, std::string> labels;
  std::vector<PodContainer> containers{};           // in the Pod's order, init containers first
  std::vector<fraction::ContainerAccess> access{};  // of its containers, likewise
  friend bool operator==(const PodMetadata&, const PodMetadata&) = default;
};

// What the Pod requests of shared GPUs. The views are those of `pod`.
fraction::PodFields fraction_fields(const PodMetadata& pod);

// nullopt: it is not on `node`. Errors: kIo for what is not a Pod.
Result<std::optional<PodMetadata>> parse_pod_metadata(const nlohmann::json& pod, const std::string& node);

// Reads one object at a time, without retries: the caller knows for how long the result matters. Needs get
// on pods, get on namespaces and list on nodes, each only where it is called. Loop's thread only. Each
// callback comes once, from the loop, never from inside the call or after destruction. Errors:
// kPermissionDenied, about the missing permission; kUnavailable, kIo and others of the connection;
// kUnavailable when more than kMaxReads are queued.
class ObjectReader {
 public:
  static std::unique_ptr<ObjectReader> start_reader(Loop& loop, ClientConfig access,
                                                    Duration request_limit = std::chrono::seconds(10));
  virtual ~ObjectReader() = default;

  // nullopt: there is no Pod of that name on this node.
  virtual void read_pod(const std::string& name_space, const std::string& name,
                        std::function<void(Result<std::optional<PodMetadata>>)> done) = 0;
  // Empty for a namespace that does not exist.
  virtual void read_namespace_annotations(const std::string& name_space,
                                          std::function<void(Result<Annotations>)> done) = 0;
  // The number of nodes that a label selector matches, at most kMaxCounted: "gpulet.io/gpu-health in
  // (lost,withdrawn)". Only table rows are transferred.
  virtual void count_nodes(const std::string& selector, std::function<void(Result<std::size_t>)> done) = 0;
};

// One permission in RBAC's terms: for one object if it has a name, in all namespaces if it has no
// namespace.
struct Permission {
  std::string verb, resource;  // "patch", "nodes/status"
  std::string group{}, name_space{}, name{};
  // "patch on nodes/status"; "create on gpunodes.gpulet.io"; "get on configmaps in monitoring".
  std::string permission_text() const;
  friend bool operator==(const Permission&, const Permission&) = default;
};

// The path and body of a SelfSubjectAccessReview.
inline constexpr const char* kReviewPath = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
std::string make_access_review(const Permission& permission);

// Asks the API server which permissions are missing, without using them, so that it is known before a GPU
// fails. Every authenticated client may do so (ClusterRole system:basic-user). Loop's thread only.
class AccessReview {
 public:
  // Calls `done` with the refused ones of the newest permissions, in their order, once per review. Retries
  // with backoff while the API server is unreachable.
  static std::unique_ptr<AccessReview> start_review(Loop& loop, ClientConfig access,
                                                    std::function<void(std::vector<Permission> refused)> done,
                                                    SendTiming timing = {});
  virtual ~AccessReview() = default;

  // Replaces a review in progress.
  virtual void review_permissions(std::vector<Permission> permissions) = 0;
};

}  // namespace gpulet::k8s

// Checks at start, and when the config changes, which API server permissions are missing and what that
// disables; everything else continues. While one is missing it checks again periodically, as nothing
// announces a changed role.
//
// required_permissions is the list that docs/SECURITY.md and the roles of the manifests are compared with.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/loop.h"
#include "config/config.h"
#include "k8s/client_config.h"
#include "k8s/object_reader.h"

namespace gpulet::agent {

struct RequiredPermission {
  k8s::Permission permission;
  std::string consequence;  // "the condition GpuHealthy is not written"
  friend bool operator==(const RequiredPermission&, const RequiredPermission&) = default;
};

// What publishing the node's GpuNode needs.
std::vector<k8s::Permission> gpu_node_permissions(const std::string& node_name);

// Each permission once; for the node's own objects only for those. `in_pod`: the agent is replaced like a Pod
// and announces its shutdown (k8s/node_status.h). Pure.
std::vector<RequiredPermission> required_permissions(const config::Config& config,
                                                     const k8s::ClientConfig& access, bool in_pod);

inline constexpr Duration kRbacCheckInterval = std::chrono::minutes(10);

// Loop's thread only.
class RbacCheck {
 public:
  RbacCheck(Loop& loop, k8s::ClientConfig access, bool in_pod, Duration again = kRbacCheckInterval,
            k8s::SendTiming timing = {});
  RbacCheck(const RbacCheck&) = delete;

  void check_config(const config::Config& config);
  // The number of missing permissions; nullopt before the first answer.
  std::optional<std::size_t> missing_permissions() const;

 private:
  void review_permissions();
  void on_review(const std::vector<k8s::Permission>& refused);

  Loop& loop_;
  const k8s::ClientConfig access_;
  const bool in_pod_;
  const Duration interval_;
  std::vector<RequiredPermission> required_;
  std::optional<std::vector<k8s::Permission>> refused_;
  Subscription next_;
  std::unique_ptr<k8s::AccessReview> review_;
};

}  // namespace gpulet::agent

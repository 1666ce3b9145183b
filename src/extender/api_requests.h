// Requests to the API server that several parts of the extender make.
#pragma once

#include <string>
#include <utility>

#include "k8s/api_client.h"
#include "k8s/objects.h"
#include "scheduler/model/gpu_node.h"

namespace gpulet::extender {

// Of a list of Pods: those that are not bound to a node. Source: Kubernetes API v1, Pod: field selectors.
inline constexpr const char* kUnboundPodsQuery = "fieldSelector=spec.nodeName%3D,status.phase%3DPending";

inline constexpr const char* kGpuNodeStatusPermission = "patch on gpunodes/status";

// Replaces the members of the node's GpuNode that `body` has: {"status":{…}}. Source: RFC 7396.
inline k8s::ApiRequest gpu_node_status_patch(const std::string& node, std::string body) {
  return {.method = "PATCH",
          .path = std::string(scheduler::kGpuNodesPath) + "/" + node + "/status",
          .content_type = "application/merge-patch+json",
          .body = std::move(body),
          .accept = k8s::kMetadataOnly};
}

}  // namespace gpulet::extender

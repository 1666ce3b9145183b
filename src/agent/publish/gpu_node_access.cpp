#include "agent/publish/gpu_node_access.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "agent/publish/rbac_check.h"
#include "base/json.h"
#include "base/log.h"
#include "k8s/objects.h"
#include "scheduler/model/gpu_node.h"

namespace gpulet::agent {
namespace {

using Outcome = k8s::RetryingSender::Outcome;

bool lists_gpu_nodes(const std::string& body) {
  const auto list = parse_json(body);
  const auto& resources = json_member(list, "resources");
  return resources.is_array() && std::ranges::any_of(resources, [](const auto& resource) {
           return json_text(json_member(resource, "name")) == "gpunodes";
         });
}

}  // namespace

GpuNodeAccess::GpuNodeAccess(Loop& loop, k8s::ClientConfig access, GpuNodeAccessPorts ports,
                             Duration interval, k8s::SendTiming timing)
    : loop_(loop),
      ports_(std::move(ports)),
      interval_(interval),
      node_name_(access.node_name),
      discovery_(loop, access, timing, "the look-up of the CRD GpuNode", [this] { read_discovery(); }),
      review_(k8s::AccessReview::start_review(
          loop, std::move(access),
          [this](const std::vector<k8s::Permission>& refused) {
            if (refused.empty()) return conclude(true, "");
            conclude(false, "the agent lacks the right " + refused.front().permission_text());
          },
          timing)) {
  look();
}

void GpuNodeAccess::look() {
  next_.reset();
  if (can_publish_ && !ports_.is_failing()) return look_later();
  looking_ = true;
  discovery_.wake();
}

void GpuNodeAccess::look_later() {
  next_ = loop_.after(interval_, [this] { look(); });
}

void GpuNodeAccess::read_discovery() {
  if (!looking_) return discovery_.idle();
  const std::string group = std::string("/apis/") + scheduler::kGpuNodeApiVersion;
  discovery_.send_request({.method = "GET", .path = group}, "get on " + group,
                          [this](const http::ClientResponse& response) { return on_discovery(response); });
}

Outcome GpuNodeAccess::on_discovery(const http::ClientResponse& response) {
  const bool served = response.status == 200 && lists_gpu_nodes(response.body);
  // A cluster may hide its discovery; the rights then say whether the scheduler's manifests are installed.
  const bool hidden = response.status == 403;
  if (!served && !hidden && response.status != 200 && response.status != 404) return Outcome::kError;
  looking_ = false;
  if (served || hidden) {
    review_->review_permissions(gpu_node_permissions(node_name_));
  } else {
    conclude(false, "");
  }
  return Outcome::kDone;
}

void GpuNodeAccess::conclude(bool can_publish, const std::string& reason) {
  look_later();
  // Without the CRD nobody reads GpuNodes, and there is nothing to say.
  if (reason != reason_ && !reason.empty()) log::info("the GpuNode is not published", {{"reason", reason}});
  reason_ = reason;
  if (can_publish == std::exchange(can_publish_, can_publish)) return;
  log::info(can_publish ? "publishing the GpuNode" : "no longer publishing the GpuNode");
  ports_.changed();
}

}  // namespace gpulet::agent

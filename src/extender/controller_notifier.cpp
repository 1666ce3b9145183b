#include "extender/controller_notifier.h"

#include <algorithm>
#include <utility>

#include "extender/api_requests.h"

namespace gpulet::extender {

using Outcome = k8s::RetryingSender::Outcome;

ControllerNotifier::ControllerNotifier(Loop& loop, k8s::ClientConfig access,
                                       const scheduler::ClusterState& cluster, k8s::SendTiming timing)
    : cluster_(cluster),
      sending_(loop, std::move(access), timing, "remembered loads for the agents", [this] { send_next(); }) {}

void ControllerNotifier::on_bound(const scheduler::PodRequest& pod) {
  auto load = cluster_.load_known_elsewhere(pod);
  if (!load) return;
  auto& sent = sent_[pod.node];
  if (std::ranges::find(sent, *load) != sent.end()) return;
  std::erase_if(sent, [&](const auto& other) { return other.controller == load->controller; });
  sent.push_back(std::move(*load));
  if (sent.size() > kMaxSentControllers) sent.erase(sent.begin());
  pending_[pod.node] = "{\"status\":" + scheduler::encode_status(sent) + "}";
  sending_.wake();
}

void ControllerNotifier::send_next() {
  if (pending_.empty()) return sending_.idle();
  const auto& [node, status] = *pending_.begin();
  sending_.send_request(gpu_node_status_patch(node, status), kGpuNodeStatusPermission,
                        [this, name = node, sent_status = status](const http::ClientResponse& response) {
                          // 404: the node is gone.
                          if (response.status / 100 != 2 && response.status != 404) return Outcome::kError;
                          const auto written = pending_.find(name);
                          if (written != pending_.end() && written->second == sent_status)
                            pending_.erase(written);
                          if (response.status == 404) sent_.erase(name);
                          return Outcome::kDone;
                        });
}

}  // namespace gpulet::extender

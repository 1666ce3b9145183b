#include "extender/mig_demand_controller.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/text.h"
#include "k8s/objects.h"
#include "scheduler/model/gpu_node.h"

namespace gpulet::extender {
namespace {

using Outcome = k8s::RetryingSender::Outcome;
using Requests = std::vector<scheduler::MigDemand::Request>;

constexpr const char* kPendingPods = "fieldSelector=spec.nodeName%3D,status.phase%3DPending";

bool names_pod(const scheduler::MigDemand& demand, const std::string& pod) {
  return std::ranges::any_of(demand.requests, [&](const auto& request) {
    return std::ranges::find(request.pods, pod) != request.pods.end();
  });
}

unsigned free_devices(const std::map<std::string, scheduler::MigSupply>& nodes, const std::string& node,
                      const ResourceName& resource) {
  const auto supply = nodes.find(node);
  if (supply == nodes.end()) return 0;
  const auto free = supply->second.free.find(resource);
  return free == supply->second.free.end() ? 0 : free->second;
}

PodRef pod_ref(const scheduler::WaitingPod& pod) {
  const auto slash = pod.pod.find('/');
  return {pod.pod.substr(0, slash), pod.pod.substr(slash + 1), pod.uid};
}

}  // namespace

MigDemandController::MigDemandController(MigDemandPorts ports, Duration wait, MigDemandTiming timing)
    : ports_(std::move(ports)), wait_(wait), timing_(timing) {}

void MigDemandController::set_pod(std::string_view object) {
  const std::string key =
      k8s::metadata_string(object, "namespace") + "/" + k8s::metadata_string(object, "name");
  auto pod = scheduler::parse_waiting_pod(object);
  const auto known = waiting_.find(key);
  if (!pod || (known != waiting_.end() && known->second.pod != *pod)) waiting_.erase(key);
  if (!pod || (waiting_.size() >= kMaxWaitingPods && !waiting_.contains(key))) return;
  waiting_.try_emplace(
      key,
      Waiting{
          .pod = std::move(*pod), .since = ports_.loop.now(), .asked = {}, .free_since = {}, .reported = {}});
  plan_later();
}

void MigDemandController::remove_pod(const std::string& key) { waiting_.erase(key); }

std::vector<std::string> MigDemandController::pod_keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, waiting] : waiting_) keys.push_back(key);
  return keys;
}

void MigDemandController::set_recorded(const std::string& node, const scheduler::MigDemand& demand) {
  if (demand == scheduler::MigDemand{}) {
    recorded_.erase(node);
    return;
  }
  auto& recorded = recorded_[node];
  if (recorded.demand.renewed != demand.renewed) recorded.renewed_at = ports_.loop.now();
  recorded.demand = demand;
  plan_later();
}

void MigDemandController::plan_later() {
  if (!timer_) timer_ = ports_.loop.after(timing_.plan_every, [this] { plan_demands(); });
}

std::map<std::string, scheduler::MigSupply> MigDemandController::read_supplies() {
  std::map<std::string, scheduler::MigSupply> nodes;
  for (const auto& name : ports_.cluster.node_names()) {
    const auto* node = ports_.cluster.find_node(name);
    if (node == nullptr) continue;
    scheduler::MigSupply supply{.free = {}, .offer = node->node.mig_offer, .recorded = {}};
    for (std::size_t i = 0; i < node->node.resources.size(); ++i) {
      if (node->free_total[i] > 0) supply.free[node->node.resources[i].name] = node->free_total[i];
    }
    if (const auto recorded = recorded_.find(name); recorded != recorded_.end())
      supply.recorded = recorded->second.demand;
    nodes.emplace(name, std::move(supply));
  }
  return nodes;
}

// Something else keeps the Pod from a node that has what it waits for.
void MigDemandController::give_up_nodes(Time now, const std::map<std::string, scheduler::MigSupply>& nodes) {
  std::erase_if(avoided_until_, [&](const auto& entry) { return entry.second <= now; });
  for (auto& [key, waiting] : waiting_) {
    if (waiting.asked.empty() ||
        free_devices(nodes, waiting.asked, waiting.pod.resource) < waiting.pod.count) {
      waiting.free_since.reset();
      continue;
    }
    if (!waiting.free_since) waiting.free_since = now;
    if (now - *waiting.free_since < timing_.give_up) continue;
    avoided_until_[{key, waiting.asked}] = now + timing_.avoid;
    waiting.asked.clear();
    waiting.free_since.reset();
  }
}

void MigDemandController::plan_demands() {
  timer_.reset();
  if (waiting_.empty() && recorded_.empty()) return;
  plan_later();
  if (!ports_.is_synced()) return;
  const Time now = ports_.loop.now();
  auto nodes = read_supplies();
  std::erase_if(recorded_, [&](const auto& entry) { return !nodes.contains(entry.first); });
  give_up_nodes(now, nodes);
  std::vector<std::pair<Time, const scheduler::WaitingPod*>> due;
  for (const auto& [key, waiting] : waiting_) {
    // Another replica has waited already.
    const bool is_recorded = std::ranges::any_of(
        recorded_, [&, &pod = key](const auto& entry) { return names_pod(entry.second.demand, pod); });
    if (is_recorded || now - waiting.since >= wait_) due.emplace_back(waiting.since, &waiting.pod);
  }
  std::ranges::stable_sort(due, {}, &std::pair<Time, const scheduler::WaitingPod*>::first);
  std::vector<scheduler::WaitingPod> pods;
  for (const auto& [since, pod] : due) pods.push_back(*pod);
  std::set<std::pair<std::string, std::string>> refused;
  for (const auto& [pod_and_node, until] : avoided_until_) refused.insert(pod_and_node);
  const auto plan = scheduler::plan_mig_demand(pods, nodes, refused);
  write_demands(plan, now);
  report_pods(plan, nodes, now);
}

void MigDemandController::write_demands(const scheduler::MigDemandPlan& plan, Time now) {
  std::set<std::string> names;
  for (const auto& [name, requests] : plan.requests) names.insert(name);
  for (const auto& [name, recorded] : recorded_) names.insert(name);
  for (const auto& name : names) {
    const auto planned = plan.requests.find(name);
    const Requests wanted = planned == plan.requests.end() ? Requests() : planned->second;
    const auto recorded = recorded_.find(name);
    const Requests present = recorded == recorded_.end() ? Requests() : recorded->second.demand.requests;
    const bool is_current =
        wanted == present && (wanted.empty() || now - recorded->second.renewed_at < timing_.renew_every);
    if (is_current) continue;
    // Its watch has not returned the last write yet.
    const auto written = written_.find(name);
    if (written != written_.end() && written->second.requests == wanted &&
        now - written->second.at < timing_.renew_every)
      continue;
    written_[name] = {wanted, now};
    nlohmann::json demand;
    if (!wanted.empty())
      demand = scheduler::encode_mig_demand({format_wall_time(ports_.loop.wall_now()), wanted});
    ports_.write(name, k8s::serialize_json({{"status", {{"migDemand", demand}}}}));
  }
  std::erase_if(written_, [&](const auto& entry) { return !names.contains(entry.first); });
}

// "GPU 2" or "GPUs 0 and 2": where a free unit is; empty if none is known.
std::string MigDemandController::free_gpus(const std::string& node, const ResourceName& resource) const {
  const auto* found = ports_.cluster.find_node(node);
  const auto index = found != nullptr ? found->find_resource(resource) : std::nullopt;
  if (!index) return "";
  std::set<std::size_t> gpus;
  const auto& units = found->node.resources[*index].units;
  for (std::size_t unit = 0; unit < units.size() && unit < found->free[*index].size(); ++unit) {
    if (found->free[*index][unit] > 0) gpus.insert(units[unit].gpu);
  }
  std::vector<std::string> names;
  for (const auto gpu : gpus) names.push_back(std::to_string(gpu));
  if (names.empty()) return "";
  return (names.size() == 1 ? " GPU " : " GPUs ") + text::join(names, ", ");
}

void MigDemandController::report_pods(const scheduler::MigDemandPlan& plan,
                                      const std::map<std::string, scheduler::MigSupply>& nodes, Time now) {
  for (auto& [key, waiting] : waiting_) {
    const std::string& resource = waiting.pod.resource.str();
    if (const auto node = plan.node_of.find(key); node != plan.node_of.end()) {
      const bool is_free = free_devices(nodes, node->second, waiting.pod.resource) >= waiting.pod.count;
      if (waiting.asked != node->second && !is_free) {
        log::info("asking a node for MIG devices",
                  {{"pod", key}, {"node", node->second}, {"resource", resource}});
      }
      waiting.asked = node->second;
      send_pod_event(
          waiting, false, is_free ? kMigCutReason : kMigRequestedReason,
          is_free ? resource + " cut on node " + node->second + free_gpus(node->second, waiting.pod.resource)
                  : "no GPU has " + resource + " free: asked node " + node->second + " to cut it",
          now);
    } else if (const auto why = plan.unmet.find(key); why != plan.unmet.end()) {
      waiting.asked.clear();
      send_pod_event(
          waiting, true, kMigUnmetReason,
          "no node can cut " + std::to_string(waiting.pod.count) + " x " + resource + " now: " + why->second,
          now);
    }
  }
}

void MigDemandController::send_pod_event(Waiting& waiting, bool warning, const char* reason,
                                         const std::string& message, Time now) {
  // What is in use changes all the time: one Event about that is enough for a while.
  const std::string subject = warning ? std::string(reason) : message;
  if (waiting.reported == subject && (!warning || now - waiting.reported_at < timing_.report_every)) return;
  waiting.reported = subject;
  waiting.reported_at = now;
  if (ports_.send_event)
    ports_.send_event(
        {.warning = warning, .reason = reason, .message = message, .pod = pod_ref(waiting.pod)});
}

GpuNodeStatusWriter::GpuNodeStatusWriter(Loop& loop, k8s::ClientConfig access, k8s::SendTiming timing)
    : sending_(loop, std::move(access), timing, "MIG demands for the agents", [this] { send_status(); }) {}

void GpuNodeStatusWriter::write_status(const std::string& node, std::string body) {
  pending_[node] = std::move(body);
  sending_.wake();
}

void GpuNodeStatusWriter::send_status() {
  if (pending_.empty()) return sending_.idle();
  const auto& [node, status] = *pending_.begin();
  sending_.send_request({.method = "PATCH",
                         .path = std::string(scheduler::kGpuNodesPath) + "/" + node + "/status",
                         .content_type = "application/merge-patch+json",
                         .body = status,
                         .accept = k8s::kMetadataOnly},
                        "patch on gpunodes/status",
                        [this, name = node, sent_status = status](const http::ClientResponse& response) {
                          // 404: the node is gone.
                          if (response.status / 100 != 2 && response.status != 404) return Outcome::kError;
                          const auto written = pending_.find(name);
                          if (written != pending_.end() && written->second == sent_status)
                            pending_.erase(written);
                          return Outcome::kDone;
                        });
}

std::unique_ptr<k8s::CollectionWatcher> watch_pending_pods(Loop& loop, const k8s::ClientConfig& access,
                                                           MigDemandController& controller,
                                                           k8s::CollectionTiming timing) {
  const auto key_of = [](std::string_view object) {
    return k8s::metadata_string(object, "namespace") + "/" + k8s::metadata_string(object, "name");
  };
  const auto listed = std::make_shared<std::optional<std::set<std::string>>>();
  k8s::CollectionEvents events;
  events.on_list_begin = [listed] { listed->emplace(); };
  events.on_object = [&controller, listed, key_of](std::string_view object) {
    if (*listed) (*listed)->insert(key_of(object));
    controller.set_pod(object);
  };
  events.on_deleted = [&controller, key_of](std::string_view object) {
    controller.remove_pod(key_of(object));
  };
  events.on_list_end = [&controller, listed] {
    for (const auto& key : controller.pod_keys()) {
      if (*listed && !(*listed)->contains(key)) controller.remove_pod(key);
    }
    listed->reset();
  };
  return k8s::CollectionWatcher::watch_collection(
      loop, access, {.path = "/api/v1/pods", .query = kPendingPods, .permission = "list and watch on pods"},
      timing, std::move(events));
}

}  // namespace gpulet::extender

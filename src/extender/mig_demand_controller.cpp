#include "extender/mig_demand_controller.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/text.h"
#include "extender/api_requests.h"
#include "k8s/objects.h"
#include "scheduler/model/gpu_node.h"

namespace gpulet::extender {
namespace {

using Outcome = k8s::RetryingSender::Outcome;
using Requests = std::vector<scheduler::MigDemand::Request>;

// The same Pods at the same node, whoever comes first.
bool are_same(Requests a, Requests b) {
  const auto sort = [](Requests& requests) {
    for (auto& request : requests) std::ranges::sort(request.pods);
    std::ranges::sort(requests, {}, &scheduler::MigDemand::Request::resource);
  };
  sort(a);
  sort(b);
  return a == b;
}

unsigned free_devices(const std::map<std::string, scheduler::MigSupply>& nodes, const std::string& node,
                      const ResourceName& resource) {
  const auto supply = nodes.find(node);
  if (supply == nodes.end()) return 0;
  const auto free = supply->second.free.find(resource);
  return free == supply->second.free.end() ? 0 : free->second;
}

// The free devices of all nodes, given to the Pods that come first.
class FreeDevices {
 public:
  explicit FreeDevices(const std::map<std::string, scheduler::MigSupply>& nodes) : nodes_(nodes) {}
  bool take_devices(const std::string& node, const scheduler::WaitingPod& pod) {
    auto& taken = taken_[{node, pod.resource}];
    if (free_devices(nodes_, node, pod.resource) < taken + pod.count) return false;
    taken += pod.count;
    return true;
  }

 private:
  const std::map<std::string, scheduler::MigSupply>& nodes_;
  std::map<std::pair<std::string, ResourceName>, unsigned> taken_;
};

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
  // It has what it waited for there, and kube-scheduler says that something else keeps it away.
  if (!pod && known != waiting_.end() && known->second.free_since)
    avoid_node(key, known->second.asked, ports_.loop.now());
  if (!pod || (known != waiting_.end() && known->second.pod != *pod)) waiting_.erase(key);
  if (!pod || (waiting_.size() >= kMaxWaitingPods && !waiting_.contains(key))) return;
  waiting_.try_emplace(
      key,
      Waiting{
          .pod = std::move(*pod), .since = ports_.loop.now(), .asked = {}, .free_since = {}, .reported = {}});
  plan_later();
}

void MigDemandController::remove_pod(const std::string& key) {
  waiting_.erase(key);
  given_up_.erase(key);
}

std::vector<std::string> MigDemandController::pod_keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, waiting] : waiting_) keys.push_back(key);
  return keys;
}

void MigDemandController::set_recorded(const std::string& node, const scheduler::MigDemand& demand) {
  const auto known = recorded_.find(node);
  if (demand != (known == recorded_.end() ? scheduler::MigDemand{} : known->second.demand))
    written_.erase(node);
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

// Only of resources that some node offers to cut.
std::map<std::string, scheduler::MigSupply> MigDemandController::read_supplies() {
  std::set<ResourceName> offered;
  const auto names = ports_.cluster.node_names();
  for (const auto& name : names) {
    const auto* node = ports_.cluster.find_node(name);
    if (node == nullptr) continue;
    for (const auto& one : node->node.mig_offer.resources) offered.insert(one.name);
  }
  std::map<std::string, scheduler::MigSupply> nodes;
  for (const auto& name : names) {
    const auto* node = ports_.cluster.find_node(name);
    if (node == nullptr) continue;
    scheduler::MigSupply supply{.free = {}, .offer = node->node.mig_offer, .recorded = {}};
    for (std::size_t i = 0; i < node->node.resources.size() && !offered.empty(); ++i) {
      const auto& resource = node->node.resources[i].name;
      if (node->free_total[i] > 0 && offered.contains(resource)) supply.free[resource] = node->free_total[i];
    }
    const auto recorded = recorded_.find(name);
    if (recorded != recorded_.end()) supply.recorded = recorded->second.demand;
    if (recorded == recorded_.end() && supply.free.empty() && supply.offer.resources.empty()) continue;
    nodes.emplace(name, std::move(supply));
  }
  return nodes;
}

// The same in every replica: by creation, not by arrival.
std::vector<MigDemandController::Waiting*> MigDemandController::pods_in_order() {
  std::vector<Waiting*> pods;
  for (auto& [key, waiting] : waiting_) pods.push_back(&waiting);
  std::ranges::stable_sort(pods, {},
                           [](const Waiting* one) -> const std::string& { return one->pod.created; });
  return pods;
}

void MigDemandController::avoid_node(const std::string& pod, const std::string& node, Time now) {
  auto& given_up = given_up_[pod];
  given_up.avoid = given_up.avoid == Duration::zero() ? timing_.avoid
                                                      : std::min(2 * given_up.avoid, timing_.longest_avoid);
  given_up.forget_at = now + 2 * given_up.avoid;
  avoided_until_[{pod, node}] = now + given_up.avoid;
}

// Something else keeps the Pod from a node that has what it waits for.
void MigDemandController::give_up_nodes(Time now, const std::map<std::string, scheduler::MigSupply>& nodes) {
  std::erase_if(avoided_until_, [&](const auto& entry) { return entry.second <= now; });
  std::erase_if(given_up_, [&](const auto& entry) { return entry.second.forget_at <= now; });
  FreeDevices free(nodes);
  for (auto* waiting : pods_in_order()) {
    if (waiting->asked.empty() || !free.take_devices(waiting->asked, waiting->pod)) {
      waiting->free_since.reset();
      continue;
    }
    if (!waiting->free_since) waiting->free_since = now;
    if (now - *waiting->free_since < timing_.give_up) continue;
    avoid_node(waiting->pod.pod, waiting->asked, now);
    waiting->asked.clear();
    waiting->free_since.reset();
  }
}

// Those that have waited long enough and that some node cuts for, at most kMaxPlannedPods.
std::vector<scheduler::WaitingPod> MigDemandController::due_pods(
    const std::map<std::string, scheduler::MigSupply>& nodes, Time now) {
  std::set<ResourceName> offered;
  std::set<std::string_view> recorded;
  for (const auto& [name, supply] : nodes) {
    for (const auto& one : supply.offer.resources) offered.insert(one.name);
    for (const auto& request : supply.recorded.requests)
      recorded.insert(request.pods.begin(), request.pods.end());
  }
  std::vector<scheduler::WaitingPod> pods;
  for (const auto* waiting : pods_in_order()) {
    if (pods.size() == kMaxPlannedPods) break;
    if (!offered.contains(waiting->pod.resource)) continue;
    // Another replica has waited already.
    if (recorded.contains(waiting->pod.pod) || now - waiting->since >= wait_) pods.push_back(waiting->pod);
  }
  return pods;
}

void MigDemandController::plan_demands() {
  timer_.reset();
  if (waiting_.empty() && recorded_.empty()) return;
  plan_later();
  if (!pods_listed_ || !ports_.is_synced()) return;
  const Time now = ports_.loop.now();
  const auto nodes = read_supplies();
  std::erase_if(recorded_, [&](const auto& entry) { return !nodes.contains(entry.first); });
  give_up_nodes(now, nodes);
  std::set<std::pair<std::string, std::string>> refused;
  for (const auto& [pod_and_node, until] : avoided_until_) refused.insert(pod_and_node);
  const auto plan = scheduler::plan_mig_demand(due_pods(nodes, now), nodes, refused);
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
    const bool is_current = are_same(wanted, present) &&
                            (wanted.empty() || now - recorded->second.renewed_at < timing_.renew_every);
    if (is_current) continue;
    // The watch has not returned the last write yet.
    const auto written = written_.find(name);
    if (written != written_.end() && are_same(written->second.requests, wanted) &&
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
  FreeDevices free(nodes);
  std::size_t sent = 0;
  for (auto* waiting : pods_in_order()) {
    const auto& pod = waiting->pod;
    const std::string& resource = pod.resource.str();
    if (const auto node = plan.node_of.find(pod.pod); node != plan.node_of.end()) {
      const bool is_free = free.take_devices(node->second, pod);
      if (waiting->asked != node->second && !is_free) {
        log::info("asking a node for MIG devices",
                  {{"pod", pod.pod}, {"node", node->second}, {"resource", resource}});
      }
      waiting->asked = node->second;
      if (sent == kMaxPodEvents) continue;
      sent += send_pod_event(
          *waiting, false, is_free ? kMigCutReason : kMigRequestedReason,
          is_free ? resource + " cut on node " + node->second + free_gpus(node->second, pod.resource)
                  : "no GPU has " + resource + " free: asked node " + node->second + " to cut it",
          now);
    } else if (const auto why = plan.unmet.find(pod.pod); why != plan.unmet.end()) {
      waiting->asked.clear();
      if (sent == kMaxPodEvents) continue;
      sent += send_pod_event(
          *waiting, true, kMigUnmetReason,
          "no node can cut " + std::to_string(pod.count) + " x " + resource + " now: " + why->second, now);
    }
  }
}

// Returns whether it was sent.
bool MigDemandController::send_pod_event(Waiting& waiting, bool warning, const char* reason,
                                         const std::string& message, Time now) {
  auto [last, is_first] = waiting.reported.try_emplace(reason);
  // What is in use changes all the time: one Event about that is enough for a while. Other news is sent once.
  if (!is_first &&
      (now - last->second.at < timing_.report_every || (!warning && last->second.message == message)))
    return false;
  last->second = {message, now};
  if (ports_.send_event)
    ports_.send_event(
        {.warning = warning, .reason = reason, .message = message, .pod = pod_ref(waiting.pod)});
  return true;
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
  sending_.send_request(gpu_node_status_patch(node, status), kGpuNodeStatusPermission,
                        [this, name = node, sent_status = status](const http::ClientResponse& response) {
                          const bool is_refused = response.status / 100 == 4 && response.status != 429;
                          if (response.status / 100 != 2 && !is_refused) return Outcome::kError;
                          const auto written = pending_.find(name);
                          if (written != pending_.end() && written->second == sent_status)
                            pending_.erase(written);
                          // 404: the node is gone. What is refused is written again with the next renewal.
                          return is_refused && response.status != 404 ? Outcome::kRefused : Outcome::kDone;
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
    controller.mark_pods_listed();
  };
  return k8s::CollectionWatcher::watch_collection(
      loop, access,
      {.path = "/api/v1/pods", .query = kUnboundPodsQuery, .permission = "list and watch on pods"}, timing,
      std::move(events));
}

}  // namespace gpulet::extender

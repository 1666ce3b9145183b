#include "extender/cluster_watcher.h"

#include "base/dns_name.h"
#include "base/log.h"
#include "k8s/objects.h"
#include "scheduler/core/extender_json.h"

namespace gpulet::extender {
namespace {

using http::ClientResponse;

constexpr const char* kBound =
    "fieldSelector=spec.nodeName%21%3D,status.phase%21%3DSucceeded,status.phase%21%3DFailed";
// Source: Kubernetes API v1, Pod: field selectors.
constexpr const char* kNominated = "fieldSelector=spec.nodeName%3D,status.nominatedNodeName%21%3D";
constexpr std::size_t kMaxPolicyBytes = 256;

std::string object_key(std::string_view object) {
  return k8s::metadata_string(object, "namespace") + "/" + k8s::metadata_string(object, "name");
}

std::string object_name(std::string_view object) { return k8s::metadata_string(object, "name"); }

template <class Value>
std::vector<std::string> keys_of(const std::map<std::string, Value>& objects) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : objects) keys.push_back(key);
  return keys;
}

}  // namespace

ClusterWatcher::ClusterWatcher(Loop& loop, const k8s::ClientConfig& access, scheduler::ClusterState& view,
                               k8s::CollectionTiming timing, std::function<void()> listed,
                               std::function<void(const scheduler::PodRequest&)> bound,
                               std::function<void()> left,
                               std::function<void(const scheduler::NamedGpuNode&)> node)
    : loop_(loop),
      access_(access),
      cluster_(view),
      timing_(timing),
      on_synced_(std::move(listed)),
      on_bound_(std::move(bound)),
      on_left_(std::move(left)),
      on_node_(std::move(node)) {
  nodes_.current_keys = [this] { return cluster_.node_names(); };
  nodes_.remove_key = [this](const std::string& name) { cluster_.remove_node(name); };
  watch_collection(
      nodes_,
      {.path = scheduler::kGpuNodesPath, .permission = "the CRD GpuNode, and list and watch on gpunodes"},
      [this](std::string_view object) { return apply_node(object); }, object_name);
  pods_.current_keys = [this] { return cluster_.pod_keys(); };
  pods_.remove_key = [this](const std::string& key) {
    const auto [name_space, name] = parse_pod_name(key);
    cluster_.remove_pod(name_space, name);
  };
  watch_collection(
      pods_, {.path = "/api/v1/pods", .query = kBound, .permission = "list and watch on pods"},
      [this](std::string_view object) { return apply_pod(object); }, object_key);
  nominated_.current_keys = [this] { return cluster_.nominated_keys(); };
  nominated_.remove_key = [this](const std::string& key) {
    const auto [name_space, name] = parse_pod_name(key);
    cluster_.remove_nominated(name_space, name);
  };
  watch_collection(
      nominated_, {.path = "/api/v1/pods", .query = kNominated, .permission = "list and watch on pods"},
      [this](std::string_view object) { return apply_nominated(object); }, object_key);
  budget_watch_.current_keys = [this] { return keys_of(budgets_); };
  budget_watch_.remove_key = [this](const std::string& key) { budgets_.erase(key); };
  watch_collection(
      budget_watch_,
      {.path = scheduler::kDisruptionBudgetsPath, .permission = "list and watch on poddisruptionbudgets"},
      [this](std::string_view object) { return apply_budget(object); }, object_key);
  namespaces_.current_keys = [this] { return keys_of(policies_); };
  namespaces_.remove_key = [this](const std::string& name) { policies_.erase(name); };
  watch_collection(
      namespaces_,
      {.path = "/api/v1/namespaces", .permission = "list and watch on namespaces", .metadata = true},
      [this](std::string_view object) { return apply_namespace(object); }, object_name);
}

ClusterWatcher::~ClusterWatcher() = default;

void ClusterWatcher::watch_collection(WatchedCollection& followed, k8s::Collection collection,
                                      ObjectHandler found, ObjectHandler gone) {
  k8s::CollectionEvents events;
  events.on_list_begin = [&followed] {
    followed.listing = true;
    followed.listed_keys.clear();
  };
  events.on_object = [this, &followed, found = std::move(found)](std::string_view object) {
    auto key = found(object);
    if (followed.listing && !key.empty()) followed.listed_keys.insert(std::move(key));
    // Applied one by one: a Pod that leaves later does not change an earlier assumption.
    if (!followed.listing && is_synced()) cluster_.recompute_nodes();
  };
  events.on_deleted = [this, &followed, gone = std::move(gone)](std::string_view object) {
    followed.remove_key(gone(object));
    if (&followed == &pods_ && on_left_) on_left_();
  };
  events.on_list_end = [this, &followed] {
    followed.listing = false;
    for (const auto& key : followed.current_keys()) {
      if (!followed.listed_keys.contains(key)) followed.remove_key(key);
    }
    followed.listed_keys = {};
    if (&followed == &pods_) {
      cluster_.mark_pods_synced();
      if (on_left_) on_left_();
    }
    if (!is_synced() || !on_synced_ || synced_timer_) return;
    synced_timer_ = loop_.after(Duration::zero(), [this] {
      const auto listed = std::exchange(on_synced_, nullptr);
      listed();
    });
  };
  followed.watch = k8s::CollectionWatcher::watch_collection(loop_, access_, std::move(collection), timing_,
                                                            std::move(events));
}

bool ClusterWatcher::is_synced() const {
  return nodes_.watch && pods_.watch && namespaces_.watch && nodes_.watch->completed_lists() != 0 &&
         pods_.watch->completed_lists() != 0 && namespaces_.watch->completed_lists() != 0;
}

std::vector<std::string> ClusterWatcher::current_problems() const {
  std::vector<std::string> all;
  for (const auto* followed : {&nodes_, &pods_, &nominated_, &namespaces_, &budget_watch_}) {
    if (!followed->watch->current_error().empty()) all.push_back(followed->watch->current_error());
  }
  return all;
}

const std::string& ClusterWatcher::namespace_policy(const std::string& name_space) const {
  static const std::string kNone;
  const auto found = policies_.find(name_space);
  return found == policies_.end() ? kNone : found->second;
}

const scheduler::DisruptionBudgets* ClusterWatcher::disruption_budgets() const {
  return budget_watch_.watch->completed_lists() == 0 ? nullptr : &budgets_;
}

WatcherStats ClusterWatcher::watcher_stats() const {
  WatcherStats stats{.rejected = rejected_};
  for (const auto* followed : {&nodes_, &pods_, &nominated_, &namespaces_, &budget_watch_})
    stats.lists += followed->watch->completed_lists();
  return stats;
}

std::string ClusterWatcher::apply_node(std::string_view object) {
  auto node = scheduler::decode_gpu_node(object);
  if (node) {
    if (on_node_) on_node_(*node);
    std::string name = node->name;
    cluster_.set_node(name, std::move(node->node));
    return name;
  }
  ++rejected_;
  if (!std::exchange(logged_rejected_, true)) log::warning("cannot decode a GpuNode", node.error());
  // As if it had no GpuNode: the previous state may be wrong by now.
  cluster_.remove_node(k8s::metadata_string(object, "name"));
  return {};
}

std::string ClusterWatcher::apply_pod(std::string_view object) {
  auto pod = scheduler::parse_pod(object);
  if (!pod) {
    ++rejected_;
    return {};
  }
  std::string key = pod->pod_key();
  const bool is_new = !pods_.listing && is_synced() && cluster_.find_pod(key) == nullptr;
  cluster_.set_pod(std::move(*pod));
  // A Pod without devices, or one that has finished, is not in the state.
  const auto* const bound = is_new && on_bound_ ? cluster_.find_pod(key) : nullptr;
  if (bound != nullptr) on_bound_(*bound);
  return key;
}

std::string ClusterWatcher::apply_nominated(std::string_view object) {
  auto pod = scheduler::parse_pod(object);
  if (!pod) {
    ++rejected_;
    return {};
  }
  std::string key = pod->pod_key();
  cluster_.set_nominated(std::move(*pod));
  return key;
}

std::string ClusterWatcher::apply_budget(std::string_view object) {
  auto budget = scheduler::parse_disruption_budget(object);
  if (!budget || budgets_.size() >= kMaxBudgets) {
    ++rejected_;
    return {};
  }
  std::string key = budget->name_space + "/" + budget->name;
  budgets_[key] = std::move(*budget);
  return key;
}

std::string ClusterWatcher::apply_namespace(std::string_view object) {
  std::string name = k8s::metadata_string(object, "name");
  std::string policy;
  k8s::JsonStream members(
      k8s::kMaxCollectedBytes,
      [&](std::string_view key, std::string_view metadata) {
        if (key != "metadata") return;
        k8s::JsonStream inner(
            k8s::kMaxCollectedBytes,
            [&](std::string_view field, std::string_view value) {
              if (field == "annotations") policy = k8s::string_member(value, scheduler::kPolicyAnnotation);
            },
            nullptr);
        static_cast<void>(inner.feed(metadata));
      },
      nullptr);
  static_cast<void>(members.feed(object));
  if (policy.empty() || policies_.size() >= kMaxNamespaces) {
    policies_.erase(name);
  } else {
    policies_[name] = policy.substr(0, kMaxPolicyBytes);
  }
  return name;
}

void ClusterWatcher::fetch_pod(const std::string& name_space, const std::string& name,
                               std::function<void(Result<scheduler::PodRequest>)> done) {
  if (fetches_.size() >= kMaxFetches || !is_dns_label(name_space) || !is_dns_subdomain(name)) {
    const bool named = is_dns_label(name_space) && is_dns_subdomain(name);
    return done(named ? fail(Code::kUnavailable, "too many Pod requests in flight; retry later")
                      : fail(Code::kInvalidArgument, "not a valid Pod name: " + name_space + "/" + name));
  }
  const auto id = next_fetch_++;
  auto& client = fetches_[id];
  client = std::make_unique<k8s::ApiClient>(loop_, access_, timing_.request_limit);
  client->send_request({.method = "GET", .path = "/api/v1/namespaces/" + name_space + "/pods/" + name},
                       [this, id, done = std::move(done)](const Result<ClientResponse>& response) {
                         fetches_.erase(id);
                         on_pod_response(response, done);
                       });
}

void ClusterWatcher::on_pod_response(const Result<ClientResponse>& response,
                                     const std::function<void(Result<scheduler::PodRequest>)>& done) {
  if (!response) return done(fail(response.error()));
  if (response->status == 404) return done(fail(Code::kNotFound, "no such Pod"));
  if (response->status == 403) {
    return done(fail(Code::kPermissionDenied, k8s::describe_response(*response) + " (requires get on pods)"));
  }
  if (response->status != 200) return done(fail(Code::kUnavailable, k8s::describe_response(*response)));
  done(scheduler::parse_pod(response->body));
}

}  // namespace gpulet::extender

// Keeps a ClusterState up to date by lists and watches of the API server: GpuNodes, bound and nominated Pods,
// the namespaces' policies, and PodDisruptionBudgets. It writes nothing and stores nothing over a restart.
// Needs list and watch on gpunodes, pods, namespaces and poddisruptionbudgets, and get on pods.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "k8s/api_client.h"
#include "k8s/client_config.h"
#include "k8s/watcher.h"
#include "scheduler/core/cluster_state.h"
#include "scheduler/core/preemption.h"

namespace gpulet::extender {

inline constexpr std::size_t kMaxFetches = 16;  // concurrent requests for single Pods
inline constexpr std::size_t kMaxNamespaces = 100'000;
inline constexpr std::size_t kMaxBudgets = 100'000;

struct WatcherStats {
  std::uint64_t lists = 0;     // complete lists of all collections
  std::uint64_t rejected = 0;  // objects that could not be decoded
};

// Loop thread only.
class ClusterWatcher {
 public:
  // `view` must outlive it. `listed` is called from the loop when all lists are complete for the first time;
  // `bound` for each Pod with devices that is bound after that, not for those of a list; `left` when bound
  // Pods were deleted; `node` for each GpuNode that is read. Each may be empty.
  ClusterWatcher(Loop& loop, const k8s::ClientConfig& access, scheduler::ClusterState& view,
                 k8s::CollectionTiming timing = {}, std::function<void()> listed = nullptr,
                 std::function<void(const scheduler::PodRequest&)> bound = nullptr,
                 std::function<void()> left = nullptr,
                 std::function<void(const scheduler::NamedGpuNode&)> node = nullptr);
  ~ClusterWatcher();
  ClusterWatcher(const ClusterWatcher&) = delete;

  // Whether every list that decisions need has been complete once; preemption can do without the nominated
  // Pods and the budgets.
  bool is_synced() const;
  // Current problems, one line each.
  std::vector<std::string> current_problems() const;
  // gpulet.io/policy of a namespace as written; empty if none.
  const std::string& namespace_policy(const std::string& name_space) const;
  // Null before their first list, as without the right to it.
  const scheduler::DisruptionBudgets* disruption_budgets() const;
  // Fetches a Pod from the API server. Errors: kNotFound; kUnavailable and others of the connection, also
  // with too many requests in flight; kPermissionDenied.
  void fetch_pod(const std::string& name_space, const std::string& name,
                 std::function<void(Result<scheduler::PodRequest>)> done);

  WatcherStats watcher_stats() const;

 private:
  // One collection, and the keys seen by its current list.
  struct WatchedCollection {
    std::unique_ptr<k8s::CollectionWatcher> watch;
    std::unordered_set<std::string> listed_keys;
    std::function<std::vector<std::string>()> current_keys;  // keys in the cluster state
    std::function<void(const std::string&)> remove_key;
    bool listing = false;
  };
  // Returns the object's key; empty if it cannot be decoded.
  using ObjectHandler = std::function<std::string(std::string_view)>;
  void watch_collection(WatchedCollection& followed, k8s::Collection collection, ObjectHandler found,
                        ObjectHandler gone);

  std::string apply_node(std::string_view object);
  std::string apply_pod(std::string_view object);
  std::string apply_nominated(std::string_view object);
  std::string apply_namespace(std::string_view object);
  std::string apply_budget(std::string_view object);
  void on_pod_response(const Result<http::ClientResponse>& response,
                       const std::function<void(Result<scheduler::PodRequest>)>& done);

  Loop& loop_;
  const k8s::ClientConfig access_;
  scheduler::ClusterState& cluster_;
  const k8s::CollectionTiming timing_;
  std::function<void()> on_synced_;
  std::function<void(const scheduler::PodRequest&)> on_bound_;
  std::function<void()> on_left_;
  std::function<void(const scheduler::NamedGpuNode&)> on_node_;
  std::map<std::string, std::string> policies_;  // by namespace
  std::uint64_t rejected_ = 0;
  bool logged_rejected_ = false;
  scheduler::DisruptionBudgets budgets_;
  WatchedCollection nodes_, pods_, nominated_, namespaces_, budget_watch_;
  std::uint64_t next_fetch_ = 0;
  std::map<std::uint64_t, std::unique_ptr<k8s::ApiClient>> fetches_;
  Subscription synced_timer_;
};

}  // namespace gpulet::extender

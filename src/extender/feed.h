// Keeps a ClusterView by lists and watches of the API server: GpuNodes, the Pods that are bound, and the
// namespaces' policies. Nothing is written and nothing is kept over a restart: the lists are all there is.
// Needs list and watch on gpunodes, pods and namespaces, and get on pods.
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
#include "cluster/access.h"
#include "cluster/api_client.h"
#include "cluster/collection_watch.h"
#include "scheduler/cluster_view.h"

namespace gpulet::extender {

inline constexpr std::size_t kMaxFetches = 16;  // Pods asked for at once
inline constexpr std::size_t kMaxNamespaces = 100'000;

struct FeedNumbers {
  std::uint64_t lists = 0;    // of all collections, that were whole
  std::uint64_t refused = 0;  // objects that could not be read
};

// Loop's thread only.
class Feed {
 public:
  // `view` outlives it. `listed` is called from the loop when all lists have been whole for the first time;
  // may be empty.
  Feed(Loop& loop, const cluster::Access& access, scheduler::ClusterView& view,
       cluster::CollectionTiming timing = {}, std::function<void()> listed = nullptr);
  ~Feed();
  Feed(const Feed&) = delete;

  // Every list has been whole once.
  bool ready() const;
  // What stands in the way now, one line each.
  std::vector<std::string> trouble() const;
  // gpulet.io/policy of a namespace as it is written; empty where there is none.
  const std::string& policy_of(const std::string& name_space) const;
  // A Pod as the API server has it now. Errors: kNotFound; kUnavailable and others of the connection, also
  // when too many are asked for; kPermissionDenied.
  void pod(const std::string& name_space, const std::string& name,
           std::function<void(Result<scheduler::PodRequest>)> done);

  FeedNumbers numbers() const;

 private:
  // One collection, and what a list of it has found so far.
  struct Followed {
    std::unique_ptr<cluster::CollectionWatch> watch;
    std::unordered_set<std::string> found;
    std::function<std::vector<std::string>()> known;  // what is there
    std::function<void(const std::string&)> forget;
    bool listing = false;
  };
  // The key of what was found; empty for what could not be read.
  using Take = std::function<std::string(std::string_view)>;
  void follow(Followed& followed, cluster::Collection collection, Take found, Take gone);

  std::string take_node(std::string_view object);
  std::string take_pod(std::string_view object);
  std::string take_namespace(std::string_view object);
  void on_pod(const Result<cluster::ApiResponse>& response,
              const std::function<void(Result<scheduler::PodRequest>)>& done);

  Loop& loop_;
  const cluster::Access access_;
  scheduler::ClusterView& view_;
  const cluster::CollectionTiming timing_;
  std::function<void()> listed_;
  std::map<std::string, std::string> policies_;  // by namespace
  std::uint64_t refused_ = 0;
  bool told_refused_ = false;
  Followed nodes_, pods_, namespaces_;
  std::uint64_t next_fetch_ = 0;
  std::map<std::uint64_t, std::unique_ptr<cluster::ApiClient>> fetches_;
  Subscription telling_;
};

}  // namespace gpulet::extender

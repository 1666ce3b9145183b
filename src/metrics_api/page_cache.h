// Where the agents are, and their latest pages.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "metrics_api/agent_scraper.h"
#include "metrics_api/request_pool.h"

namespace gpulet::metrics_api {

// Finds the agent of each node by listing Pods, on demand and never on a timer. Addresses are valid for a
// minute, or until an agent does not respond or a node without one is requested. Cost: one list of the
// agents' Pods per minute, or per kRelistInterval while an agent is missing: some 1 MB in 10 pages for 5000
// nodes.

inline constexpr Duration kAddressLifetime = std::chrono::minutes(1);
inline constexpr Duration kRelistInterval = std::chrono::seconds(5);

using AgentAddresses = std::map<std::string, std::string>;  // numeric address by node

// Loop thread only.
class AgentLocator {
 public:
  AgentLocator(Loop& loop, RequestPool& asker, PodSelection which)
      : loop_(loop), requests_(asker), selection_(std::move(which)) {}
  AgentLocator(const AgentLocator&) = delete;

  // Calls `done` with the known agents of these nodes, at once or after a list; never after this object is
  // gone. A failed list is an error only if none ever succeeded.
  void find_agents(const std::set<std::string>& nodes, std::function<void(Result<AgentAddresses>)> done);
  // The agent does not respond there: its address is looked up again next time.
  void invalidate_agent(const std::string& node) { addresses_.erase(node); }

 private:
  bool needs_listing(const std::set<std::string>& nodes) const;
  void on_pods_listed(Result<std::vector<ListedPod>> pods);

  Loop& loop_;
  RequestPool& requests_;
  const PodSelection selection_;
  AgentAddresses addresses_;
  std::optional<Time> attempted_at_, listed_at_;
  bool listing_ = false;
  std::vector<std::function<void(Result<AgentAddresses>)>> waiting_;  // at most one per request
};

// The latest pages of the agents, requested on demand: a page older than `refresh_after` is fetched again,
// once for all waiting requests.
//
// Cost: each autoscaler asks once per period (15 s): one page per node with one of its Pods, some 100 KB and
// 1 ms of CPU time for 8 GPUs. Nodes without such Pods are never contacted. An agent that fails loses only
// its own Pods' values, and is not contacted again for `refresh_after`; its last page counts until it is too
// old (is_recent()).

struct PageCacheOptions {
  Duration refresh_after = std::chrono::seconds(10);  // minimum time between two fetches of a page
  Duration max_age = std::chrono::minutes(1);         // maximum age of a sample
  Duration timeout = std::chrono::seconds(4);         // for all agents of one request
};
// A node that was not requested for this long is dropped.
inline constexpr Duration kUnusedNodeLifetime = std::chrono::minutes(10);

struct NodePage {
  AgentPage page;
  WallTime measured_wall;  // by our clock
  Time measured_at;
};

// Loop thread only.
class PageCache {
 public:
  using PagesByNode = std::map<std::string, std::shared_ptr<const NodePage>>;  // only nodes with a page
  using Done = std::function<void(Result<PagesByNode>)>;

  // `agents` and `scraper` must outlive this.
  PageCache(Loop& loop, AgentLocator& agents, AgentScraper& scraper, PageCacheOptions options)
      : loop_(loop), agents_(agents), scraper_(scraper), options_(options) {}
  PageCache(const PageCache&) = delete;

  // Calls `done` with the recent pages of these nodes, after the needed agents have responded or `timeout`
  // has passed: at once or later, once; never after this object is gone. Errors: of finding the agents.
  void get_pages(const std::set<std::string>& nodes, Done done);

  std::size_t node_count() const { return nodes_.size(); }

 private:
  struct Batch {
    std::set<std::string> nodes, pending;
    Done done;
    Subscription timer;
  };
  struct CachedNode {
    std::shared_ptr<const NodePage> page;  // the latest
    std::optional<Time> requested_at;
    Time last_used{};
    bool in_flight = false;
    bool failure_logged = false;
    std::vector<std::weak_ptr<Batch>> waiting;
  };
  void request_pages(const AgentAddresses& addresses, const std::shared_ptr<Batch>& batch);
  void store_page(const std::string& name, Result<AgentPage> page);
  void finish_batch(const std::shared_ptr<Batch>& batch);
  bool is_recent(const NodePage& page) const { return loop_.now() - page.measured_at <= options_.max_age; }
  void drop_unused();

  Loop& loop_;
  AgentLocator& agents_;
  AgentScraper& scraper_;
  const PageCacheOptions options_;
  std::map<std::string, CachedNode> nodes_;
  std::set<std::shared_ptr<Batch>> batches_;
};

}  // namespace gpulet::metrics_api

#include "metrics_api/page_cache.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace gpulet::metrics_api {

bool AgentLocator::needs_listing(const std::set<std::string>& nodes) const {
  if (!attempted_at_) return true;
  if (loop_.now() - *attempted_at_ < kRelistInterval) return false;
  if (!listed_at_ || loop_.now() - *listed_at_ > kAddressLifetime) return true;
  return std::ranges::any_of(nodes, [this](const std::string& node) { return !addresses_.contains(node); });
}

void AgentLocator::find_agents(const std::set<std::string>& nodes,
                               std::function<void(Result<AgentAddresses>)> done) {
  if (nodes.empty()) return done(AgentAddresses{});
  if (!listing_ && !needs_listing(nodes)) {
    if (!listed_at_) return done(fail(Code::kUnavailable, "the agents' addresses are not known yet"));
    return done(addresses_);
  }
  waiting_.push_back(std::move(done));
  if (std::exchange(listing_, true)) return;
  attempted_at_ = loop_.now();
  list_pods(requests_, selection_,
            [this](Result<std::vector<ListedPod>> pods) { on_pods_listed(std::move(pods)); });
}

void AgentLocator::on_pods_listed(Result<std::vector<ListedPod>> pods) {
  listing_ = false;
  if (pods) {
    listed_at_ = loop_.now();
    addresses_.clear();
    // During a rollout a node may have two agents: the running one wins.
    for (const auto& pod : *pods) {
      if (pod.node.empty() || pod.ip.empty()) continue;
      if (pod.status == "Running" || !addresses_.contains(pod.node)) addresses_[pod.node] = pod.ip;
    }
  } else {
    log::warning("cannot list the agents' Pods", pods.error(), {{"selector", selection_.label_selector}});
  }
  const Result<AgentAddresses> result = listed_at_ ? Result<AgentAddresses>(addresses_) : fail(pods.error());
  for (const auto& done : std::exchange(waiting_, {})) done(result);
}

void PageCache::get_pages(const std::set<std::string>& nodes, Done done) {
  drop_unused();
  auto batch = std::make_shared<Batch>();
  batch->nodes = nodes;
  batch->done = std::move(done);
  for (const auto& name : nodes) {
    CachedNode& node = nodes_[name];
    node.last_used = loop_.now();
    if (node.in_flight || !node.requested_at || loop_.now() - *node.requested_at >= options_.refresh_after)
      batch->pending.insert(name);
  }
  if (batch->pending.empty()) return finish_batch(batch);
  batches_.insert(batch);
  batch->timer = loop_.after(options_.timeout, [this, weak = std::weak_ptr(batch)] {
    if (const auto late = weak.lock()) finish_batch(late);
  });
  agents_.find_agents(batch->pending, [this, weak = std::weak_ptr(batch)](Result<AgentAddresses> addresses) {
    const auto found = weak.lock();
    if (!found || !batches_.contains(found)) return;  // timed out
    if (addresses) return request_pages(*addresses, found);
    batches_.erase(found);
    found->timer.reset();
    found->done(fail(addresses.error()));
  });
}

void PageCache::request_pages(const AgentAddresses& addresses, const std::shared_ptr<Batch>& batch) {
  for (auto name = batch->pending.begin(); name != batch->pending.end();) {
    CachedNode& node = nodes_[*name];
    const auto address = addresses.find(*name);
    if (address == addresses.end() && !node.in_flight) {
      name = batch->pending.erase(name);
      continue;
    }
    node.waiting.push_back(batch);
    if (!std::exchange(node.in_flight, true)) {
      node.requested_at = loop_.now();
      scraper_.scrape_agent(address->second, [this, node_name = *name](Result<AgentPage> page) {
        store_page(node_name, std::move(page));
      });
    }
    ++name;
  }
  if (batch->pending.empty()) finish_batch(batch);
}

void PageCache::store_page(const std::string& name, Result<AgentPage> page) {
  CachedNode& node = nodes_[name];
  node.in_flight = false;
  if (page) {
    const auto age = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(
        std::min(page->sample_age_s, std::chrono::duration<double>(options_.max_age).count() + 1)));
    const auto wall_age = std::chrono::duration_cast<WallTime::duration>(age);
    node.page = std::make_shared<const NodePage>(
        NodePage{std::move(*page), loop_.wall_now() - wall_age, loop_.now() - age});
    if (std::exchange(node.failure_logged, false)) log::info("agent responds again", {{"node", name}});
  } else {
    agents_.invalidate_agent(name);
    if (!std::exchange(node.failure_logged, true)) {
      log::warning("agent does not respond; its Pods have no metrics", page.error(), {{"node", name}});
    }
  }
  for (const auto& weak : std::exchange(node.waiting, {})) {
    const auto batch = weak.lock();
    if (!batch) continue;
    batch->pending.erase(name);
    if (batch->pending.empty()) finish_batch(batch);
  }
}

void PageCache::finish_batch(const std::shared_ptr<Batch>& batch) {
  batches_.erase(batch);
  batch->timer.reset();
  PagesByNode found;
  for (const auto& name : batch->nodes) {
    const auto node = nodes_.find(name);
    if (node != nodes_.end() && node->second.page && is_recent(*node->second.page))
      found[name] = node->second.page;
  }
  const Done done = std::exchange(batch->done, nullptr);
  if (done) done(std::move(found));
}

void PageCache::drop_unused() {
  std::erase_if(nodes_, [this](const auto& entry) {
    return !entry.second.in_flight &&
           loop_.now() - entry.second.last_used > std::max(kUnusedNodeLifetime, options_.max_age);
  });
}

}  // namespace gpulet::metrics_api

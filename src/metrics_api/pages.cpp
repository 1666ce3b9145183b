#include "metrics_api/pages.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace gpulet::metrics_api {

void Pages::get(const std::set<std::string>& nodes, Done done) {
  forget();
  auto batch = std::make_shared<Batch>();
  batch->nodes = nodes;
  batch->done = std::move(done);
  for (const auto& name : nodes) {
    Node& node = nodes_[name];
    node.wanted = loop_.now();
    if (node.asking || !node.tried || loop_.now() - *node.tried >= options_.fresh)
      batch->waits_for.insert(name);
  }
  if (batch->waits_for.empty()) return finish(batch);
  batches_.insert(batch);
  batch->patience = loop_.after(options_.patience, [this, weak = std::weak_ptr(batch)] {
    if (const auto late = weak.lock()) finish(late);
  });
  agents_.find(batch->waits_for, [this, weak = std::weak_ptr(batch)](Result<AgentAddresses> addresses) {
    const auto found = weak.lock();
    if (!found || !batches_.contains(found)) return;  // out of patience
    if (addresses) return ask(*addresses, found);
    batches_.erase(found);
    found->patience.reset();
    found->done(fail(addresses.error()));
  });
}

void Pages::ask(const AgentAddresses& addresses, const std::shared_ptr<Batch>& batch) {
  for (auto name = batch->waits_for.begin(); name != batch->waits_for.end();) {
    Node& node = nodes_[*name];
    const auto address = addresses.find(*name);
    if (address == addresses.end() && !node.asking) {
      name = batch->waits_for.erase(name);
      continue;
    }
    node.waiting.push_back(batch);
    if (!std::exchange(node.asking, true)) {
      node.tried = loop_.now();
      scraper_.scrape(address->second,
                      [this, of = *name](Result<AgentPage> page) { on_page(of, std::move(page)); });
    }
    ++name;
  }
  if (batch->waits_for.empty()) finish(batch);
}

void Pages::on_page(const std::string& name, Result<AgentPage> page) {
  Node& node = nodes_[name];
  node.asking = false;
  if (page) {
    const auto age = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(
        std::min(page->sample_age_s, std::chrono::duration<double>(options_.oldest).count() + 1)));
    const auto wall_age = std::chrono::duration_cast<WallTime::duration>(age);
    node.page = std::make_shared<const NodePage>(
        NodePage{std::move(*page), loop_.wall_now() - wall_age, loop_.now() - age});
    if (std::exchange(node.told, false)) log::info("an agent answers again", {{"node", name}});
  } else {
    agents_.lost(name);
    if (!std::exchange(node.told, true)) {
      log::warning("an agent does not answer; its Pods have no metrics", page.error(), {{"node", name}});
    }
  }
  for (const auto& weak : std::exchange(node.waiting, {})) {
    const auto batch = weak.lock();
    if (!batch) continue;
    batch->waits_for.erase(name);
    if (batch->waits_for.empty()) finish(batch);
  }
}

void Pages::finish(const std::shared_ptr<Batch>& batch) {
  batches_.erase(batch);
  batch->patience.reset();
  Found found;
  for (const auto& name : batch->nodes) {
    const auto node = nodes_.find(name);
    if (node != nodes_.end() && node->second.page && valid(*node->second.page))
      found[name] = node->second.page;
  }
  const Done done = std::exchange(batch->done, nullptr);
  if (done) done(std::move(found));
}

void Pages::forget() {
  std::erase_if(nodes_, [this](const auto& entry) {
    return !entry.second.asking && loop_.now() - entry.second.wanted > std::max(kForgetNode, options_.oldest);
  });
}

}  // namespace gpulet::metrics_api

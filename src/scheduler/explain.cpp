#include "scheduler/explain.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"
#include "scheduler/filter.h"

namespace gpulet::scheduler {
namespace {

constexpr std::size_t kMaxNamed = 3;  // of nodes or Pods in one hint

std::string counted(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMaxNamed); ++i)
    text.append(i == 0 ? "" : ", ").append(names[i]);
  if (names.size() > kMaxNamed) text += " and " + std::to_string(names.size() - kMaxNamed) + " more";
  return text;
}

std::string describe_gpus(const GpuNode& node, const std::set<std::size_t>& gpus) {
  std::string text;
  for (const auto gpu : gpus) text.append(text.empty() ? "GPU " : ", ").append(std::to_string(gpu));
  std::set<std::string> links;
  for (const auto a : gpus) {
    for (const auto b : gpus) {
      if (a < b) links.insert(topology::label(node.pairs[a * node.gpus.size() + b]));
    }
  }
  if (links.empty()) return text;
  return text + ", linked by " + text::join(std::vector<std::string>(links.begin(), links.end()), " and ");
}

std::string devices_of(const NodeView& node, const PodRequest& request) {
  auto free = node.free;
  const auto given = allocate(node, request, free);
  if (!given) return {};
  std::set<std::size_t> gpus;
  for (const auto& container : *given) {
    for (const auto& [resource, shares] : container) {
      for (std::size_t unit = 0; unit < shares.size(); ++unit) {
        if (shares[unit] != 0) gpus.insert(node.node.resources[resource].units[unit].gpu);
      }
    }
  }
  return describe_gpus(node.node, gpus);
}

std::string devices_of(const NodeView& node, const std::string& pod) {
  const auto claim = std::ranges::find(node.claims, pod, &Claim::pod);
  if (claim == node.claims.end()) return {};
  std::set<std::size_t> gpus;
  for (const auto& part : claim->parts) gpus.insert(node.node.resources[part.resource].units[part.unit].gpu);
  return describe_gpus(node.node, gpus) +
         (claim->assumed ? " (assumed: the kubelet has not named it yet)" : "");
}

// Each wish alone, by its annotation.
std::vector<std::pair<std::string, PodRequest>> without_each(const PodRequest& request) {
  std::vector<std::pair<std::string, PodRequest>> all;
  const auto add = [&](const char* annotation, bool there, auto drop) {
    if (!there) return;
    PodRequest less = request;
    drop(less.wishes);
    all.emplace_back(std::string("gpulet.io/") + annotation, std::move(less));
  };
  const Wishes& wishes = request.wishes;
  add("gpu-links", wishes.links.has_value(), [](Wishes& w) { w.links.reset(); });
  add("gpu-model", !wishes.models.empty(), [](Wishes& w) { w.models.clear(); });
  add("gpu-memory", wishes.memory_mib != 0, [](Wishes& w) { w.memory_mib = 0; });
  add("gpu-compute", wishes.compute != std::pair(0U, 0U), [](Wishes& w) { w.compute = {}; });
  add("gpu-driver", !wishes.driver.empty(), [](Wishes& w) { w.driver.clear(); });
  add("gpu-cuda", !wishes.cuda.empty(), [](Wishes& w) { w.cuda.clear(); });
  add("gpu-selector", !wishes.selector.empty(), [](Wishes& w) { w.selector.clear(); });
  return all;
}

void add_wish_hints(ClusterView& view, const PodRequest& request, const std::vector<std::string>& names,
                    std::vector<std::string>& hints) {
  for (const auto& [annotation, less] : without_each(request)) {
    const Filter filter(less);
    std::vector<std::string> fit;
    for (const auto& name : names) {
      if (filter.judge(*view.find(name)).fits()) fit.push_back(name);
    }
    if (!fit.empty()) hints.push_back("without the annotation " + annotation + " it fits on " + counted(fit));
  }
}

// Of each resource: the node that lacks least, who holds what there, and what is broken.
void add_count_hints(ClusterView& view, const PodRequest& request, const std::vector<std::string>& names,
                     std::vector<std::string>& hints) {
  std::map<ResourceName, unsigned> counts;
  for (const auto& container : request.containers) {
    if (container.kind == ContainerRequest::Kind::kInit) continue;
    for (const auto& demand : container.demands) counts[demand.resource] += demand.count;
  }
  for (const auto& [resource, count] : counts) {
    const NodeView* nearest = nullptr;
    unsigned most_free = 0, largest = 0;
    std::size_t index = 0;
    for (const auto& name : names) {
      const auto* const node = view.find(name);
      const auto at = node->find(resource);
      if (!at) continue;
      unsigned total = 0;
      for (const auto& unit : node->node.resources[*at].units) total += unit.shares;
      largest = std::max(largest, total);
      if (nearest != nullptr && node->free_total[*at] <= most_free) continue;
      nearest = node;
      most_free = node->free_total[*at];
      index = *at;
    }
    if (nearest == nullptr) {
      hints.push_back("no node publishes " + resource.str());
      continue;
    }
    if (largest < count) {
      hints.push_back("no node has " + std::to_string(count) + " of " + resource.str() +
                      ": the largest has " + std::to_string(largest));
      continue;
    }
    if (most_free >= count) continue;
    std::vector<std::string> holders, broken;
    for (const auto& claim : nearest->claims) {
      unsigned shares = 0;
      for (const auto& part : claim.parts) shares += part.resource == index ? part.shares : 0;
      if (shares != 0) holders.push_back(claim.pod + " (" + std::to_string(shares) + ")");
    }
    for (const auto& unit : nearest->node.resources[index].units) {
      const auto& gpu = nearest->node.gpus[unit.gpu];
      if (unit.out != 0) broken.push_back("GPU " + std::to_string(unit.gpu) + " (" + gpu.reason + ")");
    }
    std::string hint = nearest->name + " lacks " + std::to_string(count - most_free) + " " + resource.str();
    if (!holders.empty()) hint += "; held by " + counted(holders);
    if (!broken.empty()) hint += "; not offered: " + counted(broken);
    hints.push_back(std::move(hint));
  }
}

}  // namespace

std::string describe(const PodRequest& request) {
  std::map<ResourceName, unsigned> counts;
  for (const auto& container : request.containers) {
    for (const auto& demand : container.demands) counts[demand.resource] += demand.count;
  }
  std::string text;
  for (const auto& [resource, count] : counts) {
    text.append(text.empty() ? "" : ", ").append(std::to_string(count)).append(" ").append(resource.str());
  }
  const Wishes& wishes = request.wishes;
  if (!wishes.models.empty()) text += ", of " + text::join(wishes.models, " or ");
  if (wishes.memory_mib != 0) text += ", with " + std::to_string(wishes.memory_mib) + "Mi each";
  if (wishes.compute != std::pair(0U, 0U)) {
    text += ", compute capability " + std::to_string(wishes.compute.first) + "." +
            std::to_string(wishes.compute.second);
  }
  if (!wishes.driver.empty()) text += ", driver " + wishes.driver;
  if (!wishes.cuda.empty()) text += ", CUDA " + wishes.cuda;
  if (wishes.links) text += ", linked by " + wishes.links->text;
  for (const auto& expression : wishes.selector) text += ", " + expression.text();
  return text.empty() ? "no device" : text;
}

Explanation explain(ClusterView& view, Scorer& scorer, const PodRequest& request,
                    const ChosenPolicy& policy) {
  Explanation result{.pod = request.key(),
                     .asks = describe(request),
                     .policy = policy.name + " (" + policy.from + ")",
                     .bound = request.node,
                     .has = {},
                     .malformed = {},
                     .nodes = {},
                     .hints = {}};
  for (const auto& one : request.malformed) result.malformed.push_back(one.text());
  const auto names = view.node_names();
  const Filter filter(request);
  if (!filter.wants()) return result;
  std::vector<std::string_view> fit;
  for (const auto& name : names) {
    const auto* const node = view.find(name);
    NodeAnswer answer{.node = name,
                      .summary = summary(node->node),
                      .fits = false,
                      .reason = {},
                      .score = 0,
                      .policy = std::nullopt,
                      .devices = {}};
    if (name == request.node) {
      result.has = devices_of(*node, result.pod);
      continue;
    }
    auto verdict = filter.judge(*node);
    answer.fits = verdict.fits();
    answer.reason = std::move(verdict.reason);
    if (answer.fits) {
      fit.push_back(name);
      answer.devices = devices_of(*node, request);
      if (const auto choice = scorer.judge(view, request, policy.name, *node)) answer.policy = choice->score;
    }
    result.nodes.push_back(std::move(answer));
  }
  const auto scores = scorer.score(view, request, policy.name, fit);
  for (std::size_t i = 0, next = 0; i < result.nodes.size(); ++i) {
    if (result.nodes[i].fits) result.nodes[i].score = scores[next++];
  }
  std::ranges::stable_sort(result.nodes, [](const auto& a, const auto& b) {
    return std::tuple(!a.fits, -a.score, -a.policy.value_or(0)) <
           std::tuple(!b.fits, -b.score, -b.policy.value_or(0));
  });
  if (fit.empty() && request.node.empty()) {
    add_wish_hints(view, request, names, result.hints);
    add_count_hints(view, request, names, result.hints);
  }
  return result;
}

std::string to_text(const Explanation& explanation, std::size_t limit) {
  std::string text =
      explanation.pod + " asks for " + explanation.asks + "; scored by " + explanation.policy + "\n";
  for (const auto& one : explanation.malformed) text += "  ! " + one + "\n";
  if (!explanation.bound.empty()) {
    text += "It is on " + explanation.bound;
    text += explanation.has.empty() ? "\n" : " with " + explanation.has + "\n";
  }
  std::size_t fitting = 0, refused = 0;
  for (const auto& node : explanation.nodes) (node.fits ? fitting : refused) += 1;
  if (fitting != 0) {
    text += explanation.bound.empty() ? "It fits on " : "It would now fit on ";
    text += std::to_string(fitting) + (fitting == 1 ? " node:\n" : " nodes:\n");
  } else if (explanation.bound.empty()) {
    text += "It fits on no node.\n";
  }
  std::size_t shown = 0;
  for (const auto& node : explanation.nodes) {
    if (!node.fits || shown++ >= limit) continue;
    text += "  " + node.node + "  score " + std::to_string(node.score) + "/" + std::to_string(kMaxScore);
    if (!node.devices.empty()) text += "  " + node.devices;
    text += "  (" + node.summary + ")\n";
  }
  if (fitting > limit) text += "  and " + std::to_string(fitting - limit) + " more\n";
  if (refused != 0) text += "Not on:\n";
  shown = 0;
  for (const auto& node : explanation.nodes) {
    if (!node.fits && shown++ < limit) text += "  " + node.node + "  " + node.reason + "\n";
  }
  if (refused > limit) text += "  and " + std::to_string(refused - limit) + " more\n";
  if (!explanation.hints.empty()) text += "What would make it fit:\n";
  for (const auto& hint : explanation.hints) text += "  " + hint + "\n";
  return text;
}

std::string to_json(const Explanation& explanation) {
  nlohmann::json nodes = nlohmann::json::array();
  for (const auto& node : explanation.nodes) {
    nlohmann::json one = {{"node", node.node}, {"gpus", node.summary}, {"fits", node.fits}};
    if (node.fits) {
      one["score"] = node.score;
      one["devices"] = node.devices;
      if (node.policy) one["policyScore"] = *node.policy;
    } else {
      one["reason"] = node.reason;
    }
    nodes.push_back(std::move(one));
  }
  const nlohmann::json object = {{"pod", explanation.pod},       {"asks", explanation.asks},
                                 {"policy", explanation.policy}, {"node", explanation.bound},
                                 {"devices", explanation.has},   {"malformed", explanation.malformed},
                                 {"nodes", std::move(nodes)},    {"hints", explanation.hints}};
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace gpulet::scheduler

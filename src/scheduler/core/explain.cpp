#include "scheduler/core/explain.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"
#include "scheduler/core/decision.h"

namespace gpulet::scheduler {
namespace {

constexpr std::size_t kMaxNamed = 3;  // nodes or Pods in one hint

std::string describe_gpus(const GpuNode& node, const std::set<std::size_t>& gpus) {
  std::string text;
  for (const auto gpu : gpus) text.append(text.empty() ? "GPU " : ", ").append(std::to_string(gpu));
  std::set<std::string> links;
  for (const auto a : gpus) {
    for (const auto b : gpus) {
      if (a < b) links.insert(topology::pair_label(node.pairs[a * node.gpus.size() + b]));
    }
  }
  if (links.empty()) return text;
  return text + ", linked by " + text::join(std::vector<std::string>(links.begin(), links.end()), " and ");
}

bool has_fault(const NodeGpu& gpu) {
  return gpu.state != health::DeviceState::kHealthy && gpu.state != health::DeviceState::kUnmonitored;
}

std::string describe_devices(const ClusterNode& node, const PodRequest& request) {
  auto free = node.free;
  const auto given = allocate_devices(node, request, free);
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

// The GPUs that a Pod of this node holds, and those of its devices that have a fault.
void describe_held_devices(const ClusterNode& node, Explanation& result) {
  const auto claim = std::ranges::find(node.claims, result.pod, &PodClaim::pod);
  if (claim == node.claims.end()) return;
  std::set<std::size_t> gpus;
  std::set<std::string> mig_faults;
  for (const auto& part : claim->parts) {
    const auto& unit = node.node.resources[part.resource].units[part.unit];
    gpus.insert(unit.gpu);
    const bool is_gpu_healthy = !has_fault(node.node.gpus[unit.gpu]);
    if (is_gpu_healthy && unit.unavailable != 0 && !unit.profile.empty())
      mig_faults.insert(unit.profile + " of GPU " + std::to_string(unit.gpu) + " is not offered" +
                        (unit.unavailable_reason.empty() ? "" : ": " + unit.unavailable_reason));
  }
  result.devices =
      describe_gpus(node.node, gpus) + (claim->assumed ? " (assumed: not reported by the kubelet yet)" : "");
  for (const auto index : gpus) {
    const auto& gpu = node.node.gpus[index];
    if (!has_fault(gpu)) continue;
    result.faults.push_back("GPU " + std::to_string(index) + " is " + std::string(enum_name(gpu.state)) +
                            (gpu.reason.empty() ? "" : ": " + gpu.reason));
  }
  result.faults.insert(result.faults.end(), mig_faults.begin(), mig_faults.end());
}

// The request without one of its constraints, for each constraint, with the field that has it.
std::vector<std::pair<std::string, PodRequest>> without_each_constraint(const PodRequest& request) {
  std::vector<std::pair<std::string, PodRequest>> all;
  const auto add = [&](const char* annotation, bool there, auto drop) {
    if (!there) return;
    PodRequest less = request;
    drop(less.constraints);
    all.emplace_back(std::string("annotation gpulet.io/") + annotation, std::move(less));
  };
  const Constraints& constraints = request.constraints;
  add("gpu-links", constraints.links.has_value(), [](Constraints& w) { w.links.reset(); });
  add("gpu-model", !constraints.models.empty(), [](Constraints& w) { w.models.clear(); });
  add("gpu-memory", constraints.memory_mib != 0, [](Constraints& w) { w.memory_mib = 0; });
  add("gpu-compute", constraints.compute != std::pair(0U, 0U), [](Constraints& w) { w.compute = {}; });
  add("gpu-driver", !constraints.driver.empty(), [](Constraints& w) { w.driver.clear(); });
  add("gpu-cuda", !constraints.cuda.empty(), [](Constraints& w) { w.cuda.clear(); });
  add("gpu-selector", !constraints.selector.empty(), [](Constraints& w) { w.selector.clear(); });
  for (std::size_t i = 0; i < constraints.choice.conditions.size(); ++i) {
    PodRequest less = request;
    auto& conditions = less.constraints.choice.conditions;
    conditions.erase(conditions.begin() + static_cast<std::ptrdiff_t>(i));
    all.emplace_back("annotation " + constraints.choice.conditions[i].annotation, std::move(less));
  }
  if (request.limit_demand.least != fraction::LimitGrade::kNone) {
    PodRequest less = request;
    less.limit_demand = {};
    all.emplace_back("annotation " + std::string(fraction::kMinGradeAnnotation), std::move(less));
  }
  if (constraints.choice.one_numa_node) {
    PodRequest less = request;
    less.constraints.choice.one_numa_node = false;
    all.emplace_back("annotation " + std::string(kNumaBindAnnotation), std::move(less));
  }
  for (std::size_t i = 0; i < request.containers.size(); ++i) {
    if (request.containers[i].memory.is_zero()) continue;
    PodRequest less = request;
    less.containers[i].memory = {};
    all.emplace_back(request.containers[i].memory_source, std::move(less));
  }
  return all;
}

void add_constraint_hints(ClusterState& view, const PodRequest& request,
                          const std::vector<std::string>& names, std::vector<std::string>& hints) {
  for (const auto& [field, less] : without_each_constraint(request)) {
    const Filter filter(less);
    std::vector<std::string> fit;
    for (const auto& name : names) {
      const auto* const node = view.find_node(name);
      if (filter.is_published(*node) && filter.check_node(*node).fits()) fit.push_back(name);
    }
    if (!fit.empty())
      hints.push_back("without the " + field + " it fits on " + text::join_limited(fit, kMaxNamed));
  }
}

// Of all containers that run at once.
std::map<ResourceName, unsigned> count_devices(const PodRequest& request) {
  std::map<ResourceName, unsigned> counts;
  for (const auto& container : request.containers) {
    if (container.kind == ContainerRequest::Kind::kInit) continue;
    for (const auto& device : container.devices) counts[device.resource] += device.count;
  }
  return counts;
}

// Which nodes could cut the devices on demand; where none can, why not.
void add_on_demand_hint(ClusterState& view, const ResourceName& resource, unsigned count,
                        const std::vector<std::string>& names, std::vector<std::string>& hints) {
  std::vector<std::string> able, unable;
  for (const auto& name : names) {
    const auto* const offer = view.find_node(name)->node.mig_offer.find(resource);
    if (offer == nullptr) continue;
    const std::string most = name + " (" + std::to_string(offer->count);
    if (offer->count >= count) {
      able.push_back(most + ")");
    } else {
      unable.push_back(most + (offer->why.empty() ? "" : ": " + offer->why) + ")");
    }
  }
  if (!able.empty()) {
    hints.push_back("with MIG on demand " + resource.str() + " can be free on " +
                    text::join_limited(able, kMaxNamed));
  } else if (!unable.empty()) {
    hints.push_back("MIG on demand cannot free " + std::to_string(count) + " of " + resource.str() + ": " +
                    text::join_limited(unable, kMaxNamed));
  }
}

// For each resource of which no node has enough free.
void add_on_demand_hints(ClusterState& view, const PodRequest& request, const std::vector<std::string>& names,
                         std::vector<std::string>& hints) {
  for (const auto& [resource, count] : count_devices(request)) {
    const bool is_free = std::ranges::any_of(names, [&](const auto& name) {
      const auto* const node = view.find_node(name);
      const auto at = node->find_resource(resource);
      return at && node->free_total[*at] >= count;
    });
    if (!is_free) add_on_demand_hint(view, resource, count, names, hints);
  }
}

// For each resource: the node that is closest to fitting, who holds its devices, and which are broken.
void add_count_hints(ClusterState& view, const PodRequest& request, const std::vector<std::string>& names,
                     std::vector<std::string>& hints) {
  for (const auto& [resource, count] : count_devices(request)) {
    const ClusterNode* nearest = nullptr;
    unsigned most_free = 0, largest = 0;
    std::size_t index = 0;
    for (const auto& name : names) {
      const auto* const node = view.find_node(name);
      const auto at = node->find_resource(resource);
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
      if (unit.unavailable != 0)
        broken.push_back("GPU " + std::to_string(unit.gpu) + " (" + gpu.reason + ")");
    }
    std::string hint = nearest->name + " lacks " + std::to_string(count - most_free) + " " + resource.str();
    if (!holders.empty()) hint += "; held by " + text::join_limited(holders, kMaxNamed);
    if (!broken.empty()) hint += "; not offered: " + text::join_limited(broken, kMaxNamed);
    hints.push_back(std::move(hint));
  }
}

// Of the Pod's node and of those where it fits, each reason once.
void add_compute_notes(ClusterState& view, const PodRequest& request, Explanation& result) {
  if (!request.requests_compute) return;
  std::map<std::string, std::vector<std::string>> nodes;  // by why
  const auto add_node = [&](const std::string& name) {
    const auto* const node = view.find_node(name);
    if (node != nullptr && !node->node.no_compute_limit.empty())
      nodes[node->node.no_compute_limit].push_back(name);
  };
  add_node(result.node);
  for (const auto& node : result.nodes) {
    if (node.fits) add_node(node.node);
  }
  for (const auto& [why, names] : nodes) {
    result.notes.push_back("nvidia.com/gpucores is checked, not held, on " +
                           text::join_limited(names, kMaxNamed) + ": " + why);
  }
}

// "40960Mi", "50 % of the memory", "33.3300 % of the memory", of each container that has it.
std::set<std::string> distinct_memory(const PodRequest& request) {
  constexpr unsigned kPercent = 10'000;  // in millionths
  std::set<std::string> texts;
  for (const auto& container : request.containers) {
    const auto memory = request.memory_of(container);
    if (memory.mib != 0) texts.insert(std::to_string(memory.mib) + "Mi");
    if (memory.millionths == 0) continue;
    const auto decimals = std::to_string(kPercent + memory.millionths % kPercent).substr(1);
    texts.insert(std::to_string(memory.millionths / kPercent) +
                 (memory.millionths % kPercent == 0 ? "" : "." + decimals) + " % of the memory");
  }
  return texts;
}

}  // namespace

std::string describe_request(const PodRequest& request) {
  std::map<ResourceName, unsigned> counts;
  for (const auto& container : request.containers) {
    for (const auto& device : container.devices) counts[device.resource] += device.count;
  }
  std::string text;
  for (const auto& [resource, count] : counts) {
    text.append(text.empty() ? "" : ", ").append(std::to_string(count)).append(" ").append(resource.str());
  }
  if (request.has_claims) text += text.empty() ? "resource claims" : ", resource claims";
  const Constraints& constraints = request.constraints;
  if (!constraints.models.empty()) text += ", of " + text::join(constraints.models, " or ");
  for (const auto& memory : distinct_memory(request)) text += ", with " + memory + " each";
  if (constraints.compute != std::pair(0U, 0U)) {
    text += ", compute capability " + std::to_string(constraints.compute.first) + "." +
            std::to_string(constraints.compute.second);
  }
  if (!constraints.driver.empty()) text += ", driver " + constraints.driver;
  if (!constraints.cuda.empty()) text += ", CUDA " + constraints.cuda;
  if (constraints.links) text += ", linked by " + constraints.links->text;
  for (const auto& expression : constraints.selector) text += ", " + expression.expression_text();
  for (const auto& condition : constraints.choice.conditions) text += ", " + condition.condition_text();
  if (constraints.choice.one_numa_node) text += ", on one NUMA node";
  if (request.limit_demand.least != fraction::LimitGrade::kNone) {
    text += ", memory limits of grade " +
            std::string(fraction::limit_grade_name(request.limit_demand.least)) + " or better";
  }
  return text.empty() ? "no device" : text;
}

Explanation explain_placement(ClusterState& view, Scorer& scorer, const PodRequest& request,
                              const SelectedPolicy& policy) {
  Explanation result{.pod = request.pod_key(),
                     .requests = describe_request(request),
                     .policy = policy.name + " (" + policy.source + ")",
                     .node = request.node,
                     .devices = {},
                     .faults = {},
                     .malformed = {},
                     .nodes = {},
                     .hints = {},
                     .notes = {}};
  for (const auto& one : request.malformed) result.malformed.push_back(one.message());
  const auto names = view.node_names();
  const Filter filter(request);
  if (const auto* const bound = view.find_node(request.node)) describe_held_devices(*bound, result);
  if (!filter.requests_devices() && request.request_error.empty()) return result;
  // The filter passes a node that publishes nothing of a request, whose devices kube-scheduler counts. Where
  // others publish some, it has none.
  const bool is_published = std::ranges::any_of(
      names, [&](const auto& name) { return filter.is_published(*view.find_node(name)); });
  std::vector<std::string_view> fit;
  for (const auto& name : names) {
    const auto* const node = view.find_node(name);
    NodeExplanation entry{.node = name,
                          .summary = gpu_node_summary(node->node),
                          .fits = false,
                          .reason = {},
                          .score = 0,
                          .policy_score = std::nullopt,
                          .devices = {}};
    if (name == request.node) continue;
    if (request.request_error.empty() && is_published && !filter.is_published(*node)) {
      entry.reason = "publishes nothing that the Pod requests";
    } else {
      auto verdict = filter.check_node(*node);
      entry.fits = verdict.fits();
      entry.reason = std::move(verdict.reason);
    }
    if (entry.fits) {
      fit.push_back(name);
      entry.devices = describe_devices(*node, request);
      if (const auto choice = scorer.choose_on_node(view, request, policy.name, *node))
        entry.policy_score = choice->score;
    }
    result.nodes.push_back(std::move(entry));
  }
  const auto scores = scorer.score_nodes(view, request, policy.name, fit);
  for (std::size_t i = 0, next = 0; i < result.nodes.size(); ++i) {
    if (result.nodes[i].fits) result.nodes[i].score = scores[next++];
  }
  std::ranges::stable_sort(result.nodes, [](const auto& a, const auto& b) {
    return std::tuple(!a.fits, -a.score, -a.policy_score.value_or(0)) <
           std::tuple(!b.fits, -b.score, -b.policy_score.value_or(0));
  });
  const bool waits = request.node.empty() && request.request_error.empty();
  if (waits && (fit.empty() || !is_published)) add_on_demand_hints(view, request, names, result.hints);
  if (waits && fit.empty()) {
    add_constraint_hints(view, request, names, result.hints);
    add_count_hints(view, request, names, result.hints);
  }
  add_compute_notes(view, request, result);
  return result;
}

std::string explanation_text(const Explanation& explanation, std::size_t limit) {
  std::string text =
      explanation.pod + " requests " + explanation.requests + "; scored by " + explanation.policy + "\n";
  for (const auto& one : explanation.malformed) text += "  ! " + one + "\n";
  if (!explanation.node.empty()) {
    text += "Bound to " + explanation.node;
    text += explanation.devices.empty() ? "\n" : " with " + explanation.devices + "\n";
    for (const auto& fault : explanation.faults) text += "  ! " + fault + "\n";
  }
  std::size_t fitting = 0, refused = 0;
  for (const auto& node : explanation.nodes) (node.fits ? fitting : refused) += 1;
  if (fitting != 0) {
    text += explanation.node.empty() ? "Fits on " : "Would now also fit on ";
    text += std::to_string(fitting) + (fitting == 1 ? " node:\n" : " nodes:\n");
  } else if (explanation.node.empty() && !(explanation.nodes.empty() && explanation.hints.empty())) {
    text += "Fits on no node.\n";
  }
  std::size_t shown = 0;
  for (const auto& node : explanation.nodes) {
    if (!node.fits || shown++ >= limit) continue;
    text += "  " + node.node + "  score " + std::to_string(node.score) + "/" + std::to_string(kMaxScore);
    if (!node.devices.empty()) text += "  " + node.devices;
    text += "  (" + node.summary + ")\n";
  }
  if (fitting > limit) text += "  and " + std::to_string(fitting - limit) + " more\n";
  if (refused != 0) text += "Rejected:\n";
  shown = 0;
  for (const auto& node : explanation.nodes) {
    if (!node.fits && shown++ < limit) text += "  " + node.node + "  " + node.reason + "\n";
  }
  if (refused > limit) text += "  and " + std::to_string(refused - limit) + " more\n";
  if (!explanation.hints.empty()) text += "Hints:\n";
  for (const auto& hint : explanation.hints) text += "  " + hint + "\n";
  if (!explanation.notes.empty()) text += "Notes:\n";
  for (const auto& note : explanation.notes) text += "  " + note + "\n";
  return text;
}

std::string explanation_json(const Explanation& explanation) {
  nlohmann::json nodes = nlohmann::json::array();
  for (const auto& node : explanation.nodes) {
    nlohmann::json one = {{"node", node.node}, {"gpus", node.summary}, {"fits", node.fits}};
    if (node.fits) {
      one["score"] = node.score;
      one["devices"] = node.devices;
      if (node.policy_score) one["policyScore"] = *node.policy_score;
    } else {
      one["reason"] = node.reason;
    }
    nodes.push_back(std::move(one));
  }
  const nlohmann::json object = {{"pod", explanation.pod},
                                 {"asks", explanation.requests},
                                 {"policy", explanation.policy},
                                 {"node", explanation.node},
                                 {"devices", explanation.devices},
                                 {"faults", explanation.faults},
                                 {"malformed", explanation.malformed},
                                 {"nodes", std::move(nodes)},
                                 {"hints", explanation.hints},
                                 {"notes", explanation.notes}};
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace gpulet::scheduler

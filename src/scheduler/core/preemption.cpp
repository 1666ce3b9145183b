#include "scheduler/core/preemption.h"

#include <algorithm>
#include <compare>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "scheduler/core/decision.h"

namespace gpulet::scheduler {
namespace {

// A Pod on the node that holds devices and may leave.
struct Evictable {
  const PodRequest* pod = nullptr;
  std::size_t claim = 0;               // of the node
  bool proposed = false;               // by kube-scheduler
  bool is_fixed = false;               // leaves in any case
  std::vector<std::size_t> budgets{};  // that it counts against, by index
};

// Indices of Evictables, most important first.
using Members = std::vector<std::size_t>;

// Smaller is better.
struct Cost {
  std::int64_t violations = 0;
  std::int64_t highest = std::numeric_limits<std::int64_t>::min();
  std::int64_t sum = 0;
  auto operator<=>(const Cost&) const = default;
};

bool is_more_important(const PodRequest& a, const PodRequest& b) {
  return std::tuple(-std::int64_t{a.priority}, std::string_view(a.bound_at), std::string_view(a.name_space),
                    std::string_view(a.name)) <
         std::tuple(-std::int64_t{b.priority}, std::string_view(b.bound_at), std::string_view(b.name_space),
                    std::string_view(b.name));
}

// The victims of one node. Its copy of the node has the devices of those who leave set free.
class NodeSearch {
 public:
  NodeSearch(const ClusterState& cluster, const ClusterNode& node, const PodRequest& request,
             const NodeVictims& proposed, const DisruptionBudgets* budgets)
      : node_(node),
        request_(request),
        filter_(request),
        proposed_(proposed),
        budgets_known_(budgets != nullptr) {
    find_pods(cluster);
    if (budgets != nullptr) find_budgets(*budgets);
    // kube-scheduler counts those of its victims against all Pods that could leave, so it may count more.
    const auto others = static_cast<std::int64_t>(others_.size());
    other_violations_ = std::clamp<std::int64_t>(
        proposed.budget_violations - cost_of(proposed_members()).violations, 0, others);
  }

  // nullopt: the Pod does not fit, whoever leaves. Tries at most `limit` sets.
  std::optional<NodeVictims> find_victims(std::size_t& limit) {
    if (!gone_.empty() && others_.empty() && std::ranges::none_of(pods_, &Evictable::is_fixed) &&
        makes_room({})) {
      evicts_ = false;
      return make_result({});
    }
    const Members proposed = proposed_members();
    const bool proposal_fits = makes_room(proposed);
    if (!budgets_known_ || request_.needs.needs_pods)
      return proposal_fits ? std::optional(proposed_) : std::nullopt;
    Members best = find_greedily();
    if (!makes_room(best)) return std::nullopt;
    improve(best, limit);
    // Nobody need leave: kube-scheduler knows something else that is short.
    if (best.empty() && others_.empty()) return proposal_fits ? std::optional(proposed_) : std::nullopt;
    if (proposal_fits && cost_of(proposed) <= cost_of(best)) {
      NodeVictims kept = proposed_;
      kept.budget_violations = other_violations_ + cost_of(proposed).violations;
      return kept;
    }
    return make_result(best);
  }
  // Whether a Pod leaves that would have stayed.
  bool evicts() const { return evicts_; }
  // Whether the priority of every victim is known here.
  bool knows_victims() const { return budgets_known_ && others_.empty(); }
  Cost cost_of_uids(std::span<const std::string> uids) const {
    Members members;
    for (std::size_t i = 0; i < pods_.size(); ++i) {
      if (std::ranges::find(uids, pods_[i].pod->uid) != uids.end()) members.push_back(i);
    }
    return cost_of(members);
  }

 private:
  void find_pods(const ClusterState& cluster) {
    std::set<std::string_view> left(proposed_.uids.begin(), proposed_.uids.end());
    const bool keeps_proposal = request_.needs.has_other_needs || has_foreign_resource();
    for (std::size_t i = 0; i < node_.claims.size(); ++i) {
      auto& claim = node_.claims[i];
      const auto* const pod = cluster.find_pod(claim.pod);
      was_leaving_.push_back(claim.leaving);
      if (pod == nullptr || pod->uid.empty()) continue;
      const bool proposed = left.erase(pod->uid) != 0;
      if (claim.leaving) {
        if (proposed || pod->priority < request_.priority)
          gone_.push_back({.pod = pod, .claim = i, .proposed = proposed});
        continue;
      }
      if (!proposed && pod->priority >= request_.priority) continue;
      pods_.push_back({.pod = pod,
                       .claim = i,
                       .proposed = proposed,
                       .is_fixed = proposed && (keeps_proposal || pod->needs.repels_pods)});
    }
    others_.assign(left.begin(), left.end());
    std::ranges::sort(pods_, [](const auto& a, const auto& b) { return is_more_important(*a.pod, *b.pod); });
  }

  // Resources that the node does not publish are counted by kube-scheduler alone.
  bool has_foreign_resource() const {
    return std::ranges::any_of(request_.containers, [&](const auto& container) {
      return std::ranges::any_of(container.devices,
                                 [&](const auto& device) { return !node_.find_resource(device.resource); });
    });
  }

  void find_budgets(const DisruptionBudgets& budgets) {
    for (const auto& [key, budget] : budgets) {
      bool used = false;
      for (auto& one : pods_) {
        if (!budget.matches_pod(one.pod->name_space, one.pod->labels) ||
            budget.counts_as_disrupted(one.pod->name))
          continue;
        one.budgets.push_back(allowed_.size());
        used = true;
      }
      if (used) allowed_.push_back(budget.allowed);
    }
  }

  Members proposed_members() const {
    Members members;
    for (std::size_t i = 0; i < pods_.size(); ++i) {
      if (pods_[i].proposed) members.push_back(i);
    }
    return members;
  }

  // Which of `members` exceed a budget. The most important ones use it up.
  std::vector<bool> find_violating(const Members& members) const {
    std::vector<std::int64_t> allowed = allowed_;
    std::vector<bool> violating;
    for (const auto member : members) {
      bool exceeds = false;
      for (const auto budget : pods_[member].budgets) exceeds |= --allowed[budget] < 0;
      violating.push_back(exceeds);
    }
    return violating;
  }

  Cost cost_of(const Members& members) const {
    // As kube-scheduler, so that two Pods cost more than one also where priorities are negative.
    constexpr std::int64_t kOffset = std::int64_t{1} << 31;
    Cost cost;
    cost.violations = std::ranges::count(find_violating(members), true);
    for (const auto member : members) {
      const std::int64_t priority = pods_[member].pod->priority;
      cost.highest = std::max(cost.highest, priority);
      cost.sum += priority + kOffset;
    }
    return cost;
  }

  // Whether the Pod fits once these Pods have left.
  bool makes_room(const Members& members) {
    if (!frees_enough(members)) return false;
    for (std::size_t i = 0; i < node_.claims.size(); ++i) node_.claims[i].leaving = was_leaving_[i];
    for (const auto member : members) node_.claims[pods_[member].claim].leaving = true;
    count_without_leaving(node_);
    return filter_.accepts(node_);
  }

  // kube-scheduler found CPU and memory enough with its own victims gone. What else is on the node is not
  // known here.
  bool frees_enough(const Members& members) const {
    std::uint64_t cpu = 0, memory = 0, proposed_cpu = 0, proposed_memory = 0;
    const auto add = [&](const Evictable& one, bool leaves) {
      const auto& needs = one.pod->needs;
      cpu += leaves ? needs.cpu_milli : 0;
      memory += leaves ? needs.memory_milli_bytes : 0;
      proposed_cpu += one.proposed ? needs.cpu_milli : 0;
      proposed_memory += one.proposed ? needs.memory_milli_bytes : 0;
    };
    for (const auto& one : gone_) add(one, true);
    for (std::size_t i = 0; i < pods_.size(); ++i) add(pods_[i], std::ranges::binary_search(members, i));
    return cpu >= std::min(proposed_cpu, request_.needs.cpu_milli) &&
           memory >= std::min(proposed_memory, request_.needs.memory_milli_bytes);
  }

  // As kube-scheduler: everybody leaves, then each may stay without whom the Pod fits as well, those who
  // would exceed a budget first, then the most important.
  Members find_greedily() {
    Members members(pods_.size());
    std::iota(members.begin(), members.end(), std::size_t{0});
    if (!makes_room(members)) return members;
    const auto violating = find_violating(members);
    for (const bool exceeds : {true, false}) {
      for (std::size_t i = 0; i < pods_.size(); ++i) {
        if (pods_[i].is_fixed || violating[i] != exceeds) continue;
        Members fewer = members;
        std::erase(fewer, i);
        if (makes_room(fewer)) members = std::move(fewer);
      }
    }
    return members;
  }

  // Tries other sets, small ones and the least important Pods first. All of them, where the limit allows.
  void improve(Members& best, std::size_t& limit) {
    Cost least = cost_of(best);
    Members fixed, choice;
    for (std::size_t i = pods_.size(); i-- > 0;) (pods_[i].is_fixed ? fixed : choice).push_back(i);
    for (std::size_t size = 0; size <= choice.size(); ++size) {
      Members at(size);  // positions in `choice`, ascending
      std::iota(at.begin(), at.end(), std::size_t{0});
      for (bool more = true; more; more = next_positions(at, choice.size())) {
        if (limit == 0) return;
        --limit;
        Members members = fixed;
        for (const auto position : at) members.push_back(choice[position]);
        std::ranges::sort(members);
        const Cost cost = cost_of(members);
        if (cost >= least || !makes_room(members)) continue;
        least = cost;
        best = std::move(members);
      }
    }
  }

  // The next combination in lexicographic order.
  static bool next_positions(Members& at, std::size_t count) {
    for (std::size_t i = at.size(); i-- > 0;) {
      if (at[i] + at.size() - i >= count) continue;
      ++at[i];
      for (auto after = i + 1; after < at.size(); ++after) at[after] = at[after - 1] + 1;
      return true;
    }
    return false;
  }

  NodeVictims make_result(const Members& members) const {
    std::vector<std::pair<std::int64_t, std::string>> victims;  // by priority
    for (const auto member : members)
      victims.emplace_back(pods_[member].pod->priority, pods_[member].pod->uid);
    for (const auto& one : gone_) {
      if (one.proposed || !evicts_) victims.emplace_back(one.pod->priority, one.pod->uid);
    }
    for (const auto& uid : others_) victims.emplace_back(least_priority(uid), uid);
    std::ranges::stable_sort(victims, std::greater{}, &std::pair<std::int64_t, std::string>::first);
    NodeVictims result{.node = proposed_.node, .uids = {}};
    result.budget_violations = other_violations_ + cost_of(members).violations;
    for (auto& [priority, uid] : victims) result.uids.push_back(std::move(uid));
    return result;
  }

  // What is known of the priority of a proposed Pod without devices: the proposal is in order of priority.
  std::int64_t least_priority(const std::string& uid) const {
    std::int64_t least = std::numeric_limits<std::int32_t>::min();
    for (auto after = std::ranges::find(proposed_.uids, uid); after != proposed_.uids.end(); ++after) {
      const auto known = std::ranges::find(pods_, *after, [](const auto& one) { return one.pod->uid; });
      if (known != pods_.end()) least = std::max<std::int64_t>(least, known->pod->priority);
    }
    return least;
  }

  ClusterNode node_;
  const PodRequest& request_;
  const Filter filter_;
  const NodeVictims& proposed_;
  const bool budgets_known_;
  std::vector<Evictable> pods_;        // most important first
  std::vector<Evictable> gone_;        // being deleted, so that they can be named
  std::vector<std::string> others_;    // proposed, without devices or unknown here
  std::vector<std::int64_t> allowed_;  // disruptions, by budget
  std::vector<bool> was_leaving_;      // by claim
  std::int64_t other_violations_ = 0;
  bool evicts_ = true;
};

}  // namespace

bool fits_without(ClusterState& cluster, const PodRequest& request, std::string_view node_name,
                  std::span<const std::string> uids) {
  const auto* const node = cluster.find_node(node_name);
  const Filter filter(request);
  if (node == nullptr || !filter.is_published(*node)) return false;
  ClusterNode later = *node;
  for (auto& claim : later.claims) {
    const auto* const pod = cluster.find_pod(claim.pod);
    claim.leaving |= pod != nullptr && std::ranges::find(uids, pod->uid) != uids.end();
  }
  count_without_leaving(later);
  return filter.accepts(later);
}

std::vector<NodeVictims> choose_victims(ClusterState& cluster, const PodRequest& request,
                                        std::span<const NodeVictims> proposed,
                                        const DisruptionBudgets* budgets,
                                        std::span<const NodeVictims> answered) {
  const auto was_answered = [&](const std::string& node) {
    return std::ranges::find(answered, node, &NodeVictims::node) != answered.end();
  };
  if (fits_without(cluster, request, request.nominated_node, {})) return {};
  for (const auto& one : answered) {
    if (fits_without(cluster, request, one.node, {})) return {};
  }
  const Filter filter(request);
  std::vector<NodeVictims> chosen, waiting;
  std::vector<std::tuple<bool, Cost, std::string>> ranks;  // of `chosen`; smaller is better
  bool must_wait = false, all_known = true;
  std::size_t sets = kMaxVictimSets;
  for (std::size_t i = 0; i < proposed.size(); ++i) {
    const auto* const node = filter.requests_devices() ? cluster.find_node(proposed[i].node) : nullptr;
    if (node == nullptr || !filter.is_published(*node)) {
      all_known = false;
      chosen.push_back(proposed[i]);
      continue;
    }
    NodeSearch search(cluster, *node, request, proposed[i], budgets);
    std::size_t limit = sets / (proposed.size() - i);
    sets -= limit;
    auto victims = search.find_victims(limit);
    sets += limit;
    if (!victims) continue;
    if (!search.evicts()) {
      must_wait = true;
      if (!victims->uids.empty()) waiting.push_back(std::move(*victims));
      continue;
    }
    all_known &= search.knows_victims();
    ranks.emplace_back(!was_answered(victims->node), search.cost_of_uids(victims->uids), victims->node);
    chosen.push_back(std::move(*victims));
  }
  if (must_wait) return waiting;
  if (all_known && chosen.size() > 1) {
    const auto best = std::ranges::min_element(ranks) - ranks.begin();
    chosen = {std::move(chosen[static_cast<std::size_t>(best)])};
  }
  return chosen;
}

void RecentPreemptions::remember(const std::string& uid, std::vector<NodeVictims> chosen, Time now) {
  std::erase_if(answers_, [&](const auto& one) { return one.second.at + kRemembered < now; });
  if (chosen.empty() || answers_.size() >= kMaxAnswers) return;
  answers_[uid] = {now, std::move(chosen)};
}

std::span<const NodeVictims> RecentPreemptions::find_answer(const std::string& uid, Time now) const {
  const auto found = answers_.find(uid);
  if (found == answers_.end() || found->second.at + kRemembered < now) return {};
  return found->second.chosen;
}

}  // namespace gpulet::scheduler

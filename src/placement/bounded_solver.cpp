#include "placement/bounded_solver.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

namespace gpulet::placement {

namespace {

// Far above any score of hardware (18 links: 1860), and low enough that sums stay exact.
constexpr std::int64_t kMaxPairScore = 1'000'000;

}  // namespace

Problem make_problem(const topology::Topology& topology, const std::vector<Device>& devices) {
  Problem problem;
  problem.size = devices.size();
  problem.weights.assign(devices.size() * devices.size(), 0);
  std::map<std::optional<int>, std::uint32_t> nodes;
  for (std::size_t a = 0; a < devices.size(); ++a) {
    const std::size_t gpu = devices[a].gpu;
    const bool known = gpu < topology.size;
    const std::optional<int> node =
        known && gpu < topology.numa_nodes.size() ? topology.numa_nodes[gpu] : std::nullopt;
    problem.numa.push_back(nodes.try_emplace(node, static_cast<std::uint32_t>(nodes.size())).first->second);
    for (std::size_t b = 0; b < a && known; ++b) {
      if (devices[b].gpu >= topology.size || devices[b].gpu == gpu) continue;
      const std::int64_t score = topology::pair_score(topology.pair_between(devices[b].gpu, gpu));
      const auto weight = static_cast<std::int32_t>(std::clamp<std::int64_t>(score, 0, kMaxPairScore));
      problem.weights[a * devices.size() + b] = weight;
      problem.weights[b * devices.size() + a] = weight;
    }
  }
  return problem;
}

Problem restrict_to(const Problem& problem, const std::vector<Position>& positions) {
  Problem part;
  part.size = positions.size();
  part.weights.reserve(positions.size() * positions.size());
  std::map<std::uint32_t, std::uint32_t> nodes;
  for (const Position a : positions) {
    part.numa.push_back(
        nodes.try_emplace(problem.numa[a], static_cast<std::uint32_t>(nodes.size())).first->second);
    for (const Position b : positions) part.weights.push_back(problem.weight(a, b));
  }
  return part;
}

std::int64_t set_score(const Problem& problem, const std::vector<Position>& set) {
  std::int64_t score = 0;
  for (std::size_t i = 0; i < set.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) score += problem.weight(set[i], set[j]);
  }
  return score;
}

namespace {

// Limit of examined pairs (about 2 ns each when optimised) over all rounds of swapping and all seeds.
constexpr std::size_t kSwapSteps = 150'000;
constexpr std::size_t kSeedSteps = 100'000;

// A partition of the available devices under change. Set 0 holds the required ones and keeps the requested
// size; for tightest everything else is one set whose pairs do not count.
class BoundedSplit {
 public:
  BoundedSplit(const Problem& problem, const Request& ask) : problem_(problem), ask_(ask) {
    const std::size_t count = ask.available.size();
    sets_ = ask.policy == Policy::kTightest ? std::min<std::size_t>(2, count - ask.size + 1)
                                            : (count + ask.size - 1) / ask.size;
    set_of_.assign(count, kFree);
    pinned_.assign(count, false);
    auto required = ask.required.begin();
    for (std::size_t i = 0; i < count && required != ask.required.end(); ++i) {
      if (ask.available[i] != *required) continue;
      pinned_[i] = true;
      ++required;
    }
  }

  void grow() {
    const std::size_t full = ask_.available.size() / ask_.size;
    for (std::size_t set = 0; set < sets_; ++set) {
      const bool rest = set + 1 == sets_ && (ask_.policy == Policy::kTightest ? set > 0 : set >= full);
      if (rest) {
        for (std::size_t& of : set_of_) of = of == kFree ? set : of;
      } else {
        grow_set(set);
      }
    }
  }

  void improve() {
    fill_gains();
    const std::size_t count = set_of_.size();
    std::size_t steps = 0;
    for (bool better = true; better && steps < kSwapSteps;) {
      better = false;
      for (std::size_t a = 0; a < count && steps < kSwapSteps; ++a) {
        for (std::size_t b = a + 1; b < count; ++b) {
          ++steps;
          if (set_of_[a] == set_of_[b] || pinned_[a] || pinned_[b] || gain_of_swap(a, b) <= 0) continue;
          swap(a, b);
          steps += count;
          better = true;
        }
      }
    }
  }

  Solution solution() const {
    const std::size_t full = ask_.available.size() / ask_.size;
    const bool tightest = ask_.policy == Policy::kTightest;
    Solution best;
    std::int64_t total = 0;
    for (std::size_t set = 0; set < sets_; ++set) {
      std::vector<Position> members;
      for (std::size_t i = 0; i < set_of_.size(); ++i) {
        if (set_of_[i] == set) members.push_back(ask_.available[i]);
      }
      if (tightest && set > 0) break;
      const std::int64_t score = set_score(problem_, members);
      total += score;
      const bool eligible = set == 0 || (ask_.required.empty() && set < full);
      if (eligible &&
          (best.chosen.empty() || score > best.score || (score == best.score && members < best.chosen))) {
        best.chosen = std::move(members);
        best.score = score;
      }
    }
    best.partition_score = tightest ? 0 : total;
    return best;
  }

 private:
  static constexpr std::size_t kFree = std::numeric_limits<std::size_t>::max();

  std::int64_t weight(std::size_t a, std::size_t b) const {
    return problem_.weight(ask_.available[a], ask_.available[b]);
  }

  // The best of the sets that greedy growth reaches from the seeds that the steps allow. Set 0 grows from the
  // required devices.
  void grow_set(std::size_t set) {
    const std::size_t count = set_of_.size();
    std::vector<std::size_t> seeds;
    for (std::size_t i = 0; i < count; ++i) {
      if (set == 0 && pinned_[i]) {
        seeds = {i};
        break;
      }
      if (set_of_[i] == kFree) seeds.push_back(i);
    }
    const std::size_t affordable =
        std::max<std::size_t>(1, kSeedSteps / std::max<std::size_t>(1, sets_ * count * ask_.size));
    if (seeds.size() > affordable) seeds.resize(affordable);
    std::vector<std::size_t> best;
    std::int64_t best_score = -1;
    for (const std::size_t seed : seeds) {
      auto [members, score] = grow_from(seed, set == 0);
      if (score <= best_score) continue;
      best_score = score;
      best = std::move(members);
    }
    for (const std::size_t member : best) set_of_[member] = set;
  }

  std::pair<std::vector<std::size_t>, std::int64_t> grow_from(std::size_t seed, bool with_required) const {
    const std::size_t count = set_of_.size();
    std::vector<std::int64_t> gain(count, 0);
    std::vector<bool> out(count, false);
    std::vector<std::size_t> members;
    std::int64_t score = 0;
    const auto add = [&](std::size_t device) {
      score += gain[device];
      out[device] = true;
      members.push_back(device);
      for (std::size_t i = 0; i < count; ++i) gain[i] += weight(i, device);
    };
    add(seed);
    for (std::size_t i = 0; i < count && with_required; ++i) {
      if (pinned_[i] && i != seed) add(i);
    }
    while (members.size() < ask_.size) {
      std::size_t best = kFree;
      for (std::size_t i = 0; i < count; ++i) {
        if (out[i] || set_of_[i] != kFree) continue;
        if (best == kFree || gain[i] > gain[best]) best = i;
      }
      add(best);
    }
    return {std::move(members), score};
  }

  // gains_[device][set]: the sum of its weights to the members of that set.
  void fill_gains() {
    const std::size_t count = set_of_.size();
    gains_.assign(count * sets_, 0);
    for (std::size_t a = 0; a < count; ++a) {
      for (std::size_t b = 0; b < count; ++b) gains_[a * sets_ + set_of_[b]] += weight(a, b);
    }
  }

  bool count_per_set(std::size_t set) const { return set == 0 || ask_.policy == Policy::kBestEffort; }
  std::int64_t gain(std::size_t device, std::size_t set) const {
    return count_per_set(set) ? gains_[device * sets_ + set] : 0;
  }

  std::int64_t gain_of_swap(std::size_t a, std::size_t b) const {
    const std::size_t of_a = set_of_[a];
    const std::size_t of_b = set_of_[b];
    const std::int64_t between = weight(a, b);
    return gain(a, of_b) - (count_per_set(of_b) ? between : 0) + gain(b, of_a) -
           (count_per_set(of_a) ? between : 0) - gain(a, of_a) - gain(b, of_b);
  }

  void swap(std::size_t a, std::size_t b) {
    for (std::size_t i = 0; i < set_of_.size(); ++i) {
      const std::int64_t moved = weight(i, b) - weight(i, a);
      gains_[i * sets_ + set_of_[a]] += moved;
      gains_[i * sets_ + set_of_[b]] -= moved;
    }
    std::swap(set_of_[a], set_of_[b]);
  }

  const Problem& problem_;
  const Request& ask_;
  std::size_t sets_ = 0;
  std::vector<std::size_t> set_of_;  // by index into Ask::available
  std::vector<bool> pinned_;
  std::vector<std::int64_t> gains_;
};

// The device with the least total link score to the others.
Solution choose_one(const Problem& problem, const Request& ask) {
  if (!ask.required.empty()) return {ask.required, 0, 0};
  Position best = ask.available.front();
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const Position device : ask.available) {
    std::int64_t links = 0;
    for (const Position other : ask.available) links += problem.weight(device, other);
    if (links >= least) continue;
    least = links;
    best = device;
  }
  return {{best}, 0, 0};
}

}  // namespace

Solution solve_bounded(const Problem& problem, const Request& ask) {
  if (ask.size == 1) return choose_one(problem, ask);
  BoundedSplit split(problem, ask);
  split.grow();
  split.improve();
  return split.solution();
}

}  // namespace gpulet::placement

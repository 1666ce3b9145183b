// Compares both policies with a brute-force search by the definition of the objective: it lists every
// partition, without bounds, tables or classes. The whole result must agree, ties included.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <functional>
#include <map>

#include "placement/bounded_solver.h"
#include "placement/exact_solver.h"
#include "placement/test_machines.h"

namespace gpulet::placement {
namespace {

using Mask = std::uint32_t;

// Every partition of devices into sets of `size`, the last one what remains: as NVIDIA's best-effort policy
// lists them, where the set that is not full has all of the padding.
class BruteForce {
 public:
  explicit BruteForce(const Problem& problem) : problem_(problem) {}

  std::int64_t score(Mask set) const {
    std::int64_t score = 0;
    for (std::size_t a = 0; a < problem_.size; ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        if ((set >> a & 1) != 0 && (set >> b & 1) != 0) score += problem_.weight(a, b);
      }
    }
    return score;
  }

  using Visit = std::function<void(const std::vector<Mask>&)>;
  void partitions(Mask devices, int size, const Visit& visit) const {
    std::vector<Mask> sets;
    const int count = std::popcount(devices);
    list(devices, size, count % size, sets, visit);
  }

  std::int64_t best_total(Mask devices, int size) {
    auto [at, fresh] = best_total_.try_emplace({devices, size}, -1);
    if (fresh) {
      partitions(devices, size, [&](const std::vector<Mask>& sets) {
        std::int64_t total = 0;
        for (const Mask set : sets) total += cached(set);
        at->second = std::max(at->second, total);
      });
    }
    return at->second;
  }

  // The objective's values of a set, in the order in which they decide; greater is better.
  std::vector<std::int64_t> values(Mask available, Mask set, Policy policy, std::int64_t total) {
    const Mask left = available & ~set;
    std::vector<std::int64_t> values;
    if (policy == Policy::kBestEffort) values.push_back(total);
    values.push_back(cached(set));
    for (const int next : {8, 4, 2})
      values.push_back(next <= std::popcount(left) ? best_total(left, next) : 0);
    std::vector<bool> nodes(problem_.size);
    for (std::size_t i = 0; i < problem_.size; ++i) {
      if ((set >> i & 1) != 0) nodes[problem_.numa[i]] = true;
    }
    values.push_back(-static_cast<std::int64_t>(std::count(nodes.begin(), nodes.end(), true)));
    for (std::size_t i = 0; i < problem_.size; ++i) values.push_back(set >> i & 1);  // lowest index
    return values;
  }

  Solution best(Mask available, Mask required, int size, Policy policy) {
    // The greatest total of a partition in which each candidate is a full set.
    std::map<Mask, std::int64_t> totals;
    const auto offer = [&](Mask set, std::int64_t total) {
      if (std::popcount(set) != size || (set & required) != required) return;
      auto [at, fresh] = totals.try_emplace(set, total);
      at->second = std::max(at->second, total);
    };
    if (policy == Policy::kBestEffort && size > 1) {
      partitions(available, size, [&](const std::vector<Mask>& sets) {
        std::int64_t total = 0;
        for (const Mask set : sets) total += cached(set);
        for (const Mask set : sets) offer(set, total);
      });
    } else {
      for (Mask set = available; set != 0; set = (set - 1) & available) offer(set, 0);
    }
    std::int64_t greatest = 0;
    for (const auto& [set, total] : totals) greatest = std::max(greatest, total);
    std::vector<std::int64_t> best;
    Mask chosen = 0;
    for (const auto& [set, total] : totals) {
      if (total < greatest) continue;
      std::vector<std::int64_t> own = values(available, set, policy, total);
      if (!best.empty() && own <= best) continue;
      best = std::move(own);
      chosen = set;
    }
    Solution answer;
    for (std::size_t i = 0; i < problem_.size; ++i) {
      if ((chosen >> i & 1) != 0) answer.chosen.push_back(static_cast<Position>(i));
    }
    answer.score = score(chosen);
    answer.partition_score = greatest;
    return answer;
  }

 private:
  // The first device is in some set: a full one, or the one that is not (once).
  void list(Mask devices, int size, int remainder, std::vector<Mask>& sets, const Visit& visit) const {
    if (devices == 0) return visit(sets);
    const Mask first = devices & (~devices + 1);
    const Mask others = devices & ~first;
    for (Mask with = others;; with = (with - 1) & others) {
      const int count = std::popcount(with) + 1;
      if (count == size || (remainder > 0 && count == remainder)) {
        sets.push_back(with | first);
        list(others & ~with, size, count == size ? remainder : 0, sets, visit);
        sets.pop_back();
      }
      if (with == 0) break;
    }
  }

  std::int64_t cached(Mask set) {
    auto [at, fresh] = scores_.try_emplace(set, 0);
    if (fresh) at->second = score(set);
    return at->second;
  }

  const Problem& problem_;
  std::map<std::pair<Mask, int>, std::int64_t> best_total_;
  std::map<Mask, std::int64_t> scores_;
};

std::vector<Position> positions(Mask mask) {
  std::vector<Position> list;
  for (Position i = 0; i < 32; ++i) {
    if ((mask >> i & 1) != 0) list.push_back(i);
  }
  return list;
}

Mask random_mask(Mask of, double share, std::mt19937& random) {
  Mask mask = 0;
  for (const Position i : positions(of)) mask |= random() % 1000 < share * 1000 ? Mask{1} << i : 0;
  return mask;
}

// All sizes of one available set, with no, some and as many as possible required, by both policies.
void compare_all_sizes(const topology::Topology& topology, Mask available, std::mt19937& random) {
  const Problem problem = make_problem(topology, machines::devices(topology.size));
  const std::optional<ExactSolver> tables = ExactSolver::build_tables(problem, Budget{});
  ASSERT_TRUE(tables.has_value());
  BruteForce brute(problem);
  const int count = std::popcount(available);
  for (int size = 1; size <= count; ++size) {
    Mask required = random_mask(available, 0.25, random);
    while (std::popcount(required) > size) required &= required - 1;
    for (const Mask with : required == 0 ? std::vector<Mask>{0} : std::vector<Mask>{0, required}) {
      for (const Policy policy : {Policy::kBestEffort, Policy::kTightest}) {
        const Request ask{positions(available), positions(with), static_cast<std::size_t>(size), policy};
        const Solution ours = tables->best_set(ask);
        const Solution theirs = brute.best(available, with, size, policy);
        SCOPED_TRACE(testing::Message()
                     << "gpus " << topology.size << " available " << available << " required " << with
                     << " size " << size << " policy " << static_cast<int>(policy));
        ASSERT_EQ(ours.chosen, theirs.chosen);
        ASSERT_EQ(ours.score, theirs.score);
        ASSERT_EQ(ours.partition_score, theirs.partition_score);
        // Tables built during a request, for the available devices and this size only, give the same result.
        const std::optional<ExactSolver> within =
            ExactSolver::build_tables(restrict_to(problem, ask.available), Budget{}, size);
        Request renumbered = ask;
        for (std::size_t i = 0, r = 0; i < ask.available.size(); ++i) {
          if (r < ask.required.size() && ask.required[r] == ask.available[i]) {
            renumbered.required[r++] = static_cast<Position>(i);
          }
          renumbered.available[i] = static_cast<Position>(i);
        }
        const Solution again = within->best_set(renumbered);
        for (std::size_t i = 0; i < again.chosen.size(); ++i) {
          ASSERT_EQ(ask.available[again.chosen[i]], theirs.chosen[i]);
        }
        ASSERT_EQ(again.partition_score, theirs.partition_score);
        // And the bounded one is never better, always a set of the right size that holds what is required.
        const Solution bounded = solve_bounded(problem, ask);
        ASSERT_EQ(bounded.chosen.size(), ask.size);
        ASSERT_TRUE(std::includes(bounded.chosen.begin(), bounded.chosen.end(), ask.required.begin(),
                                  ask.required.end()));
        ASSERT_EQ(set_score(problem, bounded.chosen), bounded.score);
        if (policy == Policy::kBestEffort) {
          ASSERT_LE(bounded.partition_score, theirs.partition_score);
        } else {
          ASSERT_LE(bounded.score, theirs.score);
        }
      }
    }
  }
}

constexpr Mask all(std::size_t gpus) { return (Mask{1} << gpus) - 1; }

TEST(ExactPlacement, RandomTopologiesAgreeWithBruteForce) {
  std::mt19937 random(20240607);
  for (int round = 0; round < 1200; ++round) {
    const std::size_t gpus = 1 + random() % 8;
    // 2 and 4 kinds: twins and ties everywhere; 120: nearly all pairs different.
    const unsigned kinds = std::array{2u, 4u, 12u, 120u}[random() % 4];
    const Mask available = round % 3 == 0 ? all(gpus) : random_mask(all(gpus), 0.8, random);
    ASSERT_NO_FATAL_FAILURE(compare_all_sizes(machines::random(gpus, kinds, random), available, random));
  }
}

TEST(ExactPlacement, TenRandomGpusAgreeWithBruteForce) {
  std::mt19937 random(7);
  for (const unsigned kinds : {2u, 2u, 3u, 4u, 12u, 12u, 120u, 120u}) {
    ASSERT_NO_FATAL_FAILURE(compare_all_sizes(machines::random(10, kinds, random), all(10), random));
    ASSERT_NO_FATAL_FAILURE(compare_all_sizes(machines::random(9, kinds, random), all(9), random));
  }
}

TEST(ExactPlacement, RealMachinesAgreeWithBruteForce) {
  std::mt19937 random(11);
  const std::vector<topology::Topology> real = {
      machines::dgx1(),
      machines::nvswitch(8, 18),
      machines::nvswitch(10, 6, true),
      machines::pcie(8, 4, true),
      machines::pcie(8, 4, false),
      machines::pcie(10, 4, true),
      machines::pcie(4, 4, false),
      machines::nvswitch(4, 18),
  };
  for (const topology::Topology& machine : real) {
    ASSERT_NO_FATAL_FAILURE(compare_all_sizes(machine, all(machine.size), random));
    for (int round = 0; round < 12; ++round) {
      const topology::Topology mixed = machines::shuffled(machine, random);
      ASSERT_NO_FATAL_FAILURE(compare_all_sizes(mixed, random_mask(all(machine.size), 0.75, random), random));
    }
  }
}

// Every available set of a cube mesh, every size: exhaustive, because this board has no twins.
TEST(ExactPlacement, EveryAvailableSetOfTheCubeMesh) {
  const Problem problem = make_problem(machines::dgx1(), machines::devices(8));
  const ExactSolver tables = *ExactSolver::build_tables(problem, Budget{});
  EXPECT_FALSE(tables.has_twins());
  BruteForce brute(problem);
  for (Mask available = 1; available < 256; ++available) {
    for (int size = 1; size <= std::popcount(available); ++size) {
      const Request ask{positions(available), {}, static_cast<std::size_t>(size), Policy::kBestEffort};
      const Solution ours = tables.best_set(ask);
      const Solution theirs = brute.best(available, 0, size, Policy::kBestEffort);
      ASSERT_EQ(ours.chosen, theirs.chosen) << available << " size " << size;
      ASSERT_EQ(ours.partition_score, theirs.partition_score);
    }
  }
}

TEST(ExactPlacement, CollapsesEqualDevices) {
  const auto build = [](const topology::Topology& topology) {
    return ExactSolver::build_tables(make_problem(topology, machines::devices(topology.size)), Budget{});
  };
  // 8 GPUs in two NUMA nodes: 25 count vectors, six tables of them at most.
  EXPECT_TRUE(build(machines::nvswitch(8, 18))->has_twins());
  EXPECT_LE(build(machines::nvswitch(8, 18))->bytes(), 25 * sizeof(std::int32_t) * 6);
  EXPECT_TRUE(build(machines::nvswitch(16, 6, true))->has_twins());
  EXPECT_LE(build(machines::nvswitch(16, 6, true))->bytes(), std::size_t{256} << 10);
  EXPECT_TRUE(build(machines::nvswitch(64, 18)).has_value());
  EXPECT_FALSE(build(machines::direct16())->has_twins());
  EXPECT_LE(build(machines::direct16())->bytes(), std::size_t{3} << 20);
  std::mt19937 random(5);
  EXPECT_FALSE(build(machines::random(24, 120, random)).has_value());
}

}  // namespace
}  // namespace gpulet::placement

// The exact solver: twins collapsed into classes, then tables over class counts.
//
// Two devices are twins if every other device has equal links to both and they are on one NUMA node. That is
// an equivalence, and all pairs inside a class score the same. Except for the index, a set is then a vector
// of counts, one digit per class, stored as a mixed-radix number, so that removing a subset is a subtraction.
// Without twins every digit is a bit and the number is the usual mask.
//   score_[v]         sum of all pairs of v
//   partition_[k][v]  greatest total of a partition of v into sets of k and one remainder set of |v| mod k
//     = score_[v] for |v| ≤ k, else
//     = max score_[u] + partition_[k][v - u] over the u of |v| mod k devices or, if that is 0, over the u of
//       k that hold a fixed device of v
// The maxima run over every possibility, so by induction partition_ is exact. For every set u of the size
// that holds the required devices and fits the available a, the total is score_[u] + partition_[k][a - u];
// the ties read partition_[8], [4] and [2] of a - u.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "placement/bounded_solver.h"

namespace gpulet::placement {

// Limits of a build. A step is a pair of a state and a subset; a build visits fewer, at about 3 ns each.
struct Budget {
  std::size_t states = std::size_t{1} << 16;
  std::size_t table_bytes = std::size_t{6} << 20;
  double steps = 48e6;
};

class ExactSolver {
 public:
  // Builds tables for requests of any size, or only of `only_size`. nullopt if they exceed the budget.
  static std::optional<ExactSolver> build_tables(const Problem& problem, const Budget& budget,
                                                 std::optional<std::size_t> only_size = std::nullopt);

  // The best set by Request::policy and the tie chain. Cost: visits each count vector of the requested size,
  // at most 12,870 for 16 devices without twins.
  Solution best_set(const Request& ask) const;

  bool has_twins() const { return members_.size() < class_of_.size(); }
  std::size_t bytes() const;

 private:
  using Score = std::int32_t;
  friend class ExactSearch;

  void collapse(const Problem& problem);
  bool affordable(const Problem& problem, const Budget& budget) const;
  void choose_sizes(std::optional<std::size_t> only_size);
  void fill_scores(const Problem& problem);
  void fill_partition(std::size_t size);
  // The largest |v| that needs partition_[size]; there is no table if it is at most `size`.
  std::size_t largest_left(std::size_t size) const;
  Score partition(std::size_t size, std::size_t state) const {
    if (size == 1) return 0;
    const std::vector<Score>& table = partition_[size];
    return table.empty() ? score_[state] : table[state];
  }

  std::vector<std::uint32_t> class_of_;         // by position
  std::vector<std::vector<Position>> members_;  // by class, ascending; classes by their first member
  std::vector<std::uint32_t> numa_;             // by class
  std::vector<std::size_t> stride_;             // by class
  std::size_t states_ = 1;
  std::vector<std::size_t> sizes_;  // those with a table
  std::vector<Score> score_;
  std::vector<std::vector<Score>> partition_;  // by size; empty: score_ is used
};

}  // namespace gpulet::placement

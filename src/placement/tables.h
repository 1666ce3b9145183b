// The exact solver: twins collapsed into classes, then tables over class counts.
//
// Two devices are twins when every other device sees them alike (equal link rows but for the two themselves) and they
// sit on one NUMA node; that is an equivalence, and inside a class all pairs score the same. A set is then, but for
// the index, a vector of counts, one digit per class, kept as one mixed-radix number: subtracting a contained set is
// subtracting numbers. Without twins every digit is a bit and the number is the usual mask.
//   score_[v]         sum of all pairs of v
//   partition_[k][v]  greatest total of a partition of v into sets of k and one remainder set of |v| mod k
// docs/placement.md has the recurrences and why they are exact.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "placement/problem.h"

namespace gpulet::placement {

// What a build may cost. A step is one pair of a state and a set inside it; a build looks at fewer, ~3 ns each.
struct Budget {
  std::size_t states = std::size_t{1} << 16;
  std::size_t table_bytes = std::size_t{6} << 20;
  double steps = 48e6;
};

class Tables {
 public:
  // For requests of any size, or of `only_size` alone. Nullopt when the budget would not do. Pure.
  static std::optional<Tables> build(const Problem& problem, const Budget& budget,
                                     std::optional<std::size_t> only_size = std::nullopt);

  // The best set by Ask::policy and its whole tie chain. Cost: one look at each count vector of the size asked for,
  // at most 12,870 for 16 devices without twins.
  Answer best(const Ask& ask) const;

  bool has_twins() const { return members_.size() < class_of_.size(); }
  std::size_t bytes() const;

 private:
  using Score = std::int32_t;
  friend class TablesSearch;

  void collapse(const Problem& problem);
  bool affordable(const Problem& problem, const Budget& budget) const;
  void choose_sizes(std::optional<std::size_t> only_size);
  void fill_scores(const Problem& problem);
  void fill_partition(std::size_t size);
  // Largest |v| that partition_[size] is ever asked for; no table is kept when that is at most `size`.
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
  std::vector<std::size_t> sizes_;              // those with a table
  std::vector<Score> score_;
  std::vector<std::vector<Score>> partition_;   // by size; empty: score_ does
};

}  // namespace gpulet::placement

#include "placement/exact_solver.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace gpulet::placement {

namespace {

// The rest that a set leaves is rated by the results of these next requests, in this order.
constexpr std::array<std::size_t, 3> kNextSizes = {8, 4, 2};

bool twins(const Problem& problem, Position a, Position b) {
  if (problem.numa[a] != problem.numa[b]) return false;
  for (std::size_t other = 0; other < problem.size; ++other) {
    if (other != a && other != b && problem.weight(a, other) != problem.weight(b, other)) return false;
  }
  return true;
}

// The classes with devices left in a state, from which a build step may take.
struct Part {
  std::size_t stride;
  std::size_t count;
  std::size_t rest;  // devices in this and all later parts
};

// max over u of score[u] + partition[whole - u], u being `taken` plus exactly `need` devices of the parts.
// The two innermost levels are plain loops: a build spends its time there.
struct Splits {
  const std::int32_t* score;
  const std::int32_t* partition;
  std::size_t whole;

  std::int32_t at(std::size_t set) const { return score[set] + partition[whole - set]; }

  std::int32_t best_split(const Part* part, const Part* end, std::size_t need, std::size_t taken) const {
    std::int32_t best_sum = 0;
    if (need == 0) return at(taken);
    if (need == 1) {
      for (; part != end; ++part) best_sum = std::max(best_sum, at(taken + part->stride));
      return best_sum;
    }
    for (; part != end && part->rest >= need; ++part) {
      std::size_t set = taken + part->stride;
      if (need == 2) {
        if (part->count > 1) best_sum = std::max(best_sum, at(set + part->stride));
        for (const Part* other = part + 1; other != end; ++other) {
          best_sum = std::max(best_sum, at(set + other->stride));
        }
        continue;
      }
      const std::size_t later = part->rest - part->count;
      for (std::size_t take = 1; take <= std::min(part->count, need); ++take, set += part->stride) {
        if (later + take >= need) best_sum = std::max(best_sum, best_split(part + 1, end, need - take, set));
      }
    }
    return best_sum;
  }
};

}  // namespace

std::optional<ExactSolver> ExactSolver::build_tables(const Problem& problem, const Budget& budget,
                                                     std::optional<std::size_t> only_size) {
  ExactSolver tables;
  tables.collapse(problem);
  for (const std::vector<Position>& members : tables.members_) {
    tables.stride_.push_back(tables.states_);
    tables.states_ *= members.size() + 1;
    if (tables.states_ > budget.states) return std::nullopt;
  }
  tables.choose_sizes(only_size);
  if (!tables.affordable(problem, budget)) return std::nullopt;
  tables.fill_scores(problem);
  tables.partition_.resize(problem.size + 1);
  for (const std::size_t size : tables.sizes_) tables.fill_partition(size);
  return tables;
}

void ExactSolver::collapse(const Problem& problem) {
  for (Position position = 0; position < problem.size; ++position) {
    std::size_t found = 0;
    while (found < members_.size() && !twins(problem, members_[found].front(), position)) ++found;
    if (found == members_.size()) {
      members_.emplace_back();
      numa_.push_back(problem.numa[position]);
    }
    members_[found].push_back(position);
    class_of_.push_back(static_cast<std::uint32_t>(found));
  }
}

std::size_t ExactSolver::largest_left(std::size_t size) const {
  const std::size_t devices = class_of_.size();
  const bool next = std::find(kNextSizes.begin(), kNextSizes.end(), size) != kNextSizes.end();
  return next ? devices - 1 : devices - size;
}

void ExactSolver::choose_sizes(std::optional<std::size_t> only_size) {
  for (std::size_t size = 2; size <= class_of_.size(); ++size) {
    const bool next = std::find(kNextSizes.begin(), kNextSizes.end(), size) != kNextSizes.end();
    if (only_size && size != *only_size && !next) continue;
    if (largest_left(size) > size) sizes_.push_back(size);
  }
}

bool ExactSolver::affordable(const Problem& problem, const Budget& budget) const {
  if ((sizes_.size() + 1) * states_ * sizeof(Score) > budget.table_bytes) return false;
  const double devices = static_cast<double>(problem.size);
  const double largest =
      problem.weights.empty()
          ? 0
          : static_cast<double>(*std::max_element(problem.weights.begin(), problem.weights.end()));
  if (devices * devices / 2 * largest > std::numeric_limits<Score>::max()) return false;
  // The coefficient of x^k in the product over classes of sum (count + 1 - u) x^u counts the pairs of a state
  // and a set of k inside it.
  std::vector<double> pairs = {1};
  for (const std::vector<Position>& members : members_) {
    std::vector<double> product(pairs.size() + members.size(), 0);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      for (std::size_t u = 0; u <= members.size(); ++u) {
        product[i + u] += pairs[i] * static_cast<double>(members.size() + 1 - u);
      }
    }
    pairs = std::move(product);
  }
  double steps = 0;
  for (const std::size_t size : sizes_) steps += pairs[size];
  return steps <= budget.steps;
}

void ExactSolver::fill_scores(const Problem& problem) {
  const std::size_t classes = members_.size();
  score_.assign(states_, 0);
  std::vector<std::size_t> count(classes, 0);
  for (std::size_t state = 1; state < states_; ++state) {
    std::size_t top = 0;  // the odometer's digit that moves
    while (count[top] == members_[top].size()) count[top++] = 0;
    ++count[top];
    // One device of class `top` is added to the state without it.
    Score gain = 0;
    for (std::size_t other = top; other < classes; ++other) {
      const std::size_t there = count[other] - (other == top ? 1 : 0);
      if (there == 0) continue;
      const Position with = other == top ? members_[other][1] : members_[other][0];
      gain += static_cast<Score>(there) * problem.weight(members_[top][0], with);
    }
    // Digits below `top` are 0 here, so the state without that one device is one stride lower.
    score_[state] = score_[state - stride_[top]] + gain;
  }
}

void ExactSolver::fill_partition(std::size_t size) {
  const std::size_t classes = members_.size();
  const std::size_t largest = largest_left(size);
  std::vector<Score>& table = partition_[size];
  table.assign(states_, 0);
  std::vector<std::size_t> count(classes, 0);
  std::vector<Part> parts;
  std::size_t devices = 0;
  for (std::size_t state = 1; state < states_; ++state) {
    std::size_t top = 0;
    while (count[top] == members_[top].size()) {
      devices -= count[top];
      count[top++] = 0;
    }
    ++count[top];
    ++devices;
    if (devices <= size) {
      table[state] = score_[state];
      continue;
    }
    if (devices > largest) continue;
    parts.clear();
    std::size_t rest = devices;
    // High strides first: the innermost loops then move through neighbouring entries of the tables.
    for (std::size_t other = classes; other-- > top;) {
      if (count[other] == 0) continue;
      parts.push_back({stride_[other], count[other], rest});
      rest -= count[other];
    }
    const Splits splits{score_.data(), table.data(), state};
    const Part* end = parts.data() + parts.size();
    if (const std::size_t remainder = devices % size; remainder != 0) {
      // Whatever the remainder set is, the other devices split evenly.
      table[state] = splits.best_split(parts.data(), end, remainder, 0);
    } else {
      // One device of the last class is in some set.
      const Part* others = parts.data();
      const std::size_t one = parts[0].stride;
      --parts[0].rest;
      if (--parts[0].count == 0) ++others;
      table[state] = splits.best_split(others, end, size - 1, one);
    }
  }
}

std::size_t ExactSolver::bytes() const {
  std::size_t bytes = score_.capacity() * sizeof(Score);
  for (const std::vector<Score>& table : partition_) bytes += table.capacity() * sizeof(Score);
  return bytes;
}

// One request: walks the count vectors that hold the required devices and keeps the best.
class ExactSearch {
 public:
  ExactSearch(const ExactSolver& tables, const Request& ask) : tables_(tables), ask_(ask) {
    std::vector<std::uint32_t> part_of(tables.members_.size(), kNone);
    auto required = ask.required.begin();
    for (const Position position : ask.available) {
      const std::uint32_t of = tables.class_of_[position];
      if (part_of[of] == kNone) {
        part_of[of] = static_cast<std::uint32_t>(classes_.size());
        classes_.push_back({tables.stride_[of], tables.numa_[of], 0, 0, {}});
      }
      Class& part = classes_[part_of[of]];
      whole_ += part.stride;
      if (required != ask.required.end() && *required == position) {
        ++part.required;
        forced_ += part.stride;
        ++required;
      } else {
        part.free.push_back(position);
        lexicographic_ = lexicographic_ && part.free.size() == 1;
      }
    }
    std::sort(classes_.begin(), classes_.end(), [](const Class& a, const Class& b) {
      if (a.free.empty() || b.free.empty()) return !a.free.empty() && b.free.empty();
      return a.free.front() < b.free.front();
    });
    for (std::size_t i = classes_.size(), rest = 0; i-- > 0;)
      classes_[i].rest = rest += classes_[i].free.size();
    const std::size_t left = ask.available.size() - ask.size;
    for (const std::size_t size : kNextSizes) {
      if (size <= left) next_.push_back(size);
    }
    taken_.assign(classes_.size(), 0);
  }

  Solution search() {
    walk(0, ask_.size - ask_.required.size(), forced_);
    Solution answer{ask_.required, best_.score, best_.total};
    for (std::size_t i = 0; i < classes_.size(); ++i) {
      const auto& free = classes_[i].free;
      const auto end = free.begin() + static_cast<std::ptrdiff_t>(best_taken_[i]);
      answer.chosen.insert(answer.chosen.end(), free.begin(), end);
    }
    std::sort(answer.chosen.begin(), answer.chosen.end());
    return answer;
  }

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  struct Class {
    std::size_t stride;
    std::uint32_t numa;
    std::size_t required;
    std::size_t rest;            // free devices in this and all later classes
    std::vector<Position> free;  // available, not required
  };
  struct Value {
    std::int64_t total = 0;
    std::int64_t score = 0;
    std::array<std::int64_t, kNextSizes.size()> next{};
    int numa_nodes = 0;
  };

  // Without twins the order of the walk is the order of the sets' index lists, so the first of equals is the
  // lowest.
  void walk(std::size_t from, std::size_t need, std::size_t set) {
    if (need == 0) return consider(set);
    for (std::size_t i = from; i < classes_.size() && classes_[i].rest >= need; ++i) {
      const std::size_t later = i + 1 < classes_.size() ? classes_[i + 1].rest : 0;
      for (std::size_t take = std::min(classes_[i].free.size(), need); take >= 1 && later + take >= need;
           --take) {
        taken_[i] = take;
        walk(i + 1, need - take, set + take * classes_[i].stride);
      }
      taken_[i] = 0;
    }
  }

  void consider(std::size_t set) {
    const std::size_t left = whole_ - set;
    Value value;
    value.score = tables_.score_[set];
    if (ask_.policy == Policy::kBestEffort) value.total = value.score + tables_.partition(ask_.size, left);
    if (found_ && value.total != best_.total) {
      if (value.total > best_.total) keep_best(value, left);
      return;
    }
    if (found_ && value.score != best_.score) {
      if (value.score > best_.score) keep_best(value, left);
      return;
    }
    for (std::size_t i = 0; i < next_.size(); ++i) {
      const std::int64_t next = tables_.partition(next_[i], left);
      if (!found_ || next == best_.next[i]) continue;
      if (next > best_.next[i]) keep_best(value, left);
      return;
    }
    if (found_) {
      const int nodes = numa_nodes();
      if (nodes > best_.numa_nodes || (nodes == best_.numa_nodes && (lexicographic_ || !lower_index())))
        return;
    }
    keep_best(value, left);
  }

  void keep_best(Value value, std::size_t left) {
    for (std::size_t i = 0; i < next_.size(); ++i) value.next[i] = tables_.partition(next_[i], left);
    value.numa_nodes = numa_nodes();
    best_ = value;
    best_taken_ = taken_;
    found_ = true;
  }

  int numa_nodes() const {
    std::uint64_t seen = 0;  // each node has a class of its own, and tables have at most 16 classes
    for (std::size_t i = 0; i < classes_.size(); ++i) {
      if (classes_[i].required + taken_[i] != 0) seen |= std::uint64_t{1} << classes_[i].numa;
    }
    return std::popcount(seen);
  }

  // Whether the set at hand has the lowest position in which it and the best one differ. In each class both
  // hold the same first devices, so they differ first where the smaller count ends.
  bool lower_index() const {
    Position first = kNone;
    bool ours = false;
    for (std::size_t i = 0; i < classes_.size(); ++i) {
      if (taken_[i] == best_taken_[i]) continue;
      const Position differs = classes_[i].free[std::min(taken_[i], best_taken_[i])];
      if (differs < first) {
        first = differs;
        ours = taken_[i] > best_taken_[i];
      }
    }
    return ours;
  }

  const ExactSolver& tables_;
  const Request& ask_;
  std::vector<Class> classes_;  // those with available devices, by first free position
  std::vector<std::size_t> next_;
  std::size_t whole_ = 0;
  std::size_t forced_ = 0;
  bool lexicographic_ = true;
  std::vector<std::size_t> taken_;
  std::vector<std::size_t> best_taken_;
  Value best_;
  bool found_ = false;
};

Solution ExactSolver::best_set(const Request& ask) const { return ExactSearch(*this, ask).search(); }

}  // namespace gpulet::placement

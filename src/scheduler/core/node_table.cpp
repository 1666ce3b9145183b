#include "scheduler/core/node_table.h"

#include <cmath>

#include "scheduler/model/node_state.h"

namespace gpulet::scheduler {
namespace {

// Scores are sums of many small products: smaller differences are ties.
constexpr double kTie = 1e-9;

double tie_tolerance(double score) { return kTie * (1 + std::abs(score)); }

// `take` of `gpus`, each set equally likely.
GpuSet draw_gpus(GpuSet gpus, unsigned take, std::mt19937_64& random) {
  GpuSet set = 0;
  for (; take > 0 && gpus != 0; --take) {
    GpuSet left = gpus;
    for (auto skip = random() % static_cast<unsigned>(std::popcount(gpus)); skip > 0; --skip)
      left &= left - 1;
    const GpuSet one = left & -left;
    set |= one;
    gpus &= ~one;
  }
  return set;
}

}  // namespace

std::size_t NodeTable::StateHash::operator()(const NodeState* state) const {
  StateHasher hash;
  hash.add_value(static_cast<std::uint64_t>(state->cpu_milli));
  hash.add_value(static_cast<std::uint64_t>(state->memory_mib));
  hash.add_value(std::uint64_t{state->model} << 8 | state->gpus);
  hash.add_value(reinterpret_cast<std::uintptr_t>(state->links.get()));
  hash.add_shares(state->free_shares());
  return hash.value();
}

bool NodeTable::StateEqual::operator()(const NodeState* a, const NodeState* b) const {
  return same_kind(*a, *b);
}

NodeTable::Node NodeTable::add_node(const NodeState& state) {
  Node node = static_cast<Node>(nodes_.size());
  if (free_nodes_.empty()) {
    nodes_.emplace_back();
  } else {
    node = free_nodes_.back();
    free_nodes_.pop_back();
  }
  nodes_[node].state = state;
  join_kind(node);
  return node;
}

void NodeTable::update_node(Node node, const NodeState& state) {
  leave_kind(node);
  nodes_[node].state = state;
  join_kind(node);
}

void NodeTable::remove_node(Node node) {
  leave_kind(node);
  nodes_[node].state = NodeState{};
  free_nodes_.push_back(node);
}

void NodeTable::join_kind(Node node) {
  Entry& entry = nodes_[node];
  const auto found = kind_of_state_.find(&entry.state);
  if (found != kind_of_state_.end()) {
    entry.kind = found->second;
  } else {
    entry.kind = static_cast<Kind>(kinds_.size());
    if (free_kinds_.empty()) {
      kinds_.emplace_back();
    } else {
      entry.kind = free_kinds_.back();
      free_kinds_.pop_back();
    }
    KindEntry& made = kinds_[entry.kind];
    made.state = entry.state;
    made.state.load = {};
    made.generation = ++generations_;
    kind_of_state_.emplace(&made.state, entry.kind);
  }
  KindEntry& kind = kinds_[entry.kind];
  entry.index_in_kind = static_cast<std::uint32_t>(kind.nodes.size());
  kind.nodes.push_back(node);
  entry.loaded = entry.state.has_load();
  entry.load_cost = entry.loaded ? node_load_cost(entry.state) : 0;
  if (entry.loaded) ++kind.loaded;
}

void NodeTable::leave_kind(Node node) {
  Entry& entry = nodes_[node];
  KindEntry& kind = kinds_[entry.kind];
  kind.nodes[entry.index_in_kind] = kind.nodes.back();
  nodes_[kind.nodes[entry.index_in_kind]].index_in_kind = entry.index_in_kind;
  kind.nodes.pop_back();
  if (entry.loaded) --kind.loaded;
  if (kind.nodes.empty()) {
    kind_of_state_.erase(&kind.state);
    kind.state = NodeState{};
    free_kinds_.push_back(entry.kind);
  }
}

NodeTable::Query& NodeTable::find_query(const std::shared_ptr<Policy>& policy, const Task& task) {
  if (cached_answers_ > kMaxCachedAnswers) {
    queries_.clear();
    cached_answers_ = 0;
  }
  for (Query& known : queries_) {
    if (known.policy_ == policy && known.task_.is_same_class(task)) {
      if (known.task_.load != task.load) {
        known.task_.load = task.load;
        known.load_ = TaskLoad(task);
      }
      return known;
    }
  }
  if (queries_.size() == kMaxQueries) {
    queries_.clear();
    cached_answers_ = 0;
  }
  queries_.push_back(Query(policy, task));
  return queries_.back();
}

const std::vector<Option>& NodeTable::cached_options(Query& query, Kind kind) {
  if (query.answers_.size() <= kind) query.answers_.resize(kinds_.size());
  Query::CachedOptions& cached = query.answers_[kind];
  const KindEntry& entry = kinds_[kind];
  if (cached.generation != entry.generation) {
    if (cached.generation == 0) ++cached_answers_;
    cached.generation = entry.generation;
    query.policy_->placement_options(entry.state, query.task_, cached.options);
  }
  return cached.options;
}

std::optional<Choice> NodeTable::choose_on_node(Query& query, Node node) {
  const Entry& entry = nodes_[node];
  return best_choice(*query.policy_, entry.state, entry.load_cost, query.load_,
                     cached_options(query, entry.kind));
}

std::optional<NodeTable::BestNode> NodeTable::best_node(Query& query, std::mt19937_64& random) {
  const Policy& policy = *query.policy_;
  std::optional<BestNode> best;
  std::size_t ties = 0;
  // All `nodes` of one kind are as good as `choice`.
  const auto offer = [&](const Choice& choice, const Node* nodes, std::size_t count) {
    if (best && choice.score < best->choice.score - tie_tolerance(choice.score)) return;
    if (!best || choice.score > best->choice.score + tie_tolerance(choice.score)) ties = 0;
    ties += count;
    const std::size_t ticket = random() % ties;
    if (ticket < count) best = BestNode{nodes[ticket], choice};
  };
  for (Kind kind = 0; kind < kinds_.size(); ++kind) {
    const KindEntry& entry = kinds_[kind];
    if (entry.nodes.empty()) continue;
    const std::vector<Option>& found = cached_options(query, kind);
    if (found.empty()) continue;
    if (entry.loaded == 0 || policy.load_weight() <= 0) {
      offer(*best_choice(policy, entry.state, 0, query.load_, found), entry.nodes.data(), entry.nodes.size());
      continue;
    }
    for (const Node& node : entry.nodes) {
      const Entry& one = nodes_[node];
      offer(*best_choice(policy, one.state, one.load_cost, query.load_, found), &node, 1);
    }
  }
  if (best && policy.draws_gpus()) {
    const Option& option = cached_options(query, nodes_[best->node].kind).front();
    best->choice.gpus = draw_gpus(option.gpus, option.count, random);
  }
  return best;
}

}  // namespace gpulet::scheduler

#include "scheduler/node_table.h"

#include <cmath>

#include "scheduler/hash.h"

namespace gpulet::scheduler {
namespace {

// Scores are sums of many small products: what differs by less is a tie.
constexpr double kTie = 1e-9;

double tolerance(double score) { return kTie * (1 + std::abs(score)); }

// `take` of `gpus`, each set as likely.
GpuSet drawn(GpuSet gpus, unsigned take, std::mt19937_64& random) {
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
  Hash hash;
  hash.add(static_cast<std::uint64_t>(state->cpu_milli));
  hash.add(static_cast<std::uint64_t>(state->memory_mib));
  hash.add(std::uint64_t{state->model} << 8 | state->gpus);
  hash.add(reinterpret_cast<std::uintptr_t>(state->links.get()));
  hash.add_shares(state->shares());
  return hash.value();
}

bool NodeTable::StateEqual::operator()(const NodeState* a, const NodeState* b) const {
  return same_kind(*a, *b);
}

NodeTable::Node NodeTable::add(const NodeState& state) {
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

void NodeTable::update(Node node, const NodeState& state) {
  leave_kind(node);
  nodes_[node].state = state;
  join_kind(node);
}

void NodeTable::remove(Node node) {
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
    made.birth = ++births_;
    kind_of_state_.emplace(&made.state, entry.kind);
  }
  KindEntry& kind = kinds_[entry.kind];
  entry.place = static_cast<std::uint32_t>(kind.nodes.size());
  kind.nodes.push_back(node);
  entry.loaded = entry.state.has_load();
  entry.machine = entry.loaded ? machine_cost(entry.state) : 0;
  if (entry.loaded) ++kind.loaded;
}

void NodeTable::leave_kind(Node node) {
  Entry& entry = nodes_[node];
  KindEntry& kind = kinds_[entry.kind];
  kind.nodes[entry.place] = kind.nodes.back();
  nodes_[kind.nodes[entry.place]].place = entry.place;
  kind.nodes.pop_back();
  if (entry.loaded) --kind.loaded;
  if (kind.nodes.empty()) {
    kind_of_state_.erase(&kind.state);
    kind.state = NodeState{};
    free_kinds_.push_back(entry.kind);
  }
}

NodeTable::Question& NodeTable::ask(const std::shared_ptr<Policy>& policy, const Task& task) {
  if (remembered_ > kMaxAnswers) {
    questions_.clear();
    remembered_ = 0;
  }
  for (Question& known : questions_) {
    if (known.policy_ == policy && known.task_.same_class(task)) {
      if (known.task_.load != task.load) {
        known.task_.load = task.load;
        known.load_ = TaskLoad(task);
      }
      return known;
    }
  }
  if (questions_.size() == kMaxQuestions) {
    questions_.clear();
    remembered_ = 0;
  }
  questions_.push_back(Question(policy, task));
  return questions_.back();
}

const std::vector<Option>& NodeTable::options(Question& question, Kind kind) {
  if (question.answers_.size() <= kind) question.answers_.resize(kinds_.size());
  Question::Answer& answer = question.answers_[kind];
  const KindEntry& entry = kinds_[kind];
  if (answer.birth != entry.birth) {
    if (answer.birth == 0) ++remembered_;
    answer.birth = entry.birth;
    question.policy_->options(entry.state, question.task_, answer.options);
  }
  return answer.options;
}

std::optional<Choice> NodeTable::choose(Question& question, Node node) {
  const Entry& entry = nodes_[node];
  return best_choice(*question.policy_, entry.state, entry.machine, question.load_,
                     options(question, entry.kind));
}

std::optional<NodeTable::Best> NodeTable::best(Question& question, std::mt19937_64& random) {
  const Policy& policy = *question.policy_;
  std::optional<Best> best;
  std::size_t ties = 0;
  // `nodes` of one kind are all as good as `choice` says.
  const auto offer = [&](const Choice& choice, const Node* nodes, std::size_t count) {
    if (best && choice.score < best->choice.score - tolerance(choice.score)) return;
    if (!best || choice.score > best->choice.score + tolerance(choice.score)) ties = 0;
    ties += count;
    const std::size_t ticket = random() % ties;
    if (ticket < count) best = Best{nodes[ticket], choice};
  };
  for (Kind kind = 0; kind < kinds_.size(); ++kind) {
    const KindEntry& entry = kinds_[kind];
    if (entry.nodes.empty()) continue;
    const std::vector<Option>& found = options(question, kind);
    if (found.empty()) continue;
    if (entry.loaded == 0 || policy.load_weight() <= 0) {
      offer(*best_choice(policy, entry.state, 0, question.load_, found), entry.nodes.data(),
            entry.nodes.size());
      continue;
    }
    for (const Node& node : entry.nodes) {
      const Entry& one = nodes_[node];
      offer(*best_choice(policy, one.state, one.machine, question.load_, found), &node, 1);
    }
  }
  if (best && policy.draws_gpus()) {
    const Option& option = options(question, nodes_[best->node].kind).front();
    best->choice.gpus = drawn(option.gpus, option.take, random);
  }
  return best;
}

}  // namespace gpulet::scheduler

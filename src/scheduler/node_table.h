// The nodes of a cluster as policies see them, and what each policy thinks of them, remembered.
//
// Nodes whose NodeState is equal but for the load are of one kind. For each question (a policy, a class of
// task) the options of a kind are worked out once and kept until the last node of the kind has changed: a
// decision over 5,000 nodes is then a look-up and a few additions each. Nothing here is a second ledger:
// whoever owns the truth (a trace, the agents' objects) writes each node anew as it changes.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <unordered_map>
#include <vector>

#include "scheduler/policy.h"

namespace gpulet::scheduler {

class NodeTable {
 public:
  using Node = std::uint32_t;

  // The node's number, for life; numbers of removed nodes are used again.
  Node add(const NodeState& state);
  void update(Node node, const NodeState& state);
  void remove(Node node);
  const NodeState& at(Node node) const { return nodes_[node].state; }
  std::size_t kinds() const { return kind_of_state_.size(); }

  // What is remembered at most: questions, and answers of them all. Beyond either, it begins anew.
  static constexpr std::size_t kMaxQuestions = 1024;
  static constexpr std::size_t kMaxAnswers = 500'000;

  // A policy and a class of task, looked up once for many nodes. Valid until the next `ask`, which may drop
  // all that is remembered where it has grown beyond the limits. Holds the policy.
  class Question;
  Question& ask(const std::shared_ptr<Policy>& policy, const Task& task);

  // How good the node is, and with which GPUs: what scheduler::choose says, remembered. Nullopt: does not
  // fit. Cost: ~100 ns; where the kind was not asked about yet, what the policy takes.
  std::optional<Choice> choose(Question& question, Node node);

  struct Best {
    Node node = 0;
    Choice choice;
  };
  // The best of all nodes; ties are drawn by `random`. Nullopt: it fits nowhere. Looks at each kind once
  // where the policy has no regard to load.
  std::optional<Best> best(Question& question, std::mt19937_64& random);

 private:
  using Kind = std::uint32_t;
  struct StateHash {
    std::size_t operator()(const NodeState* state) const;
  };
  struct StateEqual {
    bool operator()(const NodeState* a, const NodeState* b) const;
  };
  struct Entry {
    NodeState state;
    Kind kind = 0;
    std::uint32_t place = 0;  // in the kind's list
    bool loaded = false;
    double machine = 0;  // machine_cost
  };
  struct KindEntry {
    NodeState state;  // without load
    std::vector<Node> nodes;
    std::size_t loaded = 0;   // how many of them have any load
    std::uint64_t birth = 0;  // kind numbers are used again: tells this one from the last
  };

  void join_kind(Node node);
  void leave_kind(Node node);
  const std::vector<Option>& options(Question& question, Kind kind);

  std::deque<Entry> nodes_;
  std::vector<Node> free_nodes_;
  std::deque<KindEntry> kinds_;
  std::vector<Kind> free_kinds_;
  std::unordered_map<const NodeState*, Kind, StateHash, StateEqual> kind_of_state_;  // keys live in kinds_
  std::uint64_t births_ = 0;
  std::deque<Question> questions_;
  std::size_t remembered_ = 0;
};

class NodeTable::Question {
 public:
  const Task& task() const { return task_; }
  const Policy& policy() const { return *policy_; }

 private:
  friend class NodeTable;
  struct Answer {
    std::uint64_t birth = 0;  // of the kind that it is for; 0: none yet
    std::vector<Option> options;
  };
  Question(std::shared_ptr<Policy> policy, const Task& task)
      : policy_(std::move(policy)), task_(task), load_(task) {}

  std::shared_ptr<Policy> policy_;
  Task task_;
  TaskLoad load_;
  std::vector<Answer> answers_;  // by kind
};

}  // namespace gpulet::scheduler

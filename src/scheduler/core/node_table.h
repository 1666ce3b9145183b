// The nodes of a cluster as policies see them, with cached policy results.
//
// Nodes whose NodeState is equal but for the load are of one kind. For each query (a policy, a class of
// task) the options of a kind are computed once and kept until its last node changes, so a decision over
// 5,000 nodes is a look-up and a few additions each. The table is a cache, not a ledger: the owner of the
// truth (a trace, the GpuNodes) updates each node as it changes.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <unordered_map>
#include <vector>

#include "scheduler/core/policy.h"

namespace gpulet::scheduler {

class NodeTable {
 public:
  using Node = std::uint32_t;

  // The node's number for life; numbers of removed nodes are reused.
  Node add_node(const NodeState& state);
  void update_node(Node node, const NodeState& state);
  void remove_node(Node node);
  const NodeState& state_of(Node node) const { return nodes_[node].state; }
  std::size_t kind_count() const { return kind_of_state_.size(); }

  // Cache limits: queries, and results of all queries. Beyond either the cache is cleared.
  static constexpr std::size_t kMaxQueries = 1024;
  static constexpr std::size_t kMaxCachedAnswers = 500'000;

  // A policy and a class of task, looked up once for many nodes. Valid until the next find_query, which may
  // clear the cache. Holds the policy.
  class Query;
  Query& find_query(const std::shared_ptr<Policy>& policy, const Task& task);

  // How good the node is, and with which GPUs: the cached result of choose_placement. Nullopt: does not fit.
  // Cost: ~100 ns, plus the policy's cost for a new kind.
  std::optional<Choice> choose_on_node(Query& query, Node node);

  struct BestNode {
    Node node = 0;
    Choice choice;
  };
  // The best of all nodes; `random` breaks ties. Nullopt: fits nowhere. Visits each kind once if the policy
  // ignores load.
  std::optional<BestNode> best_node(Query& query, std::mt19937_64& random);

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
    std::uint32_t index_in_kind = 0;  // in the kind's node list
    bool loaded = false;
    double load_cost = 0;  // node_load_cost
  };
  struct KindEntry {
    NodeState state;  // without load
    std::vector<Node> nodes;
    std::size_t loaded = 0;        // number of nodes with load
    std::uint64_t generation = 0;  // distinguishes reuses of a kind number
  };

  void join_kind(Node node);
  void leave_kind(Node node);
  const std::vector<Option>& cached_options(Query& query, Kind kind);

  std::deque<Entry> nodes_;
  std::vector<Node> free_nodes_;
  std::deque<KindEntry> kinds_;
  std::vector<Kind> free_kinds_;
  std::unordered_map<const NodeState*, Kind, StateHash, StateEqual> kind_of_state_;  // keys live in kinds_
  std::uint64_t generations_ = 0;
  std::deque<Query> queries_;
  std::size_t cached_answers_ = 0;
};

class NodeTable::Query {
 public:
  const Task& task() const { return task_; }
  const Policy& policy() const { return *policy_; }

 private:
  friend class NodeTable;
  struct CachedOptions {
    std::uint64_t generation = 0;  // of the kind it is for; 0: none yet
    std::vector<Option> options;
  };
  Query(std::shared_ptr<Policy> policy, const Task& task)
      : policy_(std::move(policy)), task_(task), load_(task) {}

  std::shared_ptr<Policy> policy_;
  Task task_;
  TaskLoad load_;
  std::vector<CachedOptions> answers_;  // by kind
};

}  // namespace gpulet::scheduler

#include "scheduler/core/node_table.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "scheduler/model/test_random.h"

namespace gpulet::scheduler {
namespace {

std::shared_ptr<Policy> make_test_policy(const std::string& name, const std::vector<Task>& mix = {}) {
  return *make_simulator_policy(name, {Workload::from_tasks(mix)});
}

// A table under random additions, changes and removals, next to a plain list of its expected content.
class World {
 public:
  World(NodeTable& table, randomly::Random& random) : table_(table), random_(random) {}

  void apply_random_change() {
    const unsigned what = randomly::random_below(random_, 10);
    if (what < 2 || nodes_.empty()) {
      const NodeState state = randomly::random_node(random_);
      const auto node = table_.add_node(state);
      ASSERT_TRUE(nodes_.emplace(node, state).second) << "a number in use was given again";
    } else if (what == 2) {
      const auto at = any();
      table_.remove_node(at->first);
      nodes_.erase(at);
    } else {
      const auto at = any();
      at->second = randomly::random_node(random_);
      table_.update_node(at->first, at->second);
    }
  }
  const std::map<NodeTable::Node, NodeState>& node_states() const { return nodes_; }

 private:
  std::map<NodeTable::Node, NodeState>::iterator any() {
    return std::next(nodes_.begin(), randomly::random_below(random_, static_cast<unsigned>(nodes_.size())));
  }
  NodeTable& table_;
  randomly::Random& random_;
  std::map<NodeTable::Node, NodeState> nodes_;
};

TEST(NodeTable, CachesThePolicysResult) {
  randomly::Random random(11);
  const std::vector<Task> tasks = randomly::random_tasks(random, 25);
  std::vector<std::shared_ptr<Policy>> policies;
  std::vector<std::shared_ptr<Policy>> plain;  // separate objects that do not share the table's cache
  for (const std::string& name : policy_names()) {
    policies.push_back(make_test_policy(name, tasks));
    plain.push_back(make_test_policy(name, tasks));
  }
  NodeTable table;
  World world(table, random);
  std::size_t compared = 0;
  for (int round = 0; round < 300; ++round) {
    for (int step = 0; step < 3; ++step) world.apply_random_change();
    const std::size_t at = randomly::random_below(random, static_cast<unsigned>(policies.size()));
    const Task& task = tasks[randomly::random_below(random, static_cast<unsigned>(tasks.size()))];
    NodeTable::Query& query = table.find_query(policies[at], task);
    std::optional<Choice> most;
    for (const auto& [node, state] : world.node_states()) {
      const auto expected = choose_placement(*plain[at], state, task);
      const auto found = table.choose_on_node(query, node);
      ASSERT_EQ(found.has_value(), expected.has_value());
      if (!found) continue;
      ++compared;
      ASSERT_EQ(found->score, expected->score);
      ASSERT_EQ(found->gpus, expected->gpus);
      if (!most || found->score > most->score) most = found;
    }
    const auto best = table.best_node(query, random);
    ASSERT_EQ(best.has_value(), most.has_value());
    if (!best) continue;
    ASSERT_NEAR(best->choice.score, most->score, 1e-6);
    ASSERT_TRUE(world.node_states().contains(best->node));
    ASSERT_NEAR(table.choose_on_node(query, best->node)->score, most->score, 1e-6);
  }
  EXPECT_GT(compared, 5000u);
}

TEST(NodeTable, GroupsEqualNodesButForTheirLoad) {
  NodeTable table;
  NodeState state = randomly::node_with_free({1000, 1000});
  table.add_node(state);
  state.load[0] = flat_curve(50, 10);
  table.add_node(state);
  EXPECT_EQ(table.kind_count(), 1u);
  state.free[0] = 500;
  const auto third = table.add_node(state);
  EXPECT_EQ(table.kind_count(), 2u);
  table.remove_node(third);
  EXPECT_EQ(table.kind_count(), 1u);
}

TEST(NodeTable, DrawsTiesFairly) {
  NodeTable table;
  for (int at = 0; at < 3; ++at) table.add_node(randomly::node_with_free({1000}));
  NodeState other = randomly::node_with_free({1000});
  other.model = 1;  // another kind, equally good
  table.add_node(other);
  NodeState full = randomly::node_with_free({0});
  table.add_node(full);
  randomly::Random random(5);
  std::map<NodeTable::Node, int> count;
  auto& query = table.find_query(make_test_policy("binpack"), randomly::task_requesting(1, 1000));
  for (int at = 0; at < 4000; ++at) ++count[table.best_node(query, random)->node];
  ASSERT_EQ(count.size(), 4u);
  for (const auto& [node, times] : count) EXPECT_NEAR(times, 1000, 150) << node;
}

TEST(NodeTable, RandomDrawsGpusToo) {
  NodeTable table;
  table.add_node(randomly::node_with_free({600, 300, 1000, 700}));
  randomly::Random random(5);
  std::set<GpuSet> seen;
  auto& query = table.find_query(make_test_policy("random"), randomly::task_requesting(2, 500));
  for (int at = 0; at < 200; ++at) seen.insert(table.best_node(query, random)->choice.gpus);
  EXPECT_EQ(seen, (std::set<GpuSet>{0b0101, 0b1001, 0b1100}));
}

TEST(NodeTable, PrefersTheCoolestNodeOfAKind) {
  NodeTable table;
  NodeState state = randomly::node_with_free({1000, 400});
  NodeTable::Node coolest = 0;
  for (unsigned percent : {60u, 10u, 90u}) {
    state.load[1] = flat_curve(percent, 0);
    const auto node = table.add_node(state);
    if (percent == 10) coolest = node;
  }
  randomly::Random random(1);
  for (const char* name : {"load", "default"}) {
    EXPECT_EQ(
        table.best_node(table.find_query(make_test_policy(name), randomly::task_requesting(1, 400)), random)
            ->node,
        coolest)
        << name;
  }
}

TEST(NodeTable, HasNoBestForATaskThatFitsNowhere) {
  NodeTable table;
  randomly::Random random(1);
  const auto binpack = make_test_policy("binpack");
  EXPECT_FALSE(table.best_node(table.find_query(binpack, randomly::task_requesting(1, 1000)), random));
  table.add_node(randomly::node_with_free({999}));
  EXPECT_FALSE(table.best_node(table.find_query(binpack, randomly::task_requesting(1, 1000)), random));
  EXPECT_TRUE(table.best_node(table.find_query(binpack, randomly::task_requesting(1, 999)), random));
}

TEST(NodeTable, WorksBeyondTheCacheLimit) {
  NodeTable table;
  const auto node = table.add_node(randomly::node_with_free({1000}));
  const auto binpack = make_test_policy("binpack");
  for (std::size_t at = 0; at < NodeTable::kMaxQueries + 50; ++at) {
    Task task = randomly::task_requesting(1, 500);
    task.cpu_milli = static_cast<std::int64_t>(at);
    auto& query = table.find_query(binpack, task);
    ASSERT_EQ(query.task().cpu_milli, static_cast<std::int64_t>(at));
    ASSERT_TRUE(table.choose_on_node(query, node));
  }
}

}  // namespace
}  // namespace gpulet::scheduler

#include "scheduler/node_table.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "scheduler/test_random.h"

namespace gpulet::scheduler {
namespace {

std::shared_ptr<Policy> policy_of(const std::string& name, const std::vector<Task>& mix = {}) {
  return *simulator_policy_named(name, {Workload::of(mix)});
}

// A table under random additions, changes and removals, beside a plain list of what it should hold.
class World {
 public:
  World(NodeTable& table, randomly::Random& random) : table_(table), random_(random) {}

  void step() {
    const unsigned what = randomly::below(random_, 10);
    if (what < 2 || nodes_.empty()) {
      const NodeState state = randomly::node(random_);
      const auto node = table_.add(state);
      ASSERT_TRUE(nodes_.emplace(node, state).second) << "a number in use was given again";
    } else if (what == 2) {
      const auto at = any();
      table_.remove(at->first);
      nodes_.erase(at);
    } else {
      const auto at = any();
      at->second = randomly::node(random_);
      table_.update(at->first, at->second);
    }
  }
  const std::map<NodeTable::Node, NodeState>& nodes() const { return nodes_; }

 private:
  std::map<NodeTable::Node, NodeState>::iterator any() {
    return std::next(nodes_.begin(), randomly::below(random_, static_cast<unsigned>(nodes_.size())));
  }
  NodeTable& table_;
  randomly::Random& random_;
  std::map<NodeTable::Node, NodeState> nodes_;
};

TEST(NodeTable, RemembersWhatThePolicyWouldSay) {
  randomly::Random random(11);
  const std::vector<Task> tasks = randomly::tasks(random, 25);
  std::vector<std::shared_ptr<Policy>> policies;
  std::vector<std::shared_ptr<Policy>> plain;  // that remember nothing of the table's questions
  for (const std::string& name : policy_names()) {
    policies.push_back(policy_of(name, tasks));
    plain.push_back(policy_of(name, tasks));
  }
  NodeTable table;
  World world(table, random);
  std::size_t compared = 0;
  for (int round = 0; round < 300; ++round) {
    for (int step = 0; step < 3; ++step) world.step();
    const std::size_t at = randomly::below(random, static_cast<unsigned>(policies.size()));
    const Task& task = tasks[randomly::below(random, static_cast<unsigned>(tasks.size()))];
    NodeTable::Question& question = table.ask(policies[at], task);
    std::optional<Choice> most;
    for (const auto& [node, state] : world.nodes()) {
      const auto expected = choose(*plain[at], state, task);
      const auto found = table.choose(question, node);
      ASSERT_EQ(found.has_value(), expected.has_value());
      if (!found) continue;
      ++compared;
      ASSERT_EQ(found->score, expected->score);
      ASSERT_EQ(found->gpus, expected->gpus);
      if (!most || found->score > most->score) most = found;
    }
    const auto best = table.best(question, random);
    ASSERT_EQ(best.has_value(), most.has_value());
    if (!best) continue;
    ASSERT_NEAR(best->choice.score, most->score, 1e-6);
    ASSERT_TRUE(world.nodes().contains(best->node));
    ASSERT_NEAR(table.choose(question, best->node)->score, most->score, 1e-6);
  }
  EXPECT_GT(compared, 5000u);
}

TEST(NodeTable, GroupsEqualNodesButForTheirLoad) {
  NodeTable table;
  NodeState state = randomly::with_free({1000, 1000});
  table.add(state);
  state.load[0] = flat_curve(50, 10);
  table.add(state);
  EXPECT_EQ(table.kinds(), 1u);
  state.free[0] = 500;
  const auto third = table.add(state);
  EXPECT_EQ(table.kinds(), 2u);
  table.remove(third);
  EXPECT_EQ(table.kinds(), 1u);
}

TEST(NodeTable, DrawsTiesFairly) {
  NodeTable table;
  for (int at = 0; at < 3; ++at) table.add(randomly::with_free({1000}));
  NodeState other = randomly::with_free({1000});
  other.model = 1;  // another kind, as good
  table.add(other);
  NodeState full = randomly::with_free({0});
  table.add(full);
  randomly::Random random(5);
  std::map<NodeTable::Node, int> count;
  auto& question = table.ask(policy_of("binpack"), randomly::asking(1, 1000));
  for (int at = 0; at < 4000; ++at) ++count[table.best(question, random)->node];
  ASSERT_EQ(count.size(), 4u);
  for (const auto& [node, times] : count) EXPECT_NEAR(times, 1000, 150) << node;
}

TEST(NodeTable, RandomDrawsGpusToo) {
  NodeTable table;
  table.add(randomly::with_free({600, 300, 1000, 700}));
  randomly::Random random(5);
  std::set<GpuSet> seen;
  auto& question = table.ask(policy_of("random"), randomly::asking(2, 500));
  for (int at = 0; at < 200; ++at) seen.insert(table.best(question, random)->choice.gpus);
  EXPECT_EQ(seen, (std::set<GpuSet>{0b0101, 0b1001, 0b1100}));
}

TEST(NodeTable, TheCoolestNodeOfAKindIsTheBest) {
  NodeTable table;
  NodeState state = randomly::with_free({1000, 400});
  NodeTable::Node coolest = 0;
  for (unsigned percent : {60u, 10u, 90u}) {
    state.load[1] = flat_curve(percent, 0);
    const auto node = table.add(state);
    if (percent == 10) coolest = node;
  }
  randomly::Random random(1);
  for (const char* name : {"load", "default"}) {
    EXPECT_EQ(table.best(table.ask(policy_of(name), randomly::asking(1, 400)), random)->node, coolest)
        << name;
  }
}

TEST(NodeTable, ATaskThatFitsNowhereHasNoBest) {
  NodeTable table;
  randomly::Random random(1);
  const auto binpack = policy_of("binpack");
  EXPECT_FALSE(table.best(table.ask(binpack, randomly::asking(1, 1000)), random));
  table.add(randomly::with_free({999}));
  EXPECT_FALSE(table.best(table.ask(binpack, randomly::asking(1, 1000)), random));
  EXPECT_TRUE(table.best(table.ask(binpack, randomly::asking(1, 999)), random));
}

TEST(NodeTable, AnswersWellBeyondWhatItRemembers) {
  NodeTable table;
  const auto node = table.add(randomly::with_free({1000}));
  const auto binpack = policy_of("binpack");
  for (std::size_t at = 0; at < NodeTable::kMaxQuestions + 50; ++at) {
    Task task = randomly::asking(1, 500);
    task.cpu_milli = static_cast<std::int64_t>(at);
    auto& question = table.ask(binpack, task);
    ASSERT_EQ(question.task().cpu_milli, static_cast<std::int64_t>(at));
    ASSERT_TRUE(table.choose(question, node));
  }
}

}  // namespace
}  // namespace gpulet::scheduler

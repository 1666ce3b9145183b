#include "scheduler/core/preemption.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <tuple>

#include "scheduler/core/decision.h"
#include "scheduler/model/test_nodes.h"

namespace gpulet::scheduler {
namespace {

PodRequest running_pod(const std::string& name, unsigned gpus, int priority, const std::string& node = "n1") {
  auto pod = test_pod(name, gpus, node);
  pod.priority = priority;
  return pod;
}

PodRequest linked_pod(unsigned gpus, int priority = 1000) {
  auto pod = test_pod("high", gpus);
  pod.priority = priority;
  apply_annotation("gpulet.io/gpu-links", "NV", pod);
  return pod;
}

// Nodes, and Pods on given GPUs.
struct Cluster {
  ClusterState state;
  DisruptionBudgets budgets;
  std::map<std::string, GpuNode> nodes;

  void add_node(const std::string& name, std::size_t size, std::size_t group, unsigned shares = 1) {
    nodes[name] = test_node(size, group, shares);
    state.set_node(name, nodes[name]);
  }
  void add_pod(const PodRequest& pod, const std::vector<std::size_t>& units) {
    hold_units(nodes[pod.node], pod.pod_key(), units);
    state.set_node(pod.node, nodes[pod.node]);
    state.set_pod(pod);
  }
  void add_budget(const std::string& name, const std::string& app, std::int64_t allowed) {
    budgets["default/" + name] = {.name_space = "default",
                                  .name = name,
                                  .selector = {{.key = "app", .op = LabelOperator::kIn, .values = {app}}},
                                  .allowed = allowed,
                                  .disrupted = {}};
  }
  std::vector<NodeVictims> choose(const PodRequest& pod, const std::vector<NodeVictims>& proposed,
                                  const std::vector<NodeVictims>& answered = {}) {
    state.mark_pods_synced();
    return choose_victims(state, pod, proposed, &budgets, answered);
  }
};

using Chosen = std::vector<NodeVictims>;

bool names(const Chosen& chosen, const std::string& uid) {
  return chosen.size() == 1 && std::ranges::find(chosen[0].uids, uid) != chosen[0].uids.end();
}

TEST(Preemption, ANodeWithoutLinksIsNoCandidate) {
  Cluster cluster;
  cluster.add_node("flat", 8, 1);
  cluster.add_node("linked", 8, 4);
  for (const std::string node : {"flat", "linked"}) {
    for (std::size_t gpu = 0; gpu < 8; ++gpu)
      cluster.add_pod(running_pod(node + std::to_string(gpu), 1, 0, node), {gpu});
  }
  // kube-scheduler counts to four; of the linked node it proposes two of each group.
  const auto chosen = cluster.choose(
      linked_pod(4), {{"flat", {"uid-flat0", "uid-flat1", "uid-flat2", "uid-flat3"}, 0},
                      {"linked", {"uid-linked0", "uid-linked1", "uid-linked6", "uid-linked7"}, 0}});
  ASSERT_EQ(chosen.size(), 1U);
  EXPECT_EQ(chosen[0].node, "linked");
  auto uids = chosen[0].uids;
  std::ranges::sort(uids);
  EXPECT_EQ(uids, (std::vector<std::string>{"uid-linked4", "uid-linked5", "uid-linked6", "uid-linked7"}));
}

TEST(Preemption, AProposalThatIsAsGoodIsKept) {
  Cluster cluster;
  cluster.add_node("n1", 8, 4);
  for (std::size_t gpu = 0; gpu < 8; ++gpu)
    cluster.add_pod(running_pod("p" + std::to_string(gpu), 1, 0), {gpu});
  const Chosen proposed = {{"n1", {"uid-p3", "uid-p2", "uid-p1", "uid-p0"}, 0}};
  EXPECT_EQ(cluster.choose(linked_pod(4), proposed), proposed);
}

TEST(Preemption, FewerPodsLeaveWhereOneIsEnough) {
  Cluster cluster;
  cluster.add_node("n1", 8, 4);
  for (std::size_t gpu = 0; gpu < 4; ++gpu)
    cluster.add_pod(running_pod("p" + std::to_string(gpu), 1, 0), {gpu});
  auto big = running_pod("big", 4, 0);
  big.bound_at = "2026-01-01T00:00:00Z";  // the oldest: kube-scheduler spares it
  for (std::size_t gpu = 0; gpu < 4; ++gpu) {
    auto pod = running_pod("p" + std::to_string(gpu), 1, 0);
    pod.bound_at = "2026-02-01T00:00:00Z";
    cluster.state.set_pod(pod);
  }
  cluster.add_pod(big, {4, 5, 6, 7});
  const auto chosen = cluster.choose(linked_pod(4), {{"n1", {"uid-p0", "uid-p1", "uid-p2", "uid-p3"}, 0}});
  EXPECT_EQ(chosen, (Chosen{{"n1", {"uid-big"}, 0}}));
}

TEST(Preemption, LowPrioritiesLeaveFirst) {
  Cluster cluster;
  cluster.add_node("n1", 4, 2);
  cluster.add_pod(running_pod("a", 2, 100), {0, 1});
  cluster.add_pod(running_pod("b", 1, 10), {2});
  cluster.add_pod(running_pod("c", 1, 10), {3});
  EXPECT_EQ(cluster.choose(linked_pod(2), {{"n1", {"uid-a"}, 0}}), (Chosen{{"n1", {"uid-b", "uid-c"}, 0}}));
  // Equal and higher priorities stay.
  EXPECT_EQ(cluster.choose(linked_pod(4, 100), {{"n1", {"uid-b", "uid-c"}, 0}}), Chosen{});
}

TEST(Preemption, BudgetsComeBeforePriorities) {
  Cluster cluster;
  cluster.add_node("n1", 4, 2);
  auto web = running_pod("web", 2, 0);
  web.labels = "app=web\n";
  cluster.add_pod(web, {0, 1});
  cluster.add_pod(running_pod("job", 2, 500), {2, 3});
  cluster.add_budget("web", "web", 0);
  EXPECT_EQ(cluster.choose(linked_pod(2), {{"n1", {"uid-web"}, 1}}), (Chosen{{"n1", {"uid-job"}, 0}}));
  cluster.add_budget("web", "web", 1);
  EXPECT_EQ(cluster.choose(linked_pod(2), {{"n1", {"uid-job"}, 0}}), (Chosen{{"n1", {"uid-web"}, 0}}));
  // Both leave; the budget of zero is reported.
  cluster.add_budget("web", "web", 0);
  auto chosen = cluster.choose(test_pod("none", 4), {{"n1", {}, 0}});
  auto all = test_pod("all", 4);
  all.priority = 1000;
  chosen = cluster.choose(all, {{"n1", {"uid-job", "uid-web"}, 1}});
  EXPECT_EQ(chosen, (Chosen{{"n1", {"uid-job", "uid-web"}, 1}}));
  // Unknown budgets: no choice of our own.
  EXPECT_EQ(choose_victims(cluster.state, linked_pod(2), Chosen{{"n1", {"uid-job"}, 0}}, nullptr),
            (Chosen{{"n1", {"uid-job"}, 0}}));
}

// It counts those of its victims after all other Pods that could leave.
TEST(Preemption, CountsTheBudgetsOfTheVictimsAlone) {
  Cluster cluster;
  cluster.add_node("n1", 4, 4);
  for (std::size_t gpu = 0; gpu < 4; ++gpu) {
    auto pod = running_pod("p" + std::to_string(gpu), 1, static_cast<int>(gpu));
    pod.labels = "app=web\n";
    cluster.add_pod(pod, {gpu});
  }
  cluster.add_budget("web", "web", 1);
  EXPECT_EQ(cluster.choose(linked_pod(1), {{"n1", {"uid-p0"}, 1}}), (Chosen{{"n1", {"uid-p0"}, 0}}));
}

TEST(Preemption, PodsWithoutDevicesStayInTheProposal) {
  Cluster cluster;
  cluster.add_node("n1", 4, 2);
  cluster.add_pod(running_pod("a", 1, 5), {0});
  cluster.add_pod(running_pod("b", 1, 5), {1});
  cluster.add_pod(running_pod("c", 1, 0), {2});
  cluster.add_pod(running_pod("d", 1, 0), {3});
  // Sorted by priority, as far as it is known: "cpu" stands before a Pod of priority 5.
  EXPECT_EQ(cluster.choose(linked_pod(2), {{"n1", {"uid-cpu", "uid-b", "uid-c"}, 1}}),
            (Chosen{{"n1", {"uid-cpu", "uid-c", "uid-d"}, 1}}));
}

TEST(Preemption, OtherVictimsFreeAsMuchCpuAndMemory) {
  Cluster cluster;
  cluster.add_node("n1", 4, 2);
  auto a = running_pod("a", 1, 0), b = running_pod("b", 1, 0), c = running_pod("c", 2, 0);
  a.needs.cpu_milli = b.needs.cpu_milli = 4000;
  c.needs.cpu_milli = 1000;
  cluster.add_pod(a, {0});
  cluster.add_pod(b, {1});
  cluster.add_pod(c, {2, 3});
  auto high = linked_pod(2);
  const Chosen proposed = {{"n1", {"uid-a", "uid-b"}, 0}};
  EXPECT_EQ(cluster.choose(high, proposed), (Chosen{{"n1", {"uid-c"}, 0}})) << "CPU is no matter";
  high.needs.cpu_milli = 1000;
  EXPECT_EQ(cluster.choose(high, proposed), (Chosen{{"n1", {"uid-c"}, 0}}));
  high.needs.cpu_milli = 1001;
  EXPECT_EQ(cluster.choose(high, proposed), proposed);
}

TEST(Preemption, ProposedVictimsStayWhereOthersMayNotReplaceThem) {
  Cluster cluster;
  cluster.add_node("n1", 4, 2);
  cluster.add_pod(running_pod("a", 1, 0), {0});
  cluster.add_pod(running_pod("b", 1, 0), {1});
  cluster.add_pod(running_pod("c", 2, 0), {2, 3});
  const Chosen wrong = {{"n1", {"uid-a"}, 0}};
  auto high = linked_pod(2);
  EXPECT_EQ(cluster.choose(high, wrong), (Chosen{{"n1", {"uid-c"}, 0}}));
  high.needs.has_other_needs = true;  // may add, not spare
  EXPECT_EQ(cluster.choose(high, wrong)[0].uids.size(), 2U);
  EXPECT_TRUE(names(cluster.choose(high, wrong), "uid-a"));
  high.needs.needs_pods = true;  // neither
  EXPECT_EQ(cluster.choose(high, wrong), Chosen{});
  EXPECT_EQ(cluster.choose(high, {{"n1", {"uid-c"}, 0}}), (Chosen{{"n1", {"uid-c"}, 0}}));
  auto repelling = running_pod("a", 1, 0);
  repelling.needs.repels_pods = true;
  cluster.state.set_pod(repelling);
  EXPECT_TRUE(names(cluster.choose(linked_pod(2), wrong), "uid-a"));
}

TEST(Preemption, WaitsForPodsThatAreBeingDeleted) {
  Cluster cluster;
  cluster.add_node("n1", 4, 2);
  cluster.add_node("n2", 4, 2);
  for (const std::string node : {"n1", "n2"}) {
    for (std::size_t gpu = 0; gpu < 4; ++gpu) {
      auto pod = running_pod(node + std::to_string(gpu), 1, 0, node);
      pod.leaving = node == "n2" && gpu >= 2;
      cluster.add_pod(pod, {gpu});
    }
  }
  const Chosen proposed = {{"n1", {"uid-n10", "uid-n11"}, 0}, {"n2", {"uid-n20", "uid-n21"}, 0}};
  auto chosen = cluster.choose(linked_pod(2), proposed);
  ASSERT_EQ(chosen.size(), 1U);
  std::ranges::sort(chosen[0].uids);
  EXPECT_EQ(chosen, (Chosen{{"n2", {"uid-n22", "uid-n23"}, 0}}));
  // They count as gone, also where they are not enough.
  EXPECT_EQ(cluster.choose(linked_pod(4), proposed), Chosen{});
  auto four = test_pod("four", 4);
  four.priority = 1;
  chosen = cluster.choose(four, {{"n2", {"uid-n20", "uid-n21", "uid-n22", "uid-n23"}, 0}});
  EXPECT_EQ(chosen, (Chosen{{"n2", {"uid-n20", "uid-n21", "uid-n22", "uid-n23"}, 0}}));
}

TEST(Preemption, NobodyElseIsEvictedWhereRoomWasMade) {
  Cluster cluster;
  cluster.add_node("n1", 4, 2);
  cluster.add_node("n2", 4, 2);
  for (const std::string node : {"n1", "n2"}) {
    for (std::size_t gpu = 0; gpu < 4; ++gpu)
      cluster.add_pod(running_pod(node + std::to_string(gpu), 1, 0, node), {gpu});
  }
  auto high = linked_pod(2);
  const Chosen answered = {{"n2", {"uid-n20", "uid-n21"}, 0}};
  const Chosen proposed = {{"n1", {"uid-n10", "uid-n11"}, 0}};
  EXPECT_EQ(cluster.choose(high, proposed, answered), proposed) << "nobody leaves it";
  EXPECT_FALSE(fits_without(cluster.state, high, "n2", {}));
  EXPECT_TRUE(fits_without(cluster.state, high, "n2", std::vector<std::string>{"uid-n20", "uid-n21"}));
  for (const std::string name : {"n20", "n21"}) {
    auto pod = running_pod(name, 1, 0, "n2");
    pod.leaving = true;
    cluster.state.set_pod(pod);
  }
  EXPECT_EQ(cluster.choose(high, proposed, answered), Chosen{});
  cluster.state.remove_pod("default", "n20");
  cluster.state.remove_pod("default", "n21");
  EXPECT_EQ(cluster.choose(high, proposed, answered), Chosen{}) << "kube-scheduler does not know it yet";
  EXPECT_EQ(cluster.choose(high, proposed), proposed);
  high.nominated_node = "n2";
  EXPECT_EQ(cluster.choose(high, proposed), Chosen{});
}

TEST(Preemption, OneNodeIsReturnedTheSameAgain) {
  Cluster cluster;
  for (const std::string node : {"n1", "n2", "n3"}) {
    cluster.add_node(node, 2, 2);
    cluster.add_pod(running_pod(node + "a", 2, node == "n3" ? 5 : 0, node), {0, 1});
  }
  const Chosen n1 = {{"n1", {"uid-n1a"}, 0}}, n2 = {{"n2", {"uid-n2a"}, 0}}, n3 = {{"n3", {"uid-n3a"}, 0}};
  const Chosen all = {n3[0], n2[0], n1[0]};
  EXPECT_EQ(cluster.choose(linked_pod(2), all), n1) << "the lowest priority, then by name";
  EXPECT_EQ(cluster.choose(linked_pod(2), all, n2), n2) << "as answered lately";
  EXPECT_EQ(cluster.choose(linked_pod(2), {n3[0]}, n2), n3);
  // Of a victim without devices the priority is not known: kube-scheduler compares.
  EXPECT_EQ(cluster.choose(linked_pod(2), {{"n1", {"uid-cpu", "uid-n1a"}, 0}, n2[0]}).size(), 2U);
  EXPECT_EQ(cluster.choose(linked_pod(2), {{"unknown", {"uid-x"}, 0}, n2[0]}).size(), 2U);
}

TEST(Preemption, AnswersAreRememberedForAWhile) {
  RecentPreemptions recent;
  const Time now{};
  const Chosen answer = {{"n1", {"a"}, 0}};
  recent.remember("uid", answer, now);
  recent.remember("uid", {}, now);
  EXPECT_EQ(Chosen(recent.find_answer("uid", now).begin(), recent.find_answer("uid", now).end()), answer);
  EXPECT_TRUE(recent.find_answer("other", now).empty());
  EXPECT_EQ(recent.find_answer("uid", now + RecentPreemptions::kRemembered).size(), 1U);
  EXPECT_TRUE(recent.find_answer("uid", now + RecentPreemptions::kRemembered + Duration(1)).empty());
}

TEST(Preemption, ProposalsElsewhereAreKept) {
  Cluster cluster;
  cluster.add_node("n1", 4, 2);
  const Chosen proposed = {{"unknown", {"uid-x"}, 2}};
  EXPECT_EQ(cluster.choose(linked_pod(2), proposed), proposed);
  auto other = test_pod("other", 1);
  other.priority = 9;
  other.containers[0].devices[0].resource = ResourceName("example.com/fpga");
  const Chosen on_ours = {{"n1", {"uid-x"}, 0}};
  EXPECT_EQ(cluster.choose(other, on_ours), on_ours);
}

TEST(Filter, KeepsWhatANominatedPodWaitsFor) {
  Cluster cluster;
  cluster.add_node("n1", 4, 2);
  cluster.add_pod(running_pod("a", 1, 0), {0});
  auto nominated = linked_pod(2, 100);
  nominated.nominated_node = "n1";
  auto leaving = running_pod("b", 1, 0);
  leaving.leaving = true;
  cluster.add_pod(leaving, {2});  // makes room for it: 2 and 3
  cluster.state.set_nominated(nominated);
  cluster.state.mark_pods_synced();
  auto one = test_pod("one", 1);
  const auto check = [&] { return Filter(one).check_node(*cluster.state.find_node("n1")); };
  EXPECT_TRUE(check().fits()) << "GPU 1 has no linked partner: " << check().reason;
  auto two = test_pod("two", 2);
  const auto verdict = Filter(two).check_node(*cluster.state.find_node("n1"));
  EXPECT_EQ(verdict.reject_reason, RejectReason::kNominated);
  EXPECT_EQ(verdict.reason, "2/4 held, 2 free, kept for the nominated Pod default/high");
  EXPECT_TRUE(verdict.resolvable);
  two.priority = 101;
  EXPECT_TRUE(Filter(two).check_node(*cluster.state.find_node("n1")).fits()) << "a higher one";
  two.priority = 0;
  cluster.state.remove_nominated("default", "high");
  EXPECT_TRUE(Filter(two).check_node(*cluster.state.find_node("n1")).fits());
  EXPECT_TRUE(cluster.state.nominated_keys().empty());
}

// A plain reference: every set of Pods of a lower priority, of which the cheapest that lets the Pod fit is
// wanted.
RC_GTEST_PROP(Preemption, IsTheBestSet, ()) {
  Cluster cluster;
  const std::size_t size = *rc::gen::element<std::size_t>(4, 8);
  const std::size_t group = *rc::gen::element<std::size_t>(1, 2, 4);
  cluster.add_node("n1", size, group);
  std::vector<PodRequest> pods;
  for (std::size_t gpu = 0; gpu < size;) {
    const auto take = std::min(size - gpu, *rc::gen::element<std::size_t>(1, 1, 1, 2, 4));
    const auto kind = *rc::gen::inRange(0, 8);
    std::vector<std::size_t> units(take);
    for (auto& unit : units) unit = gpu++;
    if (kind == 0) continue;  // free
    auto pod =
        running_pod("p" + std::to_string(units[0]), static_cast<unsigned>(take), *rc::gen::inRange(0, 4));
    if (kind == 1) pod.labels = "app=web\n";
    cluster.add_pod(pod, units);
    pods.push_back(pod);
  }
  cluster.add_budget("web", "web", *rc::gen::inRange(0, 2));
  auto high = linked_pod(*rc::gen::element(1U, 2U, 4U), *rc::gen::inRange(1, 5));
  if (*rc::gen::arbitrary<bool>()) high.constraints.links.reset();

  using Cost = std::tuple<std::int64_t, std::int64_t, std::int64_t>;
  std::optional<Cost> least;
  const auto cost_of = [&](const std::vector<std::string>& uids) {
    std::int64_t web = 0, highest = -1, sum = 0;
    for (const auto& pod : pods) {
      if (std::ranges::find(uids, pod.uid) == uids.end()) continue;
      web += !pod.labels.empty();
      highest = std::max<std::int64_t>(highest, pod.priority);
      sum += pod.priority + (std::int64_t{1} << 31);
    }
    return Cost(std::max<std::int64_t>(0, web - cluster.budgets["default/web"].allowed), highest, sum);
  };
  const auto fits_without = [&](const std::vector<std::string>& uids) {
    ClusterState state;
    state.set_node("n1", cluster.nodes["n1"]);
    for (const auto& pod : pods) {
      if (std::ranges::find(uids, pod.uid) == uids.end()) state.set_pod(pod);
    }
    state.mark_pods_synced();
    return Filter(high).accepts(*state.find_node("n1"));
  };
  std::vector<std::string> everybody;
  for (std::size_t set = 0; set < std::size_t{1} << pods.size(); ++set) {
    std::vector<std::string> uids;
    bool allowed = true;
    for (std::size_t i = 0; i < pods.size(); ++i) {
      if ((set >> i & 1) == 0) continue;
      uids.push_back(pods[i].uid);
      allowed &= pods[i].priority < high.priority;
    }
    if (!allowed) continue;
    if (uids.size() > everybody.size()) everybody = uids;
    const auto cost = cost_of(uids);
    if ((!least || cost < *least) && fits_without(uids)) least = cost;
  }
  RC_PRE(!everybody.empty());
  const auto chosen = cluster.choose(high, {{"n1", everybody, std::get<0>(cost_of(everybody))}});
  RC_ASSERT(chosen.size() == (least ? 1U : 0U));
  if (!least) return;
  if (*least == cost_of({})) return;  // it fits already: kube-scheduler would not ask
  RC_ASSERT(fits_without(chosen[0].uids));
  RC_ASSERT(cost_of(chosen[0].uids) == *least);
  RC_ASSERT(chosen[0].budget_violations == std::get<0>(*least));
}

}  // namespace
}  // namespace gpulet::scheduler

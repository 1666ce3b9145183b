#include "cli/kubectl/cluster_gpus.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/kubectl/test_cluster.h"

namespace gpulet::cli::kubectl {
namespace {

using nlohmann::json;

std::vector<ClusterGpu> gpus_of(const std::vector<std::pair<std::string, scheduler::GpuNode>>& nodes = {
                                    {"n2", shared_node()}, {"n1", faulty_node()}}) {
  GpuCollection collection;
  for (const auto& [name, node] : nodes) collection.apply_object(gpu_node_object(name, node).dump());
  EXPECT_TRUE(collection.problems().empty());
  return collection.gpus();
}

std::string places(const std::vector<ClusterGpu>& gpus) {
  std::string text;
  for (const auto& gpu : gpus) text += gpu.node + ":" + std::to_string(gpu.index) + " ";
  return text;
}

scheduler::GpuNode mig_node() {
  auto node = scheduler::test_node(1, 1);
  node.resources[0].name = ResourceName("nvidia.com/mig-3g.40gb");
  node.resources[0].units.clear();
  for (const unsigned slice : {0U, 4U}) {
    scheduler::ResourceUnit unit;
    unit.profile = "3g.40gb";
    unit.memory_mib = 40960;
    unit.slice = slice;
    node.resources[0].units.push_back(unit);
  }
  node.resources[0].units[1].unavailable = 1;
  node.resources[0].units[1].unavailable_reason = "XID 48: double bit ECC error";
  scheduler::hold_units(node, "team-a/mig", {0});
  return node;
}

TEST(ClusterGpus, ListsEachGpuWithItsHolders) {
  EXPECT_EQ(gpu_table(gpus_of(), GpuView::kList, {}),
            "NODE  GPU  MODEL           MEMORY    USED  HEALTH       HELD BY\n"
            "n1    0    H100 80GB HBM3  80.0 GiB  1/1   healthy      team-a/train\n"
            "n1    1    H100 80GB HBM3  80.0 GiB  0/1   quarantined  -\n"
            "n2    0    H100 80GB HBM3  80.0 GiB  3/4   healthy      team-a/web, team-b/api\n");
  EXPECT_EQ(gpu_table(gpus_of({{"n1", mig_node()}}), GpuView::kList, {.wide = true, .headers = false}),
            "n1  0  NVIDIA H100 80GB HBM3  80.0 GiB  1/2  healthy  GPU-0  0  3g.40gb 1/2  570.124.06  "
            "team-a/mig\n");
  EXPECT_EQ(gpu_table({}, GpuView::kList, {}), "");
}

TEST(ClusterGpus, ShowsClaims) {
  auto node = scheduler::test_claim_node(2, 2);
  auto& units = node.resources[0].units;
  units[1].profile = "1g.10gb";
  units[1].memory_mib = 9984;
  units.push_back(units[1]);
  for (const auto* const pod : {"team/a", "team/b"}) scheduler::hold_units(node, pod, {0});
  scheduler::hold_units(node, "team/mig", {2});
  const auto gpus = gpus_of({{"n1", node}});
  EXPECT_EQ(gpu_table(gpus, GpuView::kList, {.wide = true, .headers = false}),
            "n1  0  NVIDIA H100 80GB HBM3  80.0 GiB  1/1  healthy  GPU-0  0  -            570.124.06  "
            "team/a, team/b\n"
            "n1  1  NVIDIA H100 80GB HBM3  80.0 GiB  1/2  healthy  GPU-1  1  1g.10gb 1/2  570.124.06  "
            "team/mig\n");
  EXPECT_EQ(json::parse(gpu_document(gpus))["gpus"][1]["heldBy"],
            (json::array(
                {{{"namespace", "team"}, {"pod", "mig"}, {"resource", "gpu.nvidia.com"}, {"shares", 1}}})));
}

TEST(ClusterGpus, CutsNoName) {
  const std::string name(60, 'n');
  const auto table = gpu_table(gpus_of({{name, shared_node()}}), GpuView::kList, {});
  EXPECT_NE(table.find(name + " "), std::string::npos);
  EXPECT_NE(table.find("team-b/api\n"), std::string::npos);
}

TEST(ClusterGpus, HealthShowsWhatNeedsAttention) {
  const auto all = gpus_of({{"n1", faulty_node()}, {"n2", shared_node()}, {"n3", mig_node()}});
  const auto selected = select_gpus(all, {.attention_only = true});
  EXPECT_EQ(gpu_table(selected, GpuView::kHealth, {}),
            "NODE  GPU  MODEL           HEALTH       REASON\n"
            "n1    1    H100 80GB HBM3  quarantined  XID 79: GPU has fallen off the bus\n"
            "n3    0    H100 80GB HBM3  healthy      3g.40gb: XID 48: double bit ECC error\n");
  EXPECT_EQ(service_summary(all), "4 GPUs on 3 nodes, 2 out of service\n");
  EXPECT_EQ(service_summary(gpus_of({{"n2", shared_node()}})), "1 GPU on 1 node, all in service\n");
  EXPECT_EQ(node_names_text(selected), "node/n1\nnode/n3\n");
}

TEST(ClusterGpus, HealthShowsFlaggedAndCordonedGpus) {
  auto node = scheduler::test_node(4, 2);
  node.gpus[0].state = health::DeviceState::kDegraded;
  node.gpus[0].reason = "retired pages";
  node.gpus[1].state = health::DeviceState::kUnmonitored;
  node.gpus[2].state = health::DeviceState::kDraining;
  node.gpus[2].reason = "cordoned: new riser";
  const auto all = gpus_of({{"n1", node}});
  EXPECT_TRUE(all[0].needs_attention());
  EXPECT_TRUE(all[0].in_service);
  EXPECT_FALSE(all[1].needs_attention());
  EXPECT_EQ(all[2].state, "cordoned");
  EXPECT_FALSE(all[2].in_service);
  EXPECT_FALSE(all[3].needs_attention());
}

TEST(ClusterGpus, SelectsByNodeLabelAndNamespace) {
  const auto all = gpus_of();
  const auto select = [&](const GpuSelection& selection) { return places(select_gpus(all, selection)); };
  EXPECT_EQ(select({}), "n1:0 n1:1 n2:0 ");
  EXPECT_EQ(select({.nodes = {"n2", "n9"}}), "n2:0 ");
  EXPECT_EQ(select({.labelled_nodes = std::set<std::string>{"n1"}}), "n1:0 n1:1 ");
  EXPECT_EQ(select({.labelled_nodes = std::set<std::string>{}}), "");
  EXPECT_EQ(select({.name_space = "team-a"}), "n1:0 n2:0 ");
  EXPECT_EQ(select({.nodes = {"n1"}, .name_space = "team-b"}), "");
}

TEST(ClusterGpus, TopSortsByLoad) {
  auto busy = shared_node();
  busy.gpus[0].now = {.busy_percent = 20, .memory_percent = 80};
  const auto all = gpus_of({{"n1", faulty_node()}, {"n2", busy}});
  const GpuSelection every;
  EXPECT_EQ(places(select_gpus(all, every, LoadOrder::kBusy)), "n1:0 n2:0 n1:1 ");
  EXPECT_EQ(places(select_gpus(all, every, LoadOrder::kMemory)), "n2:0 n1:0 n1:1 ");
  EXPECT_EQ(gpu_table({all[0]}, GpuView::kTop, {}),
            "NODE  GPU  MODEL           BUSY  MEMORY%  USED  HEALTH   HELD BY\n"
            "n1    0    H100 80GB HBM3  90%   55%      1/1   healthy  team-a/train\n");
}

TEST(ClusterGpus, DocumentHasEverything) {
  const auto document = json::parse(gpu_document(gpus_of({{"n1", mig_node()}})));
  const auto& gpu = document["gpus"][0];
  EXPECT_EQ(gpu["node"], "n1");
  EXPECT_EQ(gpu["inService"], false);
  EXPECT_EQ(gpu["reasons"], json::array({"3g.40gb: XID 48: double bit ECC error"}));
  EXPECT_EQ(gpu["shares"], (json{{"total", 2}, {"held", 1}, {"unavailable", 1}}));
  EXPECT_EQ(gpu["migDevices"].size(), 2U);
  EXPECT_EQ(
      gpu["heldBy"][0],
      (json{{"namespace", "team-a"}, {"pod", "mig"}, {"resource", "nvidia.com/mig-3g.40gb"}, {"shares", 1}}));
  EXPECT_EQ(json::parse(gpu_document({})), (json{{"gpus", json::array()}}));
}

TEST(ClusterGpus, ControlCharactersOfADriverStayOutOfTables) {
  auto node = faulty_node();
  node.gpus[1].reason = "bad\x1b[2J";
  const auto table = gpu_table(gpus_of({{"n1", node}}), GpuView::kHealth, {});
  EXPECT_EQ(table.find('\x1b'), std::string::npos);
}

TEST(GpuCollection, ReplacesAndRemovesNodes) {
  GpuCollection collection;
  collection.apply_object(gpu_node_object("n1", faulty_node()).dump());
  collection.apply_object(gpu_node_object("n1", shared_node()).dump());
  EXPECT_EQ(places(collection.gpus()), "n1:0 ");
  auto broken = gpu_node_object("n1", shared_node());
  broken["spec"]["gpus"] = 3;
  collection.apply_object(broken.dump());
  EXPECT_EQ(collection.gpus().size(), 0U) << "what it was may be wrong by now";
  ASSERT_TRUE(collection.problems().contains("n1"));
  EXPECT_EQ(collection.node_names(), std::vector<std::string>{"n1"});
  collection.apply_object(gpu_node_object("n1", shared_node()).dump());
  EXPECT_TRUE(collection.problems().empty());
  collection.remove_node("n1");
  EXPECT_TRUE(collection.gpus().empty());
}

TEST(GpuTableWatch, PrintsChangedRowsAlone) {
  GpuTableWatch watch(GpuView::kHealth, {});
  const auto update = [&](const std::vector<ClusterGpu>& all) {
    return watch.update_rows(all, select_gpus(all, {.attention_only = true}));
  };
  EXPECT_EQ(update(gpus_of({{"n1", scheduler::test_node(2, 2)}})), "");
  EXPECT_EQ(update(gpus_of({{"n1", faulty_node()}})),
            "NODE  GPU  MODEL           HEALTH       REASON\n"
            "n1    1    H100 80GB HBM3  quarantined  XID 79: GPU has fallen off the bus\n");
  auto loaded = faulty_node();
  loaded.gpus[1].now.busy_percent = 5;
  EXPECT_EQ(update(gpus_of({{"n1", loaded}})), "") << "no column shows it";
  EXPECT_EQ(update(gpus_of({{"n1", scheduler::test_node(2, 2)}})), "n1  1  H100 80GB HBM3  healthy  -\n");
  EXPECT_EQ(update(gpus_of({{"n1", scheduler::test_node(2, 2)}})), "");
  EXPECT_NE(update(gpus_of({{"n1", faulty_node()}})), "");
  EXPECT_EQ(update({}), "n1  1  H100 80GB HBM3  removed  XID 79: GPU has fallen off the bus\n");
}

}  // namespace
}  // namespace gpulet::cli::kubectl

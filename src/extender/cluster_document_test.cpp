#include "extender/cluster_document.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "http/message.h"
#include "scheduler/model/test_nodes.h"

namespace gpulet::extender {
namespace {

using nlohmann::json;

// A cluster state that believes GpuNodes, with the document of it.
struct ShownCluster {
  std::string text(const std::string& node_page = "http://{ip}:{port}/") {
    ClusterDocument document({.cluster = cluster, .facts = facts, .node_page = node_page});
    std::string text;
    pieces = 0;
    for (auto piece = document.next_piece(); piece; piece = document.next_piece()) {
      text += *piece;
      longest = std::max(longest, piece->size());
      ++pieces;
    }
    return text;
  }
  json document() { return json::parse(text()); }

  scheduler::ClusterState cluster;
  PageFacts facts;
  std::size_t pieces = 0, longest = 0;
};

void add_waiting(PageFacts& facts, const std::string& name, unsigned gpus, const char* links = nullptr) {
  auto pod = scheduler::test_pod(name, gpus);
  if (links != nullptr) scheduler::apply_annotation("gpulet.io/gpu-links", links, pod);
  facts.set_pending(std::move(pod));
}

TEST(ClusterDocument, ShowsNodesGpusAndPods) {
  ShownCluster shown;
  auto node = scheduler::test_node(8, 4);
  scheduler::hold_units(node, "team/train", {0, 1});
  scheduler::quarantine_gpu(node, 6, "XID 79: GPU has fallen off the bus");
  node.gpus[7].state = health::DeviceState::kDraining;
  node.gpus[7].reason = "cordoned: new riser";
  node.gpus[0].now = {.busy_percent = 90, .memory_percent = 55};
  shown.cluster.set_node("b", std::move(node));
  shown.cluster.set_node("a", scheduler::test_node(2, 2));
  shown.facts.set_cordoned("b");
  const auto document = shown.document();
  ASSERT_EQ(document["nodes"].size(), 2U);
  EXPECT_EQ(document["nodes"][0]["name"], "a");
  const auto& b = document["nodes"][1];
  EXPECT_EQ(b["agent"], "unknown");
  EXPECT_EQ(b["cordoned"], true);
  EXPECT_FALSE(document["nodes"][0].contains("cordoned"));
  const auto quarantined = document["states"][b["gpus"][6][1].get<std::size_t>()];
  EXPECT_EQ(quarantined, "quarantined");
  EXPECT_EQ(document["states"][b["gpus"][7][1].get<std::size_t>()], "cordoned");
  EXPECT_EQ(b["gpus"][0], (json{0, 0, 90, 55, 1000, 1, 1, 0}));
  EXPECT_EQ(b["gpus"][2], (json{0, 0, 0, 0, 0, 0, 1, 0}));
  EXPECT_EQ(b["gpus"][6][7], 1) << "not offered";
  EXPECT_EQ(b["faults"], (json{{6, "XID 79: GPU has fallen off the bus"}, {7, "cordoned: new riser"}}));
  EXPECT_EQ(b["free"], 5000) << "the cordoned GPU's units are still offered in this object";
  EXPECT_EQ(document["pods"], (json{{0, "train", 1, 0, {{0, 2}}, {0, 1}}}));
  EXPECT_EQ(document["namespaces"], json{"team"});
  EXPECT_EQ(document["resources"], json{"nvidia.com/gpu"});
  EXPECT_EQ(document["models"], (json::array({json{"NVIDIA H100 80GB HBM3", 81920}})));
  EXPECT_EQ(document["leftOut"], (json{{"nodes", 0}, {"pods", 0}, {"pending", 0}}));
}

TEST(ClusterDocument, ShowsClaims) {
  ShownCluster shown;
  auto node = scheduler::test_claim_node(2, 2);
  for (const auto* const pod : {"default/a", "default/b"}) scheduler::hold_units(node, pod, {1});
  shown.cluster.set_node("n", std::move(node));
  shown.cluster.set_pod(scheduler::test_claim_pod("a", "n"));
  shown.cluster.set_pod(scheduler::test_claim_pod("b", "n"));
  shown.cluster.mark_pods_synced();
  add_waiting(shown.facts, "waiting", 1);
  const auto document = shown.document();
  const auto& gpus = document["nodes"][0]["gpus"];
  EXPECT_EQ(gpus[0], (json{0, 0, 0, 0, 0, 0, 1, 0}));
  EXPECT_EQ(gpus[1], (json{0, 0, 0, 0, 1000, 1, 1, 0})) << "two Pods share the claim";
  EXPECT_EQ(document["nodes"][0]["free"], 1000);
  EXPECT_EQ(document["pods"], (json::array({{0, "a", 0, 0, {{0, 1}}, {1}}, {0, "b", 0, 0, {{0, 1}}, {1}}})));
  EXPECT_EQ(document["resources"], json{"gpu.nvidia.com"});
  EXPECT_EQ(document["pending"][0]["fits"], 0) << "the free GPU is of no extended resource";
  EXPECT_EQ(document["pending"][0]["rejected"], 0);
}

TEST(ClusterDocument, ShowsSharesAndMigDevices) {
  ShownCluster shown;
  auto node = scheduler::test_node(2, 2, 4);
  scheduler::hold_units(node, "team/a", {0}, 3);
  node.resources.push_back({.name = ResourceName("nvidia.com/mig-3g.40gb"), .units = {}});
  for (unsigned slice : {0U, 4U}) {
    scheduler::ResourceUnit unit;
    unit.gpu = 1;
    unit.profile = "3g.40gb";
    unit.memory_mib = 40960;
    unit.slice = slice;
    node.resources[1].units.push_back(unit);
  }
  node.resources[0].units.pop_back();
  node.resources[1].units[1].unavailable = 1;
  node.resources[1].units[1].unavailable_reason = "XID 48: double bit ECC error";
  node.allocations.push_back({.pod = "team/mig", .parts = {{1, 0, 1}}});
  shown.cluster.set_node("n", std::move(node));
  const auto document = shown.document();
  const auto& gpus = document["nodes"][0]["gpus"];
  EXPECT_EQ(gpus[0], (json{0, 0, 0, 0, 750, 3, 4, 0}));
  EXPECT_EQ(gpus[1], (json{0, 0, 0, 0, 500, 1, 2, 1, {{"3g.40gb", 1, 1, 0}, {"3g.40gb", 0, 1, 1}}}));
  EXPECT_EQ(document["nodes"][0]["faults"],
            (json::array({json{1, "3g.40gb: XID 48: double bit ECC error"}})));
}

TEST(ClusterDocument, SaysWhetherAgentsReportAndWhereTheirPagesAre) {
  ShownCluster shown;
  for (const char* name : {"n1", "n2", "n3"}) shown.cluster.set_node(name, scheduler::test_node(1, 1));
  shown.facts.set_agent("gpulet/a", {.node = "n1", .address = "10.0.0.1", .port = 9400, .ready = true});
  shown.facts.set_agent("gpulet/old", {.node = "n1", .address = "10.0.0.9", .port = 9400, .ready = false});
  shown.facts.set_agent("gpulet/b", {.node = "n2", .address = "fd00::2", .port = 9500, .ready = false});
  auto nodes = shown.document()["nodes"];
  EXPECT_EQ(nodes[0]["agent"], "ready");
  EXPECT_EQ(nodes[0]["page"], "http://10.0.0.1:9400/");
  EXPECT_EQ(nodes[1]["agent"], "silent");
  EXPECT_EQ(nodes[1]["page"], "http://[fd00::2]:9500/");
  EXPECT_EQ(nodes[2]["agent"], "silent") << "it has no agent, others have";
  EXPECT_FALSE(nodes[2].contains("page"));
  shown.facts.remove_agent("gpulet/a");
  EXPECT_EQ(shown.document()["nodes"][0]["agent"], "silent");
  EXPECT_EQ(node_page_address("https://gpus.example/{node}/", "n3", nullptr), "https://gpus.example/n3/");
  EXPECT_EQ(node_page_address("", "n3", nullptr), "");
}

TEST(ClusterDocument, GivesTheReasonsOfWaitingPods) {
  ShownCluster shown;
  for (const char* name : {"n1", "n2"}) {
    auto node = scheduler::test_node(8, 4);
    scheduler::hold_units(node, std::string("team/") + name, {0, 4, 1, 5});
    shown.cluster.set_node(name, std::move(node));
  }
  add_waiting(shown.facts, "fits", 4);
  add_waiting(shown.facts, "linked", 4, "NV");
  add_waiting(shown.facts, "linked-too", 4, "NV");
  auto elsewhere = scheduler::test_pod("elsewhere", 1);
  elsewhere.containers[0].devices[0].resource = ResourceName("nvidia.com/mig-1g.10gb");
  shown.facts.set_pending(elsewhere);
  auto other = scheduler::test_pod("fpga", 1);
  other.containers[0].devices[0].resource = ResourceName("example.com/fpga");
  shown.facts.set_pending(other);
  const auto pending = shown.document()["pending"];
  ASSERT_EQ(pending.size(), 4U) << pending;
  EXPECT_EQ(pending[0]["name"], "elsewhere");
  EXPECT_EQ(pending[0]["fits"], 0);
  EXPECT_EQ(pending[0]["rejected"], 0) << "no node publishes it";
  EXPECT_EQ(pending[1]["fits"], 2);
  EXPECT_TRUE(pending[1]["reasons"].empty());
  EXPECT_EQ(pending[2]["asks"], "4 nvidia.com/gpu, linked by NV");
  EXPECT_EQ(pending[2]["rejected"], 2);
  EXPECT_EQ(pending[2]["reasons"], (json::array({json{"4/8 held, 4 free but no 4 linked by NV", 2, "n1"}})));
  EXPECT_EQ(pending[3]["reasons"], pending[2]["reasons"]);
}

TEST(ClusterDocument, PodsThatDifferInMemoryAreCheckedApart) {
  ShownCluster shown;
  shown.cluster.set_node("n1", scheduler::test_node(1, 1));
  auto pod = scheduler::test_pod("a", 1);
  shown.facts.set_pending(pod);
  pod.name = "b";
  pod.containers[0].memory = {.mib = 100'000};
  shown.facts.set_pending(pod);
  pod.name = "c";
  pod.containers[0].memory = {};
  pod.request_error = "annotation gpu-fraction is \"2\": expected less";
  shown.facts.set_pending(pod);
  const auto pending = shown.document()["pending"];
  ASSERT_EQ(pending.size(), 3U);
  EXPECT_EQ(pending[0]["fits"], 1);
  EXPECT_EQ(pending[1]["rejected"], 1);
  EXPECT_EQ(pending[2]["reasons"], (json::array({json{pod.request_error, 1, "n1"}})));
}

TEST(ClusterDocument, ChecksAtMostSoManyDifferentRequests) {
  ShownCluster shown;
  shown.cluster.set_node("n1", scheduler::test_node(1, 1));
  for (unsigned i = 0; i <= kMaxCheckedRequests; ++i)
    add_waiting(shown.facts, "p" + std::to_string(1000 + i), i + 2);
  const auto pending = shown.document()["pending"];
  ASSERT_EQ(pending.size(), kMaxCheckedRequests + 1);
  EXPECT_EQ(pending[kMaxCheckedRequests - 1]["rejected"], 1);
  EXPECT_TRUE(pending[kMaxCheckedRequests]["fits"].is_null());
}

TEST(ClusterDocument, SurvivesNodesThatLeaveMeanwhile) {
  ShownCluster shown;
  for (int i = 0; i < 100; ++i)
    shown.cluster.set_node("n" + std::to_string(100 + i), scheduler::test_node(1, 1));
  add_waiting(shown.facts, "waits", 2);
  ClusterDocument document({.cluster = shown.cluster, .facts = shown.facts, .node_page = ""});
  std::string text = document.next_piece().value_or("");
  for (int i = 0; i < 100; i += 2) shown.cluster.remove_node("n" + std::to_string(100 + i));
  shown.facts.remove_pending("default/waits");
  for (auto piece = document.next_piece(); piece; piece = document.next_piece()) text += *piece;
  const auto read = json::parse(text);
  EXPECT_EQ(read["nodes"].size(), kNodesPerPiece + (100 - kNodesPerPiece) / 2);
  EXPECT_TRUE(read["pending"].empty());
}

// The size that the page's limits are made for; cluster_document_bench.cpp has the time.
TEST(ClusterDocument, OfFiveThousandNodesIsBounded) {
  ShownCluster shown;
  for (int i = 0; i < 5'000; ++i) {
    const auto number = std::to_string(i);
    auto node = scheduler::test_node(8, 4);
    for (std::size_t gpu = 0; gpu < 8; ++gpu) {
      scheduler::hold_units(
          node, "team-" + std::to_string(i % 40) + "/train-" + number + "-" + std::to_string(gpu), {gpu});
      node.gpus[gpu].now = {.busy_percent = 100, .memory_percent = 100};
    }
    shown.cluster.set_node("gpu-node-" + number + ".cluster.example", std::move(node));
    shown.facts.set_agent(
        "gpulet/agent-" + number,
        {.node = "gpu-node-" + number + ".cluster.example", .address = "10.100.200.100", .ready = true});
  }
  for (int i = 0; i < 200; ++i) add_waiting(shown.facts, "waits-" + std::to_string(i), 1U + i % 8);
  const auto text = shown.text();
  const auto document = json::parse(text);
  EXPECT_EQ(document["nodes"].size(), 5'000U);
  EXPECT_EQ(document["pods"].size(), 40'000U);
  EXPECT_EQ(document["leftOut"], (json{{"nodes", 0}, {"pods", 0}, {"pending", 0}}));
  EXPECT_LE(text.size(), 5u << 20);
  EXPECT_LE(shown.longest, 128u << 10);
  EXPECT_GE(shown.pieces, 5'000 / kNodesPerPiece);
  http::GzipWriter writer;
  for (std::size_t at = 0; at < text.size(); at += 10'000)
    writer.append_piece(std::string_view(text).substr(at, 10'000));
  const auto packed = writer.finish_text();
  EXPECT_LE(packed.size(), 1u << 20);
  EXPECT_EQ(http::gunzip(packed, 8u << 20), text);
}

}  // namespace
}  // namespace gpulet::extender

#include "sim/kubelet/numa.h"

#include <gtest/gtest.h>

#include "sim/kubelet/checkpoint.h"

namespace gpulet::sim {
namespace {

// `counts[n]` devices on node n, of which `free[n]` are available.
NumaDemand demand(const std::vector<int>& counts, const std::vector<int>& free, std::size_t request) {
  NumaDemand out;
  out.request = request;
  for (std::size_t node = 0; node < counts.size(); ++node) {
    for (int i = 0; i < counts[node]; ++i) out.all.push_back({static_cast<int>(node)});
    for (int i = 0; i < free[node]; ++i) out.available.push_back({static_cast<int>(node)});
  }
  return out;
}

TEST(Numa, NonePrefersNothing) {
  const auto decision = decide(TopologyPolicy::kNone, {demand({4, 4}, {4, 4}, 2)});
  EXPECT_TRUE(decision.admit);
  EXPECT_FALSE(decision.affinity);
}

TEST(Numa, OneNodeWhereItSuffices) {
  using enum TopologyPolicy;
  for (const auto policy : {kBestEffort, kRestricted, kSingleNumaNode}) {
    const auto decision = decide(policy, {demand({4, 4}, {1, 3}, 2)});
    EXPECT_TRUE(decision.admit);
    EXPECT_EQ(decision.affinity, std::set<int>{1});
  }
}

TEST(Numa, SplitIsRefusedOnlyWhereOneNodeCouldHaveHeldIt) {
  const auto split = demand({4, 4}, {1, 1}, 2);
  EXPECT_TRUE(decide(TopologyPolicy::kBestEffort, {split}).admit);
  EXPECT_FALSE(decide(TopologyPolicy::kRestricted, {split}).admit);
  EXPECT_FALSE(decide(TopologyPolicy::kSingleNumaNode, {split}).admit);
  const auto large = demand({4, 4}, {4, 4}, 6);
  EXPECT_TRUE(decide(TopologyPolicy::kRestricted, {large}).admit);
  EXPECT_FALSE(decide(TopologyPolicy::kSingleNumaNode, {large}).admit);
}

TEST(Numa, TwoResourcesMeetOnOneNode) {
  const auto decision = decide(TopologyPolicy::kRestricted, {demand({4, 4}, {4, 4}, 2), demand({1, 1}, {0, 1}, 1)});
  EXPECT_TRUE(decision.admit);
  EXPECT_EQ(decision.affinity, std::set<int>{1});
  EXPECT_FALSE(decide(TopologyPolicy::kRestricted, {demand({4, 4}, {4, 0}, 2), demand({1, 1}, {0, 1}, 1)}).admit);
}

TEST(Numa, DevicesOfUnknownNodesWantNothing) {
  NumaDemand unknown;
  unknown.request = 1;
  unknown.all = unknown.available = {{}, {}};
  EXPECT_TRUE(decide(TopologyPolicy::kSingleNumaNode, {unknown}).admit);
  EXPECT_EQ(decide(TopologyPolicy::kSingleNumaNode, {unknown, demand({2, 2}, {2, 2}, 1)}).affinity, std::set<int>{0});
}

TEST(Checkpoint, ReadsWhatItWrote) {
  Checkpoint checkpoint;
  std::string response;
  for (int byte = 0; byte < 256; ++byte) response += static_cast<char>(byte);
  for (std::size_t size : {0u, 1u, 2u, 3u, 256u}) {
    checkpoint.entries.push_back({"uid", "c" + std::to_string(size), "nvidia.com/gpu", {{-1, {"a"}}, {0, {"b", "c"}}},
                                  response.substr(0, size)});
  }
  checkpoint.registered["nvidia.com/gpu"] = {"a", "b", "c"};
  const auto text = write_checkpoint(checkpoint);
  const auto back = read_checkpoint(text);
  ASSERT_TRUE(back) << back.error().text();
  EXPECT_EQ(*back, checkpoint);
  for (const char* key : {"\"Data\"", "\"PodDeviceEntries\"", "\"PodUID\"", "\"ContainerName\"", "\"ResourceName\"",
                          "\"DeviceIDs\"", "\"AllocResp\"", "\"RegisteredDevices\"", "\"Checksum\""}) {
    EXPECT_NE(text.find(key), std::string::npos) << key;
  }
}

TEST(Checkpoint, RefusesWhatWasTamperedWith) {
  auto text = write_checkpoint({{{"uid", "c", "nvidia.com/gpu", {{0, {"a"}}}, "x"}}, {}});
  text.replace(text.find("uid"), 3, "UID");
  EXPECT_FALSE(read_checkpoint(text));
  EXPECT_FALSE(read_checkpoint(""));
  EXPECT_FALSE(read_checkpoint("[]"));
  EXPECT_FALSE(read_checkpoint("{\"Data\":{},\"Checksum\":\"x\"}"));
}

}  // namespace
}  // namespace gpulet::sim

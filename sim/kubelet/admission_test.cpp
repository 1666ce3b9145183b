#include "sim/kubelet/admission.h"

#include <gtest/gtest.h>

namespace gpulet::sim {
namespace {

// `counts[n]` devices on node n, of which `free[n]` are available.
NumaDemand numa_demand(const std::vector<int>& counts, const std::vector<int>& free, std::size_t request) {
  NumaDemand out;
  out.request = request;
  for (std::size_t node = 0; node < counts.size(); ++node) {
    for (int i = 0; i < counts[node]; ++i) out.all.push_back({static_cast<int>(node)});
    for (int i = 0; i < free[node]; ++i) out.available.push_back({static_cast<int>(node)});
  }
  return out;
}

TEST(Numa, NonePrefersNothing) {
  const auto decision = decide_numa_affinity(TopologyPolicy::kNone, {numa_demand({4, 4}, {4, 4}, 2)});
  EXPECT_TRUE(decision.admit);
  EXPECT_FALSE(decision.affinity);
}

TEST(Numa, OneNodeWhereItSuffices) {
  using enum TopologyPolicy;
  for (const auto policy : {kBestEffort, kRestricted, kSingleNumaNode}) {
    const auto decision = decide_numa_affinity(policy, {numa_demand({4, 4}, {1, 3}, 2)});
    EXPECT_TRUE(decision.admit);
    EXPECT_EQ(decision.affinity, std::set<int>{1});
  }
}

TEST(Numa, SplitIsRefusedOnlyIfOneNodeWouldSuffice) {
  const auto split = numa_demand({4, 4}, {1, 1}, 2);
  EXPECT_TRUE(decide_numa_affinity(TopologyPolicy::kBestEffort, {split}).admit);
  EXPECT_FALSE(decide_numa_affinity(TopologyPolicy::kRestricted, {split}).admit);
  EXPECT_FALSE(decide_numa_affinity(TopologyPolicy::kSingleNumaNode, {split}).admit);
  const auto large = numa_demand({4, 4}, {4, 4}, 6);
  EXPECT_TRUE(decide_numa_affinity(TopologyPolicy::kRestricted, {large}).admit);
  EXPECT_FALSE(decide_numa_affinity(TopologyPolicy::kSingleNumaNode, {large}).admit);
}

TEST(Numa, TwoResourcesMeetOnOneNode) {
  const auto decision = decide_numa_affinity(
      TopologyPolicy::kRestricted, {numa_demand({4, 4}, {4, 4}, 2), numa_demand({1, 1}, {0, 1}, 1)});
  EXPECT_TRUE(decision.admit);
  EXPECT_EQ(decision.affinity, std::set<int>{1});
  EXPECT_FALSE(decide_numa_affinity(TopologyPolicy::kRestricted,
                                    {numa_demand({4, 4}, {4, 0}, 2), numa_demand({1, 1}, {0, 1}, 1)})
                   .admit);
}

TEST(Numa, DevicesOfUnknownNodesHaveNoPreference) {
  NumaDemand unknown;
  unknown.request = 1;
  unknown.all = unknown.available = {{}, {}};
  EXPECT_TRUE(decide_numa_affinity(TopologyPolicy::kSingleNumaNode, {unknown}).admit);
  EXPECT_EQ(decide_numa_affinity(TopologyPolicy::kSingleNumaNode, {unknown, numa_demand({2, 2}, {2, 2}, 1)})
                .affinity,
            std::set<int>{0});
}

TEST(Checkpoint, ReadsWhatItWrote) {
  Checkpoint checkpoint;
  std::string response;
  for (int byte = 0; byte < 256; ++byte) response += static_cast<char>(byte);
  for (std::size_t size : {0u, 1u, 2u, 3u, 256u}) {
    checkpoint.entries.push_back({"uid",
                                  "c" + std::to_string(size),
                                  "nvidia.com/gpu",
                                  {{-1, {"a"}}, {0, {"b", "c"}}},
                                  response.substr(0, size)});
  }
  checkpoint.registered["nvidia.com/gpu"] = {"a", "b", "c"};
  const auto text = write_checkpoint(checkpoint);
  const auto back = read_checkpoint(text);
  ASSERT_TRUE(back) << back.error().full_message();
  EXPECT_EQ(*back, checkpoint);
  for (const char* key :
       {"\"Data\"", "\"PodDeviceEntries\"", "\"PodUID\"", "\"ContainerName\"", "\"ResourceName\"",
        "\"DeviceIDs\"", "\"AllocResp\"", "\"RegisteredDevices\"", "\"Checksum\""}) {
    EXPECT_NE(text.find(key), std::string::npos) << key;
  }
}

TEST(Checkpoint, RejectsAModifiedCheckpoint) {
  auto text = write_checkpoint({{{"uid", "c", "nvidia.com/gpu", {{0, {"a"}}}, "x"}}, {}});
  text.replace(text.find("uid"), 3, "UID");
  EXPECT_FALSE(read_checkpoint(text));
  EXPECT_FALSE(read_checkpoint(""));
  EXPECT_FALSE(read_checkpoint("[]"));
  EXPECT_FALSE(read_checkpoint("{\"Data\":{},\"Checksum\":\"x\"}"));
}

}  // namespace
}  // namespace gpulet::sim

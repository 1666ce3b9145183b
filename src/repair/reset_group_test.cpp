#include "repair/reset_group.h"

#include <gtest/gtest.h>

namespace gpulet::repair {
namespace {

using inventory::NvLinkRemote;
using inventory::PciAddress;
using inventory::Snapshot;

PciAddress address_of(unsigned gpu) { return {0, gpu + 1, 0, 0}; }
DeviceUuid uuid_of(unsigned gpu) { return DeviceUuid("GPU-" + std::to_string(gpu)); }

Snapshot node_of(unsigned count, unsigned major) {
  Snapshot node;
  for (unsigned i = 0; i < count; ++i) {
    inventory::Gpu gpu;
    gpu.index = i;
    gpu.uuid = uuid_of(i);
    gpu.pci = address_of(i);
    gpu.compute_major = major;
    node.gpus.push_back(gpu);
  }
  return node;
}

void link_gpus(Snapshot& node, unsigned a, unsigned b) {
  for (const auto& [from, to] : {std::pair(a, b), {b, a}}) {
    auto& links = node.gpus[from].nvlinks;
    links.push_back({static_cast<unsigned>(links.size()), NvLinkRemote::kGpu, address_of(to)});
  }
}

void link_to_switch(Snapshot& node) {
  for (auto& gpu : node.gpus) gpu.nvlinks.push_back({0, NvLinkRemote::kSwitch, {0, 0xF0, 0, 0}});
}

std::string group_of(const Snapshot& node, unsigned gpu, bool with_partners = false,
                     const std::map<DeviceUuid, unsigned>& known = {}) {
  std::string text;
  for (const auto& one : find_reset_group(node, uuid_of(gpu), with_partners, known).gpus)
    text += (text.empty() ? "" : " ") + one.str().substr(4);
  return text;
}

TEST(ResetGroup, FollowsNvidiaSmisRule) {
  // Two pairs, joined only within each.
  const auto pairs = [](unsigned major) {
    auto node = node_of(5, major);
    link_gpus(node, 0, 1);
    link_gpus(node, 2, 3);
    return node;
  };
  const auto on_switch = [](unsigned major) {
    auto node = node_of(4, major);
    link_to_switch(node);
    return node;
  };
  struct Row {
    Snapshot node;
    bool with_partners;
    const char *group, *why;
  };
  const Row rows[] = {
      {node_of(4, 7), false, "0", "no links"},
      {node_of(4, 7), true, "0", "no links"},
      {pairs(7), false, "0 1", "before Ampere"},
      {pairs(0), false, "0 1", "an unknown architecture"},
      {pairs(8), false, "0", "Ampere, direct"},
      {pairs(9), false, "0", "Hopper, direct"},
      {pairs(9), true, "0 1", "a failed link"},
      {on_switch(7), false, "0 1 2 3", "before Ampere, NVSwitch"},
      {on_switch(8), false, "0 1 2 3", "Ampere, NVSwitch: the fabric manager is not seen"},
      {on_switch(9), false, "0", "Hopper, NVSwitch"},
      {on_switch(9), true, "0 1 2 3", "a failed NVSwitch"},
      {on_switch(10), false, "0", "Blackwell"},
  };
  for (const auto& row : rows) EXPECT_EQ(group_of(row.node, 0, row.with_partners), row.group) << row.why;
}

TEST(ResetGroup, ReachesThroughOtherGpus) {
  auto node = node_of(4, 7);
  link_gpus(node, 0, 1);
  link_gpus(node, 1, 2);
  EXPECT_EQ(group_of(node, 0), "0 1 2");
  EXPECT_EQ(group_of(node, 3), "3");
  const auto group = find_reset_group(node, uuid_of(2), false, {});
  EXPECT_NE(group.reason.find("before Ampere"), std::string::npos) << group.reason;
  // One end reports the link: enough.
  node.gpus[1].nvlinks.clear();
  EXPECT_EQ(group_of(node, 0), "0 1 2");
}

// Where links lead is not known while they are down: every GPU that may have one is in the group.
TEST(ResetGroup, IsEveryGpuWithLinksWhenUnsure) {
  auto node = node_of(5, 7);
  link_gpus(node, 0, 1);
  link_gpus(node, 2, 3);
  const std::map<DeviceUuid, unsigned> known = {
      {uuid_of(0), 2}, {uuid_of(1), 1}, {uuid_of(2), 1}, {uuid_of(3), 1}};
  EXPECT_EQ(group_of(node, 0, false, known), "0 1 2 3");
  EXPECT_EQ(group_of(node, 4, false, known), "4") << "it never had a link";
  node.gpus[0].nvlinks.clear();
  node.gpus[1].nvlinks.clear();
  EXPECT_EQ(group_of(node, 0, false, known), "0 1 2 3") << "all its links are down";
  auto silent = node_of(3, 7);
  link_gpus(silent, 0, 1);
  silent.gpus[2].unreadable = Error(Code::kDeadlineExceeded, "no answer");
  EXPECT_EQ(group_of(silent, 0), "0 1 2");
}

TEST(ResetGroup, OfAnUnknownGpuIsEmpty) {
  EXPECT_TRUE(find_reset_group(node_of(1, 9), uuid_of(7), false, {}).gpus.empty());
}

}  // namespace
}  // namespace gpulet::repair

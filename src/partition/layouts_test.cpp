// Every layout of mig-parted's newest default config, alone on a node and together with others: NVIDIA's
// names and counts. Source: mig-parted v0.15.0, deployments/systemd/config-default.yaml; k8s-device-plugin
// v0.20.0, internal/rm.
#include <gtest/gtest.h>

#include <algorithm>

#include "partition/resources.h"
#include "partition/test_node.h"

namespace gpulet::partition {
namespace {

using namespace test;
using config::MigStrategy;

struct Layout {
  const char* profile;
  unsigned count;
};
struct Board {
  const char* model;
  std::vector<Layout> uniform;        // all-<profile>
  std::vector<std::string> balanced;  // all-balanced
};

const std::vector<Board>& boards() {
  static const std::vector<Board> all = {
      {"NVIDIA A30",
       {{"1g.6gb", 4}, {"1g.6gb+me", 1}, {"2g.12gb", 2}, {"2g.12gb+me", 1}, {"4g.24gb", 1}},
       {"1g.6gb", "1g.6gb", "2g.12gb"}},
      {"NVIDIA A100-SXM4-40GB",
       {{"1g.5gb", 7},
        {"1g.5gb+me", 1},
        {"1g.10gb", 4},
        {"2g.10gb", 3},
        {"3g.20gb", 2},
        {"4g.20gb", 1},
        {"7g.40gb", 1}},
       {"1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"}},
      {"NVIDIA H100 80GB HBM3",
       {{"1g.10gb", 7},
        {"1g.10gb+me", 1},
        {"1g.20gb", 4},
        {"2g.20gb", 3},
        {"3g.40gb", 2},
        {"4g.40gb", 1},
        {"7g.80gb", 1}},
       {"1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"}},
      {"NVIDIA H100 NVL",
       {{"1g.12gb", 7},
        {"1g.12gb+me", 1},
        {"1g.24gb", 4},
        {"2g.24gb", 3},
        {"3g.47gb", 2},
        {"4g.47gb", 1},
        {"7g.94gb", 1}},
       {"1g.12gb", "1g.12gb", "2g.24gb", "3g.47gb"}},
      {"NVIDIA GH200 480GB",
       {{"1g.12gb", 7}, {"1g.24gb", 4}, {"2g.24gb", 3}, {"3g.48gb", 2}, {"4g.48gb", 1}, {"7g.96gb", 1}},
       {"1g.12gb", "1g.12gb", "2g.24gb", "3g.48gb"}},
      {"NVIDIA H200",
       {{"1g.18gb", 7},
        {"1g.18gb+me", 1},
        {"1g.35gb", 4},
        {"2g.35gb", 3},
        {"3g.71gb", 2},
        {"4g.71gb", 1},
        {"7g.141gb", 1}},
       {"1g.18gb", "1g.18gb", "2g.35gb", "3g.71gb"}},
      {"NVIDIA B200",
       {{"1g.23gb", 7},
        {"1g.23gb+me", 1},
        {"1g.45gb", 4},
        {"2g.45gb", 3},
        {"3g.90gb", 2},
        {"4g.90gb", 1},
        {"7g.180gb", 1}},
       {"1g.23gb", "1g.23gb", "2g.45gb", "3g.90gb"}},
      {"NVIDIA GB200",
       {{"1g.23gb", 7},
        {"1g.47gb", 4},
        {"2g.47gb", 3},
        {"3g.93gb", 2},
        {"4g.93gb", 1},
        {"7g.186gb", 1},
        {"3g.95gb", 2},
        {"7g.189gb", 1}},
       {"1g.23gb", "1g.23gb", "2g.47gb", "3g.93gb"}},
      {"NVIDIA B300 SXM6 AC",
       {{"1g.34gb", 7}, {"1g.67gb", 4}, {"2g.67gb", 3}, {"3g.135gb", 2}, {"4g.135gb", 1}, {"7g.269gb", 1}},
       {"1g.34gb", "1g.34gb", "2g.67gb", "3g.135gb"}},
      {"NVIDIA GB300",
       {{"1g.35gb", 7}, {"1g.70gb", 4}, {"2g.70gb", 3}, {"3g.139gb", 2}, {"4g.139gb", 1}, {"7g.278gb", 1}},
       {"1g.35gb", "1g.35gb", "2g.70gb", "3g.139gb"}},
      {"NVIDIA RTX PRO 6000 Blackwell Server Edition",
       {{"1g.24gb", 4},
        {"1g.24gb-me", 4},
        {"1g.24gb+gfx", 4},
        {"1g.24gb+me.all", 1},
        {"2g.48gb", 2},
        {"2g.48gb-me", 2},
        {"2g.48gb+gfx", 2},
        {"2g.48gb+me.all", 1},
        {"4g.96gb", 1},
        {"4g.96gb+gfx", 1}},
       {"1g.24gb", "1g.24gb", "2g.48gb"}},
  };
  return all;
}

// NVIDIA's name of a profile, as its documentation forms it.
std::string resource_of(const std::string& profile) {
  const auto plus = profile.find('+');
  return "mig-" +
         (plus == std::string::npos ? profile : profile.substr(0, plus) + "." + profile.substr(plus + 1));
}

std::string counted(std::map<std::string, unsigned> counts) {
  std::string out;
  for (const auto& [name, count] : counts) {
    if (count > 0) out += (out.empty() ? "" : " ") + name + "=" + std::to_string(count);
  }
  return out;
}

TEST(Layouts, UniformLayouts) {
  for (const auto& board : boards()) {
    for (const auto& [profile, count] : board.uniform) {
      const std::vector<std::string> one(count, profile);
      const auto alike = node({cut_as(0, one, board.model), cut_as(1, one, board.model)});
      EXPECT_EQ(summary(plan_resources(alike, with(MigStrategy::kNone))), "gpu=2") << profile;
      EXPECT_EQ(summary(plan_resources(alike, with(MigStrategy::kSingle))), counted({{"gpu", 2 * count}}))
          << profile;
      const auto mixed = plan_resources(alike, with(MigStrategy::kMixed));
      EXPECT_EQ(summary(mixed), counted({{resource_of(profile), 2 * count}}));
      EXPECT_TRUE(mixed.notes.empty());
      // Together with a whole GPU, where NVIDIA's plugin exits under single: offers the larger kind, whole
      // GPUs on a tie.
      const auto half = node({cut_as(0, one, board.model), gpu(1, board.model)});
      EXPECT_EQ(summary(plan_resources(half, with(MigStrategy::kSingle))), "gpu=1") << profile;
      EXPECT_EQ(plan_resources(half, with(MigStrategy::kSingle)).notes.size(), 1u) << profile;
      EXPECT_EQ(summary(plan_resources(half, with(MigStrategy::kMixed))),
                counted({{"gpu", 1}, {resource_of(profile), count}}));
    }
  }
}

TEST(Layouts, BalancedLayouts) {
  for (const auto& board : boards()) {
    const auto cut_up =
        node({cut_as(0, board.balanced, board.model), cut_as(1, board.balanced, board.model)});
    std::map<std::string, unsigned> names;
    for (const auto& profile : board.balanced) names[resource_of(profile)] += 2;
    EXPECT_EQ(summary(plan_resources(cut_up, with(MigStrategy::kMixed))), counted(names));
    const auto single = plan_resources(cut_up, with(MigStrategy::kSingle));
    EXPECT_EQ(summary(single), "") << board.model;
    EXPECT_EQ(single.notes.size(), 2u) << board.model;
    EXPECT_EQ(summary(plan_resources(cut_up, with(MigStrategy::kNone))), "gpu=2");
  }
}

// Every pair of boards on one node: mixed offers both. Single, where NVIDIA's plugin exits, offers the first
// of two kinds of one GPU each and reports the other.
TEST(Layouts, DifferentBoardsOnOneNode) {
  for (const auto& first : boards()) {
    for (const auto& second : boards()) {
      const auto& a = first.uniform.front();
      const auto& b = second.uniform.back();
      const auto both = node({cut_as(0, std::vector<std::string>(a.count, a.profile), first.model),
                              cut_as(1, std::vector<std::string>(b.count, b.profile), second.model)});
      std::map<std::string, unsigned> names;
      names[resource_of(a.profile)] += a.count;
      names[resource_of(b.profile)] += b.count;
      EXPECT_EQ(summary(plan_resources(both, with(MigStrategy::kMixed))), counted(names));
      const auto single = plan_resources(both, with(MigStrategy::kSingle));
      EXPECT_EQ(summary(single), counted({{"gpu", a.count}})) << a.profile << " " << b.profile;
      ASSERT_EQ(single.notes.size(), 1u);
      EXPECT_NE(single.notes[0].message.find("GPU 1 (GPU-1) has MIG profile " + std::string(b.profile)),
                std::string::npos);
    }
  }
}

// Compute instances smaller than their GPU instance: no name of their own with mixed, as in NVIDIA's plugin
// (which skips them silently); single offers them like others; a pattern names them.
TEST(Layouts, ComputeInstancesOfAShare) {
  auto share = cut_as(0, {"1c.3g.40gb", "2c.3g.40gb", "3g.40gb"});
  for (auto& device : share.mig_devices) device.gpu_slices = 3;
  share.mig_devices[0].compute_slices = 1;
  share.mig_devices[1].compute_slices = 2;
  share.mig_devices[2].compute_slices = 3;
  auto config = with(MigStrategy::kMixed);
  EXPECT_EQ(summary(plan_resources(node({share}), config)), "mig-3g.40gb=1");
  EXPECT_EQ(plan_resources(node({share}), config).notes.size(), 2u);
  config.mig_resources = {{"?c.*", ResourceName("nvidia.com/none")},
                          {"1c.*", ResourceName("nvidia.com/mig-part")}};
  EXPECT_EQ(summary(plan_resources(node({share}), config)), "mig-3g.40gb=1 mig-part=1");
  auto alike = cut_as(0, {"1c.3g.40gb", "1c.3g.40gb", "1c.3g.40gb"});
  for (auto& device : alike.mig_devices) device.gpu_slices = 3;
  EXPECT_EQ(summary(plan_resources(node({alike}), with(MigStrategy::kSingle))), "gpu=3");
}

}  // namespace
}  // namespace gpulet::partition

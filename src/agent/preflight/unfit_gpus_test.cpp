#include "agent/preflight/unfit_gpus.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "agent/mig/mig_manager.h"
#include "base/file.h"
#include "repair/test_repairs.h"

namespace gpulet::agent {
namespace {

using repair::test_uuid;

UnfitGpus unfit_among(const inventory::Snapshot& snapshot, const std::vector<MigTarget>& targets,
                      const config::Config& config = {}) {
  return find_unfit(snapshot, targets,
                    [&](const auto& name, auto gpus) { return mig_layouts(config, name, gpus); });
}

MigTarget target_of(unsigned gpu, std::string layout, std::optional<mig::Layout> exact = {}) {
  return {.gpu = test_uuid(gpu), .layout = std::move(layout), .exact = std::move(exact), .source = {}};
}

TEST(UnfitGpus, AreThoseWithMigNowOrLater) {
  auto snapshot = repair::test_snapshot(6);
  for (auto& gpu : snapshot.gpus) gpu.mig_capable = true;
  snapshot.gpus[0].mig_enabled = true;
  snapshot.gpus[1].mig_pending = true;
  const auto unfit = unfit_among(
      snapshot, {target_of(2, "", mig::Layout{true, {{"1g.10gb", 7}}}), target_of(3, "", mig::Layout{}),
                 target_of(4, "all-1g.10gb"), target_of(5, "all-disabled"), target_of(9, "all-enabled")});
  EXPECT_EQ(unfit, (UnfitGpus{{test_uuid(0), "it is in MIG mode"},
                              {test_uuid(1), "it is in MIG mode"},
                              {test_uuid(2), "it is to have a MIG layout"},
                              {test_uuid(4), "it is to have a MIG layout"}}));
}

// A rule that shares MIG-capable GPUs is a target too: without MIG.
TEST(UnfitGpus, ARuleThatSharesGpusLeavesThemFit) {
  auto snapshot = repair::test_snapshot(2);
  for (auto& gpu : snapshot.gpus) gpu.mig_capable = true;
  config::Config config;
  config::PartitionRule rule;
  rule.mode = config::TimeSlicing{};
  config.gpulet.partition.push_back(rule);
  config.gpulet.mig.manage = true;
  const auto targets = mig_targets(snapshot, config, {});
  ASSERT_EQ(targets.size(), 2u);
  EXPECT_TRUE(unfit_among(snapshot, targets, config).empty());
}

TEST(UnfitGpus, ALayoutOfAFileMayDisableMig) {
  std::string directory = testing::TempDir() + "layouts-XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  config::Config config;
  config.gpulet.mig.config_file = directory + "/layouts.yaml";
  ASSERT_TRUE(
      write_file_atomic(config.gpulet.mig.config_file,
                        "version: v1\nmig-configs:\n"
                        "  whole:\n  - {devices: all, mig-enabled: false}\n"
                        "  first:\n  - {devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 7}}\n"));
  auto snapshot = repair::test_snapshot(2);
  for (auto& gpu : snapshot.gpus) gpu.mig_capable = true;
  EXPECT_TRUE(unfit_among(snapshot, {target_of(0, "whole"), target_of(1, "whole")}, config).empty());
  const auto unfit = unfit_among(snapshot, {target_of(0, "first"), target_of(1, "first")}, config);
  EXPECT_EQ(unfit.size(), 1u);
  EXPECT_TRUE(unfit.contains(test_uuid(0)));
  EXPECT_TRUE(unfit_among(snapshot, {target_of(0, "none")}, config).contains(test_uuid(0)));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace gpulet::agent

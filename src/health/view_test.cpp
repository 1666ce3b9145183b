#include "health/view.h"

#include <gtest/gtest.h>

#include "health/test_feed.h"

namespace gpulet::health {
namespace {

inventory::Snapshot named() {
  auto snapshot = node();
  for (auto& gpu : snapshot.gpus) gpu.model = "H100";
  unsigned next = 0;
  for (auto& mig : snapshot.gpus[1].mig_devices) {
    mig.uuid = DeviceUuid("MIG-" + std::to_string(next++));
    mig.profile = "1g.10gb";
  }
  return snapshot;
}

std::string names(const View& view) {
  std::string out;
  for (const auto& device : view.devices) out += describe(device) + "\n";
  return out;
}

TEST(View, HasEveryDeviceInTheOrderOfTheNode) {
  const Feed feed({}, XidFilter("", ""), named());
  const auto view = view_of(feed.machine, feed.there, {feed.now, {}});
  EXPECT_EQ(names(view), "GPU 0 (GPU-0)\nGPU 1 (GPU-1)\nMIG 1:0 (MIG-0)\nMIG 1:1 (MIG-1)\nMIG 1:2 (MIG-2)\n");
  const auto* mig = view.find(scope("GPU-1", 2, 0));
  ASSERT_NE(mig, nullptr);
  EXPECT_EQ(mig->uuid.str(), "MIG-2");
  EXPECT_EQ(mig->model, "1g.10gb");
  EXPECT_EQ(mig->slot, "0000:11:00.0");
  EXPECT_TRUE(mig->absences.empty());
  const auto* gpu = view.find(scope("GPU-0"));
  ASSERT_NE(gpu, nullptr);
  EXPECT_EQ(gpu->model, "H100");
  ASSERT_FALSE(gpu->absences.empty());
  EXPECT_EQ(gpu->absences.front().source, Source::kProbe);
  EXPECT_EQ(view.find(scope("GPU-9")), nullptr);
}

TEST(View, KeepsAGpuThatIsGone) {
  Feed feed({}, XidFilter("", ""), named());
  feed.there.gpus.erase(feed.there.gpus.begin());
  feed.machine.on_snapshot(feed.there, feed.now);
  const auto view = view_of(feed.machine, feed.there, {feed.now, {}});
  ASSERT_EQ(view.devices.size(), 5u);
  EXPECT_EQ(describe(view.devices.back()), "GPU GPU-0");
  EXPECT_EQ(view.devices.back().standing.state, State::kLost);
  EXPECT_EQ(view.devices.front().gpu_index, 1u);
}

}  // namespace
}  // namespace gpulet::health

#include "agent/page_care.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr WallTime kStart{std::chrono::duration_cast<WallTime::duration>(1'760'000'000s)};

inventory::SnapshotPtr one_gpu() {
  inventory::Snapshot snapshot;
  snapshot.gpus.resize(1);
  snapshot.gpus[0].uuid = DeviceUuid("GPU-a");
  snapshot.pcie = {inventory::PcieDistance::kInternal};
  return std::make_shared<const inventory::Snapshot>(snapshot);
}

health::ViewPtr view_of(health::State state, const char* reason) {
  health::View view{{Time{1h}, kStart}, {}};
  view.devices.resize(1);
  view.devices[0].scope = {.gpu = DeviceUuid("GPU-a")};
  view.devices[0].uuid = DeviceUuid("GPU-a");
  view.devices[0].gpu_index = 0;
  view.devices[0].standing.state = state;
  view.devices[0].standing.reason = reason;
  view.devices[0].standing.since = Time{1h};
  return std::make_shared<const health::View>(view);
}

json node_of(PageCare& care) {
  web::Pages pages;
  care.put_into(pages);
  return json::parse(pages.node);
}

TEST(PageCare, HasATimelineOfWhatChanged) {
  PageCare care("node-1", "1.2.3");
  care.on_snapshot(one_gpu());
  const auto healthy = view_of(health::State::kHealthy, ""), lost = view_of(health::State::kLost, "XID 79");
  care.on_health(healthy, {});
  EXPECT_EQ(node_of(care)["gpus"][0]["state"], "healthy");
  const health::Change fault{
      {.gpu = DeviceUuid("GPU-a")}, healthy->devices[0].standing, lost->devices[0].standing};
  care.on_health(lost, {fault});
  // One in which only the reason or a count changed is no line of the timeline.
  const health::Change again{fault.device, fault.after, fault.after};
  care.on_health(lost, {again});
  care.on_event(true, "GPUUnhealthy", "GPU 0: XID 79", kStart);
  const json node = node_of(care);
  EXPECT_EQ(node["name"], "node-1");
  EXPECT_EQ(node["gpus"][0]["state"], "lost");
  ASSERT_EQ(node["timeline"].size(), 1u);
  EXPECT_EQ(node["timeline"][0]["from"], "healthy");
  EXPECT_EQ(node["timeline"][0]["device"], "GPU 0 (GPU-a)");
  EXPECT_EQ(node["events"][0]["reason"], "GPUUnhealthy");
}

TEST(PageCare, TheDocumentFollowsEachOfItsParts) {
  PageCare care("node-1", "1.2.3");
  json before = node_of(care);
  const auto changes = [&](auto change) {
    change();
    const json after = node_of(care);
    return after != std::exchange(before, after);
  };
  EXPECT_TRUE(changes([&] { care.on_snapshot(one_gpu()); }));
  EXPECT_TRUE(changes([&] { care.on_problems({"no kubelet"}); }));
  EXPECT_TRUE(changes([&] { care.on_offered({{ResourceName("nvidia.com/gpu"), {DeviceId("GPU-a")}}}); }));
  EXPECT_TRUE(changes([&] {
    care.on_containers({{"ns", "pod", "c", {{ResourceName("nvidia.com/gpu"), {DeviceId("GPU-a")}}}}});
  }));
  EXPECT_TRUE(changes([&] { care.on_config("version: v1\n"); }));
  EXPECT_FALSE(changes([&] {
    care.on_problems({"no kubelet"});
    care.on_config("version: v1\n");
  }));
  web::Pages pages;
  care.put_into(pages);
  EXPECT_EQ(pages.now, "");
  metrics::Sample sample;
  sample.gpus.resize(1);
  sample.gpus[0].uuid = DeviceUuid("GPU-a");
  sample.gpus[0].processes = {{.pid = 7, .memory = Bytes{1}, .sm = 2, .name = "python3"}};
  metrics::Meter meter;
  meter.take(one_gpu(), sample, {}, Time{1h});
  care.on_sample(meter, kStart);
  care.put_into(pages);
  EXPECT_EQ(pages.use, R"({"at":1760000000000,"devices":{"GPU-a":{"pods":[],"rest":{"memory":0,"busy":0},)"
                       R"("processes":[{"pid":7,"name":"python3","memory":1,"sm":2}]}}})");
  EXPECT_EQ(pages.now, R"({"at":1760000000000,"gpus":{"GPU-a":{}}})");
}

}  // namespace
}  // namespace gpulet::agent

#include "metrics/own_page.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/text.h"
#include "metrics/test_promtool.h"

namespace gpulet::metrics {
namespace {

using namespace std::chrono_literals;

const DeviceUuid kGpu("GPU-0"), kMig("MIG-a");
const PodName kTrain{"default", "train"}, kServe{"prod", "serve"};

struct World {
  inventory::Snapshot snapshot;
  Sample sample;
  Holders holders;
  Uses uses;
  Accounts accounts;

  World() {
    for (unsigned i = 0; i < 2; ++i) {
      inventory::Gpu gpu;
      gpu.index = i;
      gpu.uuid = DeviceUuid("GPU-" + std::to_string(i));
      snapshot.gpus.push_back(gpu);
      GpuSample one;
      one.index = i;
      one.uuid = gpu.uuid;
      sample.gpus.push_back(one);
    }
    sample.gpus[1].failed = Error(Code::kDeviceLost, "lost");
  }
  Exposition page() const {
    Exposition page;
    add_own(page, {snapshot, sample, holders, uses, accounts});
    return page;
  }
};

TEST(OwnPage, SharedGpu) {
  World world;
  world.holders[kGpu] = {{kServe, {"main"}, {"1"}}, {kTrain, {"main"}, {"0", "2"}}};
  Shares shares;
  shares.pods = {{world.holders[kGpu][0], Bytes{100}, 20}, {world.holders[kGpu][1], Bytes{200}, 60}};
  shares.rest_memory = Bytes{50};
  world.uses.devices[kGpu] = shares;
  world.accounts.add(kGpu, {1000, 500ms}, shares);
  const auto page = world.page().text();
  EXPECT_EQ(page,
            R"(# HELP gpulet_busy_seconds_total Time that the device was busy, by who used it.
# TYPE gpulet_busy_seconds_total counter
gpulet_busy_seconds_total{gpu="0",UUID="GPU-0",holder="former",namespace="",pod=""} 0
gpulet_busy_seconds_total{gpu="0",UUID="GPU-0",holder="none",namespace="",pod=""} 0
gpulet_busy_seconds_total{gpu="0",UUID="GPU-0",holder="pod",namespace="default",pod="train"} 0.375
gpulet_busy_seconds_total{gpu="0",UUID="GPU-0",holder="pod",namespace="prod",pod="serve"} 0.125
# HELP gpulet_device_held A Pod that holds the device, or one share of it.
# TYPE gpulet_device_held gauge
gpulet_device_held{gpu="0",UUID="GPU-0",share="0",namespace="default",pod="train"} 1
gpulet_device_held{gpu="0",UUID="GPU-0",share="1",namespace="prod",pod="serve"} 1
gpulet_device_held{gpu="0",UUID="GPU-0",share="2",namespace="default",pod="train"} 1
# HELP gpulet_energy_joules_total Energy that the device used, by who used it.
# TYPE gpulet_energy_joules_total counter
gpulet_energy_joules_total{gpu="0",UUID="GPU-0",holder="former",namespace="",pod=""} 0
gpulet_energy_joules_total{gpu="0",UUID="GPU-0",holder="none",namespace="",pod=""} 0
gpulet_energy_joules_total{gpu="0",UUID="GPU-0",holder="pod",namespace="default",pod="train"} 0.75
gpulet_energy_joules_total{gpu="0",UUID="GPU-0",holder="pod",namespace="prod",pod="serve"} 0.25
# HELP gpulet_gpu_up Whether the driver answers for the GPU.
# TYPE gpulet_gpu_up gauge
gpulet_gpu_up{gpu="0",UUID="GPU-0"} 1
gpulet_gpu_up{gpu="1",UUID="GPU-1"} 0
# HELP gpulet_memory_used_bytes Memory of the device in use, by who uses it.
# TYPE gpulet_memory_used_bytes gauge
gpulet_memory_used_bytes{gpu="0",UUID="GPU-0",holder="none",namespace="",pod=""} 50
gpulet_memory_used_bytes{gpu="0",UUID="GPU-0",holder="pod",namespace="default",pod="train"} 200
gpulet_memory_used_bytes{gpu="0",UUID="GPU-0",holder="pod",namespace="prod",pod="serve"} 100
)");
  EXPECT_EQ(promtool(page), "");
  // Each is in the documentation.
  const auto docs = read_file("docs/metrics.md").value_or("");
  for (const auto& line : text::split(page, '\n')) {
    if (!line.starts_with("gpulet_")) continue;
    const auto name = line.substr(0, line.find('{'));
    EXPECT_NE(docs.find("| `" + name + "` |"), std::string::npos) << name;
  }
}

TEST(OwnPage, MigDevices) {
  World world;
  inventory::MigDevice mig;
  mig.uuid = kMig;
  mig.profile = "3g.40gb";
  mig.gpu_instance = 2;
  mig.placement_start = 4;
  mig.placement_size = 4;
  world.snapshot.gpus[0].mig_devices = {mig};
  world.holders[kMig] = {{kTrain, {"main"}, {}}};
  const auto page = world.page().text();
  EXPECT_NE(
      page.find(
          R"(gpulet_mig_device_info{gpu="0",UUID="GPU-0",mig="MIG-a",profile="3g.40gb",gpu_instance="2",)"
          R"(compute_instance="0",start="4",size="4"} 1)"),
      std::string::npos)
      << page;
  EXPECT_NE(page.find(R"(gpulet_device_held{gpu="0",UUID="GPU-0",mig="MIG-a",profile="3g.40gb",share="",)"
                      R"(namespace="default",pod="train"} 1)"),
            std::string::npos)
      << page;
  EXPECT_EQ(page.find("gpulet_memory_used_bytes"), std::string::npos) << "not known is not zero";
}

}  // namespace
}  // namespace gpulet::metrics

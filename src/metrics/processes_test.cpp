#include "metrics/processes.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace gpulet::metrics {
namespace {

const std::string kHolderUid = "0b1d2a3c-4d5e-4f60-8172-93a4b5c6d7e8";

class ProcessesTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/gpulet-metrics-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void process(unsigned pid, const std::string& cgroup) {
    std::filesystem::create_directories(folder_ + "/proc/" + std::to_string(pid));
    std::ofstream(folder_ + "/proc/" + std::to_string(pid) + "/cgroup") << cgroup;
  }
  std::string folder_;
};

TEST_F(ProcessesTest, FromTheirCgroupsToTheirPods) {
  std::filesystem::create_directories(folder_ + "/logs/default_train_" + kHolderUid);
  std::filesystem::create_directories(folder_ + "/logs/something-else");
  const auto known = pods_of_logs(folder_ + "/logs");
  ASSERT_TRUE(known) << known.error().text();
  const PodName train{"default", "train"};
  EXPECT_EQ(*known, (PodUids{{kHolderUid, train}}));
  process(1, "0::/kubepods/pod" + kHolderUid + "/c\n");
  process(2, "0::/user.slice\n");
  process(3, "0::/kubepods/pod" + kHolderUid + "/d\n");
  GpuSample gpu;
  gpu.processes = {{1, {}, 0}, {2, {}, 0}, {9, {}, 0}};
  gpu.instances.resize(1);
  gpu.instances[0].devices = {{DeviceUuid("MIG-a"), 0, {{3, {}, 0}}}};
  const auto cgroups = read_cgroups(gpu, folder_ + "/proc");
  EXPECT_EQ(cgroups, (CgroupsOfProcess{{1, {kHolderUid}}, {3, {kHolderUid}}}));
  std::ofstream(folder_ + "/proc/3/comm") << "pt_main_thread\n";
  read_names(gpu, folder_ + "/proc");
  EXPECT_EQ(gpu.instances[0].devices[0].processes[0].name, "pt_main_thread");
  EXPECT_EQ(gpu.processes[0].name, "");
  PodOfProcess pods;
  add_pods(cgroups, {}, pods);
  EXPECT_TRUE(pods.empty());
  add_pods(cgroups, *known, pods);
  EXPECT_EQ(pods, (PodOfProcess{{1, train}, {3, train}}));
}

TEST_F(ProcessesTest, AFolderThatIsNotThereSaysSo) {
  const auto missing = pods_of_logs(folder_ + "/nothing");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), Code::kNotFound);
  EXPECT_EQ(missing.error().about(), folder_ + "/nothing");
}

}  // namespace
}  // namespace gpulet::metrics

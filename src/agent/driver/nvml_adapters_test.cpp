#include "agent/driver/nvml_adapters.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <tuple>

#include "base/file.h"
#include "nvml/test_loop_thread.h"
#include "nvml/test_sim_root.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using metrics::Field;

class NvmlSamplerTest : public testing::Test {
 protected:
  void SetUp() override {
    thread_.run_on_loop([&] {
      driver_ =
          std::make_unique<NvmlDriver>(thread_.loop(), NvmlDriverOptions{.driver_root = root_.sim_root()});
      sampler_ = std::make_unique<NvmlSampler>(*driver_, 500ms);
      sampler_->set_fields({Field::kGpuTemp, Field::kGraphicsActive});
    });
    const auto opened = thread_.await<Status>([&](auto done) { driver_->open_driver(done); });
    ASSERT_TRUE(opened && *opened);
    const auto read =
        thread_.await<Result<inventory::Snapshot>>([&](auto done) { driver_->read_snapshot(done); });
    ASSERT_TRUE(read && *read);
    snapshot_ = std::make_shared<const inventory::Snapshot>(**read);
  }
  void TearDown() override {
    thread_.run_on_loop([&] {
      sampler_.reset();
      driver_.reset();
    });
  }
  Result<GpuMemoryReadings> read_memory(const std::vector<GpuMemoryQuestion>& questions) {
    auto readings = thread_.await<Result<GpuMemoryReadings>>(
        [&](auto done) { read_gpu_memory(*driver_, questions, done); });
    return readings.value_or(fail(Code::kInternal, "it never returned"));
  }
  Result<Sampler::Sampled> sample_and_wait(std::size_t index) {
    auto sampled = thread_.await<Result<Sampler::Sampled>>(
        [&](auto done) { sampler_->sample_gpu(snapshot_, index, now_ += 1s, done); });
    return sampled.value_or(fail(Code::kInternal, "it never returned"));
  }

  nvml::SimRoot root_{2};
  nvml::LoopThread thread_;
  std::unique_ptr<NvmlDriver> driver_;
  std::unique_ptr<NvmlSampler> sampler_;
  inventory::SnapshotPtr snapshot_;
  Time now_{1h};
};

TEST_F(NvmlSamplerTest, KeepsRatesPerGpu) {
  for (const std::size_t index : {0, 1}) {
    const auto first = sample_and_wait(index), second = sample_and_wait(index);
    ASSERT_TRUE(first && second);
    EXPECT_EQ(first->gpu.uuid, snapshot_->gpus[index].uuid);
    EXPECT_TRUE(first->gpu.values.contains(Field::kGpuTemp));
    EXPECT_FALSE(first->gpu.values.contains(Field::kGraphicsActive));
    EXPECT_TRUE(second->gpu.values.contains(Field::kGraphicsActive));
  }
  thread_.run_on_loop([&] { sampler_->set_fields({Field::kSmClock}); });
  EXPECT_FALSE(sample_and_wait(0)->gpu.values.contains(Field::kGpuTemp));
}

// By the cgroups in the sampler's proc: one of a login session, one of a Pod, one that has ended.
TEST_F(NvmlSamplerTest, MarksProcessesOutsidePods) {
  const std::string proc = root_.sim_root() + "/test-proc";
  const std::pair<const char*, const char*> cgroups[] = {
      {"self", "0::/system.slice/kubelet.service\n"},
      {"812", "0::/user.slice\n"},
      {"813", "0::/kubepods/pod0a1b2c3d-1111-2222-3333-444455556666/c\n"}};
  for (const auto& [pid, text] : cgroups) {
    std::filesystem::create_directories(proc + "/" + pid);
    ASSERT_TRUE(write_file_atomic(proc + "/" + pid + "/cgroup", text));
  }
  auto& processes = root_.edit_machine()->gpus[0].processes;
  for (const std::uint32_t pid : {812U, 813U, 814U}) {
    auto& process = processes[pid - 812U];
    process.pid = pid;
    process.gpu_instance = process.compute_instance = sim::kNoInstance;
    process.memory_bytes = std::uint64_t{20} << 30;
  }
  thread_.run_on_loop([&] { sampler_ = std::make_unique<NvmlSampler>(*driver_, 500ms, proc); });
  const auto sampled = sample_and_wait(0);
  ASSERT_TRUE(sampled) << sampled.error().full_message();
  ASSERT_EQ(sampled->gpu.processes.size(), 3u);
  const auto outside = metrics::processes_outside_pods(sampled->gpu);
  ASSERT_EQ(outside.size(), 1u);
  EXPECT_EQ(outside[0].pid, 812u);
}

// Processes are listed where the use is not the known one; an unknown GPU fails alone, one that hangs all.
TEST_F(NvmlSamplerTest, ReadsTheMemoryOfSeveralGpus) {
  auto& process = root_.edit_machine()->gpus[1].processes[0];
  process.pid = 812;
  process.gpu_instance = process.compute_instance = sim::kNoInstance;
  process.memory_bytes = std::uint64_t{20} << 30;
  const DeviceUuid first = snapshot_->gpus[0].uuid, second = snapshot_->gpus[1].uuid, unknown("GPU-unknown");
  const auto readings = read_memory({{first, {}}, {unknown, {}}, {second, {}}});
  ASSERT_TRUE(readings) << readings.error().full_message();
  ASSERT_EQ(readings->size(), 3u);
  const auto& [idle, missing, loaded] = std::tie((*readings)[0], (*readings)[1], (*readings)[2]);
  ASSERT_TRUE(idle && loaded);
  EXPECT_TRUE(idle->processes && idle->processes->empty());
  EXPECT_EQ(missing.error().code(), Code::kNotFound);
  ASSERT_TRUE(loaded->processes && loaded->processes->size() == 1);
  EXPECT_EQ(loaded->processes->front().pid, 812u);
  EXPECT_EQ(loaded->processes->front().memory, mebibytes(20 << 10));
  const auto again = read_memory({{first, idle->used}, {second, idle->used}});
  ASSERT_TRUE(again && (*again)[0] && (*again)[1]);
  EXPECT_FALSE((*again)[0]->processes) << "the use is the known one";
  EXPECT_TRUE((*again)[1]->processes);
  root_.edit_machine()->gpus[1].faults.hang = 1;
  EXPECT_EQ(read_memory({{first, {}}, {second, {}}}).error().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(read_memory({{second, {}}}).error().code(), Code::kDeadlineExceeded);
  const auto healthy = read_memory({{first, {}}});
  EXPECT_TRUE(healthy && healthy->front()) << "it is not kept from being read";
  root_.edit_machine()->gpus[1].faults.hang = 0;
}

TEST_F(NvmlSamplerTest, AHangingGpuDoesNotAffectOthers) {
  ASSERT_TRUE(sample_and_wait(0));
  root_.edit_machine()->gpus[0].faults.hang = 1;
  EXPECT_EQ(sample_and_wait(0).error().code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(sample_and_wait(1));
  root_.edit_machine()->gpus[0].faults.hang = 0;
  // The call that hung may still be returning; the next one starts again.
  Result<Sampler::Sampled> again = sample_and_wait(0);
  const auto until = std::chrono::steady_clock::now() + nvml::kTestPatience;
  while (!again && std::chrono::steady_clock::now() < until) again = sample_and_wait(0);
  ASSERT_TRUE(again) << again.error().full_message();
  EXPECT_FALSE(again->gpu.values.contains(Field::kGraphicsActive));
  EXPECT_TRUE(sample_and_wait(0)->gpu.values.contains(Field::kGraphicsActive));
}

// The driver's thread alone compares the use.
class MemoryWatchTest : public NvmlSamplerTest {
 protected:
  using Passed = std::optional<unsigned>;
  bool watch(const std::vector<GpuMemoryQuestion>& known, unsigned intervals) {
    bool is_watched = false;
    thread_.run_on_loop([&] {
      watch_ = watch_gpu_memory(*driver_, known, intervals, [ends = ends_](Result<unsigned> passed) mutable {
        ends.push_value(passed ? Passed(*passed) : std::nullopt);
      });
      is_watched = static_cast<bool>(watch_);
    });
    return is_watched;
  }
  std::optional<Bytes> use_of(const DeviceUuid& gpu) { return (*read_memory({{gpu, {}}}))[0]->used; }

  nvml::Collected<Passed> ends_;
  Subscription watch_;
};

TEST_F(MemoryWatchTest, EndsAtAChangeAndAfterItsTime) {
  const DeviceUuid gpu = snapshot_->gpus[1].uuid;
  const auto used = use_of(gpu);
  ASSERT_TRUE(used);
  ASSERT_TRUE(watch({{snapshot_->gpus[0].uuid, use_of(snapshot_->gpus[0].uuid)}, {gpu, used}}, 2));
  EXPECT_EQ(ends_.wait_for_values(1), std::vector<Passed>{2});
  ASSERT_TRUE(watch({{gpu, Bytes{used->value + 1}}}, 5));
  EXPECT_EQ(ends_.wait_for_values(2).back(), 1);
  ASSERT_TRUE(watch({{DeviceUuid("GPU-unknown"), used}, {gpu, used}}, 5));
  EXPECT_EQ(ends_.wait_for_values(3).back(), 1) << "a call for each GPU tells which one fails";
}

TEST_F(MemoryWatchTest, EndsWithTheSession) {
  const DeviceUuid gpu = snapshot_->gpus[0].uuid;
  const auto used = use_of(gpu);
  ASSERT_TRUE(watch({{gpu, used}}, 60));
  const auto closed = thread_.await<Status>([&](auto done) { driver_->close_driver(done); });
  EXPECT_TRUE(closed && *closed) << "it does not hold the session";
  const auto ends = ends_.wait_for_values(1);
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].value_or(0), 0u) << "an error where closing takes long: the thread is left to it";
  EXPECT_FALSE(watch({{gpu, used}}, 60));
}

TEST_F(MemoryWatchTest, AHangIsFoundByTheNextCall) {
  const DeviceUuid gpu = snapshot_->gpus[0].uuid, other = snapshot_->gpus[1].uuid;
  ASSERT_TRUE(watch({{gpu, use_of(gpu)}}, 60));
  root_.edit_machine()->gpus[0].faults.hang = 1;
  while (ends_.size() == 0) ASSERT_TRUE(read_memory({{other, {}}})->front());
  EXPECT_EQ(ends_.wait_for_values(1), std::vector<Passed>{std::nullopt});
  root_.edit_machine()->gpus[0].faults.hang = 0;
}

}  // namespace
}  // namespace gpulet::agent

#include "agent/observe/metrics_collector.h"

#include <gtest/gtest.h>

#include <deque>

#include "base/loop.h"
#include "base/text.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using metrics::Field;

const std::string kUid = "0b1d2a3c-4d5e-4f60-8172-93a4b5c6d7e8";

// Completes requests when the test does.
class FakeSampler final : public Sampler {
 public:
  struct Request {
    std::size_t index;
    inventory::SnapshotPtr snapshot;
    Done done;
  };
  void set_fields(std::set<Field> fields) override { requested_fields = std::move(fields); }
  void sample_gpu(inventory::SnapshotPtr snapshot, std::size_t index, Time, Done done) override {
    requests.push_back({index, std::move(snapshot), std::move(done)});
  }
  // Completes the oldest request.
  void complete_request(std::uint64_t temperature = 40, unsigned pid = 0) {
    auto one = std::move(requests.front());
    requests.pop_front();
    Sampled sampled;
    sampled.gpu.index = one.snapshot->gpus[one.index].index;
    sampled.gpu.uuid = one.snapshot->gpus[one.index].uuid;
    sampled.gpu.values[Field::kGpuTemp] = temperature;
    sampled.gpu.values[Field::kFbUsed] = std::uint64_t{100};
    if (pid != 0) {
      sampled.gpu.processes.push_back({pid, mebibytes(60), 0});
      sampled.cgroups[pid] = {kUid};
    }
    one.done(std::move(sampled));
  }
  void fail_request(Code code) {
    auto one = std::move(requests.front());
    requests.pop_front();
    one.done(fail(code, "no"));
  }

  std::set<Field> requested_fields;
  std::deque<Request> requests;
};

class FakePods final : public device_plugin::PodResources {
 public:
  using Listed = std::function<void(Result<std::vector<ContainerDevices>>)>;
  void list_containers(Listed done) override { requests.push_back(std::move(done)); }
  void list_allocatable(std::function<void(Result<device_plugin::DevicesByResource>)>) override {}
  void complete_list(Result<std::vector<ContainerDevices>> what) {
    auto done = std::move(requests.front());
    requests.pop_front();
    done(std::move(what));
  }
  Duration list_delay() const override { return delay; }
  std::deque<Listed> requests;
  Duration delay{};
};

ContainerDevices container(const std::string& pod, const std::string& device) {
  return {{"default", pod}, "main", {{ResourceName("nvidia.com/gpu"), {DeviceId(device)}}}};
}

inventory::SnapshotPtr gpu_node(unsigned gpus) {
  auto snapshot = std::make_shared<inventory::Snapshot>();
  for (unsigned i = 0; i < gpus; ++i) {
    inventory::Gpu gpu;
    gpu.index = i;
    gpu.uuid = DeviceUuid("GPU-" + std::to_string(i));
    snapshot->gpus.push_back(gpu);
  }
  return snapshot;
}

class MetricsCollectorTest : public testing::Test {
 protected:
  MetricsCollectorTest() { collector_.apply_settings({}); }
  void complete_all(std::uint64_t temperature = 40) {
    while (!sampler_.requests.empty()) sampler_.complete_request(temperature);
    while (!pods_.requests.empty()) pods_.complete_list(held_);
  }
  std::vector<std::string> metric_lines(const std::string& begin) const {
    metrics::Exposition page;
    collector_.add_to(page);
    std::vector<std::string> found;
    for (const auto& line : text::split(page.text_format(), '\n')) {
      if (line.starts_with(begin)) found.push_back(line);
    }
    return found;
  }
  std::size_t temperatures() const { return metric_lines("DCGM_FI_DEV_GPU_TEMP{").size(); }

  ManualLoop loop_;
  FakeSampler sampler_;
  FakePods pods_;
  std::vector<ContainerDevices> held_;
  Result<metrics::PodByUid> uids_ = metrics::PodByUid{{kUid, {"default", "train"}}};
  int sampled_ = 0, uid_reads_ = 0;
  MetricsCollector collector_{loop_,
                              {sampler_, pods_,
                               [this] {
                                 ++uid_reads_;
                                 return uids_;
                               },
                               [this] { ++sampled_; }}};
};

TEST_F(MetricsCollectorTest, TheTimeOfAListIsTheKubelets) {
  collector_.set_snapshot(gpu_node(1));
  loop_.advance(300ms);
  pods_.delay = 250ms;  // an Allocate was in progress
  complete_all();
  EXPECT_EQ(collector_.agent_numbers().pod_resources_time, 50ms);
}

TEST_F(MetricsCollectorTest, SamplesImmediatelyAndThenAtItsInterval) {
  loop_.advance(1min);
  EXPECT_TRUE(sampler_.requests.empty()) << "nothing is there to be sampled";
  collector_.set_snapshot(gpu_node(2));
  EXPECT_EQ(sampler_.requests.size(), 2u);
  complete_all();
  EXPECT_EQ(sampled_, 1);
  EXPECT_EQ(uid_reads_, 0) << "no process needs a Pod";
  EXPECT_EQ(temperatures(), 2u);
  collector_.set_snapshot(gpu_node(2));
  EXPECT_TRUE(sampler_.requests.empty()) << "a new snapshot waits for its turn";
  loop_.advance(15s);
  EXPECT_EQ(sampler_.requests.size(), 2u);
  EXPECT_EQ(sampled_, 1) << "a scrape between shows the last";
  EXPECT_EQ(collector_.agent_numbers().sample_age, 15s);
  complete_all(50);
  EXPECT_EQ(sampled_, 2);
  EXPECT_EQ(metric_lines("DCGM_FI_DEV_GPU_TEMP{gpu=\"1\"")[0].substr(
                metric_lines("DCGM_FI_DEV_GPU_TEMP{gpu=\"1\"")[0].rfind(' ')),
            " 50");
}

TEST_F(MetricsCollectorTest, ARoundWithoutResultsDoesNotRenewTheSampleAge) {
  collector_.set_snapshot(gpu_node(1));
  complete_all();
  loop_.advance(15s);
  ASSERT_EQ(sampler_.requests.size(), 1u);
  sampler_.fail_request(Code::kDeadlineExceeded);
  complete_all();
  EXPECT_EQ(sampled_, 2);
  EXPECT_EQ(collector_.agent_numbers().sample_age, 15s);
}

TEST_F(MetricsCollectorTest, AHangingGpuDoesNotAffectOthers) {
  collector_.set_snapshot(gpu_node(2));
  pods_.complete_list(held_);
  sampler_.complete_request();  // GPU 0; GPU 1 hangs
  EXPECT_EQ(sampled_, 0);
  loop_.advance(kSampleTimeout);
  EXPECT_EQ(sampled_, 1);
  EXPECT_EQ(temperatures(), 1u);
  loop_.advance(15s - kSampleTimeout);
  ASSERT_EQ(sampler_.requests.size(), 2u);
  EXPECT_EQ(sampler_.requests[1].index, 0u) << "a pending request is not repeated";
  sampler_.fail_request(Code::kDeadlineExceeded);
  sampler_.complete_request();
  pods_.complete_list(held_);
  EXPECT_EQ(sampled_, 2);
  EXPECT_EQ(temperatures(), 1u);
  loop_.advance(15s);
  EXPECT_EQ(sampler_.requests.size(), 2u) << "now it is";
  complete_all();
  EXPECT_EQ(temperatures(), 2u);
}

TEST_F(MetricsCollectorTest, IgnoresLateResults) {
  collector_.set_snapshot(gpu_node(1));
  pods_.complete_list(held_);
  loop_.advance(kSampleTimeout);
  EXPECT_EQ(temperatures(), 0u);
  sampler_.complete_request();
  EXPECT_EQ(temperatures(), 0u);
  EXPECT_EQ(sampled_, 1);
}

TEST_F(MetricsCollectorTest, KeepsHoldersWhileTheKubeletIsAway) {
  held_ = {container("train", "GPU-0")};
  collector_.set_snapshot(gpu_node(1));
  complete_all();
  EXPECT_EQ(metric_lines("gpulet_device_allocated").size(), 1u);
  loop_.advance(15s);
  sampler_.complete_request();
  pods_.complete_list(fail(Code::kUnavailable, "no kubelet"));
  EXPECT_EQ(sampled_, 2);
  EXPECT_EQ(metric_lines("gpulet_device_allocated").size(), 1u);
  EXPECT_EQ(collector_.agent_numbers().pod_resources_errors, 1u);
  EXPECT_EQ(collector_.agent_numbers().pod_resources_age, 15s);
  // The list is slow: it is not requested twice.
  loop_.advance(15s);
  sampler_.complete_request();
  loop_.advance(15s);
  sampler_.complete_request();
  EXPECT_EQ(pods_.requests.size(), 1u);
  EXPECT_EQ(sampled_, 3) << "a round waits for its patience";
  held_.clear();
  pods_.complete_list(held_);
  loop_.advance(15s);
  complete_all();
  EXPECT_TRUE(metric_lines("gpulet_device_allocated").empty());
}

TEST_F(MetricsCollectorTest, AttributesProcessesToPods) {
  held_ = {container("train", "GPU-0::0"), container("serve", "GPU-0::1")};
  collector_.set_snapshot(gpu_node(1));
  sampler_.complete_request(40, 7);
  pods_.complete_list(held_);
  const auto memory = metric_lines("gpulet_pod_gpu_memory_bytes");
  ASSERT_EQ(memory.size(), 3u);
  EXPECT_NE(memory[1].find("pod=\"serve\"} 0"), std::string::npos) << memory[1];
  EXPECT_NE(memory[2].find("pod=\"train\"} 62914560"), std::string::npos) << memory[2];
  // The UIDs can no longer be read: they stay as last known.
  uids_ = fail(Code::kIo, "gone");
  loop_.advance(15s);
  sampler_.complete_request(40, 7);
  pods_.complete_list(held_);
  EXPECT_EQ(metric_lines("gpulet_pod_gpu_memory_bytes"), memory);
  EXPECT_EQ(metric_lines("gpulet_pod_gpu_memory_bytes")[0].find("pod_uid"), std::string::npos);
}

TEST_F(MetricsCollectorTest, AddsUidsAndLabelsIfConfigured) {
  held_ = {container("train", "GPU-0")};
  collector_.on_pod_labels({{{"default", "train"}, {{"app", "x"}, {"team", "y"}}}});
  collector_.set_snapshot(gpu_node(1));
  complete_all();
  EXPECT_EQ(metric_lines("DCGM_FI_DEV_GPU_TEMP{")[0].find("app="), std::string::npos);
  CollectorSettings settings;
  settings.pod_uid = settings.pod_labels = true;
  settings.patterns = *metrics::PodLabelPatterns::compile_patterns({"^app$"}, "");
  collector_.apply_settings(settings);
  loop_.advance(15s);
  complete_all();
  const auto line = metric_lines("DCGM_FI_DEV_GPU_TEMP{")[0];
  EXPECT_NE(
      line.find("app=\"x\",container=\"main\",namespace=\"default\",pod=\"train\",pod_uid=\"" + kUid + "\"}"),
      std::string::npos)
      << line;
  EXPECT_EQ(line.find("team="), std::string::npos);
}

TEST_F(MetricsCollectorTest, AppliesSettingsAndStopsWithoutAnInterval) {
  CollectorSettings settings;
  settings.counters.all = {{Field::kGpuTemp, metrics::Type::kGauge, "dcgm_gpu_temp", "x"}};
  settings.extra_fields = {Field::kSmClock};
  collector_.apply_settings(settings);
  EXPECT_EQ(sampler_.requested_fields, (std::set<Field>{Field::kSmClock, Field::kGpuTemp}));
  collector_.set_snapshot(gpu_node(1));
  complete_all();
  EXPECT_EQ(metric_lines("dcgm_gpu_temp{").size(), 1u);
  settings.interval = 0s;
  collector_.apply_settings(settings);
  loop_.advance(1h);
  EXPECT_TRUE(sampler_.requests.empty());
  EXPECT_EQ(collector_.agent_numbers().sample_age, std::nullopt);
}

TEST_F(MetricsCollectorTest, RemovesSeriesWhenTheDriverIsUnloaded) {
  collector_.set_snapshot(gpu_node(1));
  complete_all();
  collector_.set_snapshot(nullptr);
  EXPECT_EQ(temperatures(), 0u);
  loop_.advance(1min);
  EXPECT_TRUE(sampler_.requests.empty());
  EXPECT_EQ(collector_.agent_numbers().sample_age, 1min) << "an alert needs it";
  collector_.set_snapshot(gpu_node(1));
  complete_all();
  EXPECT_EQ(temperatures(), 1u);
}

TEST_F(MetricsCollectorTest, AddsXidsToTheNextSample) {
  collector_.set_snapshot(gpu_node(1));
  complete_all();
  collector_.on_xid(DeviceUuid("GPU-0"), {}, 48, "Double-bit ECC error");
  loop_.advance(15s);
  complete_all();
  EXPECT_NE(
      metric_lines("DCGM_FI_DEV_XID_ERRORS{")[0].find(
          "err_code=\"48\",err_msg=\"Double Bit ECC Error\",xid_description=\"Double-bit ECC error\"} 48"),
      std::string::npos);
}

}  // namespace
}  // namespace gpulet::agent

#include "agent/metrics_care.h"

#include <gtest/gtest.h>

#include <deque>

#include "base/manual_loop.h"
#include "base/text.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using metrics::Field;

const std::string kUid = "0b1d2a3c-4d5e-4f60-8172-93a4b5c6d7e8";

// Answers when the test says so.
class FakeSampler final : public Sampler {
 public:
  struct Asked {
    std::size_t index;
    inventory::SnapshotPtr snapshot;
    Done done;
  };
  void want(std::set<Field> fields) override { wanted = std::move(fields); }
  void sample(inventory::SnapshotPtr snapshot, std::size_t index, Time, Done done) override {
    asked.push_back({index, std::move(snapshot), std::move(done)});
  }
  // Answers the oldest question.
  void answer(std::uint64_t temperature = 40, unsigned pid = 0) {
    auto one = std::move(asked.front());
    asked.pop_front();
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
  void fail_one(Code code) {
    auto one = std::move(asked.front());
    asked.pop_front();
    one.done(fail(code, "no"));
  }

  std::set<Field> wanted;
  std::deque<Asked> asked;
};

class FakePods final : public kubelet::PodResources {
 public:
  using Listed = std::function<void(Result<std::vector<kubelet::ContainerDevices>>)>;
  void list(Listed done) override { asked.push_back(std::move(done)); }
  void allocatable(std::function<void(Result<kubelet::DevicesByResource>)>) override {}
  void answer(Result<std::vector<kubelet::ContainerDevices>> what) {
    auto done = std::move(asked.front());
    asked.pop_front();
    done(std::move(what));
  }
  std::deque<Listed> asked;
};

kubelet::ContainerDevices container(const std::string& pod, const std::string& device) {
  return {"default", pod, "main", {{ResourceName("nvidia.com/gpu"), {DeviceId(device)}}}};
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

class MetricsCareTest : public testing::Test {
 protected:
  MetricsCareTest() { care_.set({}); }
  void answer_all(std::uint64_t temperature = 40) {
    while (!sampler_.asked.empty()) sampler_.answer(temperature);
    while (!pods_.asked.empty()) pods_.answer(held_);
  }
  std::vector<std::string> lines(const std::string& begin) const {
    metrics::Exposition page;
    care_.add_to(page);
    std::vector<std::string> found;
    for (const auto& line : text::split(page.text(), '\n')) {
      if (line.starts_with(begin)) found.push_back(line);
    }
    return found;
  }
  std::size_t temperatures() const { return lines("DCGM_FI_DEV_GPU_TEMP{").size(); }

  ManualLoop loop_;
  FakeSampler sampler_;
  FakePods pods_;
  std::vector<kubelet::ContainerDevices> held_;
  Result<metrics::PodUids> uids_ = metrics::PodUids{{kUid, {"default", "train"}}};
  int sampled_ = 0;
  MetricsCare care_{loop_, {sampler_, pods_, [this] { return uids_; }, [this] { ++sampled_; }}};
};

TEST_F(MetricsCareTest, SamplesAtOnceAndThenByItsInterval) {
  loop_.advance(1min);
  EXPECT_TRUE(sampler_.asked.empty()) << "nothing is there to be sampled";
  care_.on_snapshot(gpu_node(2));
  EXPECT_EQ(sampler_.asked.size(), 2u);
  answer_all();
  EXPECT_EQ(sampled_, 1);
  EXPECT_EQ(temperatures(), 2u);
  care_.on_snapshot(gpu_node(2));
  EXPECT_TRUE(sampler_.asked.empty()) << "a new snapshot waits for its turn";
  loop_.advance(15s);
  EXPECT_EQ(sampler_.asked.size(), 2u);
  EXPECT_EQ(sampled_, 1) << "a scrape between shows the last";
  EXPECT_EQ(care_.numbers().sample_age, 15s);
  answer_all(50);
  EXPECT_EQ(sampled_, 2);
  EXPECT_EQ(lines("DCGM_FI_DEV_GPU_TEMP{gpu=\"1\"")[0].substr(
                lines("DCGM_FI_DEV_GPU_TEMP{gpu=\"1\"")[0].rfind(' ')),
            " 50");
}

TEST_F(MetricsCareTest, ARoundThatNoGpuAnsweredIsNoYoungerSample) {
  care_.on_snapshot(gpu_node(1));
  answer_all();
  loop_.advance(15s);
  ASSERT_EQ(sampler_.asked.size(), 1u);
  sampler_.fail_one(Code::kDeadlineExceeded);
  answer_all();
  EXPECT_EQ(sampled_, 2);
  EXPECT_EQ(care_.numbers().sample_age, 15s);
}

TEST_F(MetricsCareTest, AGpuThatHangsCostsItselfAlone) {
  care_.on_snapshot(gpu_node(2));
  pods_.answer(held_);
  sampler_.answer();  // GPU 0; GPU 1 hangs
  EXPECT_EQ(sampled_, 0);
  loop_.advance(kSamplePatience);
  EXPECT_EQ(sampled_, 1);
  EXPECT_EQ(temperatures(), 1u);
  loop_.advance(15s - kSamplePatience);
  ASSERT_EQ(sampler_.asked.size(), 2u);
  EXPECT_EQ(sampler_.asked[1].index, 0u) << "one that has not answered is not asked again";
  sampler_.fail_one(Code::kDeadlineExceeded);
  sampler_.answer();
  pods_.answer(held_);
  EXPECT_EQ(sampled_, 2);
  EXPECT_EQ(temperatures(), 1u);
  loop_.advance(15s);
  EXPECT_EQ(sampler_.asked.size(), 2u) << "now it is";
  answer_all();
  EXPECT_EQ(temperatures(), 2u);
}

TEST_F(MetricsCareTest, WhatComesTooLateIsNotShown) {
  care_.on_snapshot(gpu_node(1));
  pods_.answer(held_);
  loop_.advance(kSamplePatience);
  EXPECT_EQ(temperatures(), 0u);
  sampler_.answer();
  EXPECT_EQ(temperatures(), 0u);
  EXPECT_EQ(sampled_, 1);
}

TEST_F(MetricsCareTest, AKubeletThatIsAwayLeavesWhatIsKnown) {
  held_ = {container("train", "GPU-0")};
  care_.on_snapshot(gpu_node(1));
  answer_all();
  EXPECT_EQ(lines("gpulet_device_allocated").size(), 1u);
  loop_.advance(15s);
  sampler_.answer();
  pods_.answer(fail(Code::kUnavailable, "nobody listens"));
  EXPECT_EQ(sampled_, 2);
  EXPECT_EQ(lines("gpulet_device_allocated").size(), 1u);
  EXPECT_EQ(care_.numbers().pod_resources_errors, 1u);
  EXPECT_EQ(care_.numbers().pod_resources_age, 15s);
  // One that is slow: it is not asked twice.
  loop_.advance(15s);
  sampler_.answer();
  loop_.advance(15s);
  sampler_.answer();
  EXPECT_EQ(pods_.asked.size(), 1u);
  EXPECT_EQ(sampled_, 3) << "a round waits for its patience";
  held_.clear();
  pods_.answer(held_);
  loop_.advance(15s);
  answer_all();
  EXPECT_TRUE(lines("gpulet_device_allocated").empty());
}

TEST_F(MetricsCareTest, ProcessesFindTheirPods) {
  held_ = {container("train", "GPU-0::0"), container("serve", "GPU-0::1")};
  care_.on_snapshot(gpu_node(1));
  sampler_.answer(40, 7);
  pods_.answer(held_);
  const auto memory = lines("gpulet_pod_gpu_memory_bytes");
  ASSERT_EQ(memory.size(), 3u);
  EXPECT_NE(memory[1].find("pod=\"serve\"} 0"), std::string::npos) << memory[1];
  EXPECT_NE(memory[2].find("pod=\"train\"} 62914560"), std::string::npos) << memory[2];
  // The UIDs cannot be read any more: they are as last known.
  uids_ = fail(Code::kIo, "gone");
  loop_.advance(15s);
  sampler_.answer(40, 7);
  pods_.answer(held_);
  EXPECT_EQ(lines("gpulet_pod_gpu_memory_bytes"), memory);
  EXPECT_EQ(lines("gpulet_pod_gpu_memory_bytes")[0].find("pod_uid"), std::string::npos);
}

TEST_F(MetricsCareTest, UidsAndLabelsWhereTheyAreWanted) {
  held_ = {container("train", "GPU-0")};
  care_.on_pod_labels({{{"default", "train"}, {{"app", "x"}, {"team", "y"}}}});
  care_.on_snapshot(gpu_node(1));
  answer_all();
  EXPECT_EQ(lines("DCGM_FI_DEV_GPU_TEMP{")[0].find("app="), std::string::npos);
  MetricsSettings settings;
  settings.pod_uid = settings.pod_labels = true;
  settings.patterns = *metrics::LabelPatterns::parse({"^app$"}, "");
  care_.set(settings);
  loop_.advance(15s);
  answer_all();
  const auto line = lines("DCGM_FI_DEV_GPU_TEMP{")[0];
  EXPECT_NE(
      line.find("app=\"x\",container=\"main\",namespace=\"default\",pod=\"train\",pod_uid=\"" + kUid + "\"}"),
      std::string::npos)
      << line;
  EXPECT_EQ(line.find("team="), std::string::npos);
}

TEST_F(MetricsCareTest, SettingsTakeEffectAndNothingIsSampledWithoutAnInterval) {
  MetricsSettings settings;
  settings.counters.all = {{Field::kGpuTemp, metrics::Type::kGauge, "dcgm_gpu_temp", "x"}};
  settings.more = {Field::kSmClock};
  care_.set(settings);
  EXPECT_EQ(sampler_.wanted, (std::set<Field>{Field::kSmClock, Field::kGpuTemp}));
  care_.on_snapshot(gpu_node(1));
  answer_all();
  EXPECT_EQ(lines("dcgm_gpu_temp{").size(), 1u);
  settings.interval = 0s;
  care_.set(settings);
  loop_.advance(1h);
  EXPECT_TRUE(sampler_.asked.empty());
  EXPECT_EQ(care_.numbers().sample_age, std::nullopt);
}

TEST_F(MetricsCareTest, ADriverThatGoesTakesItsSeries) {
  care_.on_snapshot(gpu_node(1));
  answer_all();
  care_.on_snapshot(nullptr);
  EXPECT_EQ(temperatures(), 0u);
  loop_.advance(1min);
  EXPECT_TRUE(sampler_.asked.empty());
  EXPECT_EQ(care_.numbers().sample_age, 1min) << "an alert asks for it";
  care_.on_snapshot(gpu_node(1));
  answer_all();
  EXPECT_EQ(temperatures(), 1u);
}

TEST_F(MetricsCareTest, XidsAreOnTheNextSample) {
  care_.on_snapshot(gpu_node(1));
  answer_all();
  care_.on_xid(DeviceUuid("GPU-0"), {}, 79, "GPU has fallen off the bus");
  loop_.advance(15s);
  answer_all();
  EXPECT_NE(
      lines("DCGM_FI_DEV_XID_ERRORS{")[0].find("err_code=\"79\",err_msg=\"GPU has fallen off the bus\"} 79"),
      std::string::npos);
}

}  // namespace
}  // namespace gpulet::agent

#include "agent/nvml_sampler.h"

#include <gtest/gtest.h>

#include "nvml/test_loop_thread.h"
#include "nvml/test_sim_root.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using metrics::Field;

class NvmlSamplerTest : public testing::Test {
 protected:
  void SetUp() override {
    thread_.run([&] {
      driver_ = std::make_unique<NvmlDriver>(thread_.loop(), NvmlDriverOptions{.driver_root = root_.path()});
      sampler_ = std::make_unique<NvmlSampler>(*driver_, 500ms);
      sampler_->want({Field::kGpuTemp, Field::kGraphicsActive});
    });
    const auto opened = thread_.await<Status>([&](auto done) { driver_->open(done); });
    ASSERT_TRUE(opened && *opened);
    const auto read = thread_.await<Result<inventory::Snapshot>>([&](auto done) { driver_->read(done); });
    ASSERT_TRUE(read && *read);
    snapshot_ = std::make_shared<const inventory::Snapshot>(**read);
  }
  void TearDown() override {
    thread_.run([&] {
      sampler_.reset();
      driver_.reset();
    });
  }
  Result<Sampler::Sampled> sample(std::size_t index) {
    auto sampled = thread_.await<Result<Sampler::Sampled>>(
        [&](auto done) { sampler_->sample(snapshot_, index, now_ += 1s, done); });
    return sampled.value_or(fail(Code::kInternal, "it never answered"));
  }

  nvml::SimRoot root_{2};
  nvml::LoopThread thread_;
  std::unique_ptr<NvmlDriver> driver_;
  std::unique_ptr<NvmlSampler> sampler_;
  inventory::SnapshotPtr snapshot_;
  Time now_{1h};
};

TEST_F(NvmlSamplerTest, EachGpuKeepsItsRates) {
  for (const std::size_t index : {0, 1}) {
    const auto first = sample(index), second = sample(index);
    ASSERT_TRUE(first && second);
    EXPECT_EQ(first->gpu.uuid, snapshot_->gpus[index].uuid);
    EXPECT_TRUE(first->gpu.values.contains(Field::kGpuTemp));
    EXPECT_FALSE(first->gpu.values.contains(Field::kGraphicsActive));
    EXPECT_TRUE(second->gpu.values.contains(Field::kGraphicsActive));
  }
  thread_.run([&] { sampler_->want({Field::kSmClock}); });
  EXPECT_FALSE(sample(0)->gpu.values.contains(Field::kGpuTemp));
}

TEST_F(NvmlSamplerTest, AGpuThatHangsIsTheOnlyOne) {
  ASSERT_TRUE(sample(0));
  root_.edit()->gpus[0].faults.hang = 1;
  EXPECT_EQ(sample(0).error().code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(sample(1));
  root_.edit()->gpus[0].faults.hang = 0;
  // The call that hung may still be on its way out; the one that comes after it begins anew.
  Result<Sampler::Sampled> again = sample(0);
  const auto until = std::chrono::steady_clock::now() + nvml::kTestPatience;
  while (!again && std::chrono::steady_clock::now() < until) again = sample(0);
  ASSERT_TRUE(again) << again.error().text();
  EXPECT_FALSE(again->gpu.values.contains(Field::kGraphicsActive));
  EXPECT_TRUE(sample(0)->gpu.values.contains(Field::kGraphicsActive));
}

}  // namespace
}  // namespace gpulet::agent

#include "nvml/gpm.h"

#include <gtest/gtest.h>

#include "nvml/test_on_driver.h"
#include "sim/state/mig.h"

namespace gpulet::nvml {
namespace {

class GpmTest : public OnDriver {
 protected:
  GpmTest() : OnDriver(2u) {}
  Gpm gpm() const { return {*session_, gpu_}; }
  GpmSample sample(std::optional<unsigned> gpu_instance = std::nullopt) const {
    auto taken = gpm().sample(gpu_instance);
    EXPECT_TRUE(taken) << taken.error().text();
    return taken.value_or(GpmSample());
  }
};

TEST_F(GpmTest, HopperAndLater) {
  EXPECT_TRUE(gpm().supported().value());
  root_.edit()->gpus[0].architecture = 8;  // Ada
  EXPECT_FALSE(gpm().supported().value());
  EXPECT_EQ(gpm().sample().error().code(), Code::kUnsupported);
}

TEST_F(GpmTest, WhatWasBetweenTwoSamples) {
  const auto earlier = sample();
  {
    auto machine = root_.edit();
    machine->gpus[0].utilization_gpu = 80;
    machine->gpus[0].utilization_memory = 40;
    machine->gpus[0].pcie_tx_kbps = 2'097'152;  // 2000 MiB/s
    machine->gpus[0].links[2].transmitted_kib = 1 << 30;
  }
  const auto later = sample();
  const auto found =
      gpm().between(earlier, later,
                    {GpmMetric::kGraphics, GpmMetric::kDram, GpmMetric::kPcieTransmitted,
                     GpmMetric::kNvLinkTransmitted, GpmMetric::kNvLinkReceived, GpmMetric::kJpeg0});
  ASSERT_TRUE(found) << found.error().text();
  EXPECT_DOUBLE_EQ(found->at(GpmMetric::kGraphics), 40);
  EXPECT_DOUBLE_EQ(found->at(GpmMetric::kDram), 20);
  EXPECT_DOUBLE_EQ(found->at(GpmMetric::kPcieTransmitted), 1000);
  EXPECT_GT(found->at(GpmMetric::kNvLinkTransmitted), 0);
  EXPECT_DOUBLE_EQ(found->at(GpmMetric::kNvLinkReceived), 0);
  EXPECT_FALSE(found->contains(GpmMetric::kJpeg0)) << "this driver does not have it";
  // The samples the other way round have no time between them: a rate is no number.
  const auto backwards = gpm().between(later, earlier, {GpmMetric::kNvLinkTransmitted, GpmMetric::kSm});
  ASSERT_TRUE(backwards) << backwards.error().text();
  EXPECT_EQ(backwards->size(), 1u);
  EXPECT_TRUE(gpm().between(earlier, later, {}).value().empty());
}

TEST_F(GpmTest, OneGpuInstance) {
  unsigned id = 0;
  {
    auto machine = root_.edit();
    auto& gpu = machine->gpus[0];
    sim::GpuInstance* made = nullptr;
    ASSERT_EQ(sim::set_mig_mode(gpu, true), sim::MigOutcome::kOk);
    ASSERT_EQ(sim::create_gpu_instance(gpu, 9, 4, &made), sim::MigOutcome::kOk);
    id = made->id;
    sim::Process process{};
    process.pid = 5;
    process.gpu_instance = id;
    process.compute_instance = 0;
    process.sm_utilization = 90;
    ASSERT_TRUE(sim::add_process(gpu, process));
  }
  const auto earlier = sample(id), later = sample(id);
  const auto found = gpm().between(earlier, later, {GpmMetric::kGraphics, GpmMetric::kPcieReceived});
  ASSERT_TRUE(found) << found.error().text();
  EXPECT_EQ(*found, (std::map<GpmMetric, double>{{GpmMetric::kGraphics, 90}}));
  EXPECT_EQ(gpm().between(sample(), later, {GpmMetric::kSm}).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(gpm().sample(id + 1).error().code(), Code::kInvalidArgument);
}

TEST_F(GpmTest, SamplesOfAnEarlierSessionAreRefused) {
  const auto earlier = sample();
  EXPECT_EQ(gpm().between(GpmSample(), earlier, {GpmMetric::kSm}).error().code(), Code::kUnavailable);
  ASSERT_TRUE(Session::close(std::move(session_), std::chrono::seconds(30)));
  auto opened = Session::open(root_.path());
  ASSERT_TRUE(opened) << opened.error().text();
  session_ = *opened;
  gpu_ = *session_->device(0);
  EXPECT_EQ(gpm().between(earlier, sample(), {GpmMetric::kSm}).error().code(), Code::kUnavailable);
}

TEST_F(GpmTest, ALostGpu) {
  root_.edit()->gpus[0].faults.lost = 1;
  EXPECT_EQ(gpm().supported().error().code(), Code::kDeviceLost);
  EXPECT_EQ(gpm().sample().error().code(), Code::kDeviceLost);
}

TEST(GpmOfBareDriver, IsAbsent) {
  const SimRoot root(*sim::small_machine(1), GPULET_BARE_DRIVER);
  const auto session = Session::open(root.path());
  ASSERT_TRUE(session) << session.error().text();
  const Gpm gpm(**session, *(*session)->device(0));
  EXPECT_EQ(gpm.supported().error().code(), Code::kUnsupported);
  EXPECT_EQ(gpm.sample().error().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace gpulet::nvml

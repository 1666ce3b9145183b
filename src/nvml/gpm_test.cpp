#include "nvml/gpm.h"

#include <gtest/gtest.h>

#include "nvml/test_on_driver.h"
#include "sim/state/mig.h"

namespace gpulet::nvml {
namespace {

class GpmTest : public DriverTest {
 protected:
  GpmTest() : DriverTest(2u) {}
  Gpm gpm() const { return {*session_, gpu_}; }
  GpmSample sample_gpu(std::optional<unsigned> gpu_instance = std::nullopt) const {
    auto sample = gpm().take_sample(gpu_instance);
    EXPECT_TRUE(sample) << sample.error().full_message();
    return sample.value_or(GpmSample());
  }
};

TEST_F(GpmTest, HopperAndLater) {
  EXPECT_TRUE(gpm().is_supported().value());
  root_.edit_machine()->gpus[0].architecture = 8;  // Ada
  EXPECT_FALSE(gpm().is_supported().value());
  EXPECT_EQ(gpm().take_sample().error().code(), Code::kUnsupported);
}

TEST_F(GpmTest, ComputesMetricsBetweenTwoSamples) {
  const auto earlier = sample_gpu();
  {
    auto machine = root_.edit_machine();
    machine->gpus[0].utilization_gpu = 80;
    machine->gpus[0].utilization_memory = 40;
    machine->gpus[0].pcie_tx_kbps = 2'097'152;  // 2000 MiB/s
    machine->gpus[0].links[2].transmitted_kib = 1 << 30;
  }
  const auto later = sample_gpu();
  constexpr auto kUnknownMetric = static_cast<GpmMetric>(59);  // no metric of nvml.h
  const auto found = gpm().compute_metrics(
      earlier, later,
      {GpmMetric::kGraphics, GpmMetric::kDram, GpmMetric::kPcieTransmitted, GpmMetric::kNvLinkTransmitted,
       GpmMetric::kNvLinkReceived, GpmMetric::kJpeg0, kUnknownMetric});
  ASSERT_TRUE(found) << found.error().full_message();
  EXPECT_DOUBLE_EQ(found->at(GpmMetric::kGraphics), 40);
  EXPECT_DOUBLE_EQ(found->at(GpmMetric::kDram), 20);
  EXPECT_DOUBLE_EQ(found->at(GpmMetric::kPcieTransmitted), 1000);
  EXPECT_GT(found->at(GpmMetric::kNvLinkTransmitted), 0);
  EXPECT_DOUBLE_EQ(found->at(GpmMetric::kNvLinkReceived), 0);
  EXPECT_DOUBLE_EQ(found->at(GpmMetric::kJpeg0), 0);
  EXPECT_FALSE(found->contains(kUnknownMetric)) << "the driver does not support it";
  // Reversed samples have no time between them, so a rate is not a number.
  const auto backwards =
      gpm().compute_metrics(later, earlier, {GpmMetric::kNvLinkTransmitted, GpmMetric::kSm});
  ASSERT_TRUE(backwards) << backwards.error().full_message();
  EXPECT_EQ(backwards->size(), 1u);
  EXPECT_TRUE(gpm().compute_metrics(earlier, later, {}).value().empty());
}

TEST_F(GpmTest, TrafficOfEachLink) {
  {
    auto machine = root_.edit_machine();
    machine->gpus[0].links[20] = machine->gpus[0].links[0];
  }
  const auto earlier = sample_gpu();
  {
    auto machine = root_.edit_machine();
    machine->gpus[0].links[2].transmitted_kib = machine->gpus[0].links[20].received_kib = 1 << 30;
  }
  const auto later = sample_gpu();
  std::set<GpmMetric> metrics;
  for (const unsigned link : {2u, 17u, 18u, 20u})
    metrics.insert({link_metrics(link).received, link_metrics(link).transmitted});
  const auto found = gpm().compute_metrics(earlier, later, metrics);
  ASSERT_TRUE(found) << found.error().full_message();
  EXPECT_GT(found->at(link_metrics(2).transmitted), 0);
  EXPECT_EQ(found->at(link_metrics(2).received), 0);
  EXPECT_EQ(found->at(link_metrics(17).transmitted), 0);
  EXPECT_FALSE(found->contains(link_metrics(18).transmitted)) << "there is no such link";
  EXPECT_GT(found->at(link_metrics(20).received), 0);
}

TEST_F(GpmTest, OneGpuInstance) {
  unsigned id = 0;
  {
    auto machine = root_.edit_machine();
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
  const auto earlier = sample_gpu(id), later = sample_gpu(id);
  const auto found = gpm().compute_metrics(earlier, later, {GpmMetric::kGraphics, GpmMetric::kPcieReceived});
  ASSERT_TRUE(found) << found.error().full_message();
  EXPECT_EQ(*found, (std::map<GpmMetric, double>{{GpmMetric::kGraphics, 90}}));
  EXPECT_EQ(gpm().compute_metrics(sample_gpu(), later, {GpmMetric::kSm}).error().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(gpm().take_sample(id + 1).error().code(), Code::kInvalidArgument);
}

TEST_F(GpmTest, RefusesSamplesOfAnEarlierSession) {
  const auto earlier = sample_gpu();
  EXPECT_EQ(gpm().compute_metrics(GpmSample(), earlier, {GpmMetric::kSm}).error().code(), Code::kUnavailable);
  ASSERT_TRUE(Session::shut_down(std::move(session_), std::chrono::seconds(30)));
  auto opened = Session::open_session(root_.sim_root());
  ASSERT_TRUE(opened) << opened.error().full_message();
  session_ = *opened;
  gpu_ = *session_->device(0);
  EXPECT_EQ(gpm().compute_metrics(earlier, sample_gpu(), {GpmMetric::kSm}).error().code(),
            Code::kUnavailable);
}

TEST_F(GpmTest, ALostGpu) {
  root_.edit_machine()->gpus[0].faults.lost = 1;
  EXPECT_EQ(gpm().is_supported().error().code(), Code::kDeviceLost);
  EXPECT_EQ(gpm().take_sample().error().code(), Code::kDeviceLost);
}

TEST(GpmOfBareDriver, IsUnsupported) {
  const SimRoot root(*sim::small_machine(1), GPULET_BARE_DRIVER);
  const auto session = Session::open_session(root.sim_root());
  ASSERT_TRUE(session) << session.error().full_message();
  const Gpm gpm(**session, *(*session)->device(0));
  EXPECT_EQ(gpm.is_supported().error().code(), Code::kUnsupported);
  EXPECT_EQ(gpm.take_sample().error().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace gpulet::nvml

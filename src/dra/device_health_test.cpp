#include "dra/device_health.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "dra/test_machines.h"

namespace gpulet::dra {
namespace {

using health::DeviceState;
using health::FaultClass;
using test::make_gpu;
using test::make_partitioned_gpu;
using test::make_pool;

// A device of the view with at most one fault.
health::DeviceView device_view(const std::string& uuid, DeviceState state,
                               FaultClass fault_class = FaultClass::kXidReset) {
  health::DeviceView device;
  device.uuid = DeviceUuid(uuid);
  device.scope.gpu = device.uuid;
  device.gpu_index = 0;
  device.status.state = state;
  if (state == DeviceState::kHealthy || state == DeviceState::kUnmonitored) return device;
  device.status.reason = "XID 79: GPU has fallen off the bus";
  device.status.recovery_text = "after a reset of the GPU";
  health::Fault fault;
  fault.fault_class = fault_class;
  fault.effect = state == DeviceState::kDegraded ? health::Effect::kFlag : health::Effect::kQuarantine;
  device.status.faults.push_back(fault);
  return device;
}

health::HealthView view_of(std::vector<health::DeviceView> devices) { return {{}, std::move(devices)}; }

std::map<std::string, ClaimRecord> held(const std::string& device, const std::string& uuid) {
  return {{"uid", {"uid", "team", "claim", {{"gpus", "node-1", device, DeviceUuid(uuid)}}}}};
}

DeviceHealth only_report(const health::HealthView& view) {
  const auto report = make_health_report(make_pool({make_gpu(0)}), {}, view);
  return report.size() == 1 ? report[0] : DeviceHealth{};
}

TEST(HealthReport, ADeviceIsUnhealthyWhenAFaultHasWithdrawnIt) {
  const std::map<DeviceState, DeviceCondition> expected = {
      {DeviceState::kHealthy, DeviceCondition::kHealthy},
      {DeviceState::kUnmonitored, DeviceCondition::kUnknown},
      {DeviceState::kDegraded, DeviceCondition::kHealthy},
      {DeviceState::kRecovering, DeviceCondition::kUnhealthy},
      {DeviceState::kDraining, DeviceCondition::kUnhealthy},
      {DeviceState::kQuarantined, DeviceCondition::kUnhealthy},
      {DeviceState::kLost, DeviceCondition::kUnhealthy},
  };
  for (const auto state : health::kDeviceStates) {
    const auto report = only_report(view_of({device_view("GPU-0", state)}));
    EXPECT_EQ(report.device, "gpu-0");
    EXPECT_EQ(report.condition, expected.at(state)) << health::enum_name(state);
    EXPECT_EQ(report.message.empty(), state == DeviceState::kHealthy) << health::enum_name(state);
  }
  EXPECT_EQ(only_report(view_of({device_view("GPU-0", DeviceState::kQuarantined)})).message,
            "GPU 0 (GPU-0) is quarantined: XID 79: GPU has fallen off the bus; recovers after a reset of the "
            "GPU");
}

TEST(HealthReport, ACordonedDeviceWorks) {
  const auto report =
      only_report(view_of({device_view("GPU-0", DeviceState::kQuarantined, FaultClass::kCordoned)}));
  EXPECT_EQ(report.condition, DeviceCondition::kHealthy);
  EXPECT_NE(report.message, "");
}

TEST(HealthReport, AReleasedDriverShowsNothing) {
  auto view = view_of({device_view("GPU-0", DeviceState::kQuarantined, FaultClass::kDriverAway)});
  EXPECT_EQ(only_report(view).condition, DeviceCondition::kUnhealthy);
  view.release = {"driver upgrade", true};
  EXPECT_EQ(only_report(view),
            (DeviceHealth{"gpu-0", DeviceCondition::kUnknown, "the driver is released: driver upgrade"}));
  view.devices = {device_view("GPU-0", DeviceState::kDegraded)};
  EXPECT_EQ(only_report(view).condition, DeviceCondition::kUnknown);
  view.devices = {device_view("GPU-0", DeviceState::kQuarantined)};
  EXPECT_EQ(only_report(view).condition, DeviceCondition::kUnhealthy);
}

TEST(HealthReport, AMigDeviceHasItsOwnHealthOrThatOfItsGpu) {
  const auto pool = make_pool({make_partitioned_gpu(0, 2)});
  const auto report = make_health_report(
      pool, {},
      view_of({device_view("GPU-0", DeviceState::kHealthy), device_view("MIG-GPU-0-1", DeviceState::kLost)}));
  ASSERT_EQ(report.size(), 2u);
  EXPECT_EQ(report[0].device, "gpu-0-mig-1g10gb-19-0");
  EXPECT_EQ(report[0].condition, DeviceCondition::kHealthy);
  EXPECT_EQ(report[1].condition, DeviceCondition::kUnhealthy);
}

TEST(HealthReport, ADeviceThatIsGoneIsUnknownToThePodThatHoldsIt) {
  const auto pool = make_pool({make_gpu(0)});
  const auto report = make_health_report(pool, held("gpu-7", "GPU-7"),
                                         view_of({device_view("GPU-0", DeviceState::kHealthy)}));
  ASSERT_EQ(report.size(), 2u);
  EXPECT_EQ(report[0], (DeviceHealth{"gpu-0", DeviceCondition::kHealthy}));
  EXPECT_EQ(report[1], (DeviceHealth{"gpu-7", DeviceCondition::kUnknown, "GPU-7 is not on this node now"}));
  // The state machine still knows a GPU that fell off the bus.
  auto removed = device_view("GPU-7", DeviceState::kLost);
  removed.gpu_index.reset();
  EXPECT_EQ(make_health_report(pool, held("gpu-7", "GPU-7"), view_of({removed}))[1].condition,
            DeviceCondition::kUnhealthy);
}

TEST(HealthReport, ANameMeansTheGpuOfItsClaim) {
  const auto view =
      view_of({device_view("GPU-0", DeviceState::kHealthy), device_view("GPU-1", DeviceState::kLost)});
  const auto report = make_health_report(make_pool({make_gpu(0)}), held("gpu-0", "GPU-1"), view);
  ASSERT_EQ(report.size(), 1u);
  EXPECT_EQ(report[0].condition, DeviceCondition::kUnhealthy);
}

TEST(HealthReport, ADeviceWithoutItsDaemonIsUnhealthy) {
  const std::string message = "the MPS control daemon of claim team/a does not serve";
  const DeviceHealth unserved{"gpu-0", DeviceCondition::kUnhealthy, message};
  const auto report_of = [&](DeviceState state, bool is_released) {
    auto view = view_of({device_view("GPU-0", state)});
    if (is_released) view.release = {"driver upgrade", true};
    return make_health_report(make_pool({make_gpu(0)}), {}, view, {{DeviceUuid("GPU-0"), message}}).at(0);
  };
  for (const auto state : {DeviceState::kHealthy, DeviceState::kUnmonitored, DeviceState::kDegraded})
    EXPECT_EQ(report_of(state, false), unserved) << health::enum_name(state);
  EXPECT_NE(report_of(DeviceState::kLost, false).message, message) << "the GPU's own fault is the cause";
  EXPECT_EQ(report_of(DeviceState::kHealthy, true).condition, DeviceCondition::kUnknown)
      << "its daemon is stopped on request";
  EXPECT_EQ(
      make_health_report(make_pool({make_gpu(0)}), {}, view_of({device_view("GPU-0", DeviceState::kHealthy)}),
                         {{DeviceUuid("GPU-1"), message}}),
      std::vector{(DeviceHealth{"gpu-0", DeviceCondition::kHealthy})});
}

TEST(HealthReport, AMessageHasTheApisLimit) {
  auto device = device_view("GPU-0", DeviceState::kQuarantined);
  device.status.reason = std::string(5000, 'x');
  EXPECT_EQ(only_report(view_of({device})).message.size(), kMaxHealthMessageBytes);
}

}  // namespace
}  // namespace gpulet::dra

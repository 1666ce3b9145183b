#include "dra/device.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "health/policy/health_policy.h"

namespace gpulet::dra {
namespace {

using health::DeviceState;
using health::DeviceStatus;
using health::Effect;
using health::FaultClass;

health::Fault fault(FaultClass fault_class, Effect effect, std::uint64_t code = 0) {
  health::Fault made;
  made.fault_class = fault_class;
  made.effect = effect;
  made.code = code;
  return made;
}

std::string taints_text(const DeviceStatus& status) {
  std::string text;
  for (const auto& taint : health_taints(status)) {
    text += (text.empty() ? "" : " ") + taint.key + "=" + taint.value + ":" +
            std::string(enum_name(taint.effect));
  }
  return text;
}

TEST(SemanticVersion, IsStrict) {
  for (const auto& [text, version] : std::vector<std::pair<const char*, const char*>>{
           {"570.124.06", "570.124.6"},
           {"580.65.06", "580.65.6"},
           {"12.4", "12.4.0"},
           {"9", "9.0.0"},
           {"", "0.0.0"},
           {"unknown", "0.0.0"},
           {"470.256.02-beta", "470.256.2"},
           {"1.2.3.4", "1.2.3"},
           {"000.00.0", "0.0.0"},
           {"1..3", "1.0.0"},
           {"99999999999.1", "0.1.0"},
       }) {
    EXPECT_EQ(semantic_version(text).text, version) << text;
  }
}

TEST(HealthTaints, UseNvidiasKeys) {
  DeviceStatus status;
  EXPECT_EQ(taints_text(status), "");
  status.state = DeviceState::kUnmonitored;
  EXPECT_EQ(taints_text(status), "gpu.nvidia.com/unmonitored=true:None");
  status.state = DeviceState::kQuarantined;
  status.faults = {fault(FaultClass::kXidReset, Effect::kQuarantine, 95)};
  EXPECT_EQ(taints_text(status), "gpu.nvidia.com/xid=95:NoSchedule");
  status.state = DeviceState::kLost;
  status.faults = {fault(FaultClass::kLost, Effect::kLose)};
  EXPECT_EQ(taints_text(status), "gpu.nvidia.com/gpu-lost=true:NoSchedule");
  status.faults = {fault(FaultClass::kXidReset, Effect::kLose, 79)};
  EXPECT_EQ(taints_text(status), "gpu.nvidia.com/gpu-lost=true:NoSchedule gpu.nvidia.com/xid=79:NoSchedule");
}

TEST(HealthTaints, OnlyAFaultThatWithdrawsKeepsClaimsOff) {
  DeviceStatus status;
  status.state = DeviceState::kDegraded;
  status.faults = {fault(FaultClass::kXidSupport, Effect::kFlag, 43),
                   fault(FaultClass::kPcieWidth, Effect::kFlag),
                   fault(FaultClass::kThermal, Effect::kIgnore)};
  EXPECT_EQ(taints_text(status), "gpu.nvidia.com/xid=43:None gpulet.io/fault=pcie-width:None");
  status.state = DeviceState::kDraining;
  status.faults.push_back(fault(FaultClass::kCordoned, Effect::kDrain));
  EXPECT_EQ(taints_text(status),
            "gpulet.io/fault=cordoned:NoSchedule gpu.nvidia.com/xid=43:None gpulet.io/fault=pcie-width:None");
  status.faults.clear();
  EXPECT_EQ(taints_text(status), "gpulet.io/fault=draining:NoSchedule");
}

bool is_label_value(const std::string& text) {
  constexpr std::size_t kMost = 63;
  return !text.empty() && text.size() <= kMost &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string::npos &&
         text.front() != '-' && text.back() != '-';
}

RC_GTEST_PROP(HealthTaints, AreValidAndStable, ()) {
  DeviceStatus status;
  status.state = *rc::gen::elementOf(
      std::vector<DeviceState>(std::begin(health::kDeviceStates), std::end(health::kDeviceStates)));
  const auto count = *rc::gen::inRange(0, 30);
  for (int i = 0; i < count; ++i) {
    status.faults.push_back(
        fault(static_cast<FaultClass>(*rc::gen::inRange<int>(0, health::kFaultClassCount)),
              *rc::gen::element(Effect::kIgnore, Effect::kFlag, Effect::kDrain, Effect::kQuarantine),
              *rc::gen::inRange(1u, 200u)));
  }
  const auto taints = health_taints(status);
  RC_ASSERT(taints.size() <= kMaxTaints);
  bool withdrawn = false;
  for (const auto& taint : taints) {
    RC_ASSERT(is_label_value(taint.value));
    withdrawn |= taint.effect == TaintEffect::kNoSchedule;
  }
  RC_ASSERT(health::is_allocatable(status.state) || withdrawn);
  std::reverse(status.faults.begin(), status.faults.end());
  RC_ASSERT(health_taints(status) == taints);
}

TEST(KeepTimeAdded, OnlyOfTheSameTaint) {
  const DeviceTaint wanted{"k", "v", TaintEffect::kNoSchedule};
  const auto kept = [&](DeviceTaint shown) { return keep_time_added({wanted}, {std::move(shown)})[0]; };
  EXPECT_EQ(kept({"k", "v", TaintEffect::kNoSchedule, "t"}).time_added, "t");
  EXPECT_EQ(kept({"k", "w", TaintEffect::kNoSchedule, "t"}).time_added, "");
  EXPECT_EQ(kept({"k", "v", TaintEffect::kNone, "t"}).time_added, "");
  EXPECT_EQ(kept({"j", "v", TaintEffect::kNoSchedule, "t"}).time_added, "");
}

}  // namespace
}  // namespace gpulet::dra

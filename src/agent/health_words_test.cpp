#include "agent/health_words.h"

#include <gtest/gtest.h>

namespace gpulet::agent {
namespace {

using health::Change;
using health::Scope;
using health::State;
using Severity = Reporter::Severity;

const DeviceUuid kWhole("GPU-a"), kCut("GPU-b");

health::View view() {
  health::View view;
  const auto add = [&](Scope scope, const char* uuid, std::optional<unsigned> gpu,
                       std::optional<unsigned> mig) {
    health::DeviceView device;
    device.scope = std::move(scope);
    device.uuid = DeviceUuid(uuid);
    device.gpu_index = gpu;
    device.mig_index = mig;
    view.devices.push_back(std::move(device));
  };
  add({kWhole}, "GPU-a", 0, std::nullopt);
  add({kCut}, "GPU-b", 1, std::nullopt);
  add({kCut, 3, 0}, "MIG-x", 1, 0);
  add({kCut, 4, 0}, "MIG-y", 1, 1);
  add({DeviceUuid("GPU-gone")}, "GPU-gone", std::nullopt, std::nullopt);
  return view;
}

Change change(Scope device, State before, State after,
              std::string reason = "XID 95: uncontained memory error") {
  Change change;
  change.device = std::move(device);
  change.before.state = before;
  change.after.state = after;
  change.after.reason = std::move(reason);
  change.after.comes_back = "once its checks have passed for 30 s";
  return change;
}

std::string said(const std::vector<HealthNews>& news) {
  std::string out;
  for (const auto& one : news) {
    out += (out.empty() ? "" : "\n") + std::string(one.severity == Severity::kWarning ? "! " : "  ") +
           std::string(one.reason) + (one.names_pods ? "+: " : ": ") + one.message;
  }
  return out;
}
std::string said_of(State before, State after, std::string reason = "XID 95: uncontained memory error") {
  return said(health_news(view(), {change({kWhole}, before, after, std::move(reason))}));
}

TEST(HealthWords, EachKindOfChange) {
  EXPECT_EQ(said_of(State::kHealthy, State::kQuarantined),
            "! GPUUnhealthy+: GPU 0 (GPU-a) is withdrawn: XID 95: uncontained memory error");
  EXPECT_EQ(said_of(State::kDegraded, State::kLost, "no longer in the node"),
            "! GPUUnhealthy+: GPU 0 (GPU-a) is withdrawn: no longer in the node");
  EXPECT_EQ(said_of(State::kHealthy, State::kDraining, "cordoned: a fan"),
            "! GPUUnhealthy+: GPU 0 (GPU-a) is withdrawn: cordoned: a fan");
  EXPECT_EQ(said_of(State::kQuarantined, State::kLost, "XID 79: off"),
            "! GPUHealthChanged: GPU 0 (GPU-a) stays withdrawn, lost: XID 79: off");
  EXPECT_EQ(said_of(State::kQuarantined, State::kRecovering),
            "  GPURecovering: GPU 0 (GPU-a) is recovering from XID 95: uncontained memory error: offered "
            "again once "
            "its checks have passed for 30 s");
  EXPECT_EQ(said_of(State::kRecovering, State::kHealthy, ""),
            "  GPUHealthy: GPU 0 (GPU-a) is healthy again and offered");
  EXPECT_EQ(said_of(State::kRecovering, State::kDegraded, "held back"),
            "! GPUDegraded: GPU 0 (GPU-a) is offered again, degraded: held back");
  EXPECT_EQ(said_of(State::kHealthy, State::kDegraded, "held back"),
            "! GPUDegraded: GPU 0 (GPU-a) is degraded: held back");
  EXPECT_EQ(said_of(State::kDegraded, State::kHealthy, ""), "  GPUHealthy: GPU 0 (GPU-a) is healthy again");
  EXPECT_EQ(said_of(State::kHealthy, State::kUnmonitored, ""),
            "! GPUUnmonitored: GPU 0 (GPU-a) is offered, and nothing would tell of a fault");
  EXPECT_EQ(said_of(State::kUnmonitored, State::kHealthy, ""), "") << "its first source has spoken";
}

TEST(HealthWords, AGpuSpeaksForMigDevicesThatShareItsFate) {
  const auto both = {change({kCut}, State::kHealthy, State::kLost),
                     change({kCut, 3, 0}, State::kHealthy, State::kLost),
                     change({kCut, 4, 0}, State::kQuarantined, State::kLost)};
  EXPECT_EQ(said(health_news(view(), both)),
            "! GPUUnhealthy+: GPU 1 (GPU-b) is withdrawn: XID 95: uncontained memory error\n"
            "! GPUHealthChanged: MIG 1:1 (MIG-y) stays withdrawn, lost: XID 95: uncontained memory error");
  EXPECT_EQ(said(health_news(view(), {change({kCut, 3, 0}, State::kHealthy, State::kQuarantined)})),
            "! GPUUnhealthy+: MIG 1:0 (MIG-x) is withdrawn: XID 95: uncontained memory error");
}

TEST(HealthWords, OfWhatIsGoneOrUnknownNothingIsSaid) {
  EXPECT_EQ(said(health_news(view(), {change({DeviceUuid("GPU-gone")}, State::kHealthy, State::kLost),
                                      change({DeviceUuid("GPU-never")}, State::kHealthy, State::kLost)})),
            "");
}

}  // namespace
}  // namespace gpulet::agent

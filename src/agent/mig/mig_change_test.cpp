#include "agent/mig/mig_change.h"

#include "agent/mig/test_mig.h"

namespace gpulet::agent {
namespace {

using mig::states::add_instance;
using Kind = k8s::EvictionUpdate::Kind;
using MigProfiles = std::vector<std::string>;
using namespace std::chrono_literals;

mig::Plan blocked(MigProfiles by) {
  mig::Plan plan;
  plan.blocked_by = std::move(by);
  return plan;
}

TEST(MigDrainPlan, BlockingPodsAreThoseOfTheKubelet) {
  const mig::PodsByDevice pods = {{DeviceId("MIG-a"), "default/train"},
                                  {DeviceId("MIG-b"), "default/train"},
                                  {DeviceId("MIG-c"), "other/infer"},
                                  {DeviceId("MIG-d"), "other/stays"}};
  EXPECT_EQ(blocking_pods(
                blocked({"process 7 (Pod other/stays), on 1g.10gb at 0", "Pod other/infer, on 1g.10gb at 0",
                         "Pod default/train, on 1g.10gb at 1", "Pod default/train, on the GPU"}),
                pods),
            (MigProfiles{"default/train", "other/infer"}));
  EXPECT_EQ(blocking_pods(blocked({"process 7 (python3), on the GPU"}), pods), MigProfiles{});
}

TEST(MigDrainPlan, ExtraProcessOfAPodsInstanceCountsAsThePods) {
  EXPECT_TRUE(can_drain(blocked({"process 7 (a, on b), on 1g.10gb at 0", "Pod d/t, on 1g.10gb at 0"})));
  EXPECT_FALSE(can_drain(blocked({"process 7 (python3), on 1g.10gb at 0", "Pod d/t, on 1g.10gb at 1"})));
  EXPECT_FALSE(can_drain(blocked({"process 7 (python3), on the GPU"})));
}

class MigDrainTest : public MigManagerTest {
 protected:
  MigDrainTest() { drains_ = true; }
  // Both with one instance that is the whole GPU, so that any other layout is in the way of it.
  void make_whole() {
    for (std::size_t i = 0; i < 2; ++i) {
      mig::states::set_mig_mode(hardware_.sim_gpu(i));
      ASSERT_NE(add_instance(hardware_.sim_gpu(i), "7g.80gb", 0), nullptr);
    }
  }
  std::string reported_reasons(const std::string& reason) const {
    std::string all;
    for (const auto& [its, message] : events_.recorded) all += its == reason ? message + "\n" : "";
    return all;
  }
};

TEST_F(MigDrainTest, EvictsPodsAndWithdrawsTheGpuUntilTheyAreGone) {
  make_whole();
  hold_gpus({{0, "default/train"}});
  set_label("all-1g.10gb");
  loop_.advance(30s);
  EXPECT_EQ(api_.requested, MigProfiles{"default/train"}) << "asked once";
  EXPECT_TRUE(withdrawn_.contains(hardware_.mig_state(0).uuid));
  EXPECT_EQ(hardware_.applied, std::vector<std::size_t>{1}) << "one that is free goes first";
  EXPECT_EQ(states_.back(), "pending");
  EXPECT_NE(reported_reasons("MigDraining").find("GPU 0: evicting default/train (the label"),
            std::string::npos);

  api_.send_event({"default/train", Kind::kTerminating, ""});
  loop_.advance(30s);
  EXPECT_EQ(hardware_.applied.size(), 1u) << "its grace period runs";
  hold_gpus({});
  loop_.advance(kMigDrainPoll * 2);
  EXPECT_EQ(hardware_.mig_state(0).instances.size(), 7u);
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_EQ(api_.under_way(), 0u);
  EXPECT_EQ(states_.back(), "success");
  EXPECT_EQ(events_.count_events("MigBlocked"), 0u);
}

TEST_F(MigDrainTest, EvictsOnlyBlockingPods) {
  for (std::size_t i = 0; i < 2; ++i) mig::states::set_mig_mode(hardware_.sim_gpu(i));
  auto& gpu = hardware_.sim_gpu(0);
  ASSERT_TRUE(add_instance(gpu, "3g.40gb", 0) && add_instance(gpu, "3g.40gb", 4));
  const auto state = hardware_.mig_state(0);
  const auto stays = state.instances[0].compute[0].uuid, other = state.instances[1].compute[0].uuid;
  holders_ =
      mig::PodsByDevice{{DeviceId(stays.str()), "default/one"}, {DeviceId(other.str()), "default/two"}};
  set_label("all-balanced");  // one 3g.40gb, and smaller ones
  loop_.advance(5s);
  ASSERT_EQ(api_.requested.size(), 1u);
  const bool first_goes = api_.requested[0] == "default/one";
  const auto kept = first_goes ? other : stays;
  holders_ = mig::PodsByDevice{{DeviceId(kept.str()), first_goes ? "default/two" : "default/one"}};
  loop_.advance(5s);
  EXPECT_EQ(api_.requested.size(), 1u);
  const auto now = hardware_.mig_state(0);
  EXPECT_EQ(now.instances.size(), 4u);
  EXPECT_TRUE(
      std::ranges::any_of(now.instances, [&](const auto& one) { return one.compute[0].uuid == kept; }));
  EXPECT_EQ(states_.back(), "success");
}

TEST_F(MigDrainTest, EvictsNothingByDefault) {
  drains_ = false;
  hold_gpus({{0, "default/train"}});
  set_label("all-1g.10gb");
  loop_.advance(5min);
  EXPECT_EQ(api_.requested, MigProfiles{});
  EXPECT_EQ(ever_withdrawn_.size(), 1u);
}

TEST_F(MigDrainTest, EvictsNothingIfAProcessAlsoBlocks) {
  for (std::size_t i = 0; i < 2; ++i) mig::states::set_mig_mode(hardware_.sim_gpu(i));
  auto& gpu = hardware_.sim_gpu(0);
  ASSERT_TRUE(add_instance(gpu, "3g.40gb", 0) && add_instance(gpu, "3g.40gb", 4));
  hardware_.processes[0] = "process 7 (python3)";
  holders_ = mig::PodsByDevice{
      {DeviceId(hardware_.mig_state(0).instances[0].compute[0].uuid.str()), "default/train"}};
  set_label("all-7g.80gb");
  loop_.advance(5min);
  EXPECT_EQ(api_.requested, MigProfiles{});
  EXPECT_FALSE(ever_withdrawn_.contains(hardware_.mig_state(0).uuid));
  EXPECT_EQ(events_.count_events("MigBlocked"), 1u);
}

TEST_F(MigDrainTest, AfterTheLimitTheGpuReturnsUnchangedAndIsRetriedLater) {
  make_whole();
  hold_gpus({{0, "default/train"}});
  set_label("all-1g.10gb");
  loop_.advance(2s);
  api_.send_event({"default/train", Kind::kWaiting, "the API server answered 429: budget"});
  EXPECT_NE(reported_reasons("MigDrainWaits")
                .find("Pod default/train is not evicted yet: the API server answered 429: budget"),
            std::string::npos);
  loop_.advance(kMigDrainLimit - 10s);
  EXPECT_EQ(withdrawn_.size(), 1u);
  loop_.advance(15s);
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_EQ(api_.under_way(), 0u);
  EXPECT_EQ(hardware_.mig_state(0).instances.size(), 1u);
  EXPECT_NE(reported_reasons("MigBlocked")
                .find("drained for 10 minutes, and not gone: default/train; default/train: the API "
                      "server answered 429: budget"),
            std::string::npos)
      << reported_reasons("MigBlocked");
  EXPECT_EQ(states_.back(), "pending");
  loop_.advance(kMigDrainBackoff.first / 2 - 20s);
  EXPECT_EQ(api_.requested.size(), 1u);
  EXPECT_TRUE(withdrawn_.empty());
  loop_.advance(kMigDrainBackoff.first + kMigBackoff.max);
  EXPECT_EQ(api_.requested.size(), 2u);
  EXPECT_EQ(withdrawn_.size(), 1u);
}

TEST_F(MigDrainTest, ARefusedEvictionEndsTheDrainWithTheReason) {
  make_whole();
  hold_gpus({{0, "kube-system/static-n1"}});
  set_label("all-1g.10gb");
  loop_.advance(2s);
  api_.send_event({"kube-system/static-n1", Kind::kRefused, "it is a static Pod"});
  loop_.advance(kMigDrainPoll);
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_NE(
      reported_reasons("MigBlocked").find("Pod kube-system/static-n1 cannot be evicted: it is a static Pod"),
      std::string::npos);
  EXPECT_EQ(hardware_.mig_state(0).instances.size(), 1u);
}

TEST_F(MigDrainTest, ProcessesOutsidePodsAreReportedOnly) {
  make_whole();
  hold_gpus({{0, "default/train"}});
  hardware_.processes[0] = "process 7 (python3)";
  set_label("all-1g.10gb");
  loop_.advance(5s);
  EXPECT_EQ(api_.requested, MigProfiles{"default/train"}) << "it is taken for the Pod's";
  hold_gpus({});
  loop_.advance(kMigProcessGrace - 2s);
  EXPECT_EQ(withdrawn_.size(), 1u) << "it may linger";
  loop_.advance(4s);
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_NE(reported_reasons("MigBlocked").find("process 7 (python3)"), std::string::npos);
  EXPECT_NE(reported_reasons("MigBlocked").find("processes outside Pods are not touched"), std::string::npos);
  EXPECT_EQ(hardware_.mig_state(0).instances.size(), 1u);
}

TEST_F(MigDrainTest, HooksMayStopTheRemainingProcesses) {
  hooks_.configured = true;
  hooks_.on_run = [this](mig::HookPoint point) {
    if (point == mig::HookPoint::kPreApplyConfig) hardware_.processes.clear();
  };
  make_whole();
  hold_gpus({{0, "default/train"}});
  hardware_.processes[0] = "process 7 (nv-hostengine)";
  set_label("all-1g.10gb");
  loop_.advance(5s);
  EXPECT_EQ(std::ranges::count(hooks_.log, "pre-apply-config"), 1)
      << "of the other GPU: here Pods come first";
  hold_gpus({});
  loop_.advance(5s);
  EXPECT_EQ(hardware_.mig_state(0).instances.size(), 7u);
  EXPECT_EQ(hooks_.log, (MigProfiles{"apply-start", "pre-apply-config", "pre-apply-config", "apply-exit"}));
}

TEST_F(MigDrainTest, EvictsAPodThatArrivesMeanwhile) {
  make_whole();
  hold_gpus({{0, "default/train"}});
  set_label("all-1g.10gb");
  loop_.advance(5s);
  holders_ = mig::PodsByDevice{
      {DeviceId(hardware_.mig_state(0).uuid.str()), "default/train"},
      {DeviceId(hardware_.mig_state(0).instances[0].compute[0].uuid.str()), "default/late"}};
  loop_.advance(5s);
  EXPECT_EQ(api_.requested, (MigProfiles{"default/train", "default/late"}));
}

TEST_F(MigDrainTest, ANewTargetEndsTheDrain) {
  make_whole();
  hold_gpus({{0, "default/train"}});
  set_label("all-1g.10gb");
  loop_.advance(5s);
  EXPECT_EQ(api_.under_way(), 1u);
  set_label("all-7g.80gb");
  loop_.advance(5s);
  EXPECT_EQ(api_.under_way(), 0u);
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_EQ(hardware_.mig_state(0).instances.size(), 1u);
  EXPECT_EQ(states_.back(), "success");
}

TEST_F(MigDrainTest, ReportsAMissingApiServer) {
  api_.reachable = false;
  make_whole();
  hold_gpus({{0, "default/train"}});
  set_label("all-1g.10gb");
  loop_.advance(5s);
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_NE(reported_reasons("MigBlocked").find("no API server is configured to evict default/train"),
            std::string::npos);
}

TEST_F(MigDrainTest, AModeChangeDrainsTheWholeGpu) {
  holders_ = mig::PodsByDevice{{DeviceId(hardware_.mig_state(1).uuid.str() + "::0"), "default/a"},
                               {DeviceId(hardware_.mig_state(1).uuid.str() + "::1"), "default/b"}};
  set_label("all-balanced");
  loop_.advance(5s);
  EXPECT_EQ(api_.requested, (MigProfiles{"default/a", "default/b"}));
  hold_gpus({});
  loop_.advance(5s);
  EXPECT_TRUE(hardware_.mig_state(1).enabled);
  EXPECT_EQ(states_.back(), "success");
}

}  // namespace
}  // namespace gpulet::agent

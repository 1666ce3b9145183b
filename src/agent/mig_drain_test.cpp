#include "agent/mig_drain.h"

#include "agent/test_mig.h"

namespace gpulet::agent {
namespace {

using mig::states::add;
using Kind = cluster::EvictionNews::Kind;
using Names = std::vector<std::string>;
using namespace std::chrono_literals;

mig::Plan blocked(Names by) {
  mig::Plan plan;
  plan.blocked_by = std::move(by);
  return plan;
}

TEST(MigDrainPlan, PodsInTheWayAreThoseThatTheKubeletKnows) {
  const mig::Pods pods = {{DeviceId("MIG-a"), "default/train"},
                          {DeviceId("MIG-b"), "default/train"},
                          {DeviceId("MIG-c"), "other/infer"},
                          {DeviceId("MIG-d"), "other/stays"}};
  EXPECT_EQ(pods_in_the_way(
                blocked({"process 7 (Pod other/stays), on 1g.10gb at 0", "Pod other/infer, on 1g.10gb at 0",
                         "Pod default/train, on 1g.10gb at 1", "Pod default/train, on the GPU"}),
                pods),
            (Names{"default/train", "other/infer"}));
  EXPECT_EQ(pods_in_the_way(blocked({"process 7 (python3), on the GPU"}), pods), Names{});
}

TEST(MigDrainPlan, AProcessBesideAPodIsTakenForIts) {
  EXPECT_TRUE(drain_would_do(blocked({"process 7 (a, on b), on 1g.10gb at 0", "Pod d/t, on 1g.10gb at 0"})));
  EXPECT_FALSE(drain_would_do(blocked({"process 7 (python3), on 1g.10gb at 0", "Pod d/t, on 1g.10gb at 1"})));
  EXPECT_FALSE(drain_would_do(blocked({"process 7 (python3), on the GPU"})));
}

class MigDrainTest : public MigManagerTest {
 protected:
  MigDrainTest() { drains_ = true; }
  // Both with one instance that is the whole GPU, so that any other layout is in the way of it.
  void make_whole() {
    for (std::size_t i = 0; i < 2; ++i) {
      mig::states::enable(hardware_.gpu(i));
      ASSERT_NE(add(hardware_.gpu(i), "7g.80gb", 0), nullptr);
    }
  }
  std::string said(const std::string& reason) const {
    std::string all;
    for (const auto& [its, message] : events_.said) all += its == reason ? message + "\n" : "";
    return all;
  }
};

TEST_F(MigDrainTest, PodsAreAskedAndTheGpuIsWithdrawnUntilTheyAreGone) {
  make_whole();
  hold({{0, "default/train"}});
  want("all-1g.10gb");
  loop_.advance(30s);
  EXPECT_EQ(api_.asked, Names{"default/train"}) << "asked once";
  EXPECT_TRUE(withdrawn_.contains(hardware_.state(0).uuid));
  EXPECT_EQ(hardware_.applied, std::vector<std::size_t>{1}) << "one that is free goes first";
  EXPECT_EQ(states_.back(), "pending");
  EXPECT_NE(said("MigDraining").find("GPU 0: asking to leave: default/train (the label"), std::string::npos);

  api_.tell({"default/train", Kind::kLeaving, ""});
  loop_.advance(30s);
  EXPECT_EQ(hardware_.applied.size(), 1u) << "its grace period runs";
  hold({});
  loop_.advance(kMigDrainPoll * 2);
  EXPECT_EQ(hardware_.state(0).instances.size(), 7u);
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_EQ(api_.under_way(), 0u);
  EXPECT_EQ(states_.back(), "success");
  EXPECT_EQ(events_.count("MigBlocked"), 0u);
}

TEST_F(MigDrainTest, OnlyThoseThatHoldWhatMustGo) {
  for (std::size_t i = 0; i < 2; ++i) mig::states::enable(hardware_.gpu(i));
  auto& gpu = hardware_.gpu(0);
  ASSERT_TRUE(add(gpu, "3g.40gb", 0) && add(gpu, "3g.40gb", 4));
  const auto state = hardware_.state(0);
  const auto stays = state.instances[0].compute[0].uuid, other = state.instances[1].compute[0].uuid;
  holders_ = mig::Pods{{DeviceId(stays.str()), "default/one"}, {DeviceId(other.str()), "default/two"}};
  want("all-balanced");  // one 3g.40gb, and smaller ones
  loop_.advance(5s);
  ASSERT_EQ(api_.asked.size(), 1u);
  const bool first_goes = api_.asked[0] == "default/one";
  const auto kept = first_goes ? other : stays;
  holders_ = mig::Pods{{DeviceId(kept.str()), first_goes ? "default/two" : "default/one"}};
  loop_.advance(5s);
  EXPECT_EQ(api_.asked.size(), 1u);
  const auto now = hardware_.state(0);
  EXPECT_EQ(now.instances.size(), 4u);
  EXPECT_TRUE(
      std::ranges::any_of(now.instances, [&](const auto& one) { return one.compute[0].uuid == kept; }));
  EXPECT_EQ(states_.back(), "success");
}

TEST_F(MigDrainTest, WithoutTheSettingNobodyIsAsked) {
  drains_ = false;
  hold({{0, "default/train"}});
  want("all-1g.10gb");
  loop_.advance(5min);
  EXPECT_EQ(api_.asked, Names{});
  EXPECT_EQ(ever_withdrawn_.size(), 1u);
}

TEST_F(MigDrainTest, NobodyIsDisturbedWhereAProcessAloneIsInTheWayToo) {
  for (std::size_t i = 0; i < 2; ++i) mig::states::enable(hardware_.gpu(i));
  auto& gpu = hardware_.gpu(0);
  ASSERT_TRUE(add(gpu, "3g.40gb", 0) && add(gpu, "3g.40gb", 4));
  hardware_.processes[0] = "process 7 (python3)";
  holders_ = mig::Pods{{DeviceId(hardware_.state(0).instances[0].compute[0].uuid.str()), "default/train"}};
  want("all-7g.80gb");
  loop_.advance(5min);
  EXPECT_EQ(api_.asked, Names{});
  EXPECT_FALSE(ever_withdrawn_.contains(hardware_.state(0).uuid));
  EXPECT_EQ(events_.count("MigBlocked"), 1u);
}

TEST_F(MigDrainTest, AfterTheLimitTheGpuIsPutBackAsItIsAndTriedAgainMuchLater) {
  make_whole();
  hold({{0, "default/train"}});
  want("all-1g.10gb");
  loop_.advance(2s);
  api_.tell({"default/train", Kind::kWaiting, "the API server answered 429: budget"});
  EXPECT_NE(
      said("MigDrainWaits").find("Pod default/train is not evicted yet: the API server answered 429: budget"),
      std::string::npos);
  loop_.advance(kMigDrainLimit - 10s);
  EXPECT_EQ(withdrawn_.size(), 1u);
  loop_.advance(15s);
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_EQ(api_.under_way(), 0u);
  EXPECT_EQ(hardware_.state(0).instances.size(), 1u);
  EXPECT_NE(said("MigBlocked")
                .find("drained for 10 minutes, and not gone: default/train; default/train: the API "
                      "server answered 429: budget"),
            std::string::npos)
      << said("MigBlocked");
  EXPECT_EQ(states_.back(), "pending");
  loop_.advance(kMigDrainBackoff.first / 2 - 20s);
  EXPECT_EQ(api_.asked.size(), 1u);
  EXPECT_TRUE(withdrawn_.empty());
  loop_.advance(kMigDrainBackoff.first + kMigBackoff.longest);
  EXPECT_EQ(api_.asked.size(), 2u);
  EXPECT_EQ(withdrawn_.size(), 1u);
}

TEST_F(MigDrainTest, OneThatCannotLeaveEndsItAtOnceWithTheReason) {
  make_whole();
  hold({{0, "kube-system/static-n1"}});
  want("all-1g.10gb");
  loop_.advance(2s);
  api_.tell({"kube-system/static-n1", Kind::kRefused, "it is a static Pod"});
  loop_.advance(kMigDrainPoll);
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_NE(said("MigBlocked").find("Pod kube-system/static-n1 cannot be evicted: it is a static Pod"),
            std::string::npos);
  EXPECT_EQ(hardware_.state(0).instances.size(), 1u);
}

TEST_F(MigDrainTest, ProcessesThatAreNoPodsAreReportedAndLeftAlone) {
  make_whole();
  hold({{0, "default/train"}});
  hardware_.processes[0] = "process 7 (python3)";
  want("all-1g.10gb");
  loop_.advance(5s);
  EXPECT_EQ(api_.asked, Names{"default/train"}) << "it is taken for the Pod's";
  hold({});
  loop_.advance(kMigLinger - 2s);
  EXPECT_EQ(withdrawn_.size(), 1u) << "it may linger";
  loop_.advance(4s);
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_NE(said("MigBlocked").find("process 7 (python3)"), std::string::npos);
  EXPECT_NE(said("MigBlocked").find("processes that are no Pod's are left alone"), std::string::npos);
  EXPECT_EQ(hardware_.state(0).instances.size(), 1u);
}

TEST_F(MigDrainTest, HooksMayStopTheProcessesThatAreLeft) {
  hooks_.there = true;
  hooks_.on_run = [this](mig::HookPoint point) {
    if (point == mig::HookPoint::kPreApplyConfig) hardware_.processes.clear();
  };
  make_whole();
  hold({{0, "default/train"}});
  hardware_.processes[0] = "process 7 (nv-hostengine)";
  want("all-1g.10gb");
  loop_.advance(5s);
  EXPECT_EQ(std::ranges::count(hooks_.log, "pre-apply-config"), 1)
      << "of the other GPU: here Pods come first";
  hold({});
  loop_.advance(5s);
  EXPECT_EQ(hardware_.state(0).instances.size(), 7u);
  EXPECT_EQ(hooks_.log, (Names{"apply-start", "pre-apply-config", "pre-apply-config", "apply-exit"}));
}

TEST_F(MigDrainTest, OneThatComesMeanwhileIsAskedToo) {
  make_whole();
  hold({{0, "default/train"}});
  want("all-1g.10gb");
  loop_.advance(5s);
  holders_ = mig::Pods{{DeviceId(hardware_.state(0).uuid.str()), "default/train"},
                       {DeviceId(hardware_.state(0).instances[0].compute[0].uuid.str()), "default/late"}};
  loop_.advance(5s);
  EXPECT_EQ(api_.asked, (Names{"default/train", "default/late"}));
}

TEST_F(MigDrainTest, AnotherWishEndsIt) {
  make_whole();
  hold({{0, "default/train"}});
  want("all-1g.10gb");
  loop_.advance(5s);
  EXPECT_EQ(api_.under_way(), 1u);
  want("all-7g.80gb");
  loop_.advance(5s);
  EXPECT_EQ(api_.under_way(), 0u);
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_EQ(hardware_.state(0).instances.size(), 1u);
  EXPECT_EQ(states_.back(), "success");
}

TEST_F(MigDrainTest, WithoutAnApiServerItIsSaid) {
  api_.there = false;
  make_whole();
  hold({{0, "default/train"}});
  want("all-1g.10gb");
  loop_.advance(5s);
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_NE(said("MigBlocked").find("no API server is known that could evict default/train"),
            std::string::npos);
}

TEST_F(MigDrainTest, AModeChangeDrainsTheWholeGpu) {
  holders_ = mig::Pods{{DeviceId(hardware_.state(1).uuid.str() + "::0"), "default/a"},
                       {DeviceId(hardware_.state(1).uuid.str() + "::1"), "default/b"}};
  want("all-balanced");
  loop_.advance(5s);
  EXPECT_EQ(api_.asked, (Names{"default/a", "default/b"}));
  hold({});
  loop_.advance(5s);
  EXPECT_TRUE(hardware_.state(1).enabled);
  EXPECT_EQ(states_.back(), "success");
}

}  // namespace
}  // namespace gpulet::agent

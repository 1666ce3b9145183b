#include "mig/holders.h"

#include <gtest/gtest.h>

#include "mig/test_drive.h"

namespace gpulet::mig {
namespace {

using Lines = std::vector<std::string>;

TEST(Holders, PodsHoldInstancesSharesAndWholeGpus) {
  const auto machine = states::machine("hgx-h100");
  auto& gpu = machine->gpus[0];
  states::enable(gpu);
  ASSERT_NE(states::add(gpu, "1g.10gb", 0), nullptr);
  ASSERT_NE(states::add(gpu, "3g.40gb", 4, {1, 1}), nullptr);
  State state = states::state_of(gpu);
  const auto id = [&](std::size_t instance, std::size_t compute, const char* share) {
    return DeviceId(state.instances.at(instance).compute.at(compute).uuid.str() + share);
  };
  state.instances[1].holders = {"process 1"};
  add_pods(state, {{id(1, 0, "::0"), "default/a"},
                   {id(1, 0, "::1"), "default/a"},
                   {id(1, 1, ""), "team/b"},
                   {DeviceId("MIG-of-another"), "default/c"}});
  EXPECT_EQ(state.instances[0].holders, Lines{});
  EXPECT_EQ(state.instances[1].holders,
            (id(1, 0, "") < id(1, 1, "") ? Lines{"process 1", "Pod default/a", "Pod team/b"}
                                         : Lines{"process 1", "Pod team/b", "Pod default/a"}));
  EXPECT_EQ(state.holders, Lines{});
  add_pods(state, {{DeviceId(state.uuid.str() + "::3"), "default/whole"},
                   {DeviceId(state.uuid.str() + "::4"), "default/whole"}});
  EXPECT_EQ(state.holders, Lines{"Pod default/whole"});
  EXPECT_EQ(state.instances[0].holders, Lines{"Pod default/whole"});
}

// A Pod that is given an instance while steps are under way.
TEST(Holders, AreAskedForAnewBeforeEachStep) {
  Drive drive("hgx-h100");
  ASSERT_EQ(drive.applied({true, {{"1g.10gb", 7}}}).outcome, Outcome::kDone);
  const State before = drive.state();
  const DeviceId last(before.instances.at(6).compute.at(0).uuid.str());
  int asked = 0;
  const auto hardware = with_pods(drive.hardware(), [&]() -> Result<Pods> {
    return ++asked < 4 ? Pods{} : Pods{{last, "default/late"}};
  });
  const auto steps = plan(*hardware->read(), {true, {{"7g.80gb", 1}}});
  ASSERT_TRUE(steps && !steps->blocked());
  const Report report = apply(*hardware, *steps);
  EXPECT_EQ(report.outcome, Outcome::kAsBefore) << describe(report);
  ASSERT_TRUE(report.error);
  EXPECT_NE(report.error->text().find("in use by Pod default/late"), std::string::npos) << describe(report);
  EXPECT_EQ(layout_now(drive.state()), layout_now(before));
  EXPECT_EQ(drive.state().instances.at(6).compute.at(0).uuid.str(), last.str());
  const auto blocked = plan(*hardware->read(), {true, {{"7g.80gb", 1}}});
  EXPECT_EQ(blocked->blocked_by, Lines{"Pod default/late, on 1g.10gb at 6"});
}

TEST(Holders, WhoCannotBeAskedForAreNotTakenForNone) {
  Drive drive("hgx-h100", false);
  bool known = true;
  const auto hardware = with_pods(drive.hardware(), [&]() -> Result<Pods> {
    if (known) return Pods{};
    return fail(Code::kUnavailable, "nobody listens", "kubelet.sock");
  });
  const auto steps = plan(*hardware->read(), {true, {{"7g.80gb", 1}}});
  ASSERT_TRUE(steps);
  known = false;
  const Report report = apply(*hardware, *steps);
  EXPECT_EQ(report.outcome, Outcome::kAsBefore);
  EXPECT_EQ(report.error->code(), Code::kUnavailable);
  EXPECT_FALSE(drive.state().enabled);
}

}  // namespace
}  // namespace gpulet::mig

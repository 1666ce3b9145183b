#include "agent/fraction/compute_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const ResourceName kCores("nvidia.com/gpu.cores");

// Four shares of each of two GPUs of 40,000 MiB.
mps::DaemonSpec cores_daemon() {
  mps::DaemonSpec spec;
  spec.name = kCores.str();
  spec.resources = {kCores};
  spec.protocol = mps::kProtocolWithNamespaces;
  for (const char* gpu : {"GPU-0", "GPU-1"}) {
    spec.devices.push_back({DeviceUuid(gpu), 0, false, mebibytes(40'000)});
    for (const char* replica : {"::0", "::1", "::2", "::3"}) {
      spec.namespaces.push_back(
          {mps::namespace_name(DeviceId(std::string(gpu) + replica)), DeviceUuid(gpu), {25, 10'000}});
    }
  }
  return spec;
}

ContainerLimits holder_of(std::vector<std::string> ids, unsigned thousandths) {
  ContainerLimits container{.state = ContainerLimits::State::kKnown};
  container.compute_thousandths = thousandths;
  for (const auto& id : ids) container.held[kCores].emplace_back(id);
  return container;
}

std::vector<NamespaceSetting> plan_of(std::vector<std::string> ids, unsigned thousandths) {
  return plan_compute(holder_of(std::move(ids), thousandths), {cores_daemon()})
      .value_or(std::vector<NamespaceSetting>{});
}

TEST(PlanCompute, GivesANamespaceWhatItsPodRequests) {
  const DeviceUuid gpu("GPU-0");
  EXPECT_THAT(plan_of({"GPU-0::2"}, 300), ElementsAre(NamespaceSetting{gpu, "0_2", {30, 10'000}}));
  EXPECT_THAT(plan_of({"GPU-0::2"}, 0), ElementsAre(NamespaceSetting{gpu, "0_2", {25, 10'000}}));
  EXPECT_THAT(plan_of({"GPU-0::2"}, 1), ElementsAre(NamespaceSetting{gpu, "0_2", {1, 10'000}}));
  EXPECT_THAT(plan_of({"GPU-0::2"}, 301), ElementsAre(NamespaceSetting{gpu, "0_2", {31, 10'000}}));
  EXPECT_THAT(plan_of({"GPU-0::3", "GPU-0::1"}, 300),
              ElementsAre(NamespaceSetting{gpu, "0_1", {60, 20'000}}));
  EXPECT_THAT(plan_of({"GPU-0::3", "GPU-0::1"}, 0), ElementsAre(NamespaceSetting{gpu, "0_1", {50, 20'000}}));
  EXPECT_THAT(plan_of({"GPU-0::3", "GPU-0::1"}, 700),
              ElementsAre(NamespaceSetting{gpu, "0_1", {100, 20'000}}));
  EXPECT_THAT(plan_of({"GPU-0::3", "GPU-1::1"}, 300), ElementsAre(NamespaceSetting{gpu, "0_3", {30, 10'000}}))
      << "of each GPU";
}

TEST(PlanCompute, AHolderOfAnUnknownShareIsRefused) {
  // Its directory is mounted, and has a former holder's limits.
  for (const unsigned thousandths : {0u, 300u}) {
    const auto gone = plan_compute(holder_of({"GPU-7::0"}, thousandths), {cores_daemon()});
    ASSERT_FALSE(gone);
    EXPECT_EQ(gone.error().full_message(), "nvidia.com/gpu.cores: its share is no longer offered");
    auto ambiguous = holder_of({"GPU-0::0", "GPU-0::2"}, thousandths);
    ambiguous.held_problem = "two Pods of this name";
    const auto refused = plan_compute(ambiguous, {cores_daemon()});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message(), "two Pods of this name");
    auto others = cores_daemon();
    others.namespaces.clear();
    EXPECT_THAT(plan_compute(ambiguous, {others}).value(), IsEmpty());
  }
  auto of_one = cores_daemon(), of_other = cores_daemon();
  std::erase_if(of_one.namespaces, [](const auto& one) { return one.device.str() == "GPU-1"; });
  std::erase_if(of_other.namespaces, [](const auto& one) { return one.device.str() == "GPU-0"; });
  EXPECT_EQ(plan_compute(holder_of({"GPU-1::0"}, 300), {of_one, of_other}).value().size(), 1u);
}

TEST(PlanCompute, TakesTheLesserMemory) {
  auto container = holder_of({"GPU-0::2"}, 0);
  container.limits[DeviceUuid("GPU-0")] = mebibytes(4096);
  EXPECT_EQ(plan_compute(container, {cores_daemon()}).value().at(0).limits.mebibytes, 4096u);
  container.limits[DeviceUuid("GPU-0")] = mebibytes(20'000);
  EXPECT_EQ(plan_compute(container, {cores_daemon()}).value().at(0).limits.mebibytes, 10'000u);
  auto of_two = cores_daemon();
  of_two.namespaces.clear();
  EXPECT_THAT(plan_compute(container, {of_two}).value(), IsEmpty());
}

class ComputeLimitsTest : public testing::Test {
 protected:
  std::string hold(const ContainerLimits& container) {
    answer.reset();
    limits.hold_compute(container, 5s, [this](const Status& status) {
      answer = status ? "" : status.error().full_message();
    });
    loop.run_ready();
    return answer.value_or("waits");
  }

  ManualLoop loop;
  std::vector<mps::DaemonSpec> specs{cores_daemon()};
  std::vector<NamespaceSetting> set;
  std::optional<Error> error;
  bool is_hanging = false;
  std::vector<ComputePorts::Done> hanging;
  std::optional<std::string> answer;
  ComputeLimits limits{
      {.loop = loop,
       .specs = [this] { return specs; },
       .set_namespace =
           [this](const NamespaceSetting& setting, ComputePorts::Done done) {
             set.push_back(setting);
             if (is_hanging) return hanging.push_back(std::move(done));
             loop.post([this, done = std::move(done)] { done(error ? Status(fail(*error)) : Status{}); });
           }}};
};

TEST_F(ComputeLimitsTest, AContainerStartsWithWhatWasReadBack) {
  EXPECT_EQ(hold(holder_of({"GPU-0::2"}, 300)), "");
  EXPECT_THAT(set, ElementsAre(NamespaceSetting{DeviceUuid("GPU-0"), "0_2", {30, 10'000}}));
  EXPECT_EQ(hold(holder_of({"GPU-0::2"}, 0)), "");
  EXPECT_EQ(set.back().limits.threads, 25u) << "no former holder's value stays";
  error = Error(Code::kUnavailable, "answers '25.00'");
  for (const unsigned thousandths : {300u, 0u})
    EXPECT_EQ(hold(holder_of({"GPU-0::2"}, thousandths)), "MPS namespace 0_2: answers '25.00'");
}

TEST_F(ComputeLimitsTest, OthersAreNotHeldUp) {
  EXPECT_EQ(hold(holder_of({}, 300)), "");
  EXPECT_THAT(hold(holder_of({"GPU-7::0"}, 0)), HasSubstr("its share is no longer offered"));
  auto init = holder_of({}, 300);
  init.is_init = true;
  EXPECT_EQ(hold(init), "") << "it holds no share of the daemon";
  init.held[ResourceName("nvidia.com/other")];
  EXPECT_EQ(hold(init), "");
  init.held[specs[0].resources.front()];
  EXPECT_THAT(hold(init), HasSubstr("does not say which GPUs an init container holds"));
  init.compute_thousandths = 0;
  EXPECT_EQ(hold(init), "");
  init.compute_thousandths = 300;
  specs[0].namespaces.clear();
  EXPECT_EQ(hold(init), "");
  EXPECT_EQ(hold(holder_of({"GPU-0::2"}, 300)), "");
  EXPECT_THAT(set, IsEmpty());
}

TEST_F(ComputeLimitsTest, ADaemonThatHangsIsGivenUp) {
  is_hanging = true;
  EXPECT_EQ(hold(holder_of({"GPU-0::2"}, 300)), "waits");
  loop.advance(6s);
  EXPECT_THAT(answer.value_or("waits"), HasSubstr("has not set the limit in time"));
  ASSERT_EQ(hanging.size(), 1u);
  answer.reset();
  hanging[0]({});
  EXPECT_FALSE(answer);
}

}  // namespace
}  // namespace gpulet::agent

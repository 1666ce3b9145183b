#include "device_plugin/pod_demands.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <atomic>
#include <thread>

#include "device_plugin/allocation.h"
#include "device_plugin/plugin_host.h"
#include "device_plugin/test_node.h"
#include "device_plugin/test_offers.h"

namespace gpulet::device_plugin {
namespace {

using offers::gpu_id;
using offers::share_id;
using placement::SharesOn;

const ResourceName kDemanded{"nvidia.com/gpu"};

// Accepts only these of the offer.
PodDemand make_demand(const Offer& offer, const std::string& pod, std::size_t count,
                      const std::set<DeviceId>& accepted) {
  PodDemand demand{.pod_uid = "uid-" + pod,
                   .pod = "default/" + pod,
                   .container = "main",
                   .resource = kDemanded,
                   .count = count};
  for (const auto& device : offer.resource.devices) {
    if (!accepted.contains(device.id)) demand.refused[device.id] = "expected 5, found " + device.id.str();
  }
  return demand;
}
PodDemand any_demand(const std::string& pod, std::size_t count) { return make_demand({}, pod, count, {}); }

TEST(PodDemands, AllocateRefusesWhatEveryCandidateRefuses) {
  const Offer offer = offers::make_offer();
  const auto five = make_demand(offer, "a", 1, {gpu_id(5)});
  const auto six = make_demand(offer, "b", 1, {gpu_id(6)});
  struct Case {
    std::vector<PodDemand> demands;
    std::vector<DeviceId> ids;
    bool is_refused;
  };
  auto other_resource = five;
  other_resource.resource = ResourceName("nvidia.com/other");
  for (const auto& [demands, ids, is_refused] : {
           Case{{}, {gpu_id(0)}, false},
           Case{{five}, {gpu_id(5)}, false},
           Case{{five}, {gpu_id(0)}, true},
           Case{{five, six}, {gpu_id(6)}, false},
           Case{{five, six}, {gpu_id(0)}, true},
           Case{{five, any_demand("c", 1)}, {gpu_id(0)}, false},
           Case{{five, any_demand("c", 2)}, {gpu_id(0)}, true},  // c requests two
           Case{{five}, {gpu_id(0), gpu_id(1)}, false},          // another Pod's
           Case{{other_resource}, {gpu_id(0)}, false},
           Case{{make_demand(offer, "d", 2, {gpu_id(0)})}, {gpu_id(0), gpu_id(1)}, true},
       }) {
    const auto checked = check_demands(offer, ids, demands);
    EXPECT_EQ(!checked, is_refused) << testing::PrintToString(ids.size()) << ids[0].str();
    if (!checked) {
      EXPECT_EQ(checked.error().code(), Code::kFailedPrecondition);
    }
  }
  EXPECT_EQ(
      check_demands(offer, std::vector{gpu_id(0)}, std::vector{five, six}).error().message(),
      "invalid allocation request for \"nvidia.com/gpu\": the Pod default/a does not accept it: expected 5, "
      "found " +
          gpu_id(0).str());
}

TEST(PodDemands, SharesAndNumaNodesOfOneContainer) {
  const Offer shared = offers::make_offer("nvidia.com/gpu", 8, 4);
  auto demand = any_demand("a", 2);
  demand.shares_on = SharesOn::kOneGpu;
  const std::vector together = {share_id(1, 0), share_id(1, 1)}, apart = {share_id(1, 0), share_id(2, 0)};
  EXPECT_TRUE(check_demands(shared, together, std::vector{demand}));
  EXPECT_EQ(
      check_demands(shared, apart, std::vector{demand}).error().message(),
      "invalid allocation request for \"nvidia.com/gpu\": the Pod default/a does not accept it: annotation "
      "gpulet.io/gpu-shares-on: expected 2 shares on one GPU, found different GPUs");
  EXPECT_TRUE(check_demands(offers::make_offer(), std::vector{gpu_id(0), gpu_id(1)}, std::vector{demand}))
      << "whole GPUs are no shares";
  demand.shares_on = SharesOn::kDifferentGpus;
  EXPECT_FALSE(check_demands(shared, together, std::vector{demand}));
  EXPECT_TRUE(check_demands(shared, apart, std::vector{demand}));
  const auto preferred = preferred_allocation(shared, together, {}, 2, std::vector{demand});
  ASSERT_TRUE(preferred) << "as far as it can hold";
  demand.shares_on = SharesOn::kOneGpu;
  const std::vector available = {share_id(1, 0), share_id(2, 0), share_id(2, 1)};
  EXPECT_EQ(preferred_allocation(shared, available, {}, 2, std::vector{demand})->devices,
            (std::vector{share_id(2, 0), share_id(2, 1)}));

  Offer whole = offers::make_offer();  // GPUs 0 to 3 on one node
  demand = any_demand("a", 2);
  demand.one_numa_node = true;
  EXPECT_TRUE(check_demands(whole, std::vector{gpu_id(0), gpu_id(3)}, std::vector{demand}));
  EXPECT_FALSE(check_demands(whole, std::vector{gpu_id(0), gpu_id(4)}, std::vector{demand}));
  whole.resource.devices[0].numa_node.reset();
  EXPECT_TRUE(check_demands(whole, std::vector{gpu_id(0), gpu_id(4)}, std::vector{demand})) << "unknown";
}

TEST(PodDemands, OnlyAChoiceOfAllCandidatesIsPreferred) {
  const Offer offer = offers::make_offer();
  const auto five = make_demand(offer, "a", 1, {gpu_id(5)});
  auto also_five = five;
  also_five.pod = "default/b";
  const auto prefer = [&](const std::vector<PodDemand>& demands) {
    std::vector<DeviceId> available;
    for (const auto& device : offer.resource.devices) available.push_back(device.id);
    return preferred_allocation(offer, available, {}, 1, demands)->devices.at(0);
  };
  EXPECT_EQ(prefer({five}), gpu_id(5));
  EXPECT_EQ(prefer({five, also_five}), gpu_id(5));
  EXPECT_EQ(prefer({five, any_demand("c", 2)}), gpu_id(5));
  const auto usual = prefer({});
  EXPECT_NE(usual, gpu_id(5));
  EXPECT_EQ(prefer({five, any_demand("c", 1)}), usual);
  EXPECT_EQ(prefer({five, make_demand(offer, "c", 1, {gpu_id(6)})}), usual);
  EXPECT_EQ(prefer({make_demand(offer, "d", 1, {})}), usual) << "nothing is accepted";
}

// What is preferred is accepted where that can be, and what is allocated always.
RC_GTEST_PROP(PodDemands, NeverAllocatesWhatThePodDoesNotAccept, ()) {
  static const Offer kWhole = offers::make_offer(), kShared = offers::make_offer("nvidia.com/gpu", 8, 2);
  const Offer& offer = *rc::gen::element(true, false) ? kShared : kWhole;
  std::set<DeviceId> accepted;
  std::vector<DeviceId> available;
  std::size_t both = 0;
  for (const auto& device : offer.resource.devices) {
    const bool is_accepted = *rc::gen::element(true, false, false);
    const bool is_free = *rc::gen::element(true, true, false);
    if (is_accepted) accepted.insert(device.id);
    if (is_free) available.push_back(device.id);
    both += is_accepted && is_free;
  }
  RC_PRE(!available.empty());
  const auto size = *rc::gen::inRange<std::size_t>(1, std::min<std::size_t>(available.size(), 4) + 1);
  const std::vector demands = {make_demand(offer, "a", size, accepted)};
  const auto preferred = preferred_allocation(offer, available, {}, size, demands);
  RC_ASSERT(preferred.has_value());
  RC_ASSERT(check_demands(offer, preferred->devices, demands).has_value() == (both >= size));
}

using Demanded = Result<std::vector<PodDemand>>;

class DemandingHostTest : public testing::Test {
 protected:
  DemandingHostTest() {
    kubelet_ = start_kubelet(sim::KubeletSettings{.dir = directory_.directory_path()});
    node_.emplace(directory_.directory_path(), "default", HolderSource::kNone);
    EXPECT_TRUE(node_->serve_offer(offers::make_offer()));
    EXPECT_TRUE(kubelet_->wait_for_allocatable(kDemanded.str(), 8, kPatience));
  }
  void set_source(DemandSource source) {
    node_->thread().run_on_loop([&] { node_->host().set_demand_source(std::move(source)); });
  }
  void set_demands(const Demanded& demands) {
    set_source([this, demands](auto done) {
      ++requests_;
      node_->thread().loop().post([done, demands] { done(demands); });
    });
  }
  // The GPU that the Pod gets, or the error.
  std::string admit(const std::string& name) {
    const auto grant = kubelet_->admit_pod({"default", name, "", {{"main", {{kDemanded.str(), 1}}}}});
    return grant ? grant->containers.at(0).devices.at(kDemanded.str()).at(0) : grant.error().message();
  }

  TemporaryDirectory directory_;
  std::unique_ptr<sim::Kubelet> kubelet_;
  std::optional<TestNode> node_;
  std::atomic<int> requests_ = 0;
};

TEST_F(DemandingHostTest, PrefersAndRefusesByTheDemandsOfTheMoment) {
  const Offer offer = offers::make_offer();
  set_demands(std::vector{make_demand(offer, "a", 1, {gpu_id(5)})});
  EXPECT_EQ(admit("a"), gpu_id(5).str());
  EXPECT_EQ(requests_, 2) << "GetPreferredAllocation and Allocate";
  EXPECT_TRUE(admit("b").starts_with("GPU-")) << "a has got its GPU: b is another Pod";
  set_demands(std::vector{make_demand(offer, "c", 1, {gpu_id(5)})});
  EXPECT_NE(admit("c").find("the Pod default/c does not accept it: expected 5, found "), std::string::npos);
  set_source(nullptr);
  EXPECT_TRUE(admit("d").starts_with("GPU-"));
}

TEST_F(DemandingHostTest, UnknownDemandsRefuseNothing) {
  set_demands(fail(Code::kUnavailable, "the API server is away"));
  EXPECT_TRUE(admit("a").starts_with("GPU-"));
  set_source([](auto) {});  // no answer
  const auto began = std::chrono::steady_clock::now();
  EXPECT_TRUE(admit("b").starts_with("GPU-"));
  EXPECT_GE(std::chrono::steady_clock::now() - began, kDemandTimeout);
}

TEST_F(DemandingHostTest, CallsGoOnWhenTheSourceGoes) {
  AsyncResult<bool> asked;
  set_source([&](auto) { asked.set(true); });
  AsyncResult<std::string> admitted;
  std::thread caller([&] { admitted.set(admit("a")); });
  EXPECT_TRUE(asked.get());
  set_source(nullptr);
  EXPECT_TRUE(admitted.get().starts_with("GPU-"));
  caller.join();
}

}  // namespace
}  // namespace gpulet::device_plugin

#include "device_plugin/pod_demands.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "device_plugin/allocation.h"
#include "device_plugin/test_offers.h"
#include "proto/deviceplugin_v1beta1.pb.h"

namespace gpulet::device_plugin {
namespace {

using offers::gpu_id;

const ResourceName kDemanded{"nvidia.com/gpu"};

PodDemand make_demand(const std::string& pod, std::size_t count,
                      std::optional<std::set<DeviceId>> accepted = std::nullopt) {
  return {.pod_uid = "uid-" + pod,
          .pod = "default/" + pod,
          .container = "main",
          .resource = kDemanded,
          .count = count,
          .accepted = std::move(accepted),
          .requirement = "index 5 required"};
}

TEST(DemandBoard, TheFirstUnmetDemandOfThatSizeDecides) {
  DemandBoard board;
  EXPECT_EQ(board.accepted_devices(kDemanded, 1), std::nullopt);
  const std::vector demands = {make_demand("two", 2, std::set{gpu_id(0), gpu_id(1)}),
                               make_demand("a", 1, std::set{gpu_id(5)}), make_demand("b", 1)};
  board.set_demands(demands);
  EXPECT_EQ(board.accepted_devices(kDemanded, 1), std::set{gpu_id(5)});
  EXPECT_EQ(board.accepted_devices(kDemanded, 2), (std::set{gpu_id(0), gpu_id(1)}));
  EXPECT_EQ(board.accepted_devices(kDemanded, 3), std::nullopt);
  EXPECT_EQ(board.accepted_devices(ResourceName("nvidia.com/other"), 1), std::nullopt);
  EXPECT_TRUE(board.meet_demand(kDemanded, std::vector{gpu_id(5)}));
  board.set_demands(demands);  // the Pod is still listed
  EXPECT_EQ(board.accepted_devices(kDemanded, 1), std::nullopt) << "b accepts any";
  EXPECT_TRUE(board.meet_demand(kDemanded, std::vector{gpu_id(7)}));
  EXPECT_TRUE(board.meet_demand(kDemanded, std::vector{gpu_id(7)})) << "nothing is known of this Pod";
}

TEST(DemandBoard, RefusesWhatNobodyAccepts) {
  DemandBoard board;
  board.set_demands({make_demand("a", 1, std::set{gpu_id(5)}), make_demand("two", 2)});
  const auto refused = board.meet_demand(kDemanded, std::vector{gpu_id(3)});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kFailedPrecondition);
  EXPECT_EQ(refused.error().message(),
            "the Pod default/a does not accept " + gpu_id(3).str() + ": index 5 required");
  board.set_demands({make_demand("a", 1, std::set{gpu_id(5)}), make_demand("b", 1)});
  EXPECT_TRUE(board.meet_demand(kDemanded, std::vector{gpu_id(3)})) << "b accepts it";
  EXPECT_FALSE(board.meet_demand(kDemanded, std::vector{gpu_id(3)}));
}

Status allocate_one(const Offer& offer, const std::vector<DeviceId>& ids) {
  v1beta1::AllocateRequest request;
  auto& container = *request.add_container_requests();
  for (const auto& id : ids) container.add_devices_ids(id.str());
  v1beta1::AllocateResponse response;
  return fill_response(offer, request, response);
}

Result<std::vector<DeviceId>> prefer(const Offer& offer, const std::vector<DeviceId>& available,
                                     std::size_t size) {
  v1beta1::PreferredAllocationRequest request;
  auto& container = *request.add_container_requests();
  for (const auto& id : available) container.add_available_deviceids(id.str());
  container.set_allocation_size(static_cast<int>(size));
  v1beta1::PreferredAllocationResponse response;
  GPULET_TRY(fill_response(offer, request, response));
  std::vector<DeviceId> ids;
  for (const auto& id : response.container_responses(0).deviceids()) ids.emplace_back(id);
  return ids;
}

TEST(DemandBoard, AllocateNamesTheResource) {
  Offer offer = offers::make_offer();
  offer.demands = std::make_shared<DemandBoard>();
  offer.demands->set_demands({make_demand("a", 1, std::set{gpu_id(5)})});
  const auto refused = allocate_one(offer, {gpu_id(0)});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message(),
            "invalid allocation request for \"nvidia.com/gpu\": the Pod default/a "
            "does not accept " +
                gpu_id(0).str() + ": index 5 required");
  EXPECT_TRUE(allocate_one(offer, {gpu_id(5)}));
}

// Whatever is free and accepted: what is preferred is accepted where that can be, and what is allocated
// always.
RC_GTEST_PROP(DemandBoard, NeverAllocatesWhatThePodDoesNotAccept, ()) {
  static const Offer kWhole = offers::make_offer(), kShared = offers::make_offer("nvidia.com/gpu", 8, 2);
  Offer offer = *rc::gen::element(true, false) ? kShared : kWhole;
  offer.demands = std::make_shared<DemandBoard>();
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
  offer.demands->set_demands({make_demand("a", size, accepted)});
  const auto preferred = prefer(offer, available, size);
  RC_ASSERT(preferred.has_value());
  const bool is_right =
      std::ranges::all_of(*preferred, [&](const DeviceId& id) { return accepted.contains(id); });
  RC_ASSERT(is_right == (both >= size));
  RC_ASSERT(allocate_one(offer, *preferred).has_value() == is_right);
}

}  // namespace
}  // namespace gpulet::device_plugin

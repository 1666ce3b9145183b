// Protocol messages to and from Offers, without gRPC: what the service and the fuzzer share. Pure.
#pragma once

#include "base/result.h"
#include "kubelet/offer.h"

namespace v1beta1 {
class AllocateRequest;
class AllocateResponse;
class ListAndWatchResponse;
class PreferredAllocationRequest;
class PreferredAllocationResponse;
}  // namespace v1beta1

namespace gpulet::kubelet {

// A request names containers; the kubelet asks for one at a time.
inline constexpr int kMaxContainers = 256;

// Every device, in the resource's order, with its NUMA node where that is known (node 0 included).
v1beta1::ListAndWatchResponse device_list(const Offer& offer);

// Errors: those of allocate() and preferred(), and kInvalidArgument for too many containers, a device that two
// containers of one request ask for, or a size that is not positive.
Status answer(const Offer& offer, const v1beta1::AllocateRequest& request, v1beta1::AllocateResponse& response);
// `score`, where it is given, gets the sum of the choices' scores.
Status answer(const Offer& offer, const v1beta1::PreferredAllocationRequest& request,
              v1beta1::PreferredAllocationResponse& response, std::int64_t* score = nullptr);

}  // namespace gpulet::kubelet

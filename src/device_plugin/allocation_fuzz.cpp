// Sends any bytes as a kubelet request: the first byte selects the call, the rest is its message. Every
// request may be refused; a successful response must have the requested number of devices, all of them
// available.
#include <cstdlib>
#include <set>

#include "device_plugin/allocation.h"
#include "device_plugin/test_offers.h"
#include "proto/deviceplugin_v1beta1.pb.h"

namespace {

using gpulet::device_plugin::Offer;

void check_response(bool belief) {
  if (!belief) std::abort();
}

void fuzz_allocate(const Offer& offer, const std::string& bytes) {
  v1beta1::AllocateRequest request;
  if (!request.ParseFromString(bytes)) return;
  v1beta1::AllocateResponse response;
  if (!gpulet::device_plugin::fill_response(offer, request, response)) return;
  check_response(response.container_responses_size() == request.container_requests_size());
  for (const auto& container : response.container_responses()) check_response(container.envs_size() > 0);
}

void prefer(const Offer& offer, const std::string& bytes) {
  v1beta1::PreferredAllocationRequest request;
  if (!request.ParseFromString(bytes)) return;
  v1beta1::PreferredAllocationResponse response;
  if (!gpulet::device_plugin::fill_response(offer, request, response)) return;
  check_response(response.container_responses_size() == request.container_requests_size());
  for (int i = 0; i < response.container_responses_size(); ++i) {
    const auto& asked = request.container_requests(i);
    const auto& given = response.container_responses(i).deviceids();
    const std::set<std::string> set(given.begin(), given.end());
    const std::set<std::string> available(asked.available_deviceids().begin(),
                                          asked.available_deviceids().end());
    check_response(set.size() == static_cast<std::size_t>(asked.allocation_size()) &&
                   given.size() == asked.allocation_size());
    for (const auto& id : set) check_response(available.contains(id));
    for (const auto& id : asked.must_include_deviceids()) check_response(set.contains(id));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Offer kWhole =
      gpulet::device_plugin::offers::with_unhealthy(gpulet::device_plugin::offers::make_offer(), 7);
  static const Offer kShares = gpulet::device_plugin::offers::make_offer("nvidia.com/gpu.shared", 2, 3);
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Offer& offer = (data[0] & 2) == 0 ? kWhole : kShares;
  if ((data[0] & 1) == 0) {
    fuzz_allocate(offer, bytes);
  } else {
    prefer(offer, bytes);
  }
  return 0;
}

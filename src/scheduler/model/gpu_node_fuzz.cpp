// Any GpuNode is either decoded or rejected with a reason, and a decoded one survives another round trip and
// can be scheduled on.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "scheduler/core/decision.h"
#include "scheduler/model/gpu_node.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet::scheduler;
  const auto read = decode_gpu_node({reinterpret_cast<const char*>(data), size});
  if (!read) {
    if (read.error().message().empty()) std::abort();
    return 0;
  }
  const std::string object = R"({"metadata":{"name":"n"},"spec":)" + encode_spec(read->node) +
                             R"(,"status":)" + encode_status(read->known_elsewhere) + "}";
  const auto again = decode_gpu_node(object);
  if (!again || encode_spec(again->node) != encode_spec(read->node)) std::abort();
  if (again->known_elsewhere != read->known_elsewhere) std::abort();
  ClusterState view;
  view.set_node("n", again->node);
  const auto* const node = view.find_node("n");
  PodRequest pod;
  pod.name = "p";
  pod.containers.resize(1);
  if (!node->node.resources.empty()) pod.containers[0].devices.push_back({node->node.resources[0].name, 2});
  apply_annotation("gpulet.io/gpu-links", "NV", pod);
  for (const auto& load : again->node.controllers) {
    const auto slash = load.controller.find('/');
    if (slash == std::string::npos) continue;
    pod.name_space = load.controller.substr(0, slash);
    pod.name = load.controller.substr(slash + 1) + "-0";
    if (load.hours >= kKnownHours && load.controller == controller_of_pod(pod.pod_key()) &&
        !view.expected_load_of(pod))
      std::abort();
  }
  const auto verdict = Filter(pod).check_node(*node);
  if (verdict.fits() != verdict.reason.empty()) std::abort();
  return 0;
}

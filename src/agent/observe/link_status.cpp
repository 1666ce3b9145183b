#include "agent/observe/link_status.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

namespace gpulet::agent {

using Json = nlohmann::ordered_json;

void put_link_status(Json& object, const inventory::Gpu& gpu, const health::DeviceView& view,
                     const inventory::Snapshot& snapshot) {
  object["fabric"] = view.in_fabric;
  if (view.links.all == 0) return;
  Json status = {{"all", view.links.all}, {"up", view.links.up}, {"faulty", Json::array()}};
  for (const auto& fault : view.status.faults) {
    const bool down = fault.fault_class == health::FaultClass::kNvLinkDown;
    if (!down && fault.fault_class != health::FaultClass::kNvLinkErrors) continue;
    Json one = {{"link", fault.code}, {"fault", down ? "down" : "errors"}, {"peer", nullptr}};
    for (const auto& link : gpu.nvlinks) {
      const auto peer = std::ranges::find(snapshot.gpus, link.remote, &inventory::Gpu::pci);
      if (link.index == fault.code && peer != snapshot.gpus.end()) one["peer"] = peer->index;
    }
    status["faulty"].push_back(std::move(one));
  }
  object["nvlinks"] = std::move(status);
}

}  // namespace gpulet::agent

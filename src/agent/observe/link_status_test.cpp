#include "agent/observe/link_status.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "agent/observe/page_json.h"

namespace gpulet::agent {
namespace {

using nlohmann::json;

health::Fault link_fault(health::FaultClass fault_class, std::uint64_t link) {
  health::Fault fault;
  fault.fault_class = fault_class;
  fault.code = link;
  return fault;
}

TEST(LinkStatus, NamesTheFaultyLinksAndTheirOtherEnds) {
  inventory::Snapshot snapshot;
  snapshot.gpus.resize(2);
  snapshot.gpus[0].uuid = DeviceUuid("GPU-0");
  snapshot.gpus[1].index = 1;
  snapshot.gpus[1].uuid = DeviceUuid("GPU-1");
  snapshot.gpus[1].pci = {0, 0x1b, 0, 0};
  snapshot.gpus[0].nvlinks = {{2, inventory::NvLinkRemote::kGpu, snapshot.gpus[1].pci},
                              {3, inventory::NvLinkRemote::kSwitch, {0, 7, 0, 0}}};
  health::DeviceView view;
  view.scope.gpu = snapshot.gpus[0].uuid;
  view.links = {4, 3};
  view.status.faults = {
      link_fault(health::FaultClass::kNvLinkErrors, 2), link_fault(health::FaultClass::kThermal, 0),
      link_fault(health::FaultClass::kNvLinkDown, 3), link_fault(health::FaultClass::kNvLinkDown, 5)};
  const auto wanted = json::parse(R"({"all": 4, "up": 3, "faulty": [
      {"link": 2, "fault": "errors", "peer": 1},
      {"link": 3, "fault": "down", "peer": null},
      {"link": 5, "fault": "down", "peer": null}]})");
  NodePageInput input;
  input.snapshot = std::make_shared<const inventory::Snapshot>(snapshot);
  input.health = std::make_shared<const health::HealthView>(health::HealthView{{}, {view}});
  const json gpus = json::parse(node_json(input))["gpus"];
  EXPECT_EQ(gpus[0]["nvlinks"], wanted);
  EXPECT_FALSE(gpus[1].contains("nvlinks"));
}

}  // namespace
}  // namespace gpulet::agent

// A ledger on a node whose kubelet, API server and claims a test sets.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/fraction/memory_ledger.h"
#include "agent/fraction/test_memory_node.h"
#include "agent/remediation/test_faults.h"

namespace gpulet::agent {

// A node with a GPU, one in MIG mode, and Pods that a test sets.
class MemoryLedgerTest : public testing::Test {
 protected:
  MemoryLedgerTest() : reader(loop) {
    auto node = std::make_shared<inventory::Snapshot>(make_memory_node(3));
    node->gpus[1].mig_enabled = true;
    node->gpus[2].memory = {};
    ledger.emplace(MemoryLedgerPorts{.loop = loop,
                                     .holders =
                                         [this](auto done) {
                                           ++lists;
                                           loop.post([this, done = std::move(done)] {
                                             if (kubelet_error) return done(fail(*kubelet_error));
                                             done(holders);
                                           });
                                         },
                                     .reader = reader,
                                     .on_invalid_request = [](const PodRef&, const std::string&) {},
                                     .changed = [] {},
                                     .refreshed = [this](const Status& result) { on_round(result); },
                                     .shows_allocations = [this] { return shows_allocations; },
                                     .claimed_memory = [this](const auto& name_space, auto claims)
                                         -> Result<std::map<DeviceUuid, dra::ClaimedMemory>> {
                                       if (claims_error) return fail(*claims_error);
                                       return dra::claimed_memory(claims_of_node, name_space, claims);
                                     }},
                   1);
    ledger->use_snapshot(node);
    loop.run_ready();
    rounds.clear();
  }
  void add_pod(const std::string& name, const std::string& memory, std::vector<std::string> ids,
               const std::string& uid = "") {
    std::erase_if(holders, [&](const auto& one) { return one.pod.name == name; });
    holders.push_back(container_with_devices(name, std::move(ids)));
    k8s::Annotations annotations;
    if (!memory.empty()) annotations["gpu-memory"] = memory;
    reader.add_pod(name, std::move(annotations), uid);
    reader.pods["default/" + name].containers = {
        {.name = "prepare", .is_init = true, .limits = {}, .id = {}},
        {.name = "main", .limits = {{"nvidia.com/gpu", "1"}}, .id = {}}};
  }
  // A Pod whose container main has GPU-0 by a claim, which has a share of so much memory; 0: the whole GPU.
  void add_claim_pod(const std::string& name, const std::string& claim, std::uint64_t mib) {
    auto listed = container_with_devices(name, {"GPU-0"});
    listed.devices = {{ResourceName("gpu.nvidia.com"), {DeviceId("GPU-0")}}};
    holders.push_back(listed);
    reader.add_pod(name);
    reader.pods["default/" + name].containers = {
        {.name = "prepare", .is_init = true, .limits = {}, .id = {}},
        {.name = "main", .limits = {}, .id = {}, .claims = {{claim, "gpus"}}}};
    dra::RecordedDevice device{"gpus", "node-1", "gpu-0", DeviceUuid("GPU-0")};
    if (mib != 0) {
      device.share_id = "share-of-" + claim;
      device.consumed["memory"] = mebibytes(mib).value;
    }
    claims_of_node["uid-" + claim] = {"uid-" + claim, "default", claim, {device}};
  }
  // A round before the refresh was called has an error, so that nobody takes it for an answer.
  void on_round(const Status& result) {
    const bool is_early = !result && result.error().message() == "the Pods are read again";
    if (is_early) {
      ++early_rounds;
    } else {
      rounds.push_back(result);
    }
  }
  void refresh() {
    ledger->refresh_pods();
    loop.run_ready();
  }

  ManualLoop loop;
  FakeReader reader;
  std::vector<ContainerDevices> holders;
  std::optional<Error> kubelet_error;
  std::size_t lists = 0;
  std::vector<Status> rounds;
  unsigned early_rounds = 0;
  bool shows_allocations = true;
  std::map<std::string, dra::ClaimRecord> claims_of_node;
  std::optional<Error> claims_error;
  std::optional<MemoryLedger> ledger;
};

}  // namespace gpulet::agent

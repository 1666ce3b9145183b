#include "dra/claim_preparation.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dra/test_claims.h"
#include "dra/test_machines.h"

namespace gpulet::dra {
namespace {

using namespace test;
using nlohmann::json;

struct Node {
  DevicePool pool = make_pool({make_gpu(0), make_gpu(1), make_partitioned_gpu(2, 2)});
  std::map<std::string, ClaimRecord> records;
  PreparationInput input{.pool_name = "node-1", .pool = &pool, .records = &records};

  Result<ClaimRecord> plan(const json& claim, const std::string& uid = kUid) const {
    return plan_preparation(parsed(claim), uid, input);
  }
  // "unavailable: …"
  std::string error_of(const json& claim, const std::string& uid = kUid) const {
    const auto record = plan(claim, uid);
    if (record) return "";
    EXPECT_EQ(record.error().subject(), "claim team/claim-1");
    return std::string(code_name(record.error().code())) + ": " + record.error().message();
  }
};

TEST(PlanPreparation, RecordsEachResultInOrder) {
  const Node node;
  json admin = result_json("gpu-0", "monitor");
  admin["adminAccess"] = true;
  const auto record = node.plan(
      claim_json({result_json("gpu-1", "gpus/large"), admin, result_json("nic-0", "nic", "nic.example.com"),
                  result_json("gpu-2-mig-1g10gb-19-1", "mig")}));
  ASSERT_TRUE(record) << record.error().full_message();
  EXPECT_EQ(*record, (ClaimRecord{kUid,
                                  "team",
                                  "claim-1",
                                  {{"gpus", "node-1", "gpu-1", DeviceUuid("GPU-1")},
                                   {"monitor", "node-1", "gpu-0", DeviceUuid("GPU-0"), true},
                                   {"mig", "node-1", "gpu-2-mig-1g10gb-19-1", DeviceUuid("MIG-GPU-2-1")}}}));
}

TEST(PlanPreparation, TheSameClaimGetsTheSameRecord) {
  Node node;
  const auto claim = claim_json({result_json("gpu-0")});
  const auto first = node.plan(claim);
  node.records.emplace(kUid, *first);
  EXPECT_EQ(*node.plan(claim), *first);
}

TEST(PlanPreparation, SaysWhyNot) {
  Node node;
  const auto claim = claim_json({result_json("gpu-0")});
  EXPECT_EQ(node.error_of(claim, "uid-2"),
            "failed_precondition: the claim was deleted and created again: expected the uid uid-2, found " +
                std::string(kUid));
  json waiting = claim;
  waiting.erase("status");
  EXPECT_EQ(node.error_of(waiting), "failed_precondition: the claim has no allocation");
  json elsewhere = result_json("gpu-0");
  elsewhere["pool"] = "node-2";
  EXPECT_EQ(node.error_of(claim_json({elsewhere})),
            "failed_precondition: device \"gpu-0\" is of the pool \"node-2\", expected this node's pool "
            "\"node-1\"");
  EXPECT_EQ(node.error_of(claim_json({result_json("gpu-7")})),
            "unavailable: device \"gpu-7\" is not available on this node now");
  node.pool.devices[0].device.taints = {{std::string(kLostTaint), "true", TaintEffect::kNoSchedule}};
  EXPECT_EQ(node.error_of(claim),
            "device_lost: device \"gpu-0\" (GPU-0) cannot be used: the GPU is lost (taint "
            "gpu.nvidia.com/gpu-lost)");
}

TEST(PlanPreparation, RefusesANameThatMeansAnotherGpu) {
  Node node;
  const auto claim = claim_json({result_json("gpu-0")});
  node.input.shown_uuids = {{"gpu-0", "GPU-0"}};
  EXPECT_EQ(node.error_of(claim), "");
  node.input.shown_uuids = {{"gpu-0", "GPU-9"}};
  EXPECT_EQ(node.error_of(claim),
            "failed_precondition: device \"gpu-0\" means another GPU now: expected GPU-9, found GPU-0");
  node.input.shown_uuids.clear();
  node.records[kUid] = {kUid, "team", "claim-1", {{"gpus", "node-1", "gpu-0", DeviceUuid("GPU-8")}}};
  EXPECT_EQ(node.error_of(claim),
            "failed_precondition: device \"gpu-0\" means another GPU now: expected GPU-8, found GPU-0");
}

TEST(PlanPreparation, AGpuOfTheDevicePluginIsWithheld) {
  Node node;
  node.input.withheld = {{DeviceUuid("GPU-0"), "is offered by claims when Pod team/a ends"},
                         {DeviceUuid("GPU-2"), "is offered by the device plugin"}};
  json result = result_json("gpu-0");
  EXPECT_EQ(
      node.error_of(claim_json({result})),
      "unavailable: device \"gpu-0\" cannot be prepared: GPU-0 is offered by claims when Pod team/a ends");
  EXPECT_EQ(
      node.error_of(claim_json({result_json("gpu-2-mig-1g10gb-19-0")})),
      "unavailable: device \"gpu-2-mig-1g10gb-19-0\" cannot be prepared: GPU-2 is offered by the device "
      "plugin");
  EXPECT_EQ(node.error_of(claim_json({result_json("gpu-1")})), "");
  result["adminAccess"] = true;
  EXPECT_EQ(node.error_of(claim_json({result})), "") << "it holds nothing";
  // The same claim again.
  node.records[kUid] = {kUid, "team", "claim-1", {{"gpus", "node-1", "gpu-0", DeviceUuid("GPU-0")}}};
  EXPECT_EQ(node.error_of(claim_json({result_json("gpu-0")})), "");
}

TEST(PlanPreparation, ADeviceIsHeldByOneClaim) {
  Node node;
  node.records["uid-2"] = {"uid-2", "team", "old", {{"gpus", "node-1", "gpu-0", DeviceUuid("GPU-0")}}};
  json result = result_json("gpu-0");
  EXPECT_EQ(node.error_of(claim_json({result})),
            "unavailable: device \"gpu-0\" is still held by the claim team/old (uid uid-2)");
  result["adminAccess"] = true;
  EXPECT_EQ(node.error_of(claim_json({result})), "");
  EXPECT_EQ(node.error_of(claim_json({result_json("gpu-1")})), "");
  // A partition of a GPU that a claim holds whole.
  node.records["uid-2"].devices[0].uuid = DeviceUuid("GPU-2");
  EXPECT_EQ(node.error_of(claim_json({result_json("gpu-2-mig-1g10gb-19-0")})),
            "unavailable: device \"gpu-2-mig-1g10gb-19-0\" is still held by the claim team/old (uid uid-2)");
}

TEST(PlanPreparation, RefusesSettingsThatItDoesNotApply) {
  Node node;
  node.input.gates = {true, true};
  const auto with = [](const json& sharing, bool admin = false) {
    json result = result_json("gpu-0");
    result["adminAccess"] = admin;
    return claim_json({result}, {config_json(gpu_config(sharing))});
  };
  const json slow = {{"strategy", "TimeSlicing"}, {"timeSlicingConfig", {{"interval", "Long"}}}};
  EXPECT_EQ(node.error_of(with({{"strategy", "TimeSlicing"}})), "");
  EXPECT_EQ(node.error_of(with(slow)),
            "unsupported: device \"gpu-0\": the time-slice interval Long by the config of a claim is not "
            "supported, expected the interval Default");
  EXPECT_EQ(node.error_of(with({{"strategy", "MPS"}})),
            "unsupported: device \"gpu-0\": MPS by the config of a claim is not supported, expected the "
            "interval Default");
  EXPECT_EQ(node.error_of(with(slow, true)), "");
  node.input.gates = {};
  EXPECT_EQ(node.error_of(with({{"strategy", "MPS"}})).substr(0, 12), "unsupported:");
}

cdi::Spec base_spec() {
  cdi::Spec base;
  base.kind = "k8s.device-plugin.nvidia.com/gpu";
  base.edits.env = {"NVIDIA_VISIBLE_DEVICES=all", "A=b"};
  base.edits.device_nodes = {{.path = "/dev/nvidiactl"}};
  for (const char* const uuid : {"GPU-0", "GPU-1"}) {
    base.devices.push_back(
        {.name = uuid, .edits = {.device_nodes = {{.path = "/dev/nvidia" + std::string(1, uuid[4])}}}});
  }
  return base;
}

TEST(ClaimSpec, HasTheDevicesOfTheClaimOnly) {
  const ClaimRecord record{
      kUid,
      "team",
      "claim-1",
      {{"a", "node-1", "gpu-1", DeviceUuid("GPU-1")}, {"b", "node-1", "gpu-1", DeviceUuid("GPU-1"), true}}};
  const auto spec = make_claim_spec(record, base_spec());
  ASSERT_TRUE(spec) << spec.error().full_message();
  EXPECT_EQ(spec->kind, kClaimCdiKind);
  EXPECT_EQ(spec->version, "0.5.0");  // for a name that begins with a digit
  EXPECT_EQ(spec->edits.env, (std::vector<std::string>{"A=b", "NVIDIA_VISIBLE_DEVICES=void"}));
  ASSERT_EQ(spec->devices.size(), 1u);
  EXPECT_EQ(spec->devices[0].name, kUid + std::string("-gpu-1"));
  ASSERT_EQ(spec->devices[0].edits.device_nodes.size(), 1u);
  EXPECT_EQ(spec->devices[0].edits.device_nodes[0].path, "/dev/nvidia1");
  EXPECT_EQ(claim_cdi_id(record, record.devices[0]),
            "k8s.gpu.nvidia.com/claim=" + std::string(kUid) + "-gpu-1");
  EXPECT_EQ(claim_spec_file_name(kUid), "k8s.gpu.nvidia.com-claim_" + std::string(kUid) + ".json");
  const auto read = cdi::read_spec(cdi::to_json(*spec), "spec");
  EXPECT_TRUE(read.problems.empty());
}

TEST(ClaimSpec, WaitsForADeviceThatTheNodesDocumentLacks) {
  const ClaimRecord record{kUid, "team", "claim-1", {{"a", "node-1", "gpu-5", DeviceUuid("GPU-5")}}};
  const auto spec = make_claim_spec(record, base_spec());
  ASSERT_FALSE(spec);
  EXPECT_EQ(spec.error().code(), Code::kUnavailable);
  EXPECT_EQ(spec.error().full_message(),
            "claim team/claim-1: the CDI document of this node has no device GPU-5");
}

}  // namespace
}  // namespace gpulet::dra

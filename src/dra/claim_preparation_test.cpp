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

json sharing_claim(const json& sharing, bool admin = false, const char* device = "gpu-0") {
  json result = result_json(device);
  if (admin) result["adminAccess"] = true;
  const char* kind =
      std::string_view(device).find("mig") == std::string_view::npos ? "GpuConfig" : "MigDeviceConfig";
  return claim_json({result}, {config_json(gpu_config(sharing, kind))});
}

TEST(PlanPreparation, RefusesSettingsThatCannotBeApplied) {
  Node node;
  node.input.gates = {true, true};
  const json slow = {{"strategy", "TimeSlicing"}, {"timeSlicingConfig", {{"interval", "Long"}}}};
  const json still = {{"strategy", "MPS"}, {"mpsConfig", {{"defaultActiveThreadPercentage", 0}}}};
  const json unknown = {{"strategy", "MPS"},
                        {"mpsConfig", {{"defaultPerDevicePinnedMemoryLimit", {{"1", "1Gi"}}}}}};
  EXPECT_EQ(node.error_of(sharing_claim({{"strategy", "TimeSlicing"}})), "");
  EXPECT_EQ(node.error_of(sharing_claim({{"strategy", "TimeSlicing"}}, false, "gpu-2-mig-1g10gb-19-0")), "");
  EXPECT_EQ(
      node.error_of(sharing_claim(slow)),
      "unsupported: device \"gpu-0\": sharing.timeSlicingConfig.interval: expected Default, found Long: "
      "NVML has no call that sets the time slice of a GPU");
  EXPECT_EQ(
      node.error_of(sharing_claim(still)),
      "unsupported: device \"gpu-0\": sharing.mpsConfig.defaultActiveThreadPercentage: expected 1 to 100, "
      "found 0");
  EXPECT_EQ(
      node.error_of(sharing_claim(unknown)),
      "invalid_argument: defaultPerDevicePinnedMemoryLimit: unknown device \"1\", expected a UUID or an "
      "index of the claim's 1 device");
  EXPECT_EQ(node.error_of(sharing_claim(slow, true)), "");
  node.input.gates = {};
  EXPECT_EQ(node.error_of(sharing_claim({{"strategy", "MPS"}})).substr(0, 12), "unsupported:");
}

TEST(PlanPreparation, AnAdminsAccessHasNoDaemon) {
  Node node;
  node.input.gates = {true, true};
  EXPECT_TRUE(node.plan(sharing_claim({{"strategy", "MPS"}}, true))->daemons.empty());
}

// The daemons of the claim as "name: devices percentage, number=limit".
std::string daemons_text(const ClaimRecord& record) {
  std::string text;
  for (const auto& spec : claim_daemons(record)) {
    text += spec.name.substr(spec.name.find('/') + 1 + std::string(kUid).size()) + ":";
    for (const auto& uuid : spec.visible_devices) text += " " + uuid.str();
    text += " " + std::to_string(spec.thread_percentage);
    for (const auto& limit : spec.memory_limits) {
      text += " " + std::to_string(limit.device) + "=" + std::to_string(limit.mebibytes);
    }
    text += ";";
  }
  return text;
}

TEST(PlanPreparation, PlansADaemonForEachConfigAndEachMigDevice) {
  Node node;
  node.input.gates = {true, true};
  const json plain = {{"strategy", "MPS"}};
  const json limited = {{"strategy", "MPS"},
                        {"mpsConfig",
                         {{"defaultActiveThreadPercentage", 40},
                          {"defaultPinnedDeviceMemoryLimit", "2Gi"},
                          {"defaultPerDevicePinnedMemoryLimit", {{"1", "1536Mi"}}}}}};
  const auto two = [](const json& a, const json& b, const std::vector<json>& configs) {
    return claim_json({a, b}, configs);
  };
  const json gpu0 = result_json("gpu-0", "a"), gpu1 = result_json("gpu-1", "b");
  const json mig0 = result_json("gpu-2-mig-1g10gb-19-0", "a"),
             mig1 = result_json("gpu-2-mig-1g10gb-19-1", "b");
  const struct {
    json claim;
    const char* daemons;
  } cases[] = {
      {two(gpu0, gpu1, {}), ""},
      {two(gpu0, gpu1, {config_json(gpu_config(plain))}), ": GPU-0 GPU-1 100;"},
      {two(gpu0, gpu1, {config_json(gpu_config(limited), {}, "FromClass")}),
       ": GPU-0 GPU-1 40 0=2048 1=1536;"},
      {two(gpu0, gpu1, {config_json(gpu_config(limited), {"b"}), config_json(gpu_config(plain), {"a"})}),
       nullptr},  // index 1 of one device
      {two(gpu0, gpu1, {config_json(gpu_config(plain), {"b"})}), ": GPU-1 100;"},
      {two(gpu0, gpu1, {config_json(gpu_config(plain), {"a"}), config_json(gpu_config(plain), {"b"})}),
       ": GPU-0 100;-1: GPU-1 100;"},
      {two(mig0, mig1, {config_json(gpu_config(limited, "MigDeviceConfig"))}),
       ": MIG-GPU-2-0 40 0=2048;-1: MIG-GPU-2-1 40 0=1536;"},
  };
  for (const auto& one : cases) {
    const auto record = node.plan(one.claim);
    if (one.daemons == nullptr) {
      EXPECT_FALSE(record);
      continue;
    }
    ASSERT_TRUE(record) << record.error().full_message();
    EXPECT_EQ(daemons_text(*record), one.daemons) << one.claim;
    EXPECT_EQ(*parse_record(record_json(*record)), *record);
  }
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
  const auto spec = make_claim_spec(record, base_spec(), "/run/nvidia/mps");
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

TEST(ClaimSpec, ADeviceOfADaemonBringsItsPipes) {
  const ClaimRecord record{
      kUid,
      "team",
      "claim-1",
      {{"a", "node-1", "gpu-0", DeviceUuid("GPU-0")}, {"b", "node-1", "gpu-1", DeviceUuid("GPU-1")}},
      {{{DeviceUuid("GPU-1")}}}};
  const auto spec = make_claim_spec(record, base_spec(), "/run/nvidia/mps");
  ASSERT_TRUE(spec) << spec.error().full_message();
  ASSERT_EQ(spec->devices.size(), 2u);
  EXPECT_TRUE(spec->devices[0].edits.mounts.empty());
  EXPECT_TRUE(spec->devices[0].edits.env.empty());
  const auto& shared = spec->devices[1].edits;
  EXPECT_EQ(shared.env, std::vector<std::string>{"CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps"});
  std::map<std::string, std::string> mounts;
  for (const auto& mount : shared.mounts) mounts[mount.container_path] = mount.host_path;
  EXPECT_EQ(mounts, (std::map<std::string, std::string>{
                        {"/dev/shm", "/run/nvidia/mps/claim-shm/" + std::string(kUid)},
                        {"/tmp/nvidia-mps", "/run/nvidia/mps/claims/" + std::string(kUid) + "/pipe"}}));
  EXPECT_TRUE(cdi::read_spec(cdi::to_json(*spec), "spec").problems.empty());
}

TEST(ClaimSpec, WaitsForADeviceThatTheNodesDocumentLacks) {
  const ClaimRecord record{kUid, "team", "claim-1", {{"a", "node-1", "gpu-5", DeviceUuid("GPU-5")}}};
  const auto spec = make_claim_spec(record, base_spec(), "/run/nvidia/mps");
  ASSERT_FALSE(spec);
  EXPECT_EQ(spec.error().code(), Code::kUnavailable);
  EXPECT_EQ(spec.error().full_message(),
            "claim team/claim-1: the CDI document of this node has no device GPU-5");
}

}  // namespace
}  // namespace gpulet::dra

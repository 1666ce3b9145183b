// Pods as HAMi and KAI publish them in their examples, with the same fields: what the extender says of each,
// and which limit the driver has when its container runs. Source: HAMi examples/nvidia; KAI
// docs/gpu-sharing; both as of November 2026. Quantities are texts with a suffix, as the API server returns
// what manifests have as numbers.
#include <nlohmann/json.hpp>

#include "scheduler/core/decision.h"
#include "scheduler/core/extender_json.h"
#include "scheduler/model/test_nodes.h"
#include "tests/sim/limit_fixture.h"

namespace gpulet::tests {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr unsigned kWholeMib = 15360;  // of a T4
constexpr const char* kManifestUid = "0b1d4c8e-1111-4222-8333-444455556666";

struct Manifest {
  const char* name;
  const char* pod;        // metadata and spec
  const char* container;  // that gets GPUs
  bool names_gpus;        // as it is; KAI's do not: without the limit nvidia.com/gpu they get none
  unsigned gpus;          // nvidia.com/gpu
  unsigned limit_mib;     // of the driver, on each GPU; 0: none
  const char* refused;    // by the hook; empty: it starts
};

const Manifest kManifests[] = {
    {"HamiMemory",
     R"({"metadata": {"name": "gpu-pod"}, "spec": {"containers": [{"name": "ubuntu-container", "resources": {
         "limits": {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3k", "nvidia.com/gpucores": "30"}}}]}})",
     "ubuntu-container", true, 2, 3000, ""},
    {"HamiPercentage",
     R"({"metadata": {"name": "gpu-pod"}, "spec": {"containers": [{"name": "ubuntu-container", "resources": {
         "limits": {"nvidia.com/gpu": "2", "nvidia.com/gpumem-percentage": "50", "nvidia.com/gpucores": "30"}}}]}})",
     "ubuntu-container", true, 2, kWholeMib / 2, ""},
    {"HamiExclusive",
     R"({"metadata": {"name": "gpu-pod1"}, "spec": {"containers": [{"name": "ubuntu-container", "resources": {
         "limits": {"nvidia.com/gpu": "2", "nvidia.com/gpumem-percentage": "100",
                    "nvidia.com/gpucores": "100"}}}]}})",
     "ubuntu-container", true, 2, kWholeMib, ""},
    {"HamiPolicies",
     R"({"metadata": {"name": "gpu-pod", "annotations": {"hami.io/node-scheduler-policy": "spread",
         "hami.io/gpu-scheduler-policy": "binpack"}}, "spec": {"containers": [{"name": "ubuntu-container",
         "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}})",
     "ubuntu-container", true, 1, 0, ""},
    {"KaiMemory",
     R"({"metadata": {"name": "gpu-sharing", "labels": {"kai.scheduler/queue": "default-queue"},
         "annotations": {"gpu-memory": "2000"}}, "spec": {"schedulerName": "kai-scheduler",
         "automountServiceAccountToken": false, "containers": [{"name": "gpu-workload", "resources": {
         "limits": {"memory": "1Gi"}}}]}})",
     "gpu-workload", false, 1, 2000, ""},
    {"KaiFractionOfANamedContainer",
     R"({"metadata": {"name": "gpu-sharing-non-default", "labels": {"kai.scheduler/queue": "default-queue"},
         "annotations": {"gpu-fraction": "0.5", "gpu-fraction-container-name": "gpu-workload"}}, "spec": {
         "schedulerName": "kai-scheduler", "containers": [
         {"name": "sidecar", "resources": {"limits": {"memory": "128Mi"}}},
         {"name": "gpu-workload", "resources": {"limits": {"memory": "1Gi"}}},
         {"name": "another-sidecar", "resources": {"limits": {"memory": "128Mi"}}}]}})",
     "gpu-workload", false, 1, kWholeMib / 2, ""},
    {"KaiFractionOfSeveralGpus",
     R"({"metadata": {"name": "gpu-sharing", "labels": {"kai.scheduler/queue": "default-queue"},
         "annotations": {"gpu-fraction": "0.25", "gpu-fraction-num-devices": "2"}}, "spec": {
         "schedulerName": "kai-scheduler", "containers": [{"name": "gpu-workload"}]}})",
     "gpu-workload", false, 2, kWholeMib / 4, ""},
    {"KaiInitContainer",
     R"({"metadata": {"name": "gpu-sharing-init-container", "labels": {"kai.scheduler/queue": "default-queue"},
         "annotations": {"gpu-fraction": "0.5", "gpu-fraction-container-name": "gpu-init"}}, "spec": {
         "schedulerName": "kai-scheduler", "initContainers": [{"name": "gpu-init"}],
         "containers": [{"name": "main-app", "resources": {"limits": {"memory": "1Gi"}}}]}})",
     "gpu-init", false, 1, 0, "the kubelet lists no GPU of container gpu-init"},
    {"KaiRequestAndLimit",
     R"({"metadata": {"name": "nv-fractions", "labels": {"kai.scheduler/queue": "default-queue"},
         "annotations": {"nvidia.com/container.gpu-workload.gpu-memory.request": "2Gi",
         "nvidia.com/container.gpu-workload.gpu-memory.limit": "4Gi",
         "nvidia.com/container.gpu-workload.gpu-compute.mode": "time-slicing"}}, "spec": {
         "schedulerName": "kai-scheduler", "containers": [{"name": "gpu-workload"}]}})",
     "gpu-workload", false, 1, 4096, ""},
};

// What the extender says of a Pod on an empty node; empty: it fits.
std::string extender_answer(const json& pod) {
  const auto request = scheduler::parse_pod(pod.dump());
  if (!request) return request.error().full_message();
  scheduler::ClusterState cluster;
  auto node = scheduler::test_node(4, 1, 4);
  for (auto& model : node.models) model.memory_mib = kWholeMib;
  cluster.set_node("n1", node);
  return scheduler::Filter(*request).check_node(*cluster.find_node("n1")).reason;
}

// By all containers, as the extender reads them.
unsigned requested_gpus(const json& pod) {
  const auto request = scheduler::parse_pod(pod.dump());
  unsigned count = 0;
  for (const auto& container : request ? request->containers : std::vector<scheduler::ContainerRequest>()) {
    for (const auto& device : container.devices) count += device.count;
  }
  return count;
}

class ManifestTest : public LimitTest, public testing::WithParamInterface<Manifest> {
 protected:
  void SetUp() override {
    LimitTest::SetUp();
    if (IsSkipped()) return;
    write_limit_config("timeSlicing", "{name: gpu, replicas: 4}");
    start_limiting_agent(kGpu, std::size_t{4} * gpu_count());
  }
};

TEST_P(ManifestTest, GetsTheLimitThatItRequests) {
  const Manifest& manifest = GetParam();
  json pod = json::parse(manifest.pod);
  pod["metadata"]["namespace"] = "team";
  pod["metadata"]["uid"] = kManifestUid;
  pod["spec"]["nodeName"] = kLimitNode;
  EXPECT_EQ(requested_gpus(pod), manifest.names_gpus ? manifest.gpus : 0);
  std::vector<sim::ContainerRequest> containers;
  for (const char* field : {"initContainers", "containers"}) {
    if (!pod["spec"].contains(field)) continue;
    for (auto& container : pod["spec"][field]) {
      const bool is_its = container["name"] == manifest.container;
      if (is_its) container["resources"]["limits"][kGpu] = std::to_string(manifest.gpus);
      if (std::string_view(field) == "initContainers") continue;  // the simulated kubelet has none
      containers.push_back({container["name"], {}});
      if (is_its) containers.back().resources[kGpu] = manifest.gpus;
    }
  }
  EXPECT_EQ(extender_answer(pod), "");
  pods_->put_pod(pod);
  admit_to_team(pod["metadata"]["name"], kManifestUid, containers);
  const auto& container = make_container(kManifestUid);
  const auto refusal = run_hook(container, kManifestUid, {.name = manifest.container});
  if (*manifest.refused != '\0') {
    EXPECT_THAT(refusal, HasSubstr(manifest.refused));
    EXPECT_TRUE(driver_limits().empty());
    return;
  }
  EXPECT_EQ(refusal, "") << agent_log();
  const auto limits = driver_limits()[container.id()];
  EXPECT_EQ(limits.size(), manifest.limit_mib == 0 ? 0 : manifest.gpus) << "one limit for each GPU";
  for (const auto& [gpu, mib] : limits) EXPECT_EQ(mib, manifest.limit_mib) << "GPU " << gpu;
}

INSTANTIATE_TEST_SUITE_P(Fractions, ManifestTest, testing::ValuesIn(kManifests),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace gpulet::tests

#include "scheduler/filter.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "scheduler/test_nodes.h"

namespace gpulet::scheduler {
namespace {

const std::string kFell = "XID 79: GPU has fallen off the bus";

Verdict judge(const GpuNode& node, const PodRequest& pod, const std::vector<PodRequest>& others = {}) {
  ClusterView view;
  view.set_node("n1", node);
  for (auto other : others) {
    other.node = "n1";
    view.set_pod(other);
  }
  return Filter(pod).judge(*view.find("n1"));
}

PodRequest with(PodRequest pod, const std::string& annotation, const std::string& value) {
  take_annotation("gpulet.io/" + annotation, value, pod);
  EXPECT_TRUE(pod.malformed.empty());
  return pod;
}

TEST(Filter, TheReasonIsDownToTheDevice) {
  GpuNode node = test_node(8, 2);
  hold(node, "a/b", {0, 2});
  quarantine(node, 7, kFell);
  EXPECT_TRUE(judge(node, test_pod("p", 5)).fits());
  auto verdict = judge(node, test_pod("p", 6));
  EXPECT_EQ(verdict.reason, "2/8 held, 1 quarantined (XID 79), 5 free of 6 wanted");
  EXPECT_EQ(verdict.refusal, Refusal::kTooFew);
  EXPECT_TRUE(verdict.resolvable);
  verdict = judge(node, test_pod("p", 8));
  EXPECT_FALSE(verdict.resolvable);  // the broken one comes back by no other Pod's leaving
  verdict = judge(node, with(test_pod("p", 4), "gpu-links", "NV"));
  EXPECT_EQ(verdict.reason, "2/8 held, 1 quarantined (XID 79), 5 free but no 4 linked by NV");
  EXPECT_EQ(verdict.refusal, Refusal::kLinks);
  EXPECT_FALSE(verdict.resolvable);  // groups of two have no four
  EXPECT_TRUE(judge(node, with(test_pod("p", 2), "gpu-links", "NV4")).fits());
}

TEST(Filter, LinksThatAnotherPodHoldsAreResolvable) {
  GpuNode node = test_node(8, 4);
  hold(node, "a/b", {0});
  hold(node, "a/c", {4});
  const auto verdict = judge(node, with(test_pod("p", 4), "gpu-links", "NV"));
  EXPECT_EQ(verdict.reason, "2/8 held, 6 free but no 4 linked by NV");
  EXPECT_TRUE(verdict.resolvable);
}

TEST(Filter, WishesThatTheNodeCannotMeet) {
  const GpuNode node = test_node(8, 4);
  const std::tuple<const char*, const char*, Refusal, const char*> kCases[] = {
      {"gpu-model", "A100|L40S", Refusal::kModel,
       "0/8 held, 8 free but GPU 0 (NVIDIA H100 80GB HBM3) would be given, A100 or L40S wanted"},
      {"gpu-memory", "100Gi", Refusal::kMemory,
       "0/8 held, 8 free but GPU 0 (NVIDIA H100 80GB HBM3) would be given, 100Gi of memory wanted"},
      {"gpu-compute", "10.0", Refusal::kCompute,
       "0/8 held, 8 free but GPU 0 (NVIDIA H100 80GB HBM3) would be given, compute capability 10.0 wanted"},
      {"gpu-driver", "580", Refusal::kDriver, "driver 570.124.06, 580 wanted"},
      {"gpu-cuda", "13.0", Refusal::kDriver, "the driver's CUDA 12.8, 13.0 wanted"},
      {"gpu-selector", R"({"architecture":{"op":"In","value":["ampere"]}})", Refusal::kSelector,
       "0/8 held, 8 free but GPU 0 (NVIDIA H100 80GB HBM3) would be given, architecture In ampere wanted"},
  };
  for (const auto& [annotation, value, refusal, reason] : kCases) {
    const auto verdict = judge(node, with(test_pod("p", 1), annotation, value));
    EXPECT_EQ(verdict.refusal, refusal) << annotation;
    EXPECT_EQ(verdict.reason, reason);
    EXPECT_FALSE(verdict.resolvable) << annotation;
  }
  EXPECT_TRUE(judge(node, with(with(test_pod("p", 8), "gpu-model", "H100"), "gpu-memory", "80Gi")).fits());
}

TEST(Filter, ASharedGpuHasOnlySoMuchMemory) {
  const GpuNode node = test_node(1, 1, 4);
  const auto pod = with(test_pod("p", 1), "gpu-memory", "30Gi");
  EXPECT_TRUE(judge(node, pod, {with(test_pod("a", 1), "gpu-memory", "30Gi")}).fits());
  const auto verdict =
      judge(node, pod,
            {with(test_pod("a", 1), "gpu-memory", "30Gi"), with(test_pod("b", 1), "gpu-memory", "30Gi")});
  EXPECT_EQ(verdict.refusal, Refusal::kMemory);
  EXPECT_EQ(verdict.reason,
            "2/4 shares held, 2 free but GPU 0 would be given, with 20Gi not spoken for, 30Gi wanted");
  EXPECT_TRUE(verdict.resolvable);
}

TEST(Filter, AnMpsShareHasItsLimit) {
  GpuNode node = test_node(1, 1, 4);
  node.resources[0].sharing = Sharing::kMps;
  node.resources[0].units[0].share_mib = 20480;
  EXPECT_TRUE(judge(node, with(test_pod("p", 1), "gpu-memory", "20Gi")).fits());
  EXPECT_EQ(judge(node, with(test_pod("p", 1), "gpu-memory", "21Gi")).refusal, Refusal::kMemory);
}

TEST(Filter, AMigDeviceHasItsOwnMemory) {
  GpuNode node = test_node(1, 1);
  node.resources[0].name = ResourceName("nvidia.com/mig-1g.10gb");
  node.resources[0].units[0].profile = "1g.10gb";
  node.resources[0].units[0].memory_mib = 9856;
  auto pod = test_pod("p", 1);
  pod.containers[0].demands[0].resource = ResourceName("nvidia.com/mig-1g.10gb");
  EXPECT_TRUE(judge(node, with(pod, "gpu-memory", "9Gi")).fits());
  EXPECT_EQ(judge(node, with(pod, "gpu-memory", "10Gi")).refusal, Refusal::kMemory);
  EXPECT_TRUE(judge(node, with(pod, "gpu-selector", R"({"mig":{"op":"In","value":["1g.10gb"]}})")).fits());
}

TEST(Filter, AResourceThatNobodyPublishesIsTheKubeletsToCount) {
  auto pod = test_pod("p", 3);
  pod.containers[0].demands[0].resource = ResourceName("example.com/fpga");
  EXPECT_TRUE(judge(test_node(1, 1), with(pod, "gpu-model", "A100")).fits());
}

TEST(Filter, WhatRunsBeforeTheOthersCountsOnce) {
  auto pod = test_pod("p", 4);
  pod.containers.insert(pod.containers.begin(),
                        {.name = "init", .kind = ContainerRequest::Kind::kInit, .demands = {{kGpu, 6}}});
  EXPECT_TRUE(judge(test_node(6, 2), pod).fits());
  EXPECT_EQ(judge(test_node(5, 5), pod).reason, "0/5 held, 5 free of 6 wanted");
}

// Whatever is held or broken: a node passes if and only if the devices that placement gives are all that the
// Pod wants.
RC_GTEST_PROP(Filter, PassesWhatPlacementGivesAndNothingElse, ()) {
  const auto size = *rc::gen::element<std::size_t>(2, 4, 8);
  GpuNode node = test_node(size, 2);
  node.models.push_back({"NVIDIA L40S", "ada-lovelace", 8, 9, 46068});
  for (std::size_t gpu = 0; gpu < size; ++gpu) {
    if (*rc::gen::inRange(0, 4) == 0) node.gpus[gpu].model = 1;
    if (*rc::gen::inRange(0, 4) == 0) {
      hold(node, "x/" + std::to_string(gpu), {gpu});
    } else if (*rc::gen::inRange(0, 5) == 0) {
      quarantine(node, gpu, kFell);
    }
  }
  auto pod = test_pod("p", *rc::gen::inRange(1U, 4U));
  if (*rc::gen::inRange(0, 2) == 0) take_annotation("gpulet.io/gpu-model", "H100", pod);
  if (*rc::gen::inRange(0, 2) == 0) take_annotation("gpulet.io/gpu-links", "NV", pod);
  ClusterView view;
  view.set_node("n1", node);
  const auto* n1 = view.find("n1");
  const auto verdict = Filter(pod).judge(*n1);
  auto free = n1->free;
  const auto given = allocate(*n1, pod, free);
  bool right = given.has_value();
  if (given) {
    std::vector<std::size_t> gpus;
    for (std::size_t unit = 0; unit < size; ++unit) {
      if ((*given)[0][0].second[unit] != 0) gpus.push_back(unit);
    }
    RC_ASSERT(gpus.size() == pod.containers[0].demands[0].count);
    for (const auto a : gpus) {
      right = right && (pod.wishes.models.empty() || node.gpus[a].model == 0);
      for (const auto b : gpus) {
        right = right && (!pod.wishes.links || a == b || a / 2 == b / 2);
      }
    }
  }
  RC_ASSERT(verdict.fits() == right);
  RC_ASSERT(verdict.reason.empty() == right);
}

}  // namespace
}  // namespace gpulet::scheduler

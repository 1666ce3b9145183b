#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "base/text.h"
#include "scheduler/core/decision.h"
#include "scheduler/model/test_nodes.h"

namespace gpulet::scheduler {
namespace {

const std::string kFell = "XID 79: GPU has fallen off the bus";

FilterResult check_pod(const GpuNode& node, const PodRequest& pod,
                       const std::vector<PodRequest>& others = {}) {
  ClusterState view;
  view.set_node("n1", node);
  for (auto other : others) {
    other.node = "n1";
    view.set_pod(other);
  }
  return Filter(pod).check_node(*view.find_node("n1"));
}

PodRequest with_annotation(PodRequest pod, const std::string& annotation, const std::string& value) {
  apply_annotation("gpulet.io/" + annotation, value, pod);
  EXPECT_TRUE(pod.malformed.empty());
  return pod;
}

TEST(Filter, ReasonNamesTheDevices) {
  GpuNode node = test_node(8, 2);
  hold_units(node, "a/b", {0, 2});
  quarantine_gpu(node, 7, kFell);
  EXPECT_TRUE(check_pod(node, test_pod("p", 5)).fits());
  auto verdict = check_pod(node, test_pod("p", 6));
  EXPECT_EQ(verdict.reason, "2/8 held, 1 quarantined (XID 79), 5 free of 6 requested");
  EXPECT_EQ(verdict.reject_reason, RejectReason::kTooFew);
  EXPECT_TRUE(verdict.resolvable);
  verdict = check_pod(node, test_pod("p", 8));
  EXPECT_FALSE(verdict.resolvable);  // no leaving Pod brings the broken one back
  verdict = check_pod(node, with_annotation(test_pod("p", 4), "gpu-links", "NV"));
  EXPECT_EQ(verdict.reason, "2/8 held, 1 quarantined (XID 79), 5 free but no 4 linked by NV");
  EXPECT_EQ(verdict.reject_reason, RejectReason::kLinks);
  EXPECT_FALSE(verdict.resolvable);  // groups of two have no four
  EXPECT_TRUE(check_pod(node, with_annotation(test_pod("p", 2), "gpu-links", "NV4")).fits());
}

TEST(Filter, LinksHeldByAnotherPodAreResolvable) {
  GpuNode node = test_node(8, 4);
  hold_units(node, "a/b", {0});
  hold_units(node, "a/c", {4});
  const auto verdict = check_pod(node, with_annotation(test_pod("p", 4), "gpu-links", "NV"));
  EXPECT_EQ(verdict.reason, "2/8 held, 6 free but no 4 linked by NV");
  EXPECT_TRUE(verdict.resolvable);
}

TEST(Filter, RejectsUnmetConstraints) {
  const GpuNode node = test_node(8, 4);
  const std::tuple<const char*, const char*, RejectReason, const char*> kCases[] = {
      {"gpu-model", "A100|L40S", RejectReason::kModel,
       "0/8 held, 8 free but GPU 0 (NVIDIA H100 80GB HBM3) would be allocated, A100 or L40S required"},
      {"gpu-memory", "100Gi", RejectReason::kMemory,
       "0/8 held, 8 free but GPU 0 (NVIDIA H100 80GB HBM3) would be allocated, 100Gi of memory required"},
      {"gpu-compute", "10.0", RejectReason::kCompute,
       "0/8 held, 8 free but GPU 0 (NVIDIA H100 80GB HBM3) would be allocated, compute capability 10.0 "
       "required"},
      {"gpu-driver", "580", RejectReason::kDriver, "driver 570.124.06, 580 required"},
      {"gpu-cuda", "13.0", RejectReason::kDriver, "the driver's CUDA 12.8, 13.0 required"},
      {"gpu-selector", R"({"architecture":{"op":"In","value":["ampere"]}})", RejectReason::kSelector,
       "0/8 held, 8 free but GPU 0 (NVIDIA H100 80GB HBM3) would be allocated, architecture In ampere "
       "required"},
  };
  for (const auto& [annotation, value, refusal, reason] : kCases) {
    const auto verdict = check_pod(node, with_annotation(test_pod("p", 1), annotation, value));
    EXPECT_EQ(verdict.reject_reason, refusal) << annotation;
    EXPECT_EQ(verdict.reason, reason);
    EXPECT_FALSE(verdict.resolvable) << annotation;
  }
  EXPECT_TRUE(check_pod(node, with_annotation(with_annotation(test_pod("p", 8), "gpu-model", "H100"),
                                              "gpu-memory", "80Gi"))
                  .fits());
}

TEST(Filter, LimitsMemoryOfSharedGpus) {
  const GpuNode node = test_node(1, 1, 4);
  const auto pod = with_annotation(test_pod("p", 1), "gpu-memory", "30Gi");
  EXPECT_TRUE(check_pod(node, pod, {with_annotation(test_pod("a", 1), "gpu-memory", "30Gi")}).fits());
  const auto verdict = check_pod(node, pod,
                                 {with_annotation(test_pod("a", 1), "gpu-memory", "30Gi"),
                                  with_annotation(test_pod("b", 1), "gpu-memory", "30Gi")});
  EXPECT_EQ(verdict.reject_reason, RejectReason::kMemory);
  EXPECT_EQ(verdict.reason,
            "2/4 shares held, 2 free but GPU 0 would be allocated, with 20Gi unreserved, 30Gi required");
  EXPECT_TRUE(verdict.resolvable);
}

PodRequest with_memory(PodRequest pod, const fraction::MemoryAmount& memory) {
  pod.containers[0].memory = memory;
  return pod;
}

TEST(Filter, EveryFormOfMemoryMustFitBesideOthers) {
  const GpuNode node = test_node(1, 1, 4);
  const auto mib = with_memory(test_pod("a", 1), {.mib = 40'960});
  const auto half = with_memory(test_pod("b", 1), {.millionths = 500'000});
  const auto annotated = with_annotation(test_pod("c", 1), "gpu-memory", "40Gi");
  const auto named = [](PodRequest pod, const char* name) {
    pod.name = name;
    return pod;
  };
  for (const auto& one : {mib, half, annotated}) {
    for (const auto& other : {mib, half, annotated}) {
      EXPECT_TRUE(check_pod(node, named(one, "p"), {named(other, "x")}).fits());
      const auto verdict = check_pod(node, named(one, "p"), {named(other, "x"), named(half, "y")});
      EXPECT_EQ(verdict.reject_reason, RejectReason::kMemory);
      EXPECT_EQ(verdict.reason,
                "2/4 shares held, 2 free but GPU 0 would be allocated, with 0Gi unreserved, 40Gi required");
      EXPECT_TRUE(verdict.resolvable);
    }
  }
  EXPECT_EQ(check_pod(node, with_memory(test_pod("p", 1), {.mib = 90'000})).reason,
            "0/4 shares held, 4 free but GPU 0 (NVIDIA H100 80GB HBM3) would be allocated, 90000Mi of memory "
            "required");
}

TEST(Filter, AContradictionFitsNowhere) {
  auto pod = test_pod("p", 1);
  pod.request_error = "annotation gpu-fraction is \"2\": expected less";
  const auto verdict = check_pod(test_node(8, 2), pod);
  EXPECT_EQ(verdict.reject_reason, RejectReason::kRequest);
  EXPECT_EQ(verdict.reason, pod.request_error);
  EXPECT_FALSE(verdict.resolvable) << "preemption does not change it";
  ClusterState view;
  view.set_node("n1", test_node(8, 2));
  EXPECT_FALSE(Filter(pod).accepts(*view.find_node("n1")));
  EXPECT_TRUE(Filter(test_pod("p", 1)).accepts(*view.find_node("n1")));
  EXPECT_TRUE(Filter(test_pod("p", 1)).check_request().fits());
}

TEST(Filter, StrictNodesAreNotUsedWithoutFreeMemory) {
  GpuNode node = test_node(2, 1, 4);
  node.gpus[0].now = node.gpus[1].now = placement::make_gpu_load(0, 80, false);
  EXPECT_TRUE(check_pod(node, test_pod("p", 1)).fits()) << "preferred only";
  node.rules.load = placement::LoadPolicy::kStrict;
  const auto verdict = check_pod(node, test_pod("p", 1));
  EXPECT_EQ(verdict.reject_reason, RejectReason::kMemory);
  EXPECT_EQ(
      verdict.reason,
      "0/8 shares held, 8 free but GPU 0 would be allocated, with 20 % of its memory free, 25 % required");
  EXPECT_TRUE(verdict.resolvable);
  EXPECT_TRUE(check_pod(node, with_annotation(test_pod("p", 1), "gpu-memory", "10Gi")).fits());
  node.gpus[1].now = {};
  EXPECT_TRUE(check_pod(node, test_pod("p", 1)).fits()) << "another GPU has the memory";
}

TEST(Filter, StrictNodesKeepPodsFromGpusHeldOutsidePods) {
  GpuNode node = test_node(2, 2);
  node.rules.load = placement::LoadPolicy::kStrict;
  node.gpus[1].now.held_outside_pods = true;
  EXPECT_TRUE(check_pod(node, test_pod("p", 1)).fits());
  EXPECT_EQ(check_pod(node, test_pod("p", 2)).reason,
            "0/2 held, 2 free but GPU 1 would be allocated, whose memory a process of no Pod holds");
}

TEST(Filter, LimitsMemoryOfMpsShares) {
  GpuNode node = test_node(1, 1, 4);
  node.resources[0].sharing = Sharing::kMps;
  node.resources[0].units[0].share_mib = 20480;
  EXPECT_TRUE(check_pod(node, with_annotation(test_pod("p", 1), "gpu-memory", "20Gi")).fits());
  EXPECT_EQ(check_pod(node, with_annotation(test_pod("p", 1), "gpu-memory", "21Gi")).reject_reason,
            RejectReason::kMemory);
}

TEST(Filter, UsesMemoryOfMigDevices) {
  GpuNode node = test_node(1, 1);
  node.resources[0].name = ResourceName("nvidia.com/mig-1g.10gb");
  node.resources[0].units[0].profile = "1g.10gb";
  node.resources[0].units[0].memory_mib = 9856;
  auto pod = test_pod("p", 1);
  pod.containers[0].devices[0].resource = ResourceName("nvidia.com/mig-1g.10gb");
  EXPECT_TRUE(check_pod(node, with_annotation(pod, "gpu-memory", "9Gi")).fits());
  EXPECT_EQ(check_pod(node, with_annotation(pod, "gpu-memory", "10Gi")).reject_reason, RejectReason::kMemory);
  EXPECT_TRUE(
      check_pod(node, with_annotation(pod, "gpu-selector", R"({"mig":{"op":"In","value":["1g.10gb"]}})"))
          .fits());
}

TEST(Filter, PassesUnpublishedResources) {
  auto pod = test_pod("p", 3);
  pod.containers[0].devices[0].resource = ResourceName("example.com/fpga");
  EXPECT_TRUE(check_pod(test_node(1, 1), with_annotation(pod, "gpu-model", "A100")).fits());
}

TEST(Filter, ANodeOfClaimsOffersNoExtendedResource) {
  ClusterState view;
  auto node = test_claim_node(2, 2);
  hold_units(node, "default/a", {0, 1});
  view.set_node("n1", node);
  const auto& n1 = *view.find_node("n1");
  const auto pod = test_pod("p", 1);
  const Filter filter(pod);
  EXPECT_FALSE(filter.is_published(n1));
  EXPECT_TRUE(filter.check_node(n1).fits()) << "kube-scheduler counts what DeviceClasses serve";
  EXPECT_FALSE(task_for_node(n1, pod));
  EXPECT_FALSE(Filter(test_claim_pod("c")).requests_devices());
}

TEST(Filter, CountsInitContainersOnce) {
  auto pod = test_pod("p", 4);
  pod.containers.insert(pod.containers.begin(),
                        {.name = "init", .kind = ContainerRequest::Kind::kInit, .devices = {{kGpu, 6}}});
  EXPECT_TRUE(check_pod(test_node(6, 2), pod).fits());
  EXPECT_EQ(check_pod(test_node(5, 5), pod).reason, "0/5 held, 5 free of 6 requested");
}

PodRequest with_choice(PodRequest pod, const std::string& annotation, const std::string& value) {
  apply_annotation(annotation, value, pod);
  EXPECT_EQ(pod.request_error, "");
  return pod;
}

TEST(Filter, ChecksTheChoiceOfGpus) {
  GpuNode node = test_node(8, 4);
  hold_units(node, "a/b", {0});
  EXPECT_TRUE(check_pod(node, with_choice(test_pod("p", 1), "gpulet.io/gpu-index", "1")).fits());
  EXPECT_TRUE(check_pod(node, with_choice(test_pod("p", 1), "nvidia.com/use-gpuuuid", "GPU-1")).fits());
  EXPECT_TRUE(check_pod(node, with_choice(test_pod("p", 3), "gpulet.io/gpu-numa", "0")).fits());
  EXPECT_TRUE(check_pod(node, with_choice(test_pod("p", 3), kNumaBindAnnotation.data(), "true")).fits());
  auto verdict = check_pod(node, with_choice(test_pod("p", 1), "gpulet.io/gpu-index", "0"));
  EXPECT_EQ(verdict.reject_reason, RejectReason::kChoice);
  EXPECT_EQ(verdict.reason,
            "1/8 held, 7 free but GPU 1 (NVIDIA H100 80GB HBM3) would be allocated, index 0 required");
  EXPECT_TRUE(verdict.resolvable);
  verdict = check_pod(node, with_choice(test_pod("p", 1), "nvidia.com/nouse-gputype", "h100,T4"));
  EXPECT_EQ(verdict.reason,
            "1/8 held, 7 free but GPU 0 (NVIDIA H100 80GB HBM3) would be allocated, a model without h100, T4 "
            "required");
  EXPECT_FALSE(verdict.resolvable);
  verdict = check_pod(node, with_choice(test_pod("p", 5), kNumaBindAnnotation.data(), "true"));
  EXPECT_EQ(verdict.reason, "1/8 held, 7 free but no 5 on one NUMA node");
  node.gpus[1].numa.reset();
  verdict = check_pod(node, with_choice(test_pod("p", 1), "gpulet.io/gpu-numa", "0"));
  EXPECT_EQ(verdict.reason,
            "1/8 held, 7 free but GPU 1 (NVIDIA H100 80GB HBM3) would be allocated, NUMA node 0 (unknown of "
            "this GPU) required");
}

TEST(Filter, SharesOfAContainerAreWhereTheNodeAndThePodSay) {
  using placement::SharesOn;
  struct Case {
    SharesOn node;
    placement::SharedPolicy policy;
    const char* annotation;
    unsigned count;
    std::string reason;  // empty: it fits
  };
  constexpr auto kDistributed = placement::SharedPolicy::kDistributed,
                 kPacked = placement::SharedPolicy::kPacked;
  const std::string held = "5/8 shares held, 3 free";
  for (const auto& [on_node, policy, annotation, count, reason] : {
           Case{SharesOn::kOneGpu, kDistributed, "", 2, ""},
           Case{SharesOn::kOneGpu, kDistributed, "oneGPU", 2, ""},
           Case{SharesOn::kOneGpu, kDistributed, "", 1, ""},
           Case{SharesOn::kOneGpu, kDistributed, "", 3, held + " but no 3 shares on one GPU"},
           Case{SharesOn::kDifferentGpus, kPacked, "", 2, ""},
           Case{SharesOn::kDifferentGpus, kPacked, "", 3, held + " but no 3 shares on different GPUs"},
           Case{SharesOn::kOneGpu, kDistributed, "differentGPUs", 2,
                held + " but 2 shares on different GPUs required, others would be allocated"},
           Case{SharesOn::kAnyGpu, kDistributed, "differentGPUs", 1, ""},
           Case{SharesOn::kAnyGpu, kDistributed, "", 3, ""},
           Case{SharesOn::kAnyGpu, kDistributed, "oneGPU", 3,
                held + " but 3 shares on one GPU required, others would be allocated"},
       }) {
    GpuNode node = test_node(2, 2, 4);
    node.rules.shared = policy;
    node.resources[0].shares_on = on_node;
    hold_units(node, "a/b", {0}, 2);
    hold_units(node, "a/c", {1}, 3);
    auto pod = test_pod("p", count);
    if (*annotation != '\0') pod = with_choice(pod, "gpulet.io/gpu-shares-on", annotation);
    const auto verdict = check_pod(node, pod);
    EXPECT_EQ(verdict.reason, reason) << annotation << " " << count;
    // What the node would choose among its eight shares decides.
    EXPECT_EQ(verdict.resolvable, reason.empty() || (on_node == SharesOn::kOneGpu && count == 3)) << reason;
    EXPECT_EQ(verdict.reject_reason, reason.empty()                               ? RejectReason::kNone
                                     : reason.find("but no") != std::string::npos ? RejectReason::kTooFew
                                                                                  : RejectReason::kChoice);
  }
  EXPECT_TRUE(
      check_pod(test_node(8, 4), with_choice(test_pod("p", 2), "gpulet.io/gpu-shares-on", "oneGPU")).fits())
      << "whole GPUs are no shares";
}

TEST(Filter, RejectsAMalformedChoiceEverywhere) {
  auto pod = test_pod("p", 1);
  apply_annotation("gpulet.io/gpu-index", "first", pod);
  const auto verdict = check_pod(test_node(8, 4), pod);
  EXPECT_EQ(verdict.reject_reason, RejectReason::kRequest);
  EXPECT_EQ(
      verdict.reason,
      "annotation gpulet.io/gpu-index is \"first\": expected indices of GPUs, separated by |, as 0|1 (at "
      "most 64)");
  PodRequest without_devices;
  apply_annotation("gpulet.io/gpu-index", "first", without_devices);
  EXPECT_EQ(without_devices.request_error, "");
}

// Whatever is held or broken: a node passes if and only if the devices from placement satisfy the Pod.
RC_GTEST_PROP(Filter, AgreesWithPlacement, ()) {
  const auto size = *rc::gen::element<std::size_t>(2, 4, 8);
  GpuNode node = test_node(size, 2);
  node.models.push_back({"NVIDIA L40S", "ada-lovelace", 8, 9, 46068});
  for (std::size_t gpu = 0; gpu < size; ++gpu) {
    if (*rc::gen::inRange(0, 4) == 0) node.gpus[gpu].model = 1;
    if (*rc::gen::inRange(0, 4) == 0) {
      hold_units(node, "x/" + std::to_string(gpu), {gpu});
    } else if (*rc::gen::inRange(0, 5) == 0) {
      quarantine_gpu(node, gpu, kFell);
    }
  }
  auto pod = test_pod("p", *rc::gen::inRange(1U, 4U));
  if (*rc::gen::inRange(0, 2) == 0) apply_annotation("gpulet.io/gpu-model", "H100", pod);
  if (*rc::gen::inRange(0, 2) == 0) apply_annotation("gpulet.io/gpu-links", "NV", pod);
  std::set<std::size_t> chosen;
  if (*rc::gen::inRange(0, 2) == 0) {
    chosen = *rc::gen::container<std::set<std::size_t>>(rc::gen::inRange<std::size_t>(0, size));
    std::vector<std::string> indices;
    for (const auto gpu : chosen) indices.push_back(std::to_string(gpu));
    if (!indices.empty()) apply_annotation("gpulet.io/gpu-index", text::join(indices, "|"), pod);
  }
  const auto is_accepted = [&](std::size_t gpu) {
    return (pod.constraints.models.empty() || node.gpus[gpu].model == 0) &&
           (chosen.empty() || chosen.contains(gpu));
  };
  ClusterState view;
  view.set_node("n1", node);
  const auto* n1 = view.find_node("n1");
  const auto verdict = Filter(pod).check_node(*n1);
  auto free = n1->free;
  const auto given = allocate_devices(*n1, pod, free);
  bool right = given.has_value();
  if (given) {
    std::vector<std::size_t> gpus;
    for (std::size_t unit = 0; unit < size; ++unit) {
      if ((*given)[0][0].second[unit] != 0) gpus.push_back(unit);
    }
    RC_ASSERT(gpus.size() == pod.containers[0].devices[0].count);
    for (const auto a : gpus) {
      right = right && is_accepted(a);
      for (const auto b : gpus) {
        right = right && (!pod.constraints.links || a == b || a / 2 == b / 2);
      }
    }
  }
  RC_ASSERT(verdict.fits() == right);
  RC_ASSERT(verdict.reason.empty() == right);
}

class ScoreTest : public testing::Test {
 protected:
  std::vector<int> score(const PodRequest& pod, const std::string& policy) {
    static const std::vector<std::string_view> kNames = {"n1", "n2", "n3"};
    return scorer_.score_nodes(view_, pod, policy, kNames);
  }
  ClusterState view_;
  Scorer scorer_;
};

TEST_F(ScoreTest, PrefersTheNodeWithLinks) {
  GpuNode split = test_node(8, 4), whole = test_node(8, 4);
  hold_units(split, "a/b", {0, 1, 4, 5});
  hold_units(whole, "a/c", {0, 1, 2, 3});
  view_.set_node("n1", split);
  view_.set_node("n2", whole);
  const auto scores = score(test_pod("p", 4), "topology");
  EXPECT_LT(scores[0], scores[1]);
  EXPECT_EQ(scores[1], kMaxScore);
  EXPECT_EQ(scores[2], 0) << "nothing is known of it";
}

TEST_F(ScoreTest, BinpackFillsAndSpreadSpreads) {
  GpuNode used = test_node(8, 4);
  hold_units(used, "a/b", {0, 1, 2, 3});
  view_.set_node("n1", used);
  view_.set_node("n2", test_node(8, 4));
  EXPECT_GT(score(test_pod("p", 1), "binpack")[0], score(test_pod("p", 1), "binpack")[1]);
  EXPECT_LT(score(test_pod("p", 1), "spread")[0], score(test_pod("p", 1), "spread")[1]);
}

TEST_F(ScoreTest, EqualNodesScoreBestAndUnknownPolicyIsDefault) {
  view_.set_node("n1", test_node(8, 4));
  view_.set_node("n2", test_node(8, 4));
  for (const char* policy : {"default", "spread", "nonsense", ""}) {
    EXPECT_EQ(score(test_pod("p", 2), policy), (std::vector{kMaxScore, kMaxScore, 0})) << policy;
  }
}

// 90 % in the given half of the day, idle in the other.
LoadCurve busy_by(bool day) {
  LoadCurve curve;
  for (std::size_t part = 0; part < kDayParts; ++part)
    curve.busy[part] = (part >= 3 && part < 6) == day ? 90 : 0;
  return curve;
}

// Two nodes with a busy GPU each, by day on n1 and by night on n2. A service goes where its own hours are
// quiet, from what a third node remembers of its earlier Pods.
TEST_F(ScoreTest, AKnownServiceGoesWhereItsHoursAreQuiet) {
  for (const bool day : {true, false}) {
    GpuNode by_day = test_node(1, 1, 4), by_night = test_node(1, 1, 4), memory = test_node(1, 1, 4);
    by_day.gpus[0].load = encode_curve(busy_by(true));
    by_night.gpus[0].load = encode_curve(busy_by(false));
    quarantine_gpu(memory, 0, kFell);
    memory.controllers.push_back(
        {.controller = "default/web", .curve = busy_by(day), .hours = 24, .last_hour = 1});
    view_.set_node("n1", by_day);
    view_.set_node("n2", by_night);
    view_.set_node("n3", memory);
    const auto pod = test_pod("web-7c6b9b4b5f-x2x9k", 1);
    ASSERT_EQ(view_.expected_load_of(pod), busy_by(day));
    const auto scores = score(pod, "default");
    if (day) {
      EXPECT_GT(scores[1], scores[0]);
    } else {
      EXPECT_GT(scores[0], scores[1]);
    }
    EXPECT_FALSE(view_.expected_load_of(test_pod("other-7c6b9b4b5f-x2x9k", 1))) << "another service";
  }
}

TEST_F(ScoreTest, TheBestKnownLoadOfAControllerCounts) {
  const auto pod = test_pod("web-0", 1);
  GpuNode one = test_node(1, 1), two = test_node(1, 1);
  one.controllers.push_back(
      {.controller = "default/web", .curve = busy_by(true), .hours = 23, .last_hour = 9});
  view_.set_node("n1", one);
  EXPECT_FALSE(view_.expected_load_of(pod)) << "less than a day";
  two.controllers.push_back(
      {.controller = "default/web", .curve = busy_by(false), .hours = 48, .last_hour = 1});
  view_.set_node("n2", two);
  EXPECT_EQ(view_.expected_load_of(pod), busy_by(false));
  one.controllers[0].hours = 48;
  view_.set_node("n1", one);
  EXPECT_EQ(view_.expected_load_of(pod), busy_by(true)) << "seen later";
  one.controllers.clear();
  view_.set_node("n1", one);
  EXPECT_EQ(view_.expected_load_of(pod), busy_by(false));
  view_.remove_node("n2");
  EXPECT_FALSE(view_.expected_load_of(pod));
}

TEST(SelectBest, KeepsOrderAndBreaksTiesByIndex) {
  const std::vector<int> scores = {3, 10, 0, 10, 3, 10, 1};
  using Places = std::vector<std::size_t>;
  EXPECT_EQ(select_best(scores, 0), Places{});
  EXPECT_EQ(select_best(scores, 1), Places{1});
  EXPECT_EQ(select_best(scores, 3), (Places{1, 3, 5}));
  EXPECT_EQ(select_best(scores, 4), (Places{0, 1, 3, 5}));
  EXPECT_EQ(select_best(scores, 6), (Places{0, 1, 3, 4, 5, 6}));
  EXPECT_EQ(select_best(scores, 7), (Places{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(select_best(scores, 100).size(), 7U);
  EXPECT_TRUE(select_best({}, 5).empty());
}

TEST_F(ScoreTest, ShareIsAFractionalTask) {
  view_.set_node("n1", test_node(2, 2, 4));
  const auto task = task_for_node(*view_.find_node("n1"), test_pod("p", 1));
  ASSERT_TRUE(task.has_value());
  EXPECT_EQ(task->gpus, 1);
  EXPECT_EQ(task->gpu_milli, 250);
  auto other = test_pod("p", 1);
  other.containers[0].devices[0].resource = ResourceName("example.com/fpga");
  EXPECT_FALSE(task_for_node(*view_.find_node("n1"), other).has_value());
  EXPECT_EQ(score(other, "default"), (std::vector{0, 0, 0}));
}

}  // namespace
}  // namespace gpulet::scheduler

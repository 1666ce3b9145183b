#include "scheduler/model/limit_demand.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "scheduler/core/decision.h"
#include "scheduler/core/extender_json.h"
#include "scheduler/model/test_nodes.h"

namespace gpulet::scheduler {
namespace {

using fraction::LimitGrade;
using nlohmann::json;

json demanding_pod(const char* least, json limits = {{"nvidia.com/gpumem", "8192"}}) {
  limits["nvidia.com/gpu"] = "1";
  const json container = {
      {"name", "main"}, {"resources", {{"limits", limits}}}, {"securityContext", {{"runAsUser", 1000}}}};
  return {{"metadata",
           {{"namespace", "default"}, {"name", "p"}, {"annotations", {{"gpulet.io/min-limit-grade", least}}}}},
          {"spec", {{"containers", json::array({container})}}}};
}

PodRequest read_demanding_pod(const json& pod) { return parse_pod(pod.dump()).value(); }

GpuNode audited_node(unsigned shares = 4) {
  auto node = test_node(1, 1, shares);
  node.memory_limit = {.no_driver_limit = "the driver is too old", .ends_excess = true};
  return node;
}

GpuNode mps_node(std::uint64_t share_mib) {
  auto node = test_node(1, 1, 4);
  node.resources[0].sharing = Sharing::kMps;
  node.resources[0].units[0].share_mib = share_mib;
  node.memory_limit = {.no_driver_limit = "the driver is too old", .no_audit = "it is off"};
  return node;
}

// "" where it fits.
std::string rejection(const GpuNode& node, const PodRequest& pod) {
  ClusterState view;
  view.set_node("n1", node);
  const Filter filter(pod);
  const auto result = filter.check_node(*view.find_node("n1"));
  EXPECT_EQ(result.fits(), filter.accepts(*view.find_node("n1")));
  EXPECT_TRUE(result.fits() || !result.resolvable) << "no Pod that leaves changes it";
  return result.reason;
}

TEST(LimitDemandTest, ReadsTheDemandOfAPod) {
  const auto pod = read_demanding_pod(demanding_pod("mps"));
  EXPECT_EQ(pod.request_error, "");
  EXPECT_EQ(pod.limit_demand.least, LimitGrade::kMps);
  ASSERT_EQ(pod.limit_demand.containers.size(), 1U);
  EXPECT_EQ(pod.limit_demand.containers[0].limit, (fraction::MemoryAmount{.mib = 8192}));
  EXPECT_FALSE(pod.limit_demand.containers[0].access.may_be_root);
  auto without = demanding_pod("mps");
  without["metadata"].erase("annotations");
  EXPECT_EQ(read_demanding_pod(without).limit_demand, LimitDemand{});
}

TEST(LimitDemandTest, AnInvalidDemandFitsNowhere) {
  const auto pod = read_demanding_pod(demanding_pod("hard"));
  EXPECT_EQ(pod.request_error,
            "annotation gpulet.io/min-limit-grade is \"hard\": expected kernel, mps or audited");
  EXPECT_EQ(rejection(audited_node(), pod), pod.request_error);
  auto number = demanding_pod("");
  number["metadata"]["annotations"]["gpulet.io/min-limit-grade"] = 3;
  EXPECT_NE(read_demanding_pod(number).request_error, "");
}

TEST(LimitDemandTest, ABrokenRuleFitsNowhere) {
  auto pod = demanding_pod("audited");
  pod["spec"]["containers"].push_back({{"name", "side"}, {"securityContext", {{"privileged", true}}}});
  EXPECT_EQ(read_demanding_pod(pod).request_error,
            "container side is privileged, so that no limit has a higher grade than none; annotation "
            "gpulet.io/min-limit-grade demands audited");
  auto host = demanding_pod("mps");
  host["spec"]["hostPID"] = true;
  EXPECT_EQ(read_demanding_pod(host).request_error,
            "container main sees the node's processes (hostPID), so that no limit has a higher grade than "
            "audited; annotation gpulet.io/min-limit-grade demands mps");
  host["metadata"]["annotations"]["gpulet.io/min-limit-grade"] = "audited";
  EXPECT_EQ(read_demanding_pod(host).request_error, "") << "an audit sees it all the same";
}

TEST(LimitDemandTest, ANodeOfALowerGradeIsRefused) {
  const auto kernel = read_demanding_pod(demanding_pod("kernel"));
  EXPECT_EQ(rejection(audited_node(), kernel),
            "limits GPU memory by audit; the Pod demands kernel: the driver is too old");
  EXPECT_EQ(rejection(test_node(1, 1, 4), kernel), "does not limit GPU memory; the Pod demands kernel");
  auto node = audited_node();
  node.memory_limit.has_driver_limit = true;
  EXPECT_EQ(rejection(node, kernel), "");
  EXPECT_EQ(rejection(audited_node(), read_demanding_pod(demanding_pod("audited"))), "");
}

TEST(LimitDemandTest, ADeviceThatIsNotSharedNeedsNoLimit) {
  EXPECT_EQ(rejection(test_node(1, 1), read_demanding_pod(demanding_pod("kernel", json::object()))), "");
}

TEST(LimitDemandTest, SharedMigDevicesHaveNoLimits) {
  auto node = audited_node();
  node.memory_limit.has_driver_limit = true;
  node.resources[0].units[0].profile = "1g.10gb";
  EXPECT_EQ(rejection(node, read_demanding_pod(demanding_pod("audited"))),
            "does not limit GPU memory; the Pod demands audited: MIG devices are not audited");
}

TEST(LimitDemandTest, MpsHoldsItsOwnLimitForContainersWithoutRoot) {
  const auto unlimited = read_demanding_pod(demanding_pod("mps", json::object()));
  EXPECT_EQ(rejection(mps_node(20'480), unlimited), "");
  EXPECT_EQ(rejection(mps_node(20'480), read_demanding_pod(demanding_pod("mps"))),
            "does not limit GPU memory; the Pod demands mps: MPS limits a process to 20480 MiB, more than the "
            "8192 MiB of the Pod");
  EXPECT_EQ(rejection(mps_node(8192), read_demanding_pod(demanding_pod("mps"))), "");
  auto root = demanding_pod("mps");
  root["spec"]["containers"][0].erase("securityContext");
  EXPECT_EQ(rejection(mps_node(8192), read_demanding_pod(root)),
            "does not limit GPU memory; the Pod demands mps: container main may run as root beside an MPS "
            "control pipe (no runAsNonRoot or runAsUser)");
}

TEST(LimitDemandTest, WithoutMemoryThereIsNothingToHold) {
  EXPECT_EQ(rejection(audited_node(), read_demanding_pod(demanding_pod("audited", json::object()))),
            "does not limit GPU memory; the Pod demands audited: its Pod requests no memory of the GPU, so "
            "there is no limit to hold");
}

TEST(LimitDemandTest, ANodeThatPublishesNothingIsRefused) {
  const auto pod = read_demanding_pod(demanding_pod("kernel"));
  EXPECT_EQ(Filter(pod).check_unpublished().reason,
            "publishes no grade of its GPU memory limits; the Pod demands kernel");
  EXPECT_TRUE(Filter(test_pod("p", 1)).check_unpublished().fits());
  auto node = audited_node();
  node.resources[0].name = ResourceName("nvidia.com/other");
  EXPECT_EQ(rejection(node, pod), "publishes no grade of its GPU memory limits; the Pod demands kernel");
  auto claims = demanding_pod("kernel");
  claims["spec"]["containers"][0].erase("resources");
  EXPECT_TRUE(Filter(read_demanding_pod(claims)).check_unpublished().fits()) << "it requests no device";
}

TEST(LimitDemandTest, AGpuNodeKeepsWhatHoldsItsLimits) {
  auto node = audited_node();
  node.memory_limit.mps_process_mib = 4096;
  const auto spec = encode_spec(node);
  EXPECT_EQ(json::parse(spec)["memoryLimit"], (json{{"grade", "mps"},
                                                    {"byAudit", true},
                                                    {"mpsMiB", 4096},
                                                    {"whyNotByDriver", "the driver is too old"}}));
  const auto object = R"({"metadata": {"name": "n1"}, "spec": )" + spec + "}";
  EXPECT_EQ(decode_gpu_node(object).value().node, node);
  EXPECT_EQ(json::parse(encode_spec(test_node(1, 1))).count("memoryLimit"), 0U);
  const auto broken = decode_gpu_node(
      R"({"metadata": {"name": "n1"}, "spec": {"version": 1, "memoryLimit": {"mpsMiB": "x"}}})");
  ASSERT_FALSE(broken);
  EXPECT_NE(broken.error().message().find("spec.memoryLimit.mpsMiB"), std::string::npos)
      << broken.error().message();
}

}  // namespace
}  // namespace gpulet::scheduler

// Claims whose Pods demand a grade of their memory limit, on a simulated node, and the grade that such Pods
// are shown with: the agent as a process, a kubelet that lists the claims, and an API server.
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "tests/sim/claim_fixture.h"
#include "tests/sim/running_command.h"

namespace gpulet::tests {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

constexpr std::uint64_t kShareBytes = std::uint64_t{4} << 30;

// The claim gpu-0-POD is a share of 4 GiB of GPU 0, made for the Pod POD: "audited" and "kernel" demand that
// grade, "privileged" is privileged and demands none.
class SimClaimLimits : public ClaimNodeTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(ClaimNodeTest::SetUp());
    api_ = std::make_unique<NodeApi>(sim_node().directory(), [this](const k8s::Received& request) {
      if (auto found = reply_to_limit(request.line())) return found;
      return reply_to(request);
    });
    config_ = sim_node().directory() + "/config.yaml";
    ASSERT_TRUE(write_file_atomic(config_,
                                  "version: v1\ngpulet:\n  fraction: {onExceeded: kill}\n"
                                  "  metrics: {interval: 1s}\n"
                                  "  partition: [{devices: [0], whole: {consumableShares: memory}}]\n"));
    auto options = claim_options(kClaimPod);
    options.arguments.push_back("--config-file=" + config_);
    ASSERT_NO_FATAL_FAILURE(start_agent(options));
    ASSERT_NO_FATAL_FAILURE(register_driver(kClaimPod));
    ASSERT_TRUE(becomes_true([this] { return slices_.devices().find("gpu-0") != std::string::npos; }));
  }

  // The kubelet admits the Pod and prepares its claim.
  void start_pod(const std::string& name) {
    const auto admitted = sim_kubelet().admit_pod(
        {.name_space = kClaimNamespace,
         .name = name,
         .uid = "uid-" + name,
         .containers = {{.name = "main", .resources = {}, .claims = {"gpu-0-" + name}}}});
    ASSERT_TRUE(admitted) << admitted.error().full_message();
    ASSERT_EQ(prepare(kClaimPod, "gpu-0-" + name), "");
  }
  // /api/node's of container main of the Pod; null while there is none.
  json shown_limit(const std::string& pod) {
    const auto node = json::parse(http_get(sim_node().socket(), "/api/node").body, nullptr, false);
    if (!node.is_object() || !node.contains("memory_limit")) return {};
    for (const auto& one : node["memory_limit"]["containers"]) {
      if (one.value("pod", "") == pod && one.value("container", "") == "main") return one;
    }
    return {};
  }
  std::string list_gpus() {
    RunningCommand command({"list", "--socket=" + sim_node().socket()},
                           {"DRIVER_ROOT_CTR_PATH=" + sim_node().driver_root()});
    EXPECT_EQ(command.exit_code(), 0) << command.output_text();
    return command.output_text();
  }
  std::vector<std::string> metric_lines(const std::string& name) {
    auto lines = text::split(http_get(listener_port(), "/metrics").body, '\n');
    std::erase_if(lines, [&](const auto& line) { return !line.starts_with(name); });
    return lines;
  }

 private:
  static std::optional<k8s::TestApiServer::Reply> reply_to_limit(const std::string& line) {
    for (const std::string pod : {"audited", "kernel", "privileged"}) {
      const auto claim = "gpu-0-" + pod;
      if (line == "GET /apis/resource.k8s.io/v1/namespaces/team/resourceclaims/" + claim) {
        auto object = json::parse(test_claim_json(claim));
        auto& result = object["status"]["allocation"]["devices"]["results"][0];
        result["shareID"] = "5d4c3b2a-" + pod;
        result["consumedCapacity"]["memory"] = "4Gi";
        object["metadata"]["ownerReferences"].push_back(
            {{"kind", "Pod"}, {"name", pod}, {"uid", "uid-" + pod}, {"controller", true}});
        object["status"]["reservedFor"].push_back(
            {{"resource", "pods"}, {"name", pod}, {"uid", "uid-" + pod}});
        return k8s::TestApiServer::Reply{200, object.dump()};
      }
      if (line == "GET /api/v1/namespaces/team/pods/" + pod) return pod_reply(pod, claim);
    }
    return std::nullopt;
  }
  static k8s::TestApiServer::Reply pod_reply(const std::string& name, const std::string& claim) {
    json pod = {{"metadata", {{"namespace", kClaimNamespace}, {"name", name}, {"uid", "uid-" + name}}},
                {"spec", {{"nodeName", "node-1"}}}};
    json container = {{"name", "main"}};
    container["resources"]["claims"].push_back({{"name", "gpu"}});
    if (name == "privileged") {
      container["securityContext"]["privileged"] = true;
    } else {
      pod["metadata"]["annotations"]["gpulet.io/min-limit-grade"] = name;
    }
    pod["spec"]["containers"].push_back(container);
    pod["spec"]["resourceClaims"].push_back({{"name", "gpu"}, {"resourceClaimName", claim}});
    return {200, pod.dump()};
  }
  std::string config_;
};

TEST_F(SimClaimLimits, AClaimIsPreparedWhereTheNodeHoldsTheDemandedGrade) {
  EXPECT_THAT(prepare(kClaimPod, "gpu-0-kernel"),
              HasSubstr("Pod team/kernel demands memory limits of grade kernel (annotation "
                        "gpulet.io/min-limit-grade); this node gives container main audited on GPU-"));
  EXPECT_EQ(record_count(), 0) << "it stays unprepared";
  EXPECT_EQ(prepare(kClaimPod, "gpu-0-audited"), "");
  EXPECT_EQ(record_count(), 1);
}

TEST_F(SimClaimLimits, AShareOfAClaimIsShownWithItsGrade) {
  ASSERT_NO_FATAL_FAILURE(start_pod("audited"));
  ASSERT_NO_FATAL_FAILURE(start_pod("privileged"));
  ASSERT_TRUE(becomes_true([this] {
    return shown_limit("audited").is_object() && shown_limit("privileged").is_object();
  })) << agent_log();
  const auto audited = shown_limit("audited"), open = shown_limit("privileged");
  EXPECT_EQ(audited["gpu"], gpu_uuid(0));
  EXPECT_EQ(audited["limit"], kShareBytes);
  EXPECT_EQ(audited["grade"], "audited");
  EXPECT_EQ(open["limit"], kShareBytes);
  EXPECT_EQ(open["grade"], "none");
  EXPECT_THAT(open["reasons"].dump(), HasSubstr("container main is privileged"));

  const std::string listed = list_gpus();
  EXPECT_THAT(listed, HasSubstr("memory limits of shared GPUs: audited ("));
  EXPECT_THAT(listed, HasSubstr("memory limit of container main of Pod team/privileged: none (container main "
                                "is privileged"));
  EXPECT_THAT(listed, testing::Not(HasSubstr("team/audited"))) << "it has the node's grade";

  EXPECT_TRUE(becomes_true([this] {
    const auto has_sample = [](const std::string& pod, const std::string& grade) {
      return Contains(AllOf(HasSubstr("container=\"main\""), HasSubstr("grade=\"" + grade + "\""),
                            HasSubstr("pod=\"" + pod + "\"")));
    };
    return testing::Matches(
        AllOf(testing::SizeIs(2), has_sample("audited", "audited"), has_sample("privileged", "none")))(
        metric_lines("gpulet_container_gpu_memory_limit_grade{"));
  })) << testing::PrintToString(metric_lines("gpulet_container"));

  ASSERT_TRUE(sim_kubelet().remove_pod("uid-privileged"));
  ASSERT_EQ(unprepare(kClaimPod, "gpu-0-privileged"), "");
  EXPECT_TRUE(becomes_true([this] { return shown_limit("privileged").is_null(); }));
  EXPECT_TRUE(shown_limit("audited").is_object());
}

}  // namespace
}  // namespace gpulet::tests

// Claims whose Pods demand a grade of their memory limit, on a simulated node: the agent as a process, a
// kubelet of gRPC calls, and an API server.
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "tests/sim/claim_fixture.h"

namespace gpulet::tests {
namespace {

using nlohmann::json;

// The claim gpu-0-GRADE is a share of 4 GiB of GPU 0, made for the Pod GRADE, which demands that grade.
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
                                  "  partition: [{devices: [0], whole: {consumableShares: memory}}]\n"));
    auto options = claim_options(kClaimPod);
    options.arguments.push_back("--config-file=" + config_);
    ASSERT_NO_FATAL_FAILURE(start_agent(options));
    ASSERT_NO_FATAL_FAILURE(register_driver(kClaimPod));
    ASSERT_TRUE(becomes_true([this] { return slices_.devices().find("gpu-0") != std::string::npos; }));
  }

 private:
  static std::optional<k8s::TestApiServer::Reply> reply_to_limit(const std::string& line) {
    for (const std::string grade : {"audited", "kernel"}) {
      const auto claim = "gpu-0-" + grade;
      if (line == "GET /apis/resource.k8s.io/v1/namespaces/team/resourceclaims/" + claim) {
        auto object = json::parse(test_claim_json(claim));
        auto& result = object["status"]["allocation"]["devices"]["results"][0];
        result["shareID"] = "5d4c3b2a-" + grade;
        result["consumedCapacity"]["memory"] = "4Gi";
        object["metadata"]["ownerReferences"].push_back(
            {{"kind", "Pod"}, {"name", grade}, {"uid", "uid-" + grade}, {"controller", true}});
        object["status"]["reservedFor"].push_back(
            {{"resource", "pods"}, {"name", grade}, {"uid", "uid-" + grade}});
        return k8s::TestApiServer::Reply{200, object.dump()};
      }
      if (line == "GET /api/v1/namespaces/team/pods/" + grade) return pod_reply(grade, claim);
    }
    return std::nullopt;
  }
  static k8s::TestApiServer::Reply pod_reply(const std::string& grade, const std::string& claim) {
    json pod = {{"metadata",
                 {{"namespace", "team"},
                  {"name", grade},
                  {"uid", "uid-" + grade},
                  {"annotations", {{"gpulet.io/min-limit-grade", grade}}}}},
                {"spec", {{"nodeName", "node-1"}}}};
    json container = {{"name", "main"}};
    container["resources"]["claims"].push_back({{"name", "gpu"}});
    pod["spec"]["containers"].push_back(container);
    pod["spec"]["resourceClaims"].push_back({{"name", "gpu"}, {"resourceClaimName", claim}});
    return {200, pod.dump()};
  }
  std::string config_;
};

TEST_F(SimClaimLimits, AClaimIsPreparedWhereTheNodeHoldsTheDemandedGrade) {
  EXPECT_THAT(
      prepare(kClaimPod, "gpu-0-kernel"),
      testing::HasSubstr("Pod team/kernel demands memory limits of grade kernel (annotation "
                         "gpulet.io/min-limit-grade); this node gives container main audited on GPU-"));
  EXPECT_EQ(record_count(), 0) << "it stays unprepared";
  EXPECT_EQ(prepare(kClaimPod, "gpu-0-audited"), "");
  EXPECT_EQ(record_count(), 1);
}

}  // namespace
}  // namespace gpulet::tests

#include "migrate/cluster_look.h"

#include <gmock/gmock.h>

#include "cluster/test_api.h"
#include "migrate/analyse.h"
#include "migrate/test_objects.h"
#include "web/document.h"
#include "web/passwords.h"

namespace gpulet::migrate {
namespace {

using cluster::Received;
using nlohmann::json;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// An API server with objects by path, without the query; what it does not know is 404.
class ClusterLook : public cluster::ApiTest {
 protected:
  void begin() {
    serve([this](const Received& request) -> Reply {
      const std::string line = request.line(), path = line.substr(4, line.find('?') - 4);
      if (const auto found = refused_.find(path); found != refused_.end()) {
        return {found->second, R"({"kind":"Status","message":"not for you"})"};
      }
      if (const auto found = objects_.find(path); found != objects_.end()) return {200, found->second.dump()};
      return {404, R"({"kind":"Status"})"};
    });
  }
  static json list(const std::vector<json>& items) {
    return {{"metadata", {{"resourceVersion", "1"}}}, {"items", items}};
  }
  Result<Facts> look() { return look_at_cluster(access(), std::chrono::seconds(20)); }

  std::map<std::string, json> objects_;
  std::map<std::string, int> refused_;
};

TEST_F(ClusterLook, ReadsWhatIsThereAndWhatThoseProgramsRead) {
  const json release{{"name", "nvdp"},
                     {"namespace", "gpu"},
                     {"version", 2},
                     {"chart", {{"metadata", {{"name", "nvidia-device-plugin"}, {"version", "0.17.1"}}}}},
                     {"config", {{"migStrategy", "mixed"}}}};
  objects_["/apis/apps/v1/daemonsets"] =
      list({test::chart_plugin(), test::exporter(),
            test::workload("kube-system", "other", {{"containers", {{{"name", "a"}, {"image", "nginx"}}}}})});
  objects_["/apis/apps/v1/deployments"] = list({});
  objects_["/apis/nvidia.com/v1/clusterpolicies"] = list({test::cluster_policy()});
  objects_["/api/v1/nodes"] =
      list({{{"metadata", {{"name", "n1"}}}, {"status", {{"allocatable", {{"nvidia.com/gpu", "8"}}}}}},
            {{"metadata", {{"name", "n2"}}}}});
  objects_["/api/v1/namespaces/gpu/configmaps/nvdp-configs"] = {{"data", {{"default", "version: v1\n"}}}};
  objects_["/api/v1/namespaces/monitoring/configmaps/my-counters"] = {
      {"data", {{"mine.csv", "DCGM_FI_DEV_GPU_TEMP, gauge, T\n"}, {"other", "x"}}}};
  objects_["/api/v1/namespaces/gpu/secrets"] =
      list({{{"type", "helm.sh/release.v1"},
             {"data", {{"release", web::encode_base64(web::encode_base64(web::gzip(release.dump())))}}}}});
  begin();
  const auto facts = look();
  ASSERT_TRUE(facts) << facts.error().text();
  EXPECT_THAT(facts->not_read, IsEmpty());
  ASSERT_EQ(facts->programs.size(), 4u);
  EXPECT_THAT(facts->programs[2].configs,
              ElementsAre(NamedText{"configmap gpu/nvdp-configs, key default", "version: v1\n"}));
  ASSERT_EQ(facts->programs[3].counters.size(), 1u);
  ASSERT_EQ(facts->releases.size(), 1u);
  EXPECT_EQ(facts->releases[0].revision, "2");
  ASSERT_EQ(facts->policies.size(), 1u);
  ASSERT_EQ(facts->nodes.size(), 1u);
  EXPECT_EQ(asked("GET /api/v1/namespaces/gpu/secrets?labelSelector="
                  "owner%3Dhelm%2Cstatus%3Ddeployed%2Cname%3Dnvdp&limit=250"),
            1);
  for (const auto& request : server_->received())
    EXPECT_TRUE(request.line().starts_with("GET ")) << request.line();
}

TEST_F(ClusterLook, WhatIsRefusedIsSaidAndTheRestIsRead) {
  objects_["/apis/apps/v1/daemonsets"] = list({test::chart_plugin()});
  for (const char* path :
       {"/apis/apps/v1/deployments", "/api/v1/nodes", "/api/v1/namespaces/gpu/configmaps/nvdp-configs",
        "/api/v1/namespaces/gpu/secrets"}) {
    refused_[path] = 403;
  }
  begin();
  const auto facts = look();
  ASSERT_TRUE(facts) << facts.error().text();
  EXPECT_EQ(facts->programs.size(), 3u);
  EXPECT_THAT(facts->not_read, ElementsAre(HasSubstr("list on deployments.apps"), HasSubstr("list on nodes"),
                                           HasSubstr("get on configmaps in gpu")));
  EXPECT_FALSE(analyse(*facts).clear());
  EXPECT_THAT(analyse(*facts).back, Contains(HasSubstr("helm rollback nvdp REVISION -n gpu")));
}

TEST_F(ClusterLook, WithoutDaemonSetsThereIsNothingToSay) {
  refused_["/apis/apps/v1/daemonsets"] = 403;
  begin();
  const auto facts = look();
  ASSERT_FALSE(facts);
  EXPECT_EQ(facts.error().code(), Code::kPermissionDenied);
  EXPECT_THAT(facts.error().text(), HasSubstr("list on daemonsets.apps"));
}

TEST_F(ClusterLook, AListComesInPages) {
  serve([](const Received& request) -> Reply {
    const std::string line = request.line();
    if (line.find("/daemonsets?limit=250&continue=next%2B") != std::string::npos) {
      return {200, list({test::exporter()}).dump()};
    }
    if (line.find("/daemonsets?") == std::string::npos) return {404, R"({"kind":"Status"})"};
    json first = list({test::static_plugin()});
    first["metadata"]["continue"] = "next+";
    return {200, first.dump()};
  });
  const auto facts = look();
  ASSERT_TRUE(facts) << facts.error().text();
  EXPECT_EQ(facts->programs.size(), 2u);
  EXPECT_THAT(facts->not_read,
              ElementsAre(HasSubstr("monitoring/my-counters is read by a program, and is not there")));
}

}  // namespace
}  // namespace gpulet::migrate

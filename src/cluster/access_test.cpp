#include "cluster/access.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"

namespace gpulet::cluster {
namespace {

using Environment = std::map<std::string, std::string, std::less<>>;

class AccessTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "access.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    folder_ = path;
    for (const char* name : {"ca.crt", "token"}) ASSERT_TRUE(write_file_atomic(folder_ + "/" + name, "x"));
    ASSERT_TRUE(write_file_atomic(folder_ + "/namespace", "gpu-operator\n"));
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
  Environment environment_ = {
      {"KUBERNETES_SERVICE_HOST", "10.96.0.1"}, {"KUBERNETES_SERVICE_PORT", "6443"}, {"NODE_NAME", "node-1"}};
};

TEST_F(AccessTest, OutsideAClusterThereIsNone) {
  const auto access = in_cluster_access({{"NODE_NAME", "x"}}, folder_);
  ASSERT_TRUE(access);
  EXPECT_FALSE(*access);
}

TEST_F(AccessTest, InsideItIsWhatKubernetesSays) {
  const auto access = in_cluster_access(environment_, folder_);
  ASSERT_TRUE(access && *access);
  EXPECT_EQ((*access)->host, "10.96.0.1");
  EXPECT_EQ((*access)->port, 6443);
  EXPECT_EQ((*access)->node_name, "node-1");
  EXPECT_EQ((*access)->pod_namespace, "gpu-operator");
  EXPECT_EQ((*access)->ca_file, folder_ + "/ca.crt");
  environment_.erase("KUBERNETES_SERVICE_PORT");
  environment_["KUBERNETES_SERVICE_HOST"] = "fd00::1";
  std::filesystem::remove(folder_ + "/namespace");
  const auto six = in_cluster_access(environment_, folder_);
  ASSERT_TRUE(six && *six);
  EXPECT_EQ((*six)->port, 443);
  EXPECT_EQ((*six)->pod_namespace, "default");
}

TEST_F(AccessTest, WhatIsMissingIsNamed) {
  auto about = [&](const Environment& environment) {
    const auto access = in_cluster_access(environment, folder_);
    return access ? std::string("no error") : access.error().about();
  };
  auto changed = [&](const std::string& name, const std::string& value) {
    Environment environment = environment_;
    environment[name] = value;
    return environment;
  };
  EXPECT_EQ(about(changed("NODE_NAME", "")), "NODE_NAME");
  EXPECT_EQ(about(changed("KUBERNETES_SERVICE_PORT", "https")), "KUBERNETES_SERVICE_PORT");
  EXPECT_EQ(about(changed("KUBERNETES_SERVICE_PORT", "0")), "KUBERNETES_SERVICE_PORT");
  std::filesystem::remove(folder_ + "/token");
  EXPECT_EQ(about(environment_), folder_ + "/token");
}

TEST_F(AccessTest, WhatIsNoPartOfANodeNeedsNoName) {
  environment_.erase("NODE_NAME");
  EXPECT_FALSE(in_cluster_access(environment_, folder_));
  const auto access = in_cluster_access(environment_, folder_, OfNode::kNo);
  ASSERT_TRUE(access && *access);
  EXPECT_EQ((*access)->host, "10.96.0.1");
  EXPECT_EQ((*access)->node_name, "");
}

TEST_F(AccessTest, OfAServiceOfTheHostItIsTheFileThatKubeconfigNames) {
  const std::string file = folder_ + "/config";
  ASSERT_TRUE(write_file_atomic(file,
                                "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
                                "contexts: [{name: c, context: {cluster: k, user: u}}]\n"
                                "clusters: [{name: k, cluster: {server: 'https://10.0.0.9:6443'}}]\n"
                                "users: [{name: u, user: {token: secret}}]\n"));
  const auto named = find_access({{"KUBECONFIG", file + ":/another"}, {"NODE_NAME", "node-1"}});
  ASSERT_TRUE(named && *named) << named.error().text();
  EXPECT_EQ((*named)->host, "10.0.0.9");
  EXPECT_EQ((*named)->node_name, "node-1");
  const auto by_host = find_access({{"KUBECONFIG", file}});
  ASSERT_TRUE(by_host && *by_host);
  EXPECT_FALSE((*by_host)->node_name.empty());
  const auto missing = find_access({{"KUBECONFIG", folder_ + "/none"}});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().about(), folder_ + "/none");
  const auto none = find_access({{"KUBECONFIG", ""}});
  ASSERT_TRUE(none);
  EXPECT_FALSE(*none);
}

}  // namespace
}  // namespace gpulet::cluster

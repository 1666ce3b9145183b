#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "base/file.h"
#include "cluster/access.h"

namespace gpulet::cluster {
namespace {

class KubeconfigTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "kubeconfig.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    folder_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Result<Access> read(const std::string& text) {
    EXPECT_TRUE(write_file_atomic(folder_ + "/config", text));
    return access_from_kubeconfig(folder_ + "/config");
  }
  // With these lines in the cluster and in the user, or the error about them.
  Result<Access> with(const std::string& cluster, const std::string& user) {
    return read("apiVersion: v1\nkind: Config\ncurrent-context: here\ncontexts:\n" +
                std::string("- name: other\n  context: {cluster: no, user: no}\n") +
                "- {name: here, context: {cluster: home, user: me, namespace: team}}\n" +
                "clusters:\n- name: home\n  cluster: {" + cluster + "}\nusers:\n- name: me\n  user: {" +
                user + "}\n");
  }
  std::string refused(const std::string& cluster, const std::string& user) {
    const auto access = with(cluster, user);
    return access ? std::string("accepted") : access.error().message();
  }

  std::string folder_;
};

TEST_F(KubeconfigTest, WhatKubeadmWrites) {
  const auto access = with("certificate-authority-data: aGVsbG8=, server: 'https://10.0.0.1:6443'",
                           "client-certificate-data: Y2VydA==, client-key-data: a2V5IQ==");
  ASSERT_TRUE(access) << access.error().text();
  EXPECT_EQ(access->host, "10.0.0.1");
  EXPECT_EQ(access->port, 6443);
  EXPECT_EQ(access->ca_text, "hello");
  EXPECT_EQ(access->certificate_text, "cert");
  EXPECT_EQ(access->key_text, "key!");
  EXPECT_EQ(access->pod_namespace, "team");
  EXPECT_EQ(access->node_name, "");
}

TEST_F(KubeconfigTest, FilesAreTakenFromItsFolderAndServersMayHaveANameAndAPath) {
  const auto access = with(
      "certificate-authority: pki/ca.crt, server: 'https://rancher.example.com/k8s/clusters/c-1/', "
      "tls-server-name: inside",
      "tokenFile: /var/token, client-certificate: ./me.crt, client-key: me.key");
  ASSERT_TRUE(access) << access.error().text();
  EXPECT_EQ(access->host, "rancher.example.com");
  EXPECT_EQ(access->port, 443);
  EXPECT_EQ(access->base_path, "/k8s/clusters/c-1");
  EXPECT_EQ(access->tls_server_name, "inside");
  EXPECT_EQ(access->ca_file, folder_ + "/pki/ca.crt");
  EXPECT_EQ(access->token_file, "/var/token");
  EXPECT_EQ(access->certificate_file, folder_ + "/me.crt");
  EXPECT_EQ(access->key_file, folder_ + "/me.key");
}

TEST_F(KubeconfigTest, IPv6AndATokenOnly) {
  const auto access = with("server: 'https://[fd00::1]:8443'", "token: abc");
  ASSERT_TRUE(access) << access.error().text();
  EXPECT_EQ(access->host, "fd00::1");
  EXPECT_EQ(access->port, 8443);
  EXPECT_EQ(access->token, "abc");
  EXPECT_EQ(access->ca_text + access->ca_file, "");
  EXPECT_EQ(with("server: 'https://[fd00::1]'", "token: abc")->port, 443);
}

TEST_F(KubeconfigTest, WhatIsWrongOrWouldBeLeftOutIsSaid) {
  EXPECT_EQ(refused("server: 'http://10.0.0.1'", ""), "the server must begin with https://");
  EXPECT_EQ(refused("server: 'https://'", ""), "the server has no host");
  EXPECT_EQ(refused("server: 'https://a:0'", ""), "the server's port is none");
  EXPECT_EQ(refused("server: 'https://a:x'", ""), "the server's port is none");
  EXPECT_EQ(refused("server: 'https://[::1]6443'", ""), "the server's port is none");
  EXPECT_EQ(refused("server: \"https://a\\r\\nEvil: b\"", ""), "the server is no plain URL");
  EXPECT_EQ(refused("", ""), "server is missing");
  const std::string server = "server: 'https://a'";
  EXPECT_EQ(refused(server + ", insecure-skip-tls-verify: true", ""),
            "insecure-skip-tls-verify is not supported");
  EXPECT_EQ(refused(server + ", insecure-skip-tls-verify: false", "token: x"), "accepted");
  EXPECT_EQ(refused(server + ", proxy-url: 'http://p'", ""), "proxy-url is not supported");
  EXPECT_EQ(refused(server, "username: me"), "username is not supported");
  EXPECT_EQ(refused(server, "token: \"a\\r\\nEvil: b\""), "the token is more than one line");
  EXPECT_EQ(refused(server, "client-certificate: x"),
            "a client certificate needs its key, and a key its certificate");
  for (const char* bad : {"a", "a===", "=abc", "ab=c", "a-bc", "!!!!"}) {
    EXPECT_EQ(refused(server + ", certificate-authority-data: '" + bad + "'", ""),
              "certificate-authority-data is not base64")
        << bad;
  }
  EXPECT_EQ(with(server, "username: me").error().about(), folder_ + "/config:13:20");
  EXPECT_EQ(with(server, "username: me").error().code(), Code::kUnsupported);
}

TEST_F(KubeconfigTest, WhatDoesNotHangTogetherIsNamed) {
  auto message = [&](const std::string& text) { return read(text).error().message(); };
  EXPECT_EQ(message(""), "current-context is missing");
  EXPECT_EQ(message("current-context: a"), "contexts has none that is called \"a\"");
  EXPECT_EQ(message("current-context: a\ncontexts: [{name: a, context: {cluster: b}}]"),
            "clusters has none that is called \"b\"");
  EXPECT_EQ(message("current-context: a\ncontexts: [{name: a, context: {cluster: b, user: c}}]\n"
                    "clusters: [{name: b, cluster: {server: 'https://x'}}]"),
            "users has none that is called \"c\"");
  EXPECT_EQ(message("contexts: 3\ncurrent-context: {a: b}"), "current-context is missing");
  EXPECT_EQ(read("{").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(access_from_kubeconfig(folder_ + "/none").error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace gpulet::cluster

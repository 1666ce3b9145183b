#include <stdlib.h>

#include <filesystem>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_certificate.h"
#include "k8s/client_config.h"

namespace gpulet::k8s {
namespace {

using Environment = std::map<std::string, std::string, std::less<>>;

class AccessTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "access.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
    for (const char* name : {"ca.crt", "token"}) ASSERT_TRUE(write_file_atomic(directory_ + "/" + name, "x"));
    ASSERT_TRUE(write_file_atomic(directory_ + "/namespace", "gpu-operator\n"));
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string directory_;
  Environment environment_ = {
      {"KUBERNETES_SERVICE_HOST", "10.96.0.1"}, {"KUBERNETES_SERVICE_PORT", "6443"}, {"NODE_NAME", "node-1"}};
};

TEST_F(AccessTest, NoneOutsideACluster) {
  const auto access = load_in_cluster_config({{"NODE_NAME", "x"}}, directory_);
  ASSERT_TRUE(access);
  EXPECT_FALSE(*access);
}

TEST_F(AccessTest, ReadsTheServiceAccountInACluster) {
  const auto access = load_in_cluster_config(environment_, directory_);
  ASSERT_TRUE(access && *access);
  EXPECT_EQ((*access)->host, "10.96.0.1");
  EXPECT_EQ((*access)->port, 6443);
  EXPECT_EQ((*access)->node_name, "node-1");
  EXPECT_EQ((*access)->pod_namespace, "gpu-operator");
  EXPECT_EQ((*access)->ca_file, directory_ + "/ca.crt");
  environment_.erase("KUBERNETES_SERVICE_PORT");
  environment_["KUBERNETES_SERVICE_HOST"] = "fd00::1";
  std::filesystem::remove(directory_ + "/namespace");
  const auto six = load_in_cluster_config(environment_, directory_);
  ASSERT_TRUE(six && *six);
  EXPECT_EQ((*six)->port, 443);
  EXPECT_EQ((*six)->pod_namespace, "default");
}

TEST_F(AccessTest, ErrorNamesWhatIsMissing) {
  auto about = [&](const Environment& environment) {
    const auto access = load_in_cluster_config(environment, directory_);
    return access ? std::string("no error") : access.error().subject();
  };
  auto changed = [&](const std::string& name, const std::string& value) {
    Environment environment = environment_;
    environment[name] = value;
    return environment;
  };
  EXPECT_EQ(about(changed("NODE_NAME", "")), "NODE_NAME");
  EXPECT_EQ(about(changed("KUBERNETES_SERVICE_PORT", "https")), "KUBERNETES_SERVICE_PORT");
  EXPECT_EQ(about(changed("KUBERNETES_SERVICE_PORT", "0")), "KUBERNETES_SERVICE_PORT");
  std::filesystem::remove(directory_ + "/token");
  EXPECT_EQ(about(environment_), directory_ + "/token");
}

TEST_F(AccessTest, NodeNameIsOptionalForClusterServices) {
  environment_.erase("NODE_NAME");
  EXPECT_FALSE(load_in_cluster_config(environment_, directory_));
  const auto access = load_in_cluster_config(environment_, directory_, NodeNamePolicy::kOptional);
  ASSERT_TRUE(access && *access);
  EXPECT_EQ((*access)->host, "10.96.0.1");
  EXPECT_EQ((*access)->node_name, "");
}

TEST_F(AccessTest, HostServiceUsesKubeconfigVariable) {
  const std::string file = directory_ + "/config";
  ASSERT_TRUE(write_file_atomic(file,
                                "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
                                "contexts: [{name: c, context: {cluster: k, user: u}}]\n"
                                "clusters: [{name: k, cluster: {server: 'https://10.0.0.9:6443'}}]\n"
                                "users: [{name: u, user: {token: secret}}]\n"));
  const auto named = find_client_config({{"KUBECONFIG", file + ":/another"}, {"NODE_NAME", "node-1"}});
  ASSERT_TRUE(named && *named) << named.error().full_message();
  EXPECT_EQ((*named)->host, "10.0.0.9");
  EXPECT_EQ((*named)->node_name, "node-1");
  const auto by_host = find_client_config({{"KUBECONFIG", file}});
  ASSERT_TRUE(by_host && *by_host);
  EXPECT_FALSE((*by_host)->node_name.empty());
  const auto missing = find_client_config({{"KUBECONFIG", directory_ + "/none"}});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().subject(), directory_ + "/none");
  const auto second = find_client_config({{"KUBECONFIG", directory_ + "/none:" + file}, {"NODE_NAME", "n"}});
  ASSERT_TRUE(second && *second) << second.error().full_message();
  EXPECT_EQ((*second)->host, "10.0.0.9") << "the first that exists, as kubectl skips missing files";
  const auto none = find_client_config({{"KUBECONFIG", ""}});
  ASSERT_TRUE(none);
  EXPECT_FALSE(*none);
}

TEST_F(AccessTest, HostServiceWithAKubeletsIdentityIsItsNode) {
  const std::string file = directory_ + "/kubelet.conf";
  ASSERT_TRUE(write_file_atomic(file,
                                "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
                                "contexts: [{name: c, context: {cluster: k, user: u}}]\n"
                                "clusters: [{name: k, cluster: {server: 'https://10.0.0.9:6443'}}]\n"
                                "users: [{name: u, user: {client-certificate: pem, client-key: pem}}]\n"));
  const auto node_named = [&](const std::string& user) {
    const auto certificate = Certificate::make_certificate(user, nullptr, "");
    EXPECT_TRUE(write_file_atomic(directory_ + "/pem", certificate.pem() + certificate.key_pem()));
    const auto access = find_client_config({{"KUBECONFIG", file}});
    return access && *access ? (*access)->node_name : access.error().full_message();
  };
  EXPECT_EQ(node_named("system:node:gpu-7.example"), "gpu-7.example");
  const std::string host = node_named("an-operator");
  EXPECT_FALSE(host.empty());
  EXPECT_NE(host, "an-operator") << "not a node: the host's name";
  EXPECT_EQ(node_named("system:node:a/b"), "NODE_NAME: \"a/b\" is not the name of a node");
  std::filesystem::remove(directory_ + "/pem");
  EXPECT_EQ((*find_client_config({{"KUBECONFIG", file}}))->node_name, host);
}

}  // namespace

namespace {

class KubeconfigTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "kubeconfig.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  Result<ClientConfig> load_config(const std::string& text) {
    EXPECT_TRUE(write_file_atomic(directory_ + "/config", text));
    return load_kubeconfig(directory_ + "/config");
  }
  // Reads a kubeconfig with these lines in the cluster and in the user; returns the error if there is one.
  Result<ClientConfig> config_with(const std::string& cluster, const std::string& user) {
    return load_config("apiVersion: v1\nkind: Config\ncurrent-context: here\ncontexts:\n" +
                       std::string("- name: other\n  context: {cluster: no, user: no}\n") +
                       "- {name: here, context: {cluster: home, user: me, namespace: team}}\n" +
                       "clusters:\n- name: home\n  cluster: {" + cluster +
                       "}\nusers:\n- name: me\n  user: {" + user + "}\n");
  }
  std::string load_error(const std::string& cluster, const std::string& user) {
    const auto access = config_with(cluster, user);
    return access ? std::string("accepted") : access.error().message();
  }

  std::string directory_;
};

TEST_F(KubeconfigTest, ReadsKubeadmFiles) {
  const auto access = config_with("certificate-authority-data: aGVsbG8=, server: 'https://10.0.0.1:6443'",
                                  "client-certificate-data: Y2VydA==, client-key-data: a2V5IQ==");
  ASSERT_TRUE(access) << access.error().full_message();
  EXPECT_EQ(access->host, "10.0.0.1");
  EXPECT_EQ(access->port, 6443);
  EXPECT_EQ(access->ca_data, "hello");
  EXPECT_EQ(access->certificate_data, "cert");
  EXPECT_EQ(access->key_data, "key!");
  EXPECT_EQ(access->pod_namespace, "team");
  EXPECT_EQ(access->node_name, "");
}

TEST_F(KubeconfigTest, PathsAreRelativeToTheFileAndServersMayHaveNameAndPath) {
  const auto access = config_with(
      "certificate-authority: pki/ca.crt, server: 'https://rancher.example.com/k8s/clusters/c-1/', "
      "tls-server-name: inside",
      "tokenFile: /var/token, client-certificate: ./me.crt, client-key: me.key");
  ASSERT_TRUE(access) << access.error().full_message();
  EXPECT_EQ(access->host, "rancher.example.com");
  EXPECT_EQ(access->port, 443);
  EXPECT_EQ(access->base_path, "/k8s/clusters/c-1");
  EXPECT_EQ(access->tls_server_name, "inside");
  EXPECT_EQ(access->ca_file, directory_ + "/pki/ca.crt");
  EXPECT_EQ(access->token_file, "/var/token");
  EXPECT_EQ(access->certificate_file, directory_ + "/me.crt");
  EXPECT_EQ(access->key_file, directory_ + "/me.key");
}

TEST_F(KubeconfigTest, IPv6AndATokenOnly) {
  const auto access = config_with("server: 'https://[fd00::1]:8443'", "token: abc");
  ASSERT_TRUE(access) << access.error().full_message();
  EXPECT_EQ(access->host, "fd00::1");
  EXPECT_EQ(access->port, 8443);
  EXPECT_EQ(access->token, "abc");
  EXPECT_EQ(access->ca_data + access->ca_file, "");
  EXPECT_EQ(config_with("server: 'https://[fd00::1]'", "token: abc")->port, 443);
}

TEST_F(KubeconfigTest, InvalidAndUnsupportedFieldsAreErrors) {
  EXPECT_EQ(load_error("server: 'http://10.0.0.1'", ""), "the server must begin with https://");
  EXPECT_EQ(load_error("server: 'https://'", ""), "the server has no host");
  EXPECT_EQ(load_error("server: 'https://a:0'", ""), "the server's port is invalid");
  EXPECT_EQ(load_error("server: 'https://a:x'", ""), "the server's port is invalid");
  EXPECT_EQ(load_error("server: 'https://[::1]6443'", ""), "the server's port is invalid");
  EXPECT_EQ(load_error("server: \"https://a\\r\\nEvil: b\"", ""),
            "the server must be https://host:port/path without query or user");
  EXPECT_EQ(load_error("", ""), "server is missing");
  const std::string server = "server: 'https://a'";
  EXPECT_EQ(load_error(server + ", insecure-skip-tls-verify: true", ""),
            "insecure-skip-tls-verify is not supported");
  EXPECT_EQ(load_error(server + ", insecure-skip-tls-verify: false", "token: x"), "accepted");
  EXPECT_EQ(load_error(server + ", proxy-url: 'http://p'", ""), "proxy-url is not supported");
  EXPECT_EQ(load_error(server, "username: me"), "username is not supported");
  EXPECT_EQ(load_error(server, "token: \"a\\r\\nEvil: b\""), "the token is more than one line");
  EXPECT_EQ(load_error(server, "client-certificate: x"),
            "a client certificate needs its key, and a key its certificate");
  for (const char* bad : {"a", "a===", "=abc", "ab=c", "a-bc", "!!!!"}) {
    EXPECT_EQ(load_error(server + ", certificate-authority-data: '" + bad + "'", ""),
              "certificate-authority-data is not base64")
        << bad;
  }
  EXPECT_EQ(config_with(server, "username: me").error().subject(), directory_ + "/config:13:20");
  EXPECT_EQ(config_with(server, "username: me").error().code(), Code::kUnsupported);
}

TEST_F(KubeconfigTest, TakesANamedContext) {
  ASSERT_TRUE(write_file_atomic(
      directory_ + "/config",
      "current-context: a\n"
      "contexts: [{name: a, context: {cluster: a}}, {name: b, context: {cluster: b, namespace: team}}]\n"
      "clusters: [{name: a, cluster: {server: 'https://a'}}, {name: b, cluster: {server: 'https://b'}}]\n"));
  const auto host = [&](const std::string& context) {
    const auto access = load_kubeconfig(directory_ + "/config", {}, context);
    return access ? access->host + " " + access->pod_namespace : access.error().message();
  };
  EXPECT_EQ(host(""), "a default");
  EXPECT_EQ(host("b"), "b team");
  EXPECT_EQ(host("c"), "contexts has no entry named \"c\"");
}

TEST_F(KubeconfigTest, InconsistentFieldsAreErrors) {
  auto message = [&](const std::string& text) { return load_config(text).error().message(); };
  EXPECT_EQ(message(""), "current-context is missing");
  EXPECT_EQ(message("current-context: a"), "contexts has no entry named \"a\"");
  EXPECT_EQ(message("current-context: a\ncontexts: [{name: a, context: {cluster: b}}]"),
            "clusters has no entry named \"b\"");
  EXPECT_EQ(message("current-context: a\ncontexts: [{name: a, context: {cluster: b, user: c}}]\n"
                    "clusters: [{name: b, cluster: {server: 'https://x'}}]"),
            "users has no entry named \"c\"");
  EXPECT_EQ(message("contexts: 3\ncurrent-context: {a: b}"), "current-context is missing");
  EXPECT_EQ(load_config("{").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(load_kubeconfig(directory_ + "/none").error().code(), Code::kNotFound);
}

class KubeconfigListTest : public KubeconfigTest {
 protected:
  // Writes `text` to a file of a directory of its own; returns its path.
  std::string write_config(const std::string& name, const std::string& text) {
    std::filesystem::create_directory(directory_ + "/" + name);
    const std::string path = directory_ + "/" + name + "/config";
    EXPECT_TRUE(write_file_atomic(path, text));
    return path;
  }
  // "host namespace token" of the merged files.
  static std::string merged(const std::string& list, const std::string& context = {}) {
    const auto access = load_kubeconfigs(list, {}, context);
    return access ? access->host + " " + access->pod_namespace + " " + access->token
                  : access.error().full_message();
  }

  std::string a_, b_;
  void SetUp() override {
    KubeconfigTest::SetUp();
    a_ = write_config("a",
                      "contexts: [{name: here, context: {cluster: one, user: me}},"
                      " {name: both, context: {cluster: one, namespace: of-a}}]\n"
                      "clusters: [{name: one, cluster: {server: 'https://a', certificate-authority: ca}}]\n");
    b_ = write_config(
        "b",
        "current-context: here\n"
        "contexts: [{name: both, context: {cluster: two, user: me, namespace: of-b}}]\n"
        "clusters: [{name: one, cluster: {server: 'https://b', tls-server-name: b}},"
        " {name: two, cluster: {server: 'https://two'}}]\n"
        "users: [{name: me, user: {client-certificate: me.crt, client-key: me.key, token: t}}]\n");
  }
};

TEST_F(KubeconfigListTest, OfEachNameTheFirstFileCountsAndPathsAreRelativeToTheEntrysFile) {
  const auto access = load_kubeconfigs(a_ + ":" + b_);
  ASSERT_TRUE(access) << access.error().full_message();
  EXPECT_EQ(access->host, "a");
  EXPECT_EQ(access->tls_server_name, "") << "an entry counts whole";
  EXPECT_EQ(access->ca_file, directory_ + "/a/ca");
  EXPECT_EQ(access->certificate_file, directory_ + "/b/me.crt");
  EXPECT_EQ(access->key_file, directory_ + "/b/me.key");
  EXPECT_EQ(merged(b_ + ":" + a_), "b default t");
  EXPECT_EQ(merged(a_ + ":" + b_, "both"), "a of-a ");
  EXPECT_EQ(merged(b_ + ":" + a_, "both"), "two of-b t");
}

TEST_F(KubeconfigListTest, TheFirstCurrentContextCounts) {
  const auto c = write_config("c", "current-context: both\n");
  EXPECT_EQ(merged(a_ + ":" + c + ":" + b_), "a of-a ");
  EXPECT_EQ(merged(a_ + ":" + b_ + ":" + c), "a default t");
  EXPECT_EQ(merged(c + ":" + b_), "two of-b t");
}

TEST_F(KubeconfigListTest, MissingAndEmptyFilesAreSkipped) {
  const auto empty = write_config("empty", "");
  const auto none = directory_ + "/none";
  EXPECT_EQ(merged(":" + none + ":" + a_ + "::" + empty + ":" + b_), "a default t");
  EXPECT_EQ(merged(b_ + ":"), merged(b_));
  const auto all = load_kubeconfigs(none + ":" + none + "2");
  EXPECT_EQ(all.error().code(), Code::kNotFound);
  EXPECT_EQ(all.error().subject(), none);
  EXPECT_EQ(load_kubeconfigs(":").error().code(), Code::kNotFound);
}

TEST_F(KubeconfigListTest, AFileThatCannotBeReadOrParsedIsAnErrorAboutIt) {
  const auto broken = write_config("broken", "contexts: [\n");
  const auto error = load_kubeconfigs(a_ + ":" + b_ + ":" + broken).error();
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_EQ(error.subject().substr(0, broken.size() + 1), broken + ":");
  const auto large = write_config("large", std::string((1u << 20) + 1, '#'));
  EXPECT_EQ(load_kubeconfigs(a_ + ":" + b_ + ":" + large).error().subject(), large);
  const auto deep = write_config("deep", std::string(10'000, '['));
  EXPECT_EQ(load_kubeconfigs(a_ + ":" + b_ + ":" + deep).error().subject().substr(0, deep.size()), deep);
  const auto directory = load_kubeconfigs(a_ + ":" + b_ + ":" + directory_).error();
  EXPECT_EQ(directory.subject(), directory_);
  EXPECT_EQ(merged(b_ + ":" +
                       write_config("user",
                                    "users: [{name: u, user: {username: u}}]\n"
                                    "contexts: [{name: u, context: {cluster: two, user: u}}]\n"),
                   "u"),
            directory_ + "/user/config:1:36: username is not supported");
}

TEST_F(KubeconfigListTest, WhatNoFileHasIsAnErrorAboutAllOfThem) {
  EXPECT_EQ(merged(a_ + ":" + b_, "c"), a_ + ":" + b_ + ": contexts has no entry named \"c\"");
  const auto c = write_config("c", "contexts: [{name: c, context: {cluster: three}}]\n");
  EXPECT_EQ(merged(a_ + ":" + c), a_ + ":" + c + ": current-context is missing");
  EXPECT_EQ(merged(a_ + ":" + c, "c"), a_ + ":" + c + ": clusters has no entry named \"three\"");
  EXPECT_EQ(merged(a_ + ":" + directory_ + "/none", "here"), a_ + ":1:1: users has no entry named \"me\"");
}

}  // namespace
}  // namespace gpulet::k8s

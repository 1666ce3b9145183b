#include "doctor/redact.h"

#include <gtest/gtest.h>

namespace gpulet::doctor {
namespace {

constexpr const char* kSecret = "hunter2";

TEST(Redact, ASecretIsLeftOutInEveryForm) {
  for (const std::string text : {
           R"({"token":"hunter2"})",
           R"({"token" : "hunter2", "x": 1})",
           R"({"a":{"apiKey":"hunter2"}})",
           R"(password: hunter2)",
           R"(password: "hunter2" # of the registry)",
           "secrets:\n  dbPassword: 'hunter2'\n",
           "auth = \"hunter2\"",
           "identitytoken = 'hunter2'",
           "env: [DB_PASSWORD=hunter2, OTHER=1]",
           R"("env":["AWS_SECRET_ACCESS_KEY=hunter2"])",
           R"({"name":"DB_PASSWORD","value":"hunter2"})",
           "- name: API_TOKEN\n  value: hunter2\n",
           "--registry-password hunter2 --other x",
           "--token=hunter2",
           "Authorization: Bearer hunter2",
           "curl -H 'Bearer hunter2'",
           "https://user:hunter2@registry.example/x",
           "HTTPS_PROXY=http://user:hunter2@proxy:3128",
           "client-key-data: hunter2",
           "token: |\n  hunter2\n  hunter2\nother: 1\n",
           "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----\n",
           R"({"config":"password: \"hunter2\"\n"})",
       }) {
    const auto without = without_secrets(text);
    EXPECT_EQ(without.find(kSecret), std::string::npos) << text << " → " << without;
    EXPECT_NE(without.find(kLeftOut), std::string::npos) << text << " → " << without;
  }
}

TEST(Redact, SoIsATokenByItsForm) {
  for (const std::string token :
       {"eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiJ4In0.c2lnbmF0dXJl", "AKIAABCDEFGHIJKLMNOP",
        "ghp_abcdefghijklmnop1234", "glpat-abcdefghijklmnop1234",
        "abcdefghijABCDEFGHIJ0123456789abcdefghijABC"}) {
    EXPECT_EQ(without_secrets("log line with " + token + " in it"), "log line with [left out] in it");
  }
}

TEST(Redact, TheRestStaysAsItIs) {
  for (const std::string text : {
           "GPU 3 (GPU-5a4e0d1c-2f7e-4b0e-9a3f-2f0d7b1e8c11) is lost: XID 79",
           R"({"version":"0.1.0","problems":[],"gpus":[{"index":0,"uuid":"GPU-5a4e"}]})",
           "hostPath: /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.124.06",
           "NVIDIA_VISIBLE_DEVICES=void",
           "k8s.device-plugin.nvidia.com/gpu=GPU-5a4e0d1c-2f7e-4b0e-9a3f-2f0d7b1e8c11",
           "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
           "server: https://10.0.0.1:6443/x",
           "[plugins.'io.containerd.cri.v1.runtime'.containerd]\n  default_runtime_name = \"runc\"\n",
           "name: monkey\nvalue: 1\n",
           "",
           "a: \"unfinished",
       }) {
    EXPECT_EQ(without_secrets(text), text);
  }
}

TEST(Redact, WhatFollowsASecretStays) {
  EXPECT_EQ(without_secrets(R"({"token":"x","gpu":3})"), R"({"token":"[left out]","gpu":3})");
  EXPECT_EQ(without_secrets("token: |\n  x\ngpu: 3\n"), "token: [left out]\ngpu: 3\n");
  EXPECT_EQ(without_secrets("A_TOKEN=x B=2"), "A_TOKEN=[left out] B=2");
}

}  // namespace
}  // namespace gpulet::doctor

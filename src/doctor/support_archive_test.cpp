#include <filesystem>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/process.h"
#include "doctor/support_archive.h"

namespace gpulet::doctor {
namespace {

const std::chrono::system_clock::time_point kThen{std::chrono::seconds(1'700'000'000)};

// Checked with this machine's tar.
TEST(Archive, IsReadableByTar) {
  const std::string directory = testing::TempDir() + "gpulet-archive";
  std::filesystem::remove_all(directory);
  ASSERT_TRUE(make_directories(directory));
  const std::string deep = "a/" + std::string(90, 'd') + "/" + std::string(90, 'f');
  const std::vector<ArchiveFile> files{{"a/empty", ""},
                                       {"a/block", std::string(512, 'x')},
                                       {"a/more.txt", std::string(513, 'y')},
                                       {deep, "deep"}};
  const auto archive = make_tar(files, kThen);
  ASSERT_TRUE(archive) << archive.error().full_message();
  EXPECT_EQ(archive->size() % 512, 0u);
  ASSERT_TRUE(write_file_atomic(directory + "/x.tar", *archive));
  const auto tar = Process::spawn({.program = "/bin/tar",
                                   .arguments = {"tar", "-xf", directory + "/x.tar", "-C", directory},
                                   .environment = {"PATH=/usr/bin:/bin"}});
  ASSERT_TRUE(tar) << tar.error().full_message();
  const auto exit = (*tar)->wait_for_exit(std::chrono::seconds(20));
  ASSERT_TRUE(exit && exit->succeeded());
  for (const auto& file : files)
    EXPECT_EQ(read_file(directory + "/" + file.name).value_or("missing"), file.content) << file.name;
  std::filesystem::remove_all(directory);
}

TEST(Archive, IsDeterministic) {
  EXPECT_EQ(make_tar({{"a", "x"}}, kThen).value(), make_tar({{"a", "x"}}, kThen).value());
}

TEST(Archive, RejectsInvalidNames) {
  for (const std::string& name :
       {std::string(), std::string(101, 'x'), std::string(300, 'x') + "/y", "/" + std::string(100, 'x')}) {
    const auto archive = make_tar({{name, "x"}}, kThen);
    ASSERT_FALSE(archive) << name;
    EXPECT_EQ(archive.error().code(), Code::kInvalidArgument);
  }
}

constexpr const char* kSecret = "hunter2";

TEST(Redact, RemovesSecretsInEveryForm) {
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
    const auto without = redact_secrets(text);
    EXPECT_EQ(without.find(kSecret), std::string::npos) << text << " → " << without;
    EXPECT_NE(without.find(kRedacted), std::string::npos) << text << " → " << without;
  }
}

TEST(Redact, RemovesTokensByForm) {
  for (const std::string token :
       {"eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiJ4In0.c2lnbmF0dXJl", "AKIAABCDEFGHIJKLMNOP",
        "ghp_abcdefghijklmnop1234", "glpat-abcdefghijklmnop1234",
        "abcdefghijABCDEFGHIJ0123456789abcdefghijABC"}) {
    EXPECT_EQ(redact_secrets("log line with " + token + " in it"), "log line with [redacted] in it");
  }
}

TEST(Redact, KeepsOtherText) {
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
    EXPECT_EQ(redact_secrets(text), text);
  }
}

TEST(Redact, KeepsTextAfterASecret) {
  EXPECT_EQ(redact_secrets(R"({"token":"x","gpu":3})"), R"({"token":"[redacted]","gpu":3})");
  EXPECT_EQ(redact_secrets("token: |\n  x\ngpu: 3\n"), "token: [redacted]\ngpu: 3\n");
  EXPECT_EQ(redact_secrets("A_TOKEN=x B=2"), "A_TOKEN=[redacted] B=2");
}

}  // namespace
}  // namespace gpulet::doctor

// Secrets in free text, and the names of secrets.
#include <gtest/gtest.h>

#include "doctor/redact.h"

namespace gpulet::doctor {
namespace {

constexpr const char* kSecret = "hunter2";

TEST(RedactText, RemovesSecretsInEveryForm) {
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
    const auto without = redact_text(text);
    EXPECT_EQ(without.find(kSecret), std::string::npos) << text << " → " << without;
    EXPECT_NE(without.find(kRedacted), std::string::npos) << text << " → " << without;
  }
}

TEST(RedactText, RemovesTokensByForm) {
  for (const std::string token :
       {"eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiJ4In0.c2lnbmF0dXJl", "AKIAABCDEFGHIJKLMNOP",
        "ghp_abcdefghijklmnop1234", "glpat-abcdefghijklmnop1234",
        "abcdefghijABCDEFGHIJ0123456789abcdefghijABC"}) {
    EXPECT_EQ(redact_text("log line with " + token + " in it"), "log line with [redacted] in it");
  }
}

TEST(RedactText, KeepsOtherText) {
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
    EXPECT_EQ(redact_text(text), text);
  }
}

TEST(RedactText, KeepsTextAfterASecret) {
  EXPECT_EQ(redact_text(R"({"token":"x","gpu":3})"), R"({"token":"[redacted]","gpu":3})");
  EXPECT_EQ(redact_text("token: |\n  x\ngpu: 3\n"), "token: [redacted]\ngpu: 3\n");
  EXPECT_EQ(redact_text("A_TOKEN=x B=2"), "A_TOKEN=[redacted] B=2");
}

TEST(RedactNames, KnowsSecretNames) {
  for (const char* name : {"pass",
                           "DB_PASS",
                           "dbpass",
                           "encryption_key",
                           "encryptionKey",
                           "apiKey",
                           "APIKey",
                           "API_KEY",
                           "token",
                           "registryToken",
                           "client-key-data",
                           "AccountKey",
                           "SharedAccessSignature",
                           "sig",
                           "aws_secret_access_key",
                           "identitytoken",
                           "auth",
                           "basicAuth",
                           "Authorization",
                           "PGPASSWORD",
                           "password2",
                           "privateKey",
                           "storage_key",
                           "master-keys",
                           "psk",
                           "connectionString",
                           "dsn",
                           "bearer_token",
                           "MYSQL_PWD"})
    EXPECT_TRUE(is_secret_name(name)) << name;
  for (const char* name : {"passDeviceSpecs", "author", "authentication", "key", "topologyKey", "publicKey",
                           "monkey", "bypass", "keyring", "keepalive", "uuid", "compassHeading", "signal",
                           "designated", "passed", "GPU", "path", "", "-"})
    EXPECT_FALSE(is_secret_name(name)) << name;
}

TEST(RedactNames, KeepsWhatCanOnlyBeHarmless) {
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, const char*>>{
           {"tokenFile", "/var/run/secrets/token"},
           {"client-key", "/etc/kubernetes/pki/x.key"},
           {"decryption_keys_path", "/etc/crio/keys/"},
           {"tokenTtl", "24h0m0s"},
           {"max_tokens", "4096"},
           {"tokenExpirationSeconds", "3600"},
           {"secretName", "gpulet-tls"},
           {"serviceAccountToken", "true"},
           {"imagePullCredentialsVerificationPolicy", "NeverVerifyPreloadedImages"},
           {"password", ""}})
    EXPECT_FALSE(is_secret_value(name, value)) << name;
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, const char*>>{{"tokenFile", "hunter2"},
                                                                  {"passwordPath", "hunter2"},
                                                                  {"tokens", "4096"},
                                                                  {"password", "12345678"},
                                                                  {"storageKey", "/9j4AAQSkZJRgABAQ"},
                                                                  {"pinPass", "1"},
                                                                  {"secretName", "ghp_abcdefghijklmnop1234"}})
    EXPECT_TRUE(is_secret_value(name, value)) << name;
}

}  // namespace
}  // namespace gpulet::doctor

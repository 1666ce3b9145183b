#include "cli/commands/commands.h"

#include <gtest/gtest.h>

#include "k8s/client_config.h"
#include "metrics_api/server.h"

namespace gpulet::cli {
namespace {

using namespace std::chrono_literals;

const k8s::ClientConfig kAccess = {.host = "127.0.0.1", .pod_namespace = "gpu-operator"};

TEST(MetricsApiOptions, DefaultsToTheNamespaceOfThePod) {
  const auto made = parse_metrics_api_options({}, kAccess);
  ASSERT_TRUE(made) << made.error().full_message();
  EXPECT_EQ(made->listen, ":8443");
  EXPECT_EQ(made->agents.name_space, "gpu-operator");
  EXPECT_EQ(made->agents.label_selector, "app.kubernetes.io/name=gpulet");
  EXPECT_FALSE(made->scrape.https);
  EXPECT_EQ(made->scrape.port, 9400);
  EXPECT_EQ(made->scrape.timeout, 2s);
  EXPECT_EQ(made->pages.refresh_after, 10s);
  EXPECT_EQ(made->pages.max_age, 1min);
  EXPECT_EQ(made->pages.timeout, 4s);
}

TEST(MetricsApiOptions, EachFlagIsApplied) {
  const auto made = parse_metrics_api_options({.listen = "[::1]:0",
                                               .tls_cert_file = "c",
                                               .tls_private_key_file = "k",
                                               .agent_namespace = "gpus",
                                               .agent_selector = "app=agent",
                                               .agent_scheme = "https",
                                               .agent_port = 9401,
                                               .agent_ca_file = "ca",
                                               .agent_server_name = "agent",
                                               .agent_basic_auth_file = "password",
                                               .agent_timeout = "500ms",
                                               .interval = "1s",
                                               .oldest = "30s"},
                                              kAccess);
  ASSERT_TRUE(made) << made.error().full_message();
  EXPECT_EQ(made->certificate_file, "c");
  EXPECT_EQ(made->key_file, "k");
  EXPECT_EQ(made->agents.name_space, "gpus");
  EXPECT_EQ(made->agents.label_selector, "app=agent");
  EXPECT_TRUE(made->scrape.https);
  EXPECT_EQ(made->scrape.port, 9401);
  EXPECT_EQ(made->scrape.ca_file, "ca");
  EXPECT_EQ(made->scrape.server_name, "agent");
  EXPECT_EQ(made->scrape.basic_auth_file, "password");
  EXPECT_EQ(made->scrape.timeout, 500ms);
  EXPECT_EQ(made->pages.refresh_after, 1s);
  EXPECT_EQ(made->pages.max_age, 30s);
}

TEST(MetricsApiOptions, RejectsInvalidValues) {
  const auto about = [](const MetricsApiOptions& options) {
    const auto made = parse_metrics_api_options(options, kAccess);
    return made ? std::string("taken") : made.error().subject();
  };
  EXPECT_EQ(about({.agent_scheme = "ftp"}), "--agent-scheme");
  EXPECT_EQ(about({.agent_ca_file = "ca"}), "--agent-ca-file");
  EXPECT_EQ(about({.agent_server_name = "x"}), "--agent-server-name");
  EXPECT_EQ(about({.agent_token_file = "t", .agent_basic_auth_file = "b"}),
            "--agent-token-file, --agent-basic-auth-file");
  for (const char* bad : {"5", "x", "99ms", "2h", "-1s"})
    EXPECT_EQ(about({.interval = bad}), "--interval") << bad;
  EXPECT_EQ(about({.oldest = "0"}), "--oldest");
  EXPECT_EQ(about({.interval = "30s", .oldest = "29s"}), "--oldest");
  EXPECT_EQ(about({.agent_timeout = "11s"}), "--agent-timeout");
}

}  // namespace
}  // namespace gpulet::cli

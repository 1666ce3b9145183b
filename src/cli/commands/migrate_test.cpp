#include "cli/commands/commands.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/main/test_output.h"
#include "k8s/test_api.h"
#include "migrate/report.h"
#include "migrate/test_objects.h"
#include "runtimes/test_root.h"

namespace gpulet::cli {
namespace {

using k8s::Received;
using nlohmann::json;

CommandOutput check_captured(const MigrateCheckOptions& options) {
  return run_captured([&] { return run_migrate_check(options); });
}

class MigrateCheck : public k8s::ApiTest {
 protected:
  // With a kubeconfig of it; without a `user` one who has a token.
  std::string api_with(const json& daemon_set, json user = {}) {
    if (user.empty()) user = {{"tokenFile", directory_ + "/token"}};
    start_server([daemon_set](const Received& request) -> Reply {
      if (request.line().starts_with("GET /apis/apps/v1/daemonsets?")) {
        return {200, json{{"metadata", json::object()}, {"items", {daemon_set}}}.dump()};
      }
      return {404, R"({"kind":"Status"})"};
    });
    const std::string file = directory_ + "/config";
    const json config{{"current-context", "c"},
                      {"contexts", {{{"name", "c"}, {"context", {{"cluster", "k"}, {"user", "u"}}}}}},
                      {"clusters",
                       {{{"name", "k"},
                         {"cluster",
                          {{"server", "https://127.0.0.1:" + std::to_string(server_->port())},
                           {"certificate-authority", directory_ + "/ca.crt"}}}}}},
                      {"users", {{{"name", "u"}, {"user", user}}}}};
    EXPECT_TRUE(write_file_atomic(file, config.dump()));
    return file;
  }
};

TEST_F(MigrateCheck, AClusterWhereAllCarriesOver) {
  const auto result =
      check_captured({.cluster = true, .kubeconfig = api_with(migrate::test::static_plugin())});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("carries over  FAIL_ON_INIT_ERROR=false  flags.failOnInitError"),
            std::string::npos)
      << result.out;
  EXPECT_NE(result.out.find("docs/adr/0004-withdraw-the-whole-gpu-on-a-fault.md"), std::string::npos);
  EXPECT_EQ(result.out.find("Decisions needed"), std::string::npos);
}

TEST_F(MigrateCheck, DecisionsHaveTheirOwnExitCode) {
  auto plugin = migrate::test::static_plugin();
  plugin["spec"]["template"]["spec"]["containers"][0]["args"] = {"--mig-strategy=many"};
  const auto file = api_with(plugin);
  const auto result = check_captured({.cluster = true, .kubeconfig = file, .output = "json"});
  EXPECT_EQ(result.exit_code, 3) << result.err;
  const auto report = json::parse(result.out);
  EXPECT_FALSE(report["clear"].get<bool>());
  EXPECT_EQ(report["settings"][0]["fate"], "wrong");
  EXPECT_EQ(report["found"][0]["part"], "device-plugin");
  EXPECT_EQ(report["decide"].size(), 1u);
  EXPECT_NE(check_captured({.cluster = true, .kubeconfig = file})
                .out.find("Decisions needed\n  1. DaemonSet kube-system/"),
            std::string::npos);
}

// As the kubeconfigs of clouds have it.
TEST_F(MigrateCheck, AKubeconfigProgramProvidesTheCredential) {
  const json user{{"exec",
                   {{"apiVersion", "client.authentication.k8s.io/v1beta1"},
                    {"command", "./plugin"},
                    {"args", {"get-token"}}}}};
  const auto file = api_with(migrate::test::static_plugin(), user);
  ASSERT_TRUE(write_file_atomic(directory_ + "/plugin",
                                "#!/bin/sh\necho x >>" + directory_ + "/runs\necho '" +
                                    json{{"apiVersion", "client.authentication.k8s.io/v1beta1"},
                                         {"kind", "ExecCredential"},
                                         {"status", {{"token", "of-a-program"}}}}
                                        .dump() +
                                    "'\n",
                                0755));
  const auto result = check_captured({.cluster = true, .kubeconfig = file});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto received = server_->received_requests();
  ASSERT_FALSE(received.empty());
  for (const auto& request : received)
    EXPECT_NE(request.head.find("Authorization: Bearer of-a-program\r\n"), std::string::npos) << request.head;
  EXPECT_EQ(read_file(directory_ + "/runs").value(), "x\n");
  ASSERT_TRUE(
      write_file_atomic(directory_ + "/plugin", "#!/bin/sh\necho 'log in first' >&2\nexit 3\n", 0755));
  const auto refused = check_captured({.cluster = true, .kubeconfig = file});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.err, "gpulet migrate check: " + file + ", user \"u\": " + directory_ +
                             "/plugin ended with exit code 3: log in first\n");
}

TEST_F(MigrateCheck, AClusterThatCannotBeReachedIsOneLine) {
  const auto result = check_captured({.cluster = true, .kubeconfig = directory_ + "/none"});
  start_server([](const Received&) -> Reply { return {}; });
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_TRUE(result.err.starts_with("gpulet migrate check: ")) << result.err;
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1);
  EXPECT_EQ(result.out, "");
}

TEST(MigrateNode, AnEmptyRootHasNothing) {
  runtimes::TestRoot root;
  root.make_directory("/proc");
  const auto result = check_captured({.root = root.host_root()});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "No component of NVIDIA's stack found at " + root.host_root() + ".\n");
}

TEST(MigrateReport, ControlCharactersAreRemoved) {
  migrate::Report report{.location = "a\x1b[2J"};
  report.found.push_back({migrate::Component::kDriver, "b\x1b]0;", "c\x07"});
  report.settings.push_back({.source = "d", .name = "e\x1b", .value = std::string(100, 'x')});
  report.decisions = {"f\x1b[1m"};
  const auto text = migrate_text(report);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find('\x07'), std::string::npos);
  EXPECT_NE(text.find("x…"), std::string::npos);
  EXPECT_NE(migrate_json(report).find(std::string(100, 'x')), std::string::npos);
}

}  // namespace
}  // namespace gpulet::cli

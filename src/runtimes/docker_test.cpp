#include "runtimes/docker.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <algorithm>

#include "runtimes/test_root.h"

namespace gpulet::runtimes {
namespace {

constexpr const char* kDaemonJson = "/etc/docker/daemon.json";
constexpr const char* kRecord = "/etc/docker/daemon.json.gpulet";
constexpr EngineVersion kOff{25, 0, 3}, kOn{28, 2, 0};

Target docker_target(std::optional<EngineVersion> version) {
  return {.version = version, .config = kDaemonJson};
}

std::string set_up_docker(const std::string& text, EngineVersion version = kOff) {
  TestFiles host{{{kDaemonJson, text}}};
  const auto plan = docker::plan_setup(docker_target(version), host.make_reader());
  EXPECT_TRUE(plan) << plan.error().full_message();
  if (plan) host.apply_plan(*plan);
  return host.files[kDaemonJson];
}
std::string docker_setup_error(const std::string& text, EngineVersion version = kOff) {
  const TestFiles host{{{kDaemonJson, text}}};
  const auto plan = docker::plan_setup(docker_target(version), host.make_reader());
  EXPECT_FALSE(plan) << text;
  return plan ? "" : plan.error().full_message();
}

TEST(Docker, AddsOnlyTheMember) {
  EXPECT_EQ(set_up_docker("{}"), "{\"features\": {\"cdi\": true}}");
  EXPECT_EQ(set_up_docker("{\n    \"log-driver\": \"journald\",\n    \"x\": 1.50\n}\n"),
            "{\n    \"log-driver\": \"journald\",\n    \"x\": 1.50,\n    \"features\": {\"cdi\": true}\n}\n");
  EXPECT_EQ(set_up_docker("{\"features\":{\"buildkit\":true},\"a\":1}"),
            "{\"features\":{\"buildkit\":true, \"cdi\": true},\"a\":1}");
  EXPECT_EQ(set_up_docker("{\"features\": { \"cdi\" : false }}"), "{\"features\": { \"cdi\" : true }}");
  EXPECT_EQ(set_up_docker("{\"cdi-spec-dirs\": [\"/run/cdi\"], \"features\": {\"cdi\": true}}"),
            "{\"cdi-spec-dirs\": [\"/run/cdi\", \"/etc/cdi\"], \"features\": {\"cdi\": true}}");
}

TEST(Docker, ChangesNothingIfOn) {
  EXPECT_EQ(set_up_docker("{ }", kOn), "{ }");
  EXPECT_EQ(set_up_docker("{\"features\": {\"cdi\": false}}", kOn), "{\"features\": {\"cdi\": true}}");
  EXPECT_EQ(set_up_docker("{\"features\": {\"cdi\": true}}"), "{\"features\": {\"cdi\": true}}");
}

TEST(Docker, RemovesAFileThatItCreated) {
  TestFiles host;
  host.apply_plan(*docker::plan_setup(docker_target(kOff), host.make_reader()));
  EXPECT_EQ(host.files[kDaemonJson], "{\n  \"features\": {\n    \"cdi\": true\n  }\n}\n");
  EXPECT_TRUE(docker::plan_setup(docker_target(kOff), host.make_reader())->changes.empty());
  host.apply_plan(*docker::plan_removal(docker_target(kOff), host.make_reader()));
  EXPECT_TRUE(host.files.empty());
}

TEST(Docker, RemoveKeepsLaterEdits) {
  TestFiles host{{{kDaemonJson, "{}"}}};
  host.apply_plan(*docker::plan_setup(docker_target(kOff), host.make_reader()));
  host.files[kDaemonJson] = "{\"features\": {\"cdi\": true, \"x\": true}, \"debug\": true}";
  host.apply_plan(*docker::plan_removal(docker_target(kOff), host.make_reader()));
  EXPECT_EQ(
      host.files,
      (std::map<std::string, std::string>{{kDaemonJson, "{\"features\": {\"x\": true}, \"debug\": true}"}}));
  // Without a record, no change is gpulet's.
  EXPECT_TRUE(docker::plan_removal(docker_target(kOff), host.make_reader())->changes.empty());
  EXPECT_EQ(host.files.count(kRecord), 0u);
}

TEST(Docker, RejectsWhatDockerRejects) {
  EXPECT_EQ(docker_setup_error("{\n\"a\": 1,\n}"),
            std::string(kDaemonJson) + ":3: expected a name in quotes");
  EXPECT_EQ(docker_setup_error("{\"a\": 1, \"a\": 2}"), std::string(kDaemonJson) + ":1: \"a\" is duplicated");
  EXPECT_EQ(docker_setup_error("[]"), std::string(kDaemonJson) + ":1: not a JSON object");
  EXPECT_EQ(docker_setup_error("{\n \"features\": true}"),
            std::string(kDaemonJson) + ":2: features is not an object");
  EXPECT_EQ(docker_setup_error("{\"features\": {\"cdi\": \"yes\"}}"),
            std::string(kDaemonJson) + ":1: features.cdi is not a boolean");
  EXPECT_EQ(docker_setup_error("{} x"), std::string(kDaemonJson) + ":1: unexpected text after the document");
  EXPECT_EQ(docker_setup_error("{\"a\": 01}"), std::string(kDaemonJson) + ":1: number with a leading 0");
  EXPECT_NE(docker_setup_error("{\"cdi-spec-dirs\": [\"\"]}").find("an empty path"), std::string::npos);
  EXPECT_NE(docker_setup_error(" \n").find("the file is empty"), std::string::npos);
  EXPECT_EQ(docker_setup_error("{}", {24, 0, 7}),
            "Docker: 24.0.7 does not support CDI; 25.0.0 or later is required");
}

TEST(Docker, ReportsEachFinding) {
  const auto fit = [](const std::string& text, EngineVersion version) {
    const TestFiles host{{{kDaemonJson, text}}};
    const auto findings = docker::collect_findings(docker_target(version), host.make_reader()).value();
    std::string result;
    for (const auto& finding : findings) result += finding.is_met ? '+' : '-';
    return result;
  };
  EXPECT_EQ(fit("{}", kOff), "+-+");
  EXPECT_EQ(fit("{}", kOn), "+++");
  EXPECT_EQ(fit("{}", {20, 10, 0}), "--+");
  EXPECT_EQ(fit("{\"features\": {\"cdi\": true}, \"cdi-spec-dirs\": [\"/x\"]}", kOff), "++-");
  EXPECT_EQ(fit("{\"cdi-spec-dirs\": [\"\"]}", kOn), "++-");
}

rc::Gen<std::string> any_daemon_json() {
  return rc::gen::exec([] {
    const auto blank = rc::gen::element<std::string>("", " ", "\n  ", "\r\n\t");
    std::vector<std::string> members;
    if (*rc::gen::arbitrary<bool>())
      members.push_back("\"log-opts\":" + *blank + "{\"a\": \"\\\"}\\u00e9\"}");
    if (*rc::gen::arbitrary<bool>()) {
      members.push_back("\"features\"" + *blank + ":" +
                        *rc::gen::element<std::string>("{}", "{ \n}", "{\"cdi\" :false}", "{\"b\":true}",
                                                       "{\"b\":true,\n  \"cdi\": false}", "{\"cdi\":true}"));
    }
    if (*rc::gen::arbitrary<bool>()) {
      members.push_back(
          "\"cdi-spec-dirs\":" + *blank +
          *rc::gen::element<std::string>("[]", "[\"/x\"]", "[\n \"/etc/cdi\"\n ]", "[\"/run/cdi\",\"/y\"]"));
    }
    if (*rc::gen::arbitrary<bool>()) members.push_back("\"mtu\":-1.5e3");
    if (*rc::gen::arbitrary<bool>()) std::ranges::reverse(members);
    std::string text = *blank + "{" + *blank;
    for (std::size_t i = 0; i < members.size(); ++i)
      text += members[i] + *blank + (i + 1 < members.size() ? "," + *blank : "");
    return text + "}" + *blank;
  });
}

RC_GTEST_PROP(DockerProperty, ConfigureIsIdempotentAndRemoveRestores, ()) {
  const TestFiles before{{{kDaemonJson, *any_daemon_json()}}};
  const auto version = *rc::gen::element<std::optional<EngineVersion>>(kOff, kOn, std::nullopt);
  TestFiles host = before;
  const auto plan = docker::plan_setup(docker_target(version), host.make_reader());
  RC_ASSERT(plan.has_value());
  host.apply_plan(*plan);
  RC_ASSERT(json::parse_json_text(host.files[kDaemonJson], "f").has_value());
  const auto findings = docker::collect_findings(docker_target(version), host.make_reader());
  RC_ASSERT(findings.has_value());
  RC_ASSERT(std::ranges::all_of(*findings, &Finding::is_met));
  RC_ASSERT(docker::plan_setup(docker_target(version), host.make_reader())->changes.empty());
  host.apply_plan(*docker::plan_removal(docker_target(version), host.make_reader()));
  RC_ASSERT(host.files == before.files);
}

}  // namespace
}  // namespace gpulet::runtimes

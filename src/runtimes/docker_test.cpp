#include "runtimes/docker.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <algorithm>

#include "runtimes/json_text.h"
#include "runtimes/test_files.h"

namespace gpulet::runtimes {
namespace {

constexpr const char* kDaemonJson = "/etc/docker/daemon.json";
constexpr const char* kRecord = "/etc/docker/daemon.json.gpulet";
constexpr Version kOff{25, 0, 3}, kOn{28, 2, 0};

Target docker_of(std::optional<Version> version) { return {.version = version, .config = kDaemonJson}; }

std::string configured(const std::string& text, Version version = kOff) {
  TestFiles host{{{kDaemonJson, text}}};
  const auto plan = docker::configure(docker_of(version), host.reader());
  EXPECT_TRUE(plan) << plan.error().text();
  if (plan) host.apply(*plan);
  return host.files[kDaemonJson];
}
std::string error_of(const std::string& text, Version version = kOff) {
  const TestFiles host{{{kDaemonJson, text}}};
  const auto plan = docker::configure(docker_of(version), host.reader());
  EXPECT_FALSE(plan) << text;
  return plan ? "" : plan.error().text();
}

TEST(Docker, OnlyTheMemberIsAdded) {
  EXPECT_EQ(configured("{}"), "{\"features\": {\"cdi\": true}}");
  EXPECT_EQ(configured("{\n    \"log-driver\": \"journald\",\n    \"x\": 1.50\n}\n"),
            "{\n    \"log-driver\": \"journald\",\n    \"x\": 1.50,\n    \"features\": {\"cdi\": true}\n}\n");
  EXPECT_EQ(configured("{\"features\":{\"buildkit\":true},\"a\":1}"),
            "{\"features\":{\"buildkit\":true, \"cdi\": true},\"a\":1}");
  EXPECT_EQ(configured("{\"features\": { \"cdi\" : false }}"), "{\"features\": { \"cdi\" : true }}");
  EXPECT_EQ(configured("{\"cdi-spec-dirs\": [\"/run/cdi\"], \"features\": {\"cdi\": true}}"),
            "{\"cdi-spec-dirs\": [\"/run/cdi\", \"/etc/cdi\"], \"features\": {\"cdi\": true}}");
}

TEST(Docker, NothingWhereItIsOn) {
  EXPECT_EQ(configured("{ }", kOn), "{ }");
  EXPECT_EQ(configured("{\"features\": {\"cdi\": false}}", kOn), "{\"features\": {\"cdi\": true}}");
  EXPECT_EQ(configured("{\"features\": {\"cdi\": true}}"), "{\"features\": {\"cdi\": true}}");
}

TEST(Docker, AFileOfOursGoesWithRemove) {
  TestFiles host;
  host.apply(*docker::configure(docker_of(kOff), host.reader()));
  EXPECT_EQ(host.files[kDaemonJson], "{\n  \"features\": {\n    \"cdi\": true\n  }\n}\n");
  EXPECT_TRUE(docker::configure(docker_of(kOff), host.reader())->changes.empty());
  host.apply(*docker::remove(docker_of(kOff), host.reader()));
  EXPECT_TRUE(host.files.empty());
}

TEST(Docker, RemoveLeavesWhatOthersChangedSince) {
  TestFiles host{{{kDaemonJson, "{}"}}};
  host.apply(*docker::configure(docker_of(kOff), host.reader()));
  host.files[kDaemonJson] = "{\"features\": {\"cdi\": true, \"x\": true}, \"debug\": true}";
  host.apply(*docker::remove(docker_of(kOff), host.reader()));
  EXPECT_EQ(
      host.files,
      (std::map<std::string, std::string>{{kDaemonJson, "{\"features\": {\"x\": true}, \"debug\": true}"}}));
  // Without a record nothing is ours.
  EXPECT_TRUE(docker::remove(docker_of(kOff), host.reader())->changes.empty());
  EXPECT_EQ(host.files.count(kRecord), 0u);
}

TEST(Docker, RefusesWhatDockerWould) {
  EXPECT_EQ(error_of("{\n\"a\": 1,\n}"), std::string(kDaemonJson) + ":3: a name in quotes is expected here");
  EXPECT_EQ(error_of("{\"a\": 1, \"a\": 2}"), std::string(kDaemonJson) + ":1: \"a\" is there twice");
  EXPECT_EQ(error_of("[]"), std::string(kDaemonJson) + ":1: no JSON object");
  EXPECT_EQ(error_of("{\n \"features\": true}"), std::string(kDaemonJson) + ":2: features is no object");
  EXPECT_EQ(error_of("{\"features\": {\"cdi\": \"yes\"}}"),
            std::string(kDaemonJson) + ":1: features.cdi is neither true nor false");
  EXPECT_EQ(error_of("{} x"), std::string(kDaemonJson) + ":1: more stands behind the document");
  EXPECT_EQ(error_of("{\"a\": 01}"), std::string(kDaemonJson) + ":1: a number that begins with 0");
  EXPECT_NE(error_of("{\"cdi-spec-dirs\": [\"\"]}").find("an empty path"), std::string::npos);
  EXPECT_NE(error_of(" \n").find("an empty file"), std::string::npos);
  EXPECT_EQ(error_of("{}", {24, 0, 7}), "Docker: 24.0.7 has no CDI; 25.0.0 or later would do");
}

TEST(Docker, JudgesEachThing) {
  const auto fit = [](const std::string& text, Version version) {
    const TestFiles host{{{kDaemonJson, text}}};
    const auto findings = docker::judge(docker_of(version), host.reader()).value();
    std::string result;
    for (const auto& finding : findings) result += finding.fit ? '+' : '-';
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

RC_GTEST_PROP(DockerProperty, ConfigureTwiceIsOnceAndRemoveIsTheIdentity, ()) {
  const TestFiles before{{{kDaemonJson, *any_daemon_json()}}};
  const auto version = *rc::gen::element<std::optional<Version>>(kOff, kOn, std::nullopt);
  TestFiles host = before;
  const auto plan = docker::configure(docker_of(version), host.reader());
  RC_ASSERT(plan.has_value());
  host.apply(*plan);
  RC_ASSERT(json::parse(host.files[kDaemonJson], "f").has_value());
  const auto findings = docker::judge(docker_of(version), host.reader());
  RC_ASSERT(findings.has_value());
  RC_ASSERT(std::ranges::all_of(*findings, &Finding::fit));
  RC_ASSERT(docker::configure(docker_of(version), host.reader())->changes.empty());
  host.apply(*docker::remove(docker_of(version), host.reader()));
  RC_ASSERT(host.files == before.files);
}

}  // namespace
}  // namespace gpulet::runtimes

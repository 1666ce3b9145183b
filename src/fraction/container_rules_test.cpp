#include "fraction/container_rules.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace gpulet::fraction {
namespace {

using nlohmann::json;

json test_spec(json security, json of_pod = json::object()) {
  json container = {{"name", "main"}, {"securityContext", std::move(security)}};
  return {{"spec", {{"securityContext", std::move(of_pod)}, {"containers", json::array({container})}}}};
}

json with_host_path(const char* path) {
  auto pod = test_spec({{"runAsUser", 1000}});
  pod["spec"]["volumes"] = json::array({{{"name", "v"}, {"hostPath", {{"path", path}}}}});
  pod["spec"]["containers"][0]["volumeMounts"] = json::array({{{"name", "v"}, {"mountPath", "/x"}}});
  return pod;
}

// "reason: highest", of the only container.
std::vector<std::string> broken_rules(const json& pod, bool reaches_mps_pipe = false) {
  const auto access = parse_container_access(pod);
  EXPECT_EQ(access.size(), 1u);
  std::vector<std::string> rules;
  for (const auto& one : access) {
    for (const auto& cap : check_container_rules(one, reaches_mps_pipe))
      rules.push_back(cap.reason + ": " + std::string(limit_grade_name(cap.highest)));
  }
  return rules;
}

using Rules = std::vector<std::string>;

TEST(ContainerRulesTest, AnOrdinaryContainerBreaksNone) {
  EXPECT_EQ(broken_rules(test_spec(json::object())), Rules());
  EXPECT_EQ(broken_rules(test_spec({{"capabilities", {{"add", {"NET_ADMIN"}}, {"drop", {"ALL"}}}}})),
            Rules());
}

TEST(ContainerRulesTest, PrivilegesThatLeaveTheCgroup) {
  EXPECT_EQ(broken_rules(test_spec({{"privileged", true}})), Rules{"container main is privileged: none"});
  for (const auto* const name : {"SYS_ADMIN", "CAP_SYS_ADMIN", "ALL", "sys_admin"}) {
    EXPECT_EQ(broken_rules(test_spec({{"capabilities", {{"add", {"CHOWN", name}}}}})),
              Rules{"container main has the capability SYS_ADMIN: none"})
        << name;
  }
}

TEST(ContainerRulesTest, HostPids) {
  auto pod = test_spec(json::object());
  pod["spec"]["hostPID"] = true;
  EXPECT_EQ(broken_rules(pod), Rules{"container main sees the node's processes (hostPID): audited"});
}

TEST(ContainerRulesTest, PathsOfTheNode) {
  const auto display = [](const std::string& path) {
    return Rules{"container main mounts " + path + " of the node, with nodes of the display driver: none"};
  };
  EXPECT_EQ(broken_rules(with_host_path("/dev/dri")), display("/dev/dri"));
  EXPECT_EQ(broken_rules(with_host_path("/dev/dri/renderD128")), display("/dev/dri/renderD128"));
  EXPECT_EQ(broken_rules(with_host_path("/dev/")), display("/dev"));
  EXPECT_EQ(broken_rules(with_host_path("//dev/./nvidia-modeset")), display("/dev/nvidia-modeset"));
  EXPECT_EQ(broken_rules(with_host_path("/")),
            (Rules{"container main mounts the node's cgroups: none", display("/").front()}));
  EXPECT_EQ(broken_rules(with_host_path("/sys/fs")), Rules{"container main mounts the node's cgroups: none"});
  for (const auto* const path : {"/dev/shm", "/dev/drink", "/data", "/sys/fs/cgroups", "/de"})
    EXPECT_EQ(broken_rules(with_host_path(path)), Rules()) << path;
}

TEST(ContainerRulesTest, AVolumeThatIsNotMountedIsNotReached) {
  auto pod = with_host_path("/dev/dri");
  pod["spec"]["containers"][0].erase("volumeMounts");
  EXPECT_EQ(broken_rules(pod), Rules());
}

TEST(ContainerRulesTest, RootBesideAControlPipe) {
  const Rules broken{
      "container main may run as root beside an MPS control pipe (no runAsNonRoot or runAsUser): audited"};
  EXPECT_EQ(broken_rules(test_spec(json::object()), true), broken);
  EXPECT_EQ(broken_rules(test_spec({{"runAsUser", 0}}, {{"runAsUser", 1000}}), true), broken);
  EXPECT_EQ(broken_rules(test_spec({{"runAsNonRoot", false}}, {{"runAsNonRoot", true}}), true), broken);
  EXPECT_EQ(broken_rules(test_spec({{"runAsUser", 1000}}, {{"runAsUser", 0}}), true), Rules());
  EXPECT_EQ(broken_rules(test_spec(json::object(), {{"runAsUser", 1000}}), true), Rules());
  EXPECT_EQ(broken_rules(test_spec({{"runAsNonRoot", true}}), true), Rules());
  EXPECT_EQ(broken_rules(test_spec(json::object()), false), Rules());
}

json with_ephemeral(json ephemeral) {
  auto pod = test_spec(json::object());
  pod["spec"]["containers"].push_back({{"name", "side"}});
  pod["spec"]["ephemeralContainers"] = std::move(ephemeral);
  return pod;
}

// "reason: highest", of the container.
std::vector<std::string> rules_of(const json& pod, std::size_t container) {
  std::vector<std::string> rules;
  const auto access = parse_container_access(pod);
  EXPECT_EQ(access.size(), 2u);
  for (const auto& cap : check_container_rules(access.at(container), false))
    rules.push_back(cap.reason + ": " + std::string(limit_grade_name(cap.highest)));
  return rules;
}

TEST(ContainerRulesTest, AnEphemeralContainerThatSharesProcesses) {
  const Rules shares{"ephemeral container debug shares the processes of container main: audited"};
  auto pod = with_ephemeral(json::array({{{"name", "debug"}, {"targetContainerName", "main"}}}));
  EXPECT_EQ(rules_of(pod, 0), shares);
  EXPECT_EQ(rules_of(pod, 1), Rules());
  pod["spec"]["ephemeralContainers"][0].erase("targetContainerName");
  EXPECT_EQ(rules_of(pod, 0), Rules());
  pod["spec"]["shareProcessNamespace"] = true;
  EXPECT_EQ(rules_of(pod, 0), shares);
  EXPECT_EQ(rules_of(pod, 1).size(), 1u);
}

TEST(ContainerRulesTest, APrivilegedEphemeralContainerCountsForAllOfItsPod) {
  const std::pair<json, const char*> kSecurity[] = {
      {{{"privileged", true}}, "ephemeral container debug is privileged: none"},
      {{{"capabilities", {{"add", {"SYS_ADMIN"}}}}},
       "ephemeral container debug has the capability SYS_ADMIN: none"}};
  for (const auto& [security, rule] : kSecurity) {
    const auto pod = with_ephemeral(json::array({{{"name", "debug"}, {"securityContext", security}}}));
    EXPECT_EQ(rules_of(pod, 0), Rules{rule});
    EXPECT_EQ(rules_of(pod, 1), Rules{rule});
  }
}

// Others before it must not hide the one that is privileged.
TEST(ContainerRulesTest, TheWorstOfManyEphemeralContainersIsKept) {
  json many = json::array();
  for (int i = 0; i < 20; ++i) many.push_back({{"name", "quiet"}, {"targetContainerName", "main"}});
  many.push_back({{"name", "loud"}, {"securityContext", {{"privileged", true}}}});
  const auto rules = rules_of(with_ephemeral(many), 0);
  EXPECT_EQ(rules.size(), kMaxGradeReasons);
  EXPECT_EQ(rules.front(), "ephemeral container loud is privileged: none");
}

TEST(ContainerRulesTest, OtherTypesOfEphemeralContainersCountAsAbsent) {
  for (const auto* const text : {"7", "{}", "[1, null, {}]", R"([{"name": 7, "securityContext": "x"}])",
                                 R"([{"name": "x", "targetContainerName": ["main"]}])"})
    EXPECT_EQ(rules_of(with_ephemeral(json::parse(text)), 0), Rules()) << text;
}

TEST(ContainerRulesTest, InitContainersComeFirst) {
  const json pod = {{"spec",
                     {{"containers", json::array({{{"name", "main"}}})},
                      {"initContainers", json::array({{{"name", "setup"}}})}}}};
  const auto access = parse_container_access(pod);
  ASSERT_EQ(access.size(), 2u);
  EXPECT_EQ(access[0].name, "setup");
  EXPECT_EQ(access[1].name, "main");
}

TEST(ContainerRulesTest, OtherTypesCountAsAbsent) {
  for (const auto* const text :
       {"{}", "[]", "7", R"({"spec": []})", R"({"spec": {"containers": {"name": "x"}}})",
        R"({"spec": {"containers": [1, null], "volumes": [3], "securityContext": "x", "hostPID": "yes"}})"}) {
    for (const auto& access : parse_container_access(json::parse(text)))
      EXPECT_EQ(check_container_rules(access, false).size(), 0u) << text;
  }
  EXPECT_EQ(broken_rules(test_spec({{"privileged", "true"}, {"capabilities", {{"add", 7}}}})), Rules());
}

TEST(ContainerRulesTest, ReadsABoundedNumber) {
  json pod = {{"spec", {{"containers", json::array()}}}};
  for (std::size_t i = 0; i <= kMaxGradeReasons * 100; ++i)
    pod["spec"]["containers"].push_back({{"name", "x"}});
  EXPECT_EQ(parse_container_access(pod).size(), 512u);
}

}  // namespace
}  // namespace gpulet::fraction

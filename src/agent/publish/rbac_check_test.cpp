#include "agent/publish/rbac_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "base/text.h"
#include "config/load.h"
#include "k8s/test_api.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using k8s::Received;
using nlohmann::json;

config::Config config_with(const std::string& yaml) {
  config::Sources sources;
  sources.file_path = "node.yaml";
  sources.file_content = "version: v1\n" + yaml;
  auto loaded = config::load(sources);
  EXPECT_TRUE(loaded) << loaded.error().full_message();
  return loaded ? std::move(loaded->config) : config::Config();
}

std::set<std::string> permission_names(const std::string& yaml, bool in_pod = false) {
  const auto wanted = required_permissions(
      config_with(yaml), {.host = "h", .node_name = "node-1", .pod_namespace = "gpulet"}, in_pod);
  std::set<std::string> names;
  for (const auto& one : wanted) {
    EXPECT_FALSE(one.consequence.empty());
    names.insert(one.permission.permission_text());
  }
  return names;
}

const std::set<std::string> kDefault = {"create on events",      "patch on events", "list on nodes",
                                        "watch on nodes",        "get on nodes",    "patch on nodes",
                                        "patch on nodes/status", "get on pods"};

TEST(RequiredPermissions, OfTheDefaults) { EXPECT_EQ(permission_names(""), kDefault); }

// Each setting with the rights that it adds to those of the defaults.
TEST(RequiredPermissions, EachSettingAddsItsOwn) {
  const std::pair<const char*, std::set<std::string>> settings[] = {
      {"gpulet: {faults: {eviction: {enabled: true}}}", {"create on pods/eviction", "get on namespaces"}},
      {"gpulet: {faults: {eviction: {enabled: true, maxUnhealthyNodesPercent: 5}}}",
       {"create on pods/eviction", "get on namespaces", "list on nodes"}},
      {"gpulet: {faults: {podAnnotations: true}}", {"patch on pods"}},
      {"gpulet: {faults: {deleteRejectedPods: true}}", {"list on pods", "watch on pods", "delete on pods"}},
      {"gpulet: {podChoices: true}", {"list on pods"}},
      {"gpulet: {faults: {taints: {lost: NoSchedule}}}", {}},
      {"gpulet: {startupTaint: gpulet.io/not-ready}", {}},
      {"gpulet: {rebalance: {enabled: true}}", {"create on pods/eviction", "get on namespaces"}},
      {"gpulet: {rebalance: {enabled: true, dryRun: true}}", {"get on namespaces"}},
      {"gpulet: {fraction: {onExceeded: warn}}", {}},
      {"flags: {plugin: {deviceListStrategy: cdi-cri}}\n"
       "gpulet: {fraction: {driverLimits: true}, cdi: {hookDir: /var/lib/gpulet}}",
       {}},
      {"gpulet: {fraction: {onExceeded: evict}}", {"create on pods/eviction"}},
      {"gpulet: {fraction: {onExceeded: kill}}", {"create on pods/eviction"}},
      {"gpulet: {dra: {enabled: true}}",
       {"get on resourceclaims.resource.k8s.io", "list on resourceslices.resource.k8s.io",
        "watch on resourceslices.resource.k8s.io", "create on resourceslices.resource.k8s.io",
        "update on resourceslices.resource.k8s.io", "delete on resourceslices.resource.k8s.io"}},
      {"gpulet: {mig: {drain: true}}", {"create on pods/eviction"}},
      {"gpulet: {publishGpuNode: true}", {"create on gpunodes.gpulet.io", "patch on gpunodes.gpulet.io"}},
      {"gpulet: {metrics: {podLabels: true}}", {}},
      {"gpulet: {metrics: {countersConfigMap: 'monitoring:counters'}}",
       {"list on configmaps in monitoring", "watch on configmaps in monitoring"}},
      {"gpulet: {labels: {outputs: [node-feature]}}",
       {"get on nodefeatures.nfd.k8s-sigs.io in gpulet", "create on nodefeatures.nfd.k8s-sigs.io in gpulet",
        "update on nodefeatures.nfd.k8s-sigs.io in gpulet"}},
  };
  for (const auto& [yaml, more] : settings) {
    auto wanted = kDefault;
    wanted.insert(more.begin(), more.end());
    EXPECT_EQ(permission_names(yaml), wanted) << yaml;
  }
}

TEST(RequiredPermissions, DisabledFeaturesNeedNone) {
  EXPECT_EQ(
      permission_names("gpulet: {publishGpuNode: false, labels: {outputs: [none]}, "
                       "faults: {condition: false, label: false, podEvents: false}}"),
      (std::set<std::string>{"create on events", "patch on events", "list on nodes", "watch on nodes"}));
}

TEST(RequiredPermissions, PodsOfClaimsAreRead) {
  const std::string no_events = "gpulet: {faults: {podEvents: false}, dra: {enabled: ";
  EXPECT_FALSE(permission_names(no_events + "false}}").contains("get on pods"));
  EXPECT_TRUE(permission_names(no_events + "true}}").contains("get on pods"));
}

TEST(RequiredPermissions, PodsThatAskForPowerAreRead) {
  const std::string no_events = "gpulet: {faults: {podEvents: false}, power: ";
  EXPECT_FALSE(permission_names(no_events + "{podAnnotation: {enabled: true}}}").contains("get on pods"));
  EXPECT_FALSE(permission_names(no_events + "{rules: [{}]}}").contains("get on pods"));
  EXPECT_TRUE(
      permission_names(no_events + "{rules: [{}], podAnnotation: {enabled: true}}}").contains("get on pods"));
}

TEST(RequiredPermissions, TheStartupTaintIsPatched) {
  EXPECT_EQ(permission_names("gpulet: {startupTaint: gpulet.io/not-ready, publishGpuNode: false, "
                             "labels: {outputs: [none]}, "
                             "faults: {condition: false, label: false, podEvents: false}}"),
            (std::set<std::string>{"create on events", "patch on events", "list on nodes", "watch on nodes",
                                   "get on nodes", "patch on nodes"}));
}

TEST(RequiredPermissions, InAPodItAnnouncesItsShutdown) {
  const auto wanted = permission_names(
      "gpulet: {publishGpuNode: false, labels: {outputs: [none]}, "
      "faults: {condition: false, label: false, podEvents: false}}",
      true);
  EXPECT_EQ(wanted, (std::set<std::string>{"create on events", "patch on events", "list on nodes",
                                           "watch on nodes", "get on nodes", "patch on nodes/status"}));
}

// docs/SECURITY.md has these rights and no other: lines as "- `get`, `list` on `pods`: …".
TEST(RequiredPermissions, MatchTheDocs) {
  const auto page = read_file("docs/SECURITY.md").value_or("");
  const auto begin = page.find("- `create`, `patch` on `events`"),
             end = page.find("Rights of `gpulet scheduler`");
  ASSERT_LT(begin, end);
  ASSERT_NE(end, std::string::npos);
  std::set<std::string> told;
  for (const auto& line : text::split(std::string_view(page).substr(begin, end - begin), '\n')) {
    std::vector<std::string> words;  // before the colon, those in `…`
    const auto right = line.starts_with("- `") ? line.substr(0, line.find("`: ") + 1) : "";
    const auto parts = text::split(right, '`');
    for (std::size_t i = 1; i < parts.size(); i += 2) words.emplace_back(parts[i]);
    for (std::size_t i = 0; i + 1 < words.size(); ++i) told.insert(words[i] + " on " + words.back());
  }
  const std::string all =
      "gpulet: {publishGpuNode: true, dra: {enabled: true}, faults: {podAnnotations: true, "
      "deleteRejectedPods: true, eviction: "
      "{enabled: true, "
      "maxUnhealthyNodesPercent: 5}, "
      "taints: {lost: "
      "NoSchedule}}, "
      "mig: {drain: true}, labels: {outputs: [node, node-feature]}, "
      "metrics: {podLabels: true, countersConfigMap: 'monitoring:counters'}}";
  std::set<std::string> wanted;
  for (const auto& name : permission_names(all)) wanted.insert(name.substr(0, name.find(" in ")));
  EXPECT_EQ(told, wanted);
}

class RbacCheckTest : public k8s::ApiTest {
 protected:
  void release_source() override { check_.reset(); }
  std::optional<std::size_t> wait_missing() {
    std::optional<std::size_t> missing;
    call_on_loop([&] { missing = check_->missing_permissions(); });
    return missing;
  }
  std::atomic<bool> refuses_pods_ = true;
  std::optional<RbacCheck> check_;
};

TEST_F(RbacCheckTest, NoticesALaterGrantAndSkipsTheSameConfig) {
  start_server([this](const Received& request) {
    const bool pods = request.body.find(R"("resource":"pods")") != std::string::npos;
    return Reply{201, json{{"status", {{"allowed", !(pods && refuses_pods_)}}}}.dump()};
  });
  const auto config = config_with("");
  call_on_loop([&] {
    check_.emplace(loop_, client_config(), true, 5ms);
    EXPECT_FALSE(check_->missing_permissions());
    check_->check_config(config);
    check_->check_config(config);
  });
  ASSERT_TRUE(k8s::eventually([&] { return wait_missing() == 1U; }));
  refuses_pods_ = false;
  ASSERT_TRUE(k8s::eventually([&] { return wait_missing() == 0U; }));
  const auto asked = server_->received_requests().size();
  call_on_loop([&] { check_->check_config(config); });
  call_on_loop([] {});
  EXPECT_EQ(server_->received_requests().size(), asked) << "nothing is missing, and nothing has changed";
}

}  // namespace
}  // namespace gpulet::agent

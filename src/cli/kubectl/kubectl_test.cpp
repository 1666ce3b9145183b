#include "cli/kubectl/kubectl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>

#include <nlohmann/json.hpp>

#include "cli/kubectl/test_cluster.h"
#include "cli/main/test_output.h"
#include "k8s/test_api.h"

namespace gpulet::cli::kubectl {
namespace {

using k8s::Received;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kGpuNodes = "GET /apis/gpulet.io/v1alpha1/gpunodes";

std::string list_of(const json& items) {
  return json{{"metadata", {{"resourceVersion", "7"}}}, {"items", items}}.dump();
}

CommandOutput run_main(int (*program)(int, char**), std::vector<std::string> words) {
  words.insert(words.begin(), "/usr/bin/kubectl-gpulet");
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return run_captured([&] { return program(static_cast<int>(words.size()), argv.data()); });
}

// An API server with two nodes, and a kubeconfig with two contexts: "here", and "away" without a cluster.
class KubectlPlugin : public k8s::ApiTest {
 protected:
  void SetUp() override {
    k8s::ApiTest::SetUp();
    start_server([this](const Received& request) { return respond(request.line()); });
    const json config{
        {"current-context", "here"},
        {"contexts",
         {{{"name", "here"}, {"context", {{"cluster", "k"}, {"user", "u"}, {"namespace", "team-a"}}}},
          {{"name", "away"}, {"context", {{"cluster", "none"}, {"user", "u"}}}}}},
        {"clusters",
         {{{"name", "k"},
           {"cluster",
            {{"server", "https://127.0.0.1:" + std::to_string(server_->port())},
             {"certificate-authority", directory_ + "/ca.crt"}}}}}},
        {"users", {{{"name", "u"}, {"user", {{"tokenFile", directory_ + "/token"}}}}}}};
    ASSERT_TRUE(write_file_atomic(directory_ + "/config", config.dump()));
  }
  CommandOutput run_plugin(std::vector<std::string> words) {
    words.insert(words.end(), {"--kubeconfig", directory_ + "/config"});
    return run_main(plugin_main, std::move(words));
  }

  // Responses that a test has replaced, by the start of the request's line.
  std::map<std::string, Reply> replies_;

 private:
  Reply respond(const std::string& line) {
    for (const auto& [start, reply] : replies_) {
      if (line.starts_with(start)) return reply;
    }
    if (line.starts_with(std::string(kGpuNodes) + "?fieldSelector=metadata.name%3Dn2&"))
      return {200, list_of(json::array({gpu_node_object("n2", shared_node())}))};
    if (line.starts_with(std::string(kGpuNodes) + "?limit"))
      return {
          200,
          list_of(json::array({gpu_node_object("n1", faulty_node()), gpu_node_object("n2", shared_node())}))};
    if (line.starts_with("GET /api/v1/nodes?labelSelector=pool%3Dtrain&"))
      return {200, list_of(json::array({json{{"metadata", {{"name", "n1"}}}}}))};
    return {404, R"({"kind":"Status"})"};
  }
};

TEST_F(KubectlPlugin, ListsGpus) {
  const auto all = run_plugin({"list"});
  EXPECT_EQ(all.exit_code, 0) << all.err;
  EXPECT_THAT(all.out, StartsWith("NODE  GPU  MODEL"));
  EXPECT_THAT(all.out, HasSubstr("\nn2    0    H100 80GB HBM3  80.0 GiB  3/4   healthy      team-a/web"));
  EXPECT_EQ(all.err, "");
  EXPECT_EQ(run_plugin({"list", "-A"}).out, all.out);
  EXPECT_EQ(run_plugin({"list", "-n", "team-b", "-A"}).out, all.out);
  EXPECT_EQ(run_plugin({"list", "-o", "name"}).out, "node/n1\nnode/n2\n");
  EXPECT_EQ(run_plugin({"list", "-l", "pool=train", "-o", "name"}).out, "node/n1\n");
  EXPECT_EQ(run_plugin({"list", "-n", "team-b", "--no-headers"}).out,
            "n2  0  H100 80GB HBM3  80.0 GiB  3/4  healthy  team-a/web, team-b/api\n");
  EXPECT_EQ(run_plugin({"list", "--node", "n2", "-o", "name"}).out, "node/n2\n");
  EXPECT_EQ(run_plugin({"list", "n1", "n2", "-o", "name"}).out, "node/n1\nnode/n2\n");
  EXPECT_EQ(run_plugin({"list", "n1", "--node", "n2", "-o", "name"}).out, "node/n1\nnode/n2\n");
  EXPECT_EQ(json::parse(run_plugin({"list", "n2", "-o", "json"}).out)["gpus"].size(), 1U);
}

TEST_F(KubectlPlugin, WhatIsNotThereIsSaid) {
  const auto none = run_plugin({"list", "-n", "empty"});
  EXPECT_EQ(none.exit_code, 0);
  EXPECT_EQ(none.out, "");
  EXPECT_EQ(none.err, "No GPUs found\n");
  EXPECT_EQ(json::parse(run_plugin({"list", "-n", "empty", "-o", "json"}).out)["gpus"], json::array());
  const auto unknown = run_plugin({"list", "n2", "n9"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.out, HasSubstr("n2 "));
  EXPECT_EQ(unknown.err, "kubectl gpulet list: node n9 publishes no GPUs: there is no GpuNode n9\n");
}

TEST_F(KubectlPlugin, HealthExitsWith3) {
  const auto bad = run_plugin({"health"});
  EXPECT_EQ(bad.exit_code, kNeedsAction);
  EXPECT_EQ(bad.out,
            "NODE  GPU  MODEL           HEALTH       REASON\n"
            "n1    1    H100 80GB HBM3  quarantined  XID 79: GPU has fallen off the bus\n"
            "\n3 GPUs on 2 nodes, 1 out of service\n");
  const auto good = run_plugin({"health", "n2"});
  EXPECT_EQ(good.exit_code, 0);
  EXPECT_EQ(good.out, "1 GPU on 1 node, all in service\n");
  EXPECT_EQ(good.err, "");
}

TEST_F(KubectlPlugin, TopSorts) {
  EXPECT_THAT(run_plugin({"top", "--sort-by", "busy", "--no-headers"}).out, StartsWith("n1  0 "));
  EXPECT_THAT(run_plugin({"top", "--no-headers"}).out, HasSubstr("  90%  55%  "));
}

TEST_F(KubectlPlugin, ErrorsNameWhatToDo) {
  replies_[kGpuNodes] = {403, R"({"message":"gpunodes is forbidden"})"};
  auto output = run_plugin({"list"});
  EXPECT_EQ(output.exit_code, 1);
  EXPECT_EQ(
      output.err,
      "kubectl gpulet list: missing permission: list on gpunodes.gpulet.io: the API server answered 403: "
      "gpunodes is forbidden\n");
  replies_[kGpuNodes] = {404, R"({"kind":"Status"})"};
  EXPECT_THAT(run_plugin({"health"}).err, HasSubstr("this cluster has no kind GpuNode"));
  auto broken = gpu_node_object("n3", shared_node());
  broken["spec"]["gpus"] = 3;
  replies_[kGpuNodes] = {200, list_of(json::array({gpu_node_object("n2", shared_node()), broken}))};
  output = run_plugin({"list", "--no-headers"});
  EXPECT_EQ(output.exit_code, 1);
  EXPECT_THAT(output.out, StartsWith("n2 ")) << "the others are shown";
  EXPECT_THAT(output.err, StartsWith("kubectl gpulet list: cannot decode a GpuNode: "));
}

TEST_F(KubectlPlugin, WrongArgumentsAreRefused) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong{
      {{"list", "-n", "Team A"}, "kubectl gpulet list: 'Team A' is not the name of a namespace"},
      {{"list", "n1/../x"}, "is not the name of a node"},
      {{"list", "-o", "xml"}, "kubectl gpulet list: --output: "},
      {{"lst"}, "kubectl gpulet: unknown command 'lst'; did you mean list?"},
      {{"top", "--sort-by", "cpu"}, "kubectl gpulet top: --sort-by: "},
      {{"explain"}, "kubectl gpulet explain: "},
      {{"doctor", "--service", "scheduler"}, "kubectl gpulet doctor: --service: expected a Service"}};
  for (const auto& [words, message] : wrong) {
    const auto output = run_plugin(words);
    EXPECT_EQ(output.exit_code, kWrongCommand) << message;
    EXPECT_THAT(output.err, HasSubstr(message));
    EXPECT_EQ(output.out, "");
  }
  EXPECT_THAT(run_plugin({"list", "--context", "away"}).err,
              HasSubstr("clusters has no entry named \"none\""));
  EXPECT_THAT(run_plugin({"list", "--context", "x"}).err, HasSubstr("contexts has no entry named \"x\""));
}

TEST_F(KubectlPlugin, ExplainTakesTheNamespaceOfTheContext) {
  const std::string proxy = "GET /api/v1/namespaces/gpulet/services/gpulet-scheduler:9410/proxy/explain?";
  replies_[proxy + "namespace=team-a&pod=p"] = {200, "n1 is best\n"};
  replies_[proxy + "namespace=other&pod=p&format=json"] = {200, "{\"best\":\"n1\"}"};
  EXPECT_EQ(run_plugin({"explain", "p"}).out, "n1 is best\n");
  EXPECT_EQ(run_plugin({"explain", "pod/p"}).out, "n1 is best\n");
  EXPECT_EQ(run_plugin({"explain", "p", "-n", "other", "-o", "yaml"}).out, "best: n1\n");
}

TEST_F(KubectlPlugin, ExplainsAClaim) {
  const std::string api = "GET /apis/resource.k8s.io/v1/";
  json request{{"name", "gpu"}, {"exactly", {{"deviceClassName", "gpu.nvidia.com"}}}};
  json claim{{"metadata", {{"namespace", "team-a"}, {"name", "c"}, {"uid", "u-c"}}},
             {"spec", {{"devices", {{"requests", json::array({std::move(request)})}}}}}};
  replies_[api + "namespaces/team-a/resourceclaims/c"] = {200, claim.dump()};
  replies_[api + "deviceclasses/gpu.nvidia.com"] = {200, "{}"};
  replies_[api + "resourceslices?"] = {200, list_of(json::array())};
  replies_[api + "resourceclaims?"] = {200, list_of(json::array({claim}))};
  EXPECT_EQ(run_plugin({"explain", "claim/c"}).out,
            "claim team-a/c requests gpu: 1 of gpu.nvidia.com\n"
            "Fits on no node: no ResourceSlice has a device\n");
  EXPECT_THAT(run_plugin({"explain", "claim/none"}).err, HasSubstr("the claim does not exist"));
  EXPECT_THAT(run_plugin({"explain", "claim/c/d"}).err, HasSubstr("is not a valid name of a claim"));

  json result{{"request", "gpu"}, {"driver", "gpu.nvidia.com"}, {"pool", "n1"}, {"device", "gpu-0"}};
  json user{{"resource", "pods"}, {"name", "p"}, {"uid", "u-p"}};
  claim["status"] = {{"allocation", {{"devices", {{"results", json::array({std::move(result)})}}}}},
                     {"reservedFor", json::array({std::move(user)})}};
  replies_[api + "namespaces/team-a/resourceclaims/c"] = {200, claim.dump()};
  json older{{"lastTimestamp", "2026-01-31T12:00:00Z"}, {"message", "older"}};
  json newer{{"lastTimestamp", "2026-01-31T12:01:00Z"}, {"message", "the MPS control daemon is starting"}};
  replies_["GET /api/v1/namespaces/team-a/events?fieldSelector=involvedObject.uid%3Du-p%2Creason%3D"] = {
      200, list_of(json::array({std::move(newer), std::move(older)}))};
  EXPECT_EQ(run_plugin({"explain", "resourceclaim/c"}).out,
            "claim team-a/c requests gpu: 1 of gpu.nvidia.com\nAllocated: gpu-0 of n1\nUsed by Pods: p\n"
            "Not prepared: Pod p: the MPS control daemon is starting\n");
  replies_["GET /api/v1/namespaces/gpulet/services/gpulet-scheduler:9410/proxy/explain?"] = {
      200, "team-a/p requests resource claims\n"};
  replies_["GET /api/v1/namespaces/team-a/pods/p"] = {
      200, R"({"status":{"resourceClaimStatuses":[{"name":"gpu","resourceClaimName":"c"}]}})"};
  EXPECT_THAT(run_plugin({"explain", "p"}).out,
              AllOf(StartsWith("team-a/p requests resource claims\nclaim team-a/c requests gpu: 1 of "),
                    HasSubstr("Not prepared: Pod p")));
  const auto document = json::parse(run_plugin({"explain", "claim/c", "-o", "json"}).out);
  EXPECT_EQ(document["allocation"], "gpu-0 of n1");
  EXPECT_EQ(document["notPrepared"], json::array({"Pod p: the MPS control daemon is starting"}));
}

TEST_F(KubectlPlugin, DoctorReadsTheCluster) {
  const auto node = [](const std::string& name, const std::string& count) {
    return json{{"metadata", {{"name", name}}},
                {"status",
                 {{"conditions", {{{"type", "Ready"}, {"status", "True"}}}},
                  {"capacity", {{"nvidia.com/gpu", count}}},
                  {"allocatable", {{"nvidia.com/gpu", count}}}}}};
  };
  const auto agent = [](const std::string& name, const std::string& on) {
    return json{
        {"metadata", {{"name", name}, {"namespace", "gpulet"}}},
        {"spec", {{"nodeName", on}, {"containers", {{{"image", "gpulet:1"}}}}}},
        {"status", {{"phase", "Running"}, {"conditions", {{{"type", "Ready"}, {"status", "True"}}}}}}};
  };
  replies_["GET /api/v1/nodes?limit"] = {200, list_of(json::array({node("n1", "1"), node("n2", "4")}))};
  replies_["GET /api/v1/pods?labelSelector=app.kubernetes.io%2Fname%3Dgpulet&"] = {
      200, list_of(json::array({agent("a", "n1"), agent("b", "n2")}))};
  const std::string services = "GET /api/v1/namespaces/gpulet/services/";
  replies_[services + "gpulet-scheduler:9410/proxy/readyz"] = {400, "this port speaks HTTPS\n"};
  replies_[services + "https:gpulet-scheduler:9410/proxy/readyz"] = {503, "the lists are not complete\n"};
  const auto report = json::parse(run_plugin({"doctor", "-o", "json"}).out);
  std::string verdicts;
  for (const auto& check : report["checks"])
    verdicts += check["id"].get<std::string>() + "=" + check["verdict"].get<std::string>() + " ";
  EXPECT_EQ(verdicts, "agents=pass gpu-nodes=pass versions=pass scheduler=fail gpu-health=fail ");
  EXPECT_EQ(run_plugin({"doctor"}).exit_code, 1);
  replies_[services + "https:gpulet-scheduler:9410/proxy/readyz"] = {200, "ok\n"};
  replies_[kGpuNodes] = {200, list_of(json::array({gpu_node_object("n1", scheduler::test_node(1, 1)),
                                                   gpu_node_object("n2", shared_node())}))};
  const auto sound = run_plugin({"doctor"});
  EXPECT_EQ(sound.exit_code, 0) << sound.out;
  EXPECT_THAT(sound.out, HasSubstr("No fault found that keeps a Pod from a GPU of this cluster."));
}

TEST_F(KubectlPlugin, DoctorWithoutAnyPermissionFails) {
  replies_["GET /"] = {403, "{}"};
  const auto output = run_plugin({"doctor"});
  EXPECT_EQ(output.exit_code, 1);
  EXPECT_THAT(output.out, HasSubstr("unknown"));
  EXPECT_EQ(run_plugin({"doctor", "--service", ""}).exit_code, 1) << "what is skipped was not checked";
}

TEST_F(KubectlPlugin, WatchPrintsChanges) {
  std::atomic<bool> changes = false;
  const auto watch_reply = [&](Stream& stream) {
    while (!changes && stream.wait_open(20)) continue;
    auto object = gpu_node_object("n1", scheduler::test_node(2, 2));
    object["metadata"]["resourceVersion"] = "8";
    stream.chunk(json{{"type", "MODIFIED"}, {"object", object}}.dump() + "\n");
    return stream.wait_open(60'000) || true;
  };
  replies_[std::string(kGpuNodes) + "?watch=true"] = {.status = 200, .script = watch_reply};
  ClusterGpuOptions options{.view = GpuView::kHealth, .watch = true};
  std::mutex mutex;
  std::string printed;
  const auto ends_with = [&](const std::string& text) {
    return k8s::eventually([&] {
      const std::lock_guard lock(mutex);
      return printed.ends_with(text);
    });
  };
  std::optional<ClusterGpuWatcher> watcher;
  call_on_loop([&] {
    watcher.emplace(loop_, options, client_config(), GpuSelection{.attention_only = true},
                    [&](const std::string& text) {
                      const std::lock_guard lock(mutex);
                      printed += text;
                    });
  });
  EXPECT_TRUE(ends_with("fallen off the bus\n"));
  changes = true;
  EXPECT_TRUE(ends_with("bus\nn1  1  H100 80GB HBM3  healthy  -\n")) << printed;
  call_on_loop([&] { watcher.reset(); });
}

TEST(KubectlComplete, PrintsWhatKubectlReads) {
  const auto complete = [](std::vector<std::string> words) {
    return run_main(plugin_complete_main, std::move(words)).out;
  };
  EXPECT_EQ(complete({"hea"}), "health\tShow the GPUs that are out of service or flagged, and why\n:4\n");
  EXPECT_THAT(complete({""}), HasSubstr("doctor\t"));
  EXPECT_EQ(complete({"list", "-o", "na"}), "name\t\n:4\n");
  EXPECT_EQ(complete({"list", "--kubeconfig", ""}), ":0\n") << "a file";
}

}  // namespace
}  // namespace gpulet::cli::kubectl

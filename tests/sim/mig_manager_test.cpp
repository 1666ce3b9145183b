// `nvidia-mig-manager` as a process, on the simulated driver and against an API server that plays the GPU
// operator: an operand's Pod is there while its label says so.
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "tests/sim/node_api.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

constexpr const char* kConfig = "nvidia.com/mig.config";
constexpr const char* kState = "nvidia.com/mig.config.state";
constexpr const char* kPlugin = "nvidia.com/gpu.deploy.device-plugin";
constexpr const char* kExporter = "nvidia.com/gpu.deploy.dcgm-exporter";
constexpr const char* kPaused = "paused-for-mig-change";

class SimMigManager : public NodeTest {
 protected:
  void SetUp() override {
    bring_up_node();
    api_ = std::make_unique<NodeApi>(sim_node().directory(),
                                     [this](const k8s::Received& request) { return reply_to(request); });
    set_label(kPlugin, "true");
    set_label(kExporter, "false");
  }

  void start_manager() {
    start_agent({.name = "nvidia-mig-manager",
                 .environment = {"NODE_NAME=node-1", "KUBECONFIG=" + api_->kubeconfig(),
                                 "DEFAULT_GPU_CLIENTS_NAMESPACE=gpu-operator", "WITH_REBOOT=false"}});
  }
  void set_label(const std::string& key, const std::string& value) {
    {
      const std::lock_guard lock(labels_mutex_);
      labels_[key] = value;
    }
    api_->set_label(key, value);
  }
  std::string label(const std::string& key) {
    const std::lock_guard lock(labels_mutex_);
    return labels_[key];
  }
  bool becomes(const std::string& key, const std::string& value) {
    return becomes_true([&] { return label(key) == value; });
  }
  // The values that a label was given, in order.
  std::vector<std::string> history(const std::string& key) {
    const std::lock_guard lock(labels_mutex_);
    return history_[key];
  }
  std::size_t mig_devices(std::uint32_t gpu) {
    std::size_t count = 0;
    const auto machine = machine_state().lock_for_read();
    for (const auto& instance : machine->gpus[gpu].mig.instances) count += instance.used ? 1 : 0;
    return count;
  }

 private:
  std::optional<k8s::TestApiServer::Reply> reply_to(const k8s::Received& request) {
    const std::string line = request.line();
    if (line.starts_with("PATCH /api/v1/nodes/node-1")) {
      const auto patch = parse_json(request.body);
      const auto labels =
          patch.value("metadata", nlohmann::json::object()).value("labels", nlohmann::json::object());
      for (const auto& [key, value] : labels.items()) {
        const std::string text = value.is_string() ? value.get<std::string>() : "";
        {
          const std::lock_guard lock(labels_mutex_);
          history_[key].push_back(text);
        }
        set_label(key, text);
      }
      return std::nullopt;
    }
    if (line.starts_with("GET /api/v1/namespaces/gpu-operator/pods?")) {
      const bool asked = line.find("nvidia-device-plugin-daemonset") != std::string::npos;
      const bool there = label(kPlugin) == "true";
      const std::string pod =
          R"({"metadata":{"namespace":"gpu-operator","name":"nvidia-device-plugin-daemonset-x","uid":"1"}})";
      return k8s::TestApiServer::Reply{200,
                                       R"({"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[)" +
                                           (asked && there ? pod : "") + "]}"};
    }
    return std::nullopt;
  }

  std::mutex labels_mutex_;
  std::map<std::string, std::string> labels_;
  std::map<std::string, std::vector<std::string>> history_;
  // Last: its threads use the others. No optional: the manager still sends requests while this ends, and
  // reply_to() must read a pointer that stays as it is until those threads have ended.
  std::unique_ptr<NodeApi> api_;
};

TEST_F(SimMigManager, ChangesMigWhileTheOperandsArePaused) {
  set_label(kConfig, "all-1g.10gb");
  start_manager();
  ASSERT_TRUE(becomes(kState, "success")) << agent_log();
  for (std::uint32_t gpu = 0; gpu < gpu_count(); ++gpu) EXPECT_EQ(mig_devices(gpu), 7u) << gpu;
  EXPECT_EQ(history(kPlugin), (std::vector<std::string>{kPaused, "true"}));
  EXPECT_TRUE(history(kExporter).empty()) << "what is not deployed is not touched";
  EXPECT_EQ(history(kState), (std::vector<std::string>{"pending", "success"}));

  set_label(kConfig, "all-disabled");
  ASSERT_TRUE(becomes_true([&] { return history(kState).size() == 4; })) << agent_log();
  EXPECT_EQ(label(kState), "success");
  EXPECT_EQ(mig_devices(0), 0u);
  EXPECT_EQ(label(kPlugin), "true");
}

TEST_F(SimMigManager, FailsWithoutStoppingAnythingForAnUnknownLayout) {
  set_label(kConfig, "all-9g.90gb");
  start_manager();
  ASSERT_TRUE(becomes(kState, "failed")) << agent_log();
  EXPECT_TRUE(history(kPlugin).empty());
  EXPECT_EQ(mig_devices(0), 0u);
  EXPECT_NE(agent_log().find("all-9g.90gb"), std::string::npos) << agent_log();
}

TEST_F(SimMigManager, AnOperandPausedByAnEarlierProcessReturns) {
  set_label(kConfig, "all-disabled");
  set_label(kPlugin, kPaused);
  start_manager();
  ASSERT_TRUE(becomes(kPlugin, "true")) << agent_log();
  EXPECT_TRUE(becomes(kState, "success")) << agent_log();
}

}  // namespace
}  // namespace gpulet::tests

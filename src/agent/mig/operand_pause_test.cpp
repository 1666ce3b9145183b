#include "agent/mig/operand_pause.h"

#include <gtest/gtest.h>

#include "agent/mig/test_mig.h"

namespace gpulet::agent {
namespace {

using Labels = std::map<std::string, std::string>;

constexpr const char* kPlugin = "nvidia.com/gpu.deploy.device-plugin";
constexpr const char* kDcgm = "nvidia.com/gpu.deploy.dcgm";
constexpr const char* kExporter = "nvidia.com/gpu.deploy.dcgm-exporter";
constexpr const char* kClient = "nvidia.com/gpu.deploy.client";

// The Pods of an operator's namespace: an operand's go when its label is no longer "true".
class FakeOperandPods final : public k8s::NodePods {
 public:
  FakeOperandPods(ManualLoop& loop, std::vector<std::string>& log) : loop_(loop), log_(log) {}
  void list_pods(const k8s::PodSelection& selection,
                 std::function<void(Result<std::vector<PodRef>>)> done) override {
    loop_.post([this, selection, done = std::move(done)] {
      if (broken) return done(fail(Code::kPermissionDenied, "it needs list on pods"));
      std::vector<PodRef> found;
      for (const auto& app : running) {
        const bool client = app == "client";
        if (client != !selection.node_selector_key.empty()) continue;
        if (client || selection.label_selector.find(app) != std::string::npos)
          found.push_back({"gpu-operator", app, "uid-" + app});
      }
      done(std::move(found));
    });
  }
  void delete_pods(std::vector<PodRef> pods, std::function<void(Status)> done) override {
    for (const auto& pod : pods) {
      log_.push_back("delete " + pod.name);
      running.erase(pod.name);
    }
    loop_.post([done = std::move(done)] { done({}); });
  }

  std::set<std::string> running;
  bool broken = false;

 private:
  ManualLoop& loop_;
  std::vector<std::string>& log_;
};

class OperandPauseTest : public testing::Test {
 protected:
  OperandPauseTest() {
    pods_.running = {"nvidia-device-plugin-daemonset", "nvidia-dcgm-exporter", "nvidia-cuda-validator",
                     "nvidia-operator-validator"};
    hardware_.on_apply = [this](std::size_t gpu) {
      log_.push_back("apply " + std::to_string(gpu));
      at_apply_ = node_;
    };
    start_process();
  }

  void start_process() {
    manager_.reset();
    pause_.emplace(
        OperandPorts{.loop = loop_,
                     .pods = pods_,
                     .name_space = "gpu-operator",
                     .set_label = [this](const auto& key, const auto& value) { patch(key, value); },
                     .renew_specs =
                         [this] {
                           log_.push_back("renew");
                           return renewal_;
                         }},
        1);
    manager_.emplace(
        MigPorts{.loop = loop_,
                 .hardware = hardware_,
                 .reporter = events_,
                 .pods = [this](auto done) { loop_.post([done] { done(mig::PodsByDevice()); }); },
                 .layouts = [](const auto& name, auto gpus) { return mig::derived_layouts(name, gpus); },
                 .withdraw = [](const auto&) {},
                 .request_snapshot = [this] { update(); },
                 .publish_state =
                     [this](std::string_view state) {
                       if (!manager_->is_busy()) pause_->end_round(state);
                     },
                 .hooks = &*pause_},
        1);
  }
  // The API server takes the label, its watch shows it on the next turn, and the operands follow.
  void patch(const std::string& key, const std::string& value) {
    log_.push_back(key.substr(key.rfind('/') + 1) + "=" + value);
    node_[key] = value;
    loop_.post([this] {
      if (stays_.empty() && node_[kPlugin] != "true") pods_.running.erase("nvidia-device-plugin-daemonset");
      if (node_[kExporter] != "true") pods_.running.erase("nvidia-dcgm-exporter");
      if (node_[kPlugin] == "true") pods_.running.insert("nvidia-device-plugin-daemonset");
      pause_->set_labels(node_);
    });
  }
  void update() {
    std::vector<MigTarget> targets;
    for (std::size_t i = 0; i < 2; ++i)
      targets.push_back({hardware_.mig_state(i).uuid, layout_, std::nullopt, "the label " + layout_, true});
    manager_->set_targets(targets, hardware_.make_snapshot());
  }
  void ask_for(const std::string& layout, Duration time = std::chrono::seconds(30)) {
    layout_ = layout;
    pause_->set_labels(node_);
    update();
    loop_.advance(time);
  }
  std::size_t at(const std::string& line) const {
    return static_cast<std::size_t>(std::ranges::find(log_, line) - log_.begin());
  }
  bool has(const std::string& line) const { return at(line) < log_.size(); }
  std::string state() const { return node_.at(kMigStateLabel); }

  ManualLoop loop_;
  FakeHardware hardware_{loop_};
  RecordedEvents events_;
  std::vector<std::string> log_;
  FakeOperandPods pods_{loop_, log_};
  Labels node_{{kPlugin, "true"}, {kExporter, "true"}, {kDcgm, "false"}}, at_apply_;
  std::string layout_, stays_;
  Status renewal_;
  std::optional<OperandPause> pause_;
  std::optional<MigManager> manager_;
};

TEST_F(OperandPauseTest, StopsTheOperandsForAChangeAndBringsThemBack) {
  ask_for("all-balanced");
  EXPECT_EQ(hardware_.mig_state(0).instances.size(), 4u);
  EXPECT_EQ(hardware_.mig_state(1).instances.size(), 4u);
  EXPECT_EQ(at_apply_[kPlugin], "paused-for-mig-change");
  EXPECT_EQ(at_apply_[kMigStateLabel], "pending");
  EXPECT_EQ(node_,
            (Labels{{kPlugin, "true"}, {kExporter, "true"}, {kDcgm, "false"}, {kMigStateLabel, "success"}}))
      << "absent labels stay absent, and \"false\" stays";
  EXPECT_EQ(at("mig.config.state=pending"), 0u);
  EXPECT_LT(at("delete nvidia-cuda-validator"), at("apply 0"));
  EXPECT_LT(at("apply 1"), at("renew"));
  EXPECT_LT(at("renew"), at("delete nvidia-operator-validator"));
  EXPECT_LT(at("delete nvidia-operator-validator"), at("gpu.deploy.device-plugin=true"));
  EXPECT_LT(at("gpu.deploy.device-plugin=true"), at("mig.config.state=success"));
  EXPECT_EQ(std::ranges::count(log_, "renew"), 1);
}

TEST_F(OperandPauseTest, AnAppliedLayoutStopsNothing) {
  ask_for("all-disabled");
  EXPECT_EQ(log_, std::vector<std::string>{"mig.config.state=success"});
}

TEST_F(OperandPauseTest, AnUnknownLayoutFailsAndStopsNothing) {
  ask_for("all-balancd");
  EXPECT_EQ(log_, std::vector<std::string>{"mig.config.state=failed"});
}

TEST_F(OperandPauseTest, PodsThatStayFailTheChangeAndTheLabelsReturn) {
  stays_ = "nvidia-device-plugin-daemonset";
  ask_for("all-balanced", kOperandPauseLimit - std::chrono::seconds(1));
  EXPECT_EQ(state(), "pending");
  EXPECT_EQ(node_[kPlugin], "paused-for-mig-change");
  loop_.advance(std::chrono::seconds(10));
  EXPECT_EQ(state(), "failed");
  EXPECT_EQ(node_[kPlugin], "true");
  EXPECT_EQ(node_[kExporter], "true");
  EXPECT_TRUE(hardware_.applied.empty());
  EXPECT_FALSE(has("delete nvidia-operator-validator"));
  ASSERT_GE(events_.count_events("MigHookFailed"), 1u);
  EXPECT_NE(events_.recorded.front().second.find("gpu-operator/nvidia-device-plugin-daemonset"),
            std::string::npos);

  // Tried again by itself, but not at once.
  log_.clear();
  loop_.advance(std::chrono::seconds(15));
  EXPECT_FALSE(has("gpu.deploy.device-plugin=paused-for-mig-change"));
  stays_.clear();
  loop_.advance(std::chrono::minutes(5));
  EXPECT_EQ(state(), "success");
  EXPECT_EQ(node_[kPlugin], "true");
}

TEST_F(OperandPauseTest, AFailureOfTheDriverBringsTheOperandsBack) {
  hardware_.fail_next = true;
  layout_ = "all-balanced";
  ask_for("all-balanced", std::chrono::seconds(5));
  EXPECT_EQ(state(), "failed");
  EXPECT_EQ(node_[kPlugin], "true");
  loop_.advance(std::chrono::minutes(5));
  EXPECT_EQ(state(), "success");
  EXPECT_EQ(hardware_.mig_state(0).instances.size(), 4u);
}

TEST_F(OperandPauseTest, AListThatFailsIsTriedAgain) {
  pods_.broken = true;
  ask_for("all-balanced", std::chrono::seconds(30));
  EXPECT_EQ(state(), "pending");
  pods_.broken = false;
  loop_.advance(std::chrono::seconds(30));
  EXPECT_EQ(state(), "success");
}

TEST_F(OperandPauseTest, ASpecThatCannotBeWrittenFailsTheChangeAndIsRetried) {
  renewal_ = fail(Code::kIo, "no space left");
  ask_for("all-balanced", std::chrono::seconds(5));
  EXPECT_EQ(state(), "failed");
  EXPECT_EQ(node_[kPlugin], "true");
  renewal_ = {};
  loop_.advance(std::chrono::minutes(3));
  EXPECT_EQ(state(), "success");
}

TEST_F(OperandPauseTest, ARestartWhileThePodsGoContinues) {
  stays_ = "nvidia-device-plugin-daemonset";
  ask_for("all-balanced", std::chrono::seconds(5));
  ASSERT_EQ(node_[kPlugin], "paused-for-mig-change");
  start_process();
  stays_.clear();
  pods_.running.erase("nvidia-device-plugin-daemonset");
  ask_for("all-balanced");
  EXPECT_EQ(state(), "success");
  EXPECT_EQ(node_[kPlugin], "true");
  EXPECT_EQ(node_[kExporter], "true");
  EXPECT_EQ(hardware_.mig_state(0).instances.size(), 4u);
}

TEST_F(OperandPauseTest, ARestartAfterTheChangeCompletesIt) {
  ask_for("all-balanced");
  node_[kPlugin] = "paused-for-mig-change";  // as if the process had ended before
  pods_.running.insert("nvidia-operator-validator");
  log_.clear();
  start_process();
  ask_for("all-balanced");
  EXPECT_EQ(log_, (std::vector<std::string>{"renew", "delete nvidia-operator-validator",
                                            "gpu.deploy.device-plugin=true", "mig.config.state=success"}));
}

TEST_F(OperandPauseTest, WithoutADriverOrALayoutThePausedLabelsReturn) {
  node_[kPlugin] = "paused-for-mig-change";
  pause_->set_labels(node_);
  loop_.advance(std::chrono::seconds(1));
  EXPECT_TRUE(log_.empty()) << "a round may follow";
  pause_->abandon_round();
  loop_.advance(std::chrono::seconds(1));
  EXPECT_EQ(log_, std::vector<std::string>{"gpu.deploy.device-plugin=true"});
}

TEST_F(OperandPauseTest, APauseOfTheDriverManagerIsLeft) {
  node_[kExporter] = "paused-for-driver-upgrade";
  ask_for("all-balanced");
  EXPECT_EQ(node_[kExporter], "paused-for-driver-upgrade");
  EXPECT_EQ(node_[kPlugin], "true");
  // The driver manager puts back what it had found during a change.
  node_[kPlugin] = "paused-for-mig-change";
  pause_->set_labels(node_);
  loop_.advance(std::chrono::seconds(1));
  EXPECT_EQ(node_[kPlugin], "true");
}

TEST_F(OperandPauseTest, WaitsForTheClientsOfEveryNamespace) {
  node_[kClient] = "true";
  pods_.running.insert("client");
  ask_for("all-balanced");
  EXPECT_EQ(state(), "pending");
  pods_.running.erase("client");
  loop_.advance(std::chrono::seconds(30));
  EXPECT_EQ(state(), "success");
  EXPECT_EQ(node_[kClient], "true");
}

TEST_F(OperandPauseTest, AnotherLabelWhileThePodsGoIsTheOneApplied) {
  stays_ = "nvidia-device-plugin-daemonset";
  ask_for("all-balanced", std::chrono::seconds(5));
  layout_ = "all-1g.10gb";
  update();
  stays_.clear();
  pods_.running.erase("nvidia-device-plugin-daemonset");
  loop_.advance(std::chrono::minutes(1));
  EXPECT_EQ(state(), "success");
  EXPECT_EQ(node_[kPlugin], "true");
  EXPECT_EQ(hardware_.mig_state(0).instances.size(), 7u);
}

}  // namespace
}  // namespace gpulet::agent

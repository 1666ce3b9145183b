#include "agent/publish/label_controller.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/loop.h"
#include "config/load.h"
#include "k8s/test_api.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using Labels = std::map<std::string, std::string>;

inventory::SnapshotPtr one_gpu_snapshot(std::size_t gpus, std::size_t migs = 0) {
  auto snapshot = std::make_shared<inventory::Snapshot>();
  snapshot->driver = {"570.124.06", 12080};
  for (unsigned i = 0; i < gpus; ++i) {
    inventory::Gpu gpu;
    gpu.index = i;
    gpu.uuid = DeviceUuid("GPU-" + std::to_string(i));
    gpu.model = "NVIDIA L40S";
    gpu.mig_enabled = i == 0 && migs > 0;
    for (unsigned m = 0; gpu.mig_enabled && m < migs; ++m) {
      inventory::MigDevice mig;
      mig.index = m;
      mig.uuid = DeviceUuid("MIG-" + std::to_string(m));
      mig.profile = "1g.10gb";
      mig.compute_slices = mig.gpu_slices = 1;
      gpu.mig_devices.push_back(mig);
    }
    snapshot->gpus.push_back(gpu);
  }
  snapshot->pcie.resize(gpus * gpus);
  return snapshot;
}

config::Config config_of(const std::string& yaml) {
  config::Sources sources;
  sources.file_path = "node.yaml";
  sources.file_content = yaml;
  sources.drop_in = sources.discovery = true;
  auto loaded = config::load(sources);
  EXPECT_TRUE(loaded) << loaded.error().full_message();
  return loaded ? std::move(loaded->config) : config::Config();
}

constexpr const char* kToPrint =
    "flags: {migStrategy: mixed, useNodeFeatureAPI: false, gfd: {outputFile: '', noTimestamp: true}}\n";

// With a manual clock, and standard output as the only output.
class LabelControllerTest : public testing::Test {
 protected:
  LabelControllerTest() : controller_(ports(), config_of(kToPrint)) {}
  LabelControllerPorts ports() {
    return {.loop = loop_,
            .access = std::nullopt,
            .feature = {},
            .print = [this](const std::string& text) { printed_.push_back(text); },
            .settled = [this] { ++settled_; }};
  }
  std::string printed(const std::string& key) const {
    const auto& text = printed_.back();
    const auto at = text.find(key + "=");
    return at == std::string::npos ? "(absent)"
                                   : text.substr(at, text.find('\n', at) - at).substr(key.size() + 1);
  }

  ManualLoop loop_;
  std::vector<std::string> printed_;
  int settled_ = 0;
  LabelController controller_;
};

TEST_F(LabelControllerTest, ABurstIsPublishedOnce) {
  for (std::size_t gpus = 1; gpus <= 8; ++gpus) controller_.on_node_changed(one_gpu_snapshot(gpus), true, {});
  EXPECT_TRUE(printed_.empty());
  loop_.advance(kLabelDelay);
  ASSERT_EQ(printed_.size(), 1u);
  EXPECT_EQ(printed("nvidia.com/gpu.count"), "8");
  EXPECT_EQ(settled_, 1);
  EXPECT_EQ(loop_.pending_timers(), 0u) << "nothing is polled";
}

TEST_F(LabelControllerTest, UnchangedLabelsAreNotPublished) {
  controller_.on_node_changed(one_gpu_snapshot(8), true, {});
  loop_.advance(1s);
  controller_.on_node_changed(one_gpu_snapshot(8), true, {{"kubernetes.io/hostname", "node-1"}});
  loop_.advance(1s);
  EXPECT_EQ(printed_.size(), 1u);
}

TEST_F(LabelControllerTest, MigChangeIsPublishedImmediately) {
  controller_.on_node_changed(one_gpu_snapshot(2), true, {});
  loop_.advance(1s);
  EXPECT_EQ(printed("nvidia.com/mig-1g.10gb.count"), "(absent)");
  controller_.on_node_changed(one_gpu_snapshot(2, 7), true, {});
  loop_.advance(kLabelDelay);
  EXPECT_EQ(printed("nvidia.com/mig-1g.10gb.count"), "7");
  EXPECT_EQ(printed("nvidia.com/gpu.replicas"), "1") << "the other GPU is whole";
  controller_.on_node_changed(one_gpu_snapshot(2), true, {});
  loop_.advance(kLabelDelay);
  EXPECT_EQ(printed("nvidia.com/mig-1g.10gb.count"), "(absent)");
}

TEST_F(LabelControllerTest, AChangedConfigIsPublished) {
  controller_.on_node_changed(one_gpu_snapshot(2), true, {});
  loop_.advance(1s);
  controller_.apply_label_config(
      config_of(kToPrint + std::string("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}")));
  loop_.advance(kLabelDelay);
  EXPECT_EQ(printed("nvidia.com/gpu.product"), "NVIDIA-L40S-SHARED");
}

TEST_F(LabelControllerTest, TheTimestampIsThatOfTheConfig) {
  const std::string yaml = "flags: {useNodeFeatureAPI: false, gfd: {outputFile: ''}}";
  loop_.advance(100s);
  LabelController controller(ports(), config_of(yaml));
  controller.on_node_changed(one_gpu_snapshot(1), true, {});
  loop_.advance(10s);
  EXPECT_EQ(printed("nvidia.com/gfd.timestamp"), "100");
  controller.on_node_changed(one_gpu_snapshot(2), true, {});
  loop_.advance(10s);
  EXPECT_EQ(printed("nvidia.com/gfd.timestamp"), "100") << "once for each";
  controller.apply_label_config(config_of(yaml));
  loop_.advance(1s);
  EXPECT_EQ(printed("nvidia.com/gfd.timestamp"), "120");
}

TEST_F(LabelControllerTest, LabelsStayWhileTheDriverIsUnavailable) {
  controller_.on_node_changed(one_gpu_snapshot(2), true, {});
  loop_.advance(1s);
  const auto before = *controller_.published_labels();
  auto unreadable = std::make_shared<inventory::Snapshot>(*one_gpu_snapshot(2));
  for (auto& gpu : unreadable->gpus) gpu.unreadable = Error(Code::kUnavailable, "no driver");
  for (int i = 0; i < 10; ++i) {
    controller_.on_node_changed(unreadable, false, {});
    loop_.advance(kGpusGone / 11);
  }
  EXPECT_EQ(controller_.published_labels(), before);
  controller_.on_node_changed(one_gpu_snapshot(2), true, {});
  loop_.advance(kGpusGone * 2);
  EXPECT_EQ(controller_.published_labels(), before) << "it came back in time";
  EXPECT_EQ(printed_.size(), 1u);
}

TEST_F(LabelControllerTest, LabelsAreRemovedWithTheGpus) {
  controller_.on_node_changed(one_gpu_snapshot(2), true, {});
  loop_.advance(1s);
  controller_.on_node_changed(one_gpu_snapshot(2), false, {});
  loop_.advance(kGpusGone + 1s);
  EXPECT_EQ(controller_.published_labels(), Labels());
  controller_.on_node_changed(one_gpu_snapshot(2), true, {});
  loop_.advance(1s);
  EXPECT_FALSE(controller_.published_labels()->empty());
  controller_.on_node_changed(one_gpu_snapshot(0), true, {});
  loop_.advance(1s);
  EXPECT_EQ(controller_.published_labels(), Labels()) << "the driver says so";
}

TEST_F(LabelControllerTest, WithoutADriverLabelsOfAnEarlierRunAreRemoved) {
  controller_.on_node_changed(nullptr, false, {});
  loop_.advance(kGpusGone - 1s);
  EXPECT_FALSE(controller_.published_labels());
  loop_.advance(2s);
  EXPECT_EQ(controller_.published_labels(), Labels());
}

// With an API server, a file and real time.
class LabelOutputTest : public k8s::ApiTest {
 protected:
  using json = nlohmann::json;
  void release_source() override { controller_.reset(); }
  void begin(const std::string& outputs) {
    start_server([this](const k8s::Received& request) {
      std::lock_guard lock(mutex_);
      return respond_to(request);
    });
    call_on_loop([&] {
      controller_.emplace(LabelControllerPorts{.loop = loop_,
                                               .access = client_config(),
                                               .feature = {"gpu", ""},
                                               .print = {},
                                               .settled = [this] { ++settled_; }},
                          config_with_output(outputs),
                          k8s::SendTiming{.request_limit = 10s, .backoff = {1ms, 5ms}});
    });
  }
  config::Config config_with_output(const std::string& outputs) const {
    return config_of("flags: {migStrategy: mixed, gfd: {noTimestamp: true, outputFile: " + label_path() +
                     "}}\ngpulet: {labels: {outputs: [" + outputs + "]}}");
  }
  std::string label_path() const { return directory_ + "/features.d/gfd"; }
  Reply respond_to(const k8s::Received& request) {
    if (away_) return {.act = Act::kClose};
    const auto line = request.line();
    if (line.starts_with("GET /api/v1/nodes/node-1")) {
      return {200, json{{"metadata", {{"uid", "u"}, {"labels", on_node_}}}}.dump()};
    }
    if (line.starts_with("PATCH /api/v1/nodes/node-1?")) {
      on_node_ = json::parse(request.body)["metadata"]["labels"];
      return {200};
    }
    if (line.starts_with("GET ")) return feature_.is_null() ? Reply{404} : Reply{200, feature_.dump()};
    feature_ = json::parse(request.body);
    return {line.starts_with("POST") ? 201 : 200};
  }
  void update_controller(inventory::SnapshotPtr snapshot, bool answers = true,
                         const Labels& node_labels = {}) {
    call_on_loop([&] { controller_->on_node_changed(std::move(snapshot), answers, node_labels); });
  }
  bool wait_settled() {
    return k8s::eventually([&] {
      bool waiting = true;
      call_on_loop([&] { waiting = controller_->has_pending_outputs(); });
      return !waiting;
    });
  }
  json on_node() {
    std::lock_guard lock(mutex_);
    return on_node_;
  }
  json feature() {
    std::lock_guard lock(mutex_);
    return feature_;
  }

  std::mutex mutex_;
  bool away_ = false;
  json on_node_ = json::object(), feature_;
  std::atomic<int> settled_ = 0;
  std::optional<LabelController> controller_;
};

TEST_F(LabelOutputTest, AllOutputsHaveTheSameLabels) {
  begin("node, node-feature, file");
  update_controller(one_gpu_snapshot(4, 7));
  ASSERT_TRUE(wait_settled());
  const auto text = read_file(label_path());
  ASSERT_TRUE(text) << text.error().full_message();
  EXPECT_NE(text->find("\nnvidia.com/mig-1g.10gb.count=7\n"), std::string::npos) << *text;
  EXPECT_EQ(std::filesystem::status(label_path()).permissions(), std::filesystem::perms(0644));
  EXPECT_EQ(on_node()["nvidia.com/mig-1g.10gb.count"], "7");
  EXPECT_EQ(feature()["spec"]["labels"], on_node());
  EXPECT_EQ(static_cast<std::size_t>(std::ranges::count(*text, '\n')), on_node().size());
  EXPECT_TRUE(k8s::eventually([&] { return settled_ >= 1; }));

  update_controller(one_gpu_snapshot(4));
  ASSERT_TRUE(wait_settled());
  EXPECT_FALSE(on_node().contains("nvidia.com/mig-1g.10gb.count"));
  EXPECT_EQ(feature()["spec"]["labels"], on_node());
  EXPECT_EQ(read_file(label_path())->find("mig-1g.10gb"), std::string::npos);

  update_controller(one_gpu_snapshot(0));
  ASSERT_TRUE(wait_settled());
  EXPECT_TRUE(on_node().empty());
  EXPECT_FALSE(std::filesystem::exists(label_path()));
}

TEST_F(LabelOutputTest, LabelsStayAfterTheController) {
  begin("node, node-feature, file");
  update_controller(one_gpu_snapshot(4));
  ASSERT_TRUE(wait_settled());
  call_on_loop([&] { controller_.reset(); });
  EXPECT_EQ(on_node()["nvidia.com/gpu.count"], "4");
  EXPECT_TRUE(std::filesystem::exists(label_path()));
}

TEST_F(LabelOutputTest, AnUnavailableServerDelaysNoOtherOutput) {
  away_ = true;
  begin("node, file");
  update_controller(one_gpu_snapshot(4));
  ASSERT_TRUE(k8s::eventually([&] { return std::filesystem::exists(label_path()); }));
  EXPECT_TRUE(on_node().empty());
  ASSERT_TRUE(k8s::eventually([&] {
    std::string trouble;
    call_on_loop([&] { trouble = controller_->last_problem(); });
    return !trouble.empty();
  }));
  {
    std::lock_guard lock(mutex_);
    away_ = false;
  }
  ASSERT_TRUE(wait_settled());
  EXPECT_EQ(on_node()["nvidia.com/gpu.count"], "4");
}

TEST_F(LabelOutputTest, ARemovedOutputIsEmptied) {
  begin("node, file");
  update_controller(one_gpu_snapshot(4));
  ASSERT_TRUE(wait_settled());
  call_on_loop([&] { controller_->apply_label_config(config_with_output("node-feature")); });
  ASSERT_TRUE(wait_settled());
  EXPECT_TRUE(on_node().empty());
  EXPECT_FALSE(std::filesystem::exists(label_path()));
  EXPECT_EQ(feature()["spec"]["labels"]["nvidia.com/gpu.count"], "4");
}

TEST_F(LabelOutputTest, RestoresLabelsRemovedFromTheNode) {
  begin("node");
  const Labels bare = {{"kubernetes.io/hostname", "node-1"}};
  update_controller(one_gpu_snapshot(4), true, bare);
  ASSERT_TRUE(wait_settled());
  Labels all = bare;
  all.merge(on_node().get<Labels>());
  update_controller(one_gpu_snapshot(4), true, all);
  ASSERT_TRUE(wait_settled());
  {
    std::lock_guard lock(mutex_);
    on_node_ = json::object();  // a recreated Node
  }
  update_controller(one_gpu_snapshot(4), true, bare);
  ASSERT_TRUE(wait_settled());
  EXPECT_EQ(on_node()["nvidia.com/gpu.count"], "4");
}

TEST_F(LabelOutputTest, RetriesAFailedFileWrite) {
  std::filesystem::create_directories(label_path());  // a directory in its place
  begin("file");
  update_controller(one_gpu_snapshot(4));
  std::string trouble;
  ASSERT_TRUE(k8s::eventually([&] {
    call_on_loop([&] { trouble = controller_->last_problem(); });
    return !trouble.empty();
  }));
  EXPECT_NE(trouble.find(label_path()), std::string::npos) << trouble;
  std::filesystem::remove(label_path());
  ASSERT_TRUE(wait_settled());
  EXPECT_NE(read_file(label_path())->find("nvidia.com/gpu.count=4\n"), std::string::npos);
}

}  // namespace
}  // namespace gpulet::agent

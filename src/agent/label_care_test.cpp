#include "agent/label_care.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/manual_loop.h"
#include "cluster/test_api.h"
#include "config/load.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using Labels = std::map<std::string, std::string>;

inventory::SnapshotPtr node(std::size_t gpus, std::size_t migs = 0) {
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
  EXPECT_TRUE(loaded) << loaded.error().text();
  return loaded ? std::move(loaded->config) : config::Config();
}

constexpr const char* kToPrint =
    "flags: {migStrategy: mixed, useNodeFeatureAPI: false, gfd: {outputFile: '', noTimestamp: true}}\n";

// On a clock of its own, with standard output as the only output.
class LabelCareTest : public testing::Test {
 protected:
  LabelCareTest() : care_(ports(), config_of(kToPrint)) {}
  LabelCarePorts ports() {
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
  LabelCare care_;
};

TEST_F(LabelCareTest, ABurstIsToldOnce) {
  for (std::size_t gpus = 1; gpus <= 8; ++gpus) care_.update(node(gpus), true, {});
  EXPECT_TRUE(printed_.empty());
  loop_.advance(kLabelDelay);
  ASSERT_EQ(printed_.size(), 1u);
  EXPECT_EQ(printed("nvidia.com/gpu.count"), "8");
  EXPECT_EQ(settled_, 1);
  EXPECT_EQ(loop_.pending_timers(), 0u) << "nothing is polled";
}

TEST_F(LabelCareTest, WhatChangesNothingIsNotTold) {
  care_.update(node(8), true, {});
  loop_.advance(1s);
  care_.update(node(8), true, {{"kubernetes.io/hostname", "node-1"}});
  loop_.advance(1s);
  EXPECT_EQ(printed_.size(), 1u);
}

TEST_F(LabelCareTest, ALiveMigChangeIsToldAtOnce) {
  care_.update(node(2), true, {});
  loop_.advance(1s);
  EXPECT_EQ(printed("nvidia.com/mig-1g.10gb.count"), "(absent)");
  care_.update(node(2, 7), true, {});
  loop_.advance(kLabelDelay);
  EXPECT_EQ(printed("nvidia.com/mig-1g.10gb.count"), "7");
  EXPECT_EQ(printed("nvidia.com/gpu.replicas"), "1") << "the other GPU is whole";
  care_.update(node(2), true, {});
  loop_.advance(kLabelDelay);
  EXPECT_EQ(printed("nvidia.com/mig-1g.10gb.count"), "(absent)");
}

TEST_F(LabelCareTest, AChangedConfigurationIsToldToo) {
  care_.update(node(2), true, {});
  loop_.advance(1s);
  care_.apply(
      config_of(kToPrint + std::string("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}")));
  loop_.advance(kLabelDelay);
  EXPECT_EQ(printed("nvidia.com/gpu.product"), "NVIDIA-L40S-SHARED");
}

TEST_F(LabelCareTest, TheTimestampIsThatOfTheConfiguration) {
  const std::string yaml = "flags: {useNodeFeatureAPI: false, gfd: {outputFile: ''}}";
  loop_.advance(100s);
  LabelCare care(ports(), config_of(yaml));
  care.update(node(1), true, {});
  loop_.advance(10s);
  EXPECT_EQ(printed("nvidia.com/gfd.timestamp"), "100");
  care.update(node(2), true, {});
  loop_.advance(10s);
  EXPECT_EQ(printed("nvidia.com/gfd.timestamp"), "100") << "once for each";
  care.apply(config_of(yaml));
  loop_.advance(1s);
  EXPECT_EQ(printed("nvidia.com/gfd.timestamp"), "120");
}

TEST_F(LabelCareTest, LabelsStayWhileTheDriverIsAway) {
  care_.update(node(2), true, {});
  loop_.advance(1s);
  const auto before = *care_.labels();
  auto unreadable = std::make_shared<inventory::Snapshot>(*node(2));
  for (auto& gpu : unreadable->gpus) gpu.unreadable = Error(Code::kUnavailable, "no driver");
  for (int i = 0; i < 10; ++i) {
    care_.update(unreadable, false, {});
    loop_.advance(kGpusGone / 11);
  }
  EXPECT_EQ(care_.labels(), before);
  care_.update(node(2), true, {});
  loop_.advance(kGpusGone * 2);
  EXPECT_EQ(care_.labels(), before) << "it came back in time";
  EXPECT_EQ(printed_.size(), 1u);
}

TEST_F(LabelCareTest, TheyGoWhenTheGpusAreGone) {
  care_.update(node(2), true, {});
  loop_.advance(1s);
  care_.update(node(2), false, {});
  loop_.advance(kGpusGone + 1s);
  EXPECT_EQ(care_.labels(), Labels());
  care_.update(node(2), true, {});
  loop_.advance(1s);
  EXPECT_FALSE(care_.labels()->empty());
  care_.update(node(0), true, {});
  loop_.advance(1s);
  EXPECT_EQ(care_.labels(), Labels()) << "the driver says so";
}

TEST_F(LabelCareTest, OfANodeThatNeverHadADriverWhatARunBeforeSaidGoes) {
  care_.update(nullptr, false, {});
  loop_.advance(kGpusGone - 1s);
  EXPECT_FALSE(care_.labels());
  loop_.advance(2s);
  EXPECT_EQ(care_.labels(), Labels());
}

// With an API server, a file and real time.
class LabelOutputTest : public cluster::ApiTest {
 protected:
  using json = nlohmann::json;
  void let_go() override { care_.reset(); }
  void begin(const std::string& outputs) {
    serve([this](const cluster::Received& request) {
      std::lock_guard lock(mutex_);
      return answer(request);
    });
    call([&] {
      care_.emplace(LabelCarePorts{.loop = loop_,
                                   .access = access(),
                                   .feature = {"gpu", ""},
                                   .print = {},
                                   .settled = [this] { ++settled_; }},
                    config(outputs), cluster::SendTiming{.request_limit = 10s, .backoff = {1ms, 5ms}});
    });
  }
  config::Config config(const std::string& outputs) const {
    return config_of("flags: {migStrategy: mixed, gfd: {noTimestamp: true, outputFile: " + path() +
                     "}}\ngpulet: {labels: {outputs: [" + outputs + "]}}");
  }
  std::string path() const { return folder_ + "/features.d/gfd"; }
  Reply answer(const cluster::Received& request) {
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
  void update(inventory::SnapshotPtr snapshot, bool answers = true, const Labels& node_labels = {}) {
    call([&] { care_->update(std::move(snapshot), answers, node_labels); });
  }
  bool settled() {
    return cluster::eventually([&] {
      bool waiting = true;
      call([&] { waiting = care_->waiting(); });
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
  std::optional<LabelCare> care_;
};

TEST_F(LabelOutputTest, AllOutputsHaveTheSame) {
  begin("node, node-feature, file");
  update(node(4, 7));
  ASSERT_TRUE(settled());
  const auto text = read_file(path());
  ASSERT_TRUE(text) << text.error().text();
  EXPECT_NE(text->find("\nnvidia.com/mig-1g.10gb.count=7\n"), std::string::npos) << *text;
  EXPECT_EQ(std::filesystem::status(path()).permissions(), std::filesystem::perms(0644));
  EXPECT_EQ(on_node()["nvidia.com/mig-1g.10gb.count"], "7");
  EXPECT_EQ(feature()["spec"]["labels"], on_node());
  EXPECT_EQ(static_cast<std::size_t>(std::ranges::count(*text, '\n')), on_node().size());
  EXPECT_TRUE(cluster::eventually([&] { return settled_ >= 1; }));

  update(node(4));
  ASSERT_TRUE(settled());
  EXPECT_FALSE(on_node().contains("nvidia.com/mig-1g.10gb.count"));
  EXPECT_EQ(feature()["spec"]["labels"], on_node());
  EXPECT_EQ(read_file(path())->find("mig-1g.10gb"), std::string::npos);

  update(node(0));
  ASSERT_TRUE(settled());
  EXPECT_TRUE(on_node().empty());
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(LabelOutputTest, NothingGoesWhenWeDo) {
  begin("node, node-feature, file");
  update(node(4));
  ASSERT_TRUE(settled());
  call([&] { care_.reset(); });
  EXPECT_EQ(on_node()["nvidia.com/gpu.count"], "4");
  EXPECT_TRUE(std::filesystem::exists(path()));
}

TEST_F(LabelOutputTest, AServerThatIsAwayHoldsNothingElseBack) {
  away_ = true;
  begin("node, file");
  update(node(4));
  ASSERT_TRUE(cluster::eventually([&] { return std::filesystem::exists(path()); }));
  EXPECT_TRUE(on_node().empty());
  ASSERT_TRUE(cluster::eventually([&] {
    std::string trouble;
    call([&] { trouble = care_->trouble(); });
    return !trouble.empty();
  }));
  {
    std::lock_guard lock(mutex_);
    away_ = false;
  }
  ASSERT_TRUE(settled());
  EXPECT_EQ(on_node()["nvidia.com/gpu.count"], "4");
}

TEST_F(LabelOutputTest, AnOutputThatIsNoLongerWantedIsEmptied) {
  begin("node, file");
  update(node(4));
  ASSERT_TRUE(settled());
  call([&] { care_->apply(config("node-feature")); });
  ASSERT_TRUE(settled());
  EXPECT_TRUE(on_node().empty());
  EXPECT_FALSE(std::filesystem::exists(path()));
  EXPECT_EQ(feature()["spec"]["labels"]["nvidia.com/gpu.count"], "4");
}

TEST_F(LabelOutputTest, LabelsThatVanishFromTheNodeComeBack) {
  begin("node");
  const Labels bare = {{"kubernetes.io/hostname", "node-1"}};
  update(node(4), true, bare);
  ASSERT_TRUE(settled());
  Labels all = bare;
  all.merge(on_node().get<Labels>());
  update(node(4), true, all);
  ASSERT_TRUE(settled());
  {
    std::lock_guard lock(mutex_);
    on_node_ = json::object();  // a Node made anew
  }
  update(node(4), true, bare);
  ASSERT_TRUE(settled());
  EXPECT_EQ(on_node()["nvidia.com/gpu.count"], "4");
}

TEST_F(LabelOutputTest, AFileThatCannotBeWrittenIsTriedAgain) {
  std::filesystem::create_directories(path());  // a folder in its place
  begin("file");
  update(node(4));
  std::string trouble;
  ASSERT_TRUE(cluster::eventually([&] {
    call([&] { trouble = care_->trouble(); });
    return !trouble.empty();
  }));
  EXPECT_NE(trouble.find(path()), std::string::npos) << trouble;
  std::filesystem::remove(path());
  ASSERT_TRUE(settled());
  EXPECT_NE(read_file(path())->find("nvidia.com/gpu.count=4\n"), std::string::npos);
}

}  // namespace
}  // namespace gpulet::agent

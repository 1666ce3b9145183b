#include "agent/publish/startup_taint.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "k8s/test_api.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using k8s::Received;
using nlohmann::json;

constexpr const char* kStartupKey = "gpulet.io/not-ready";
constexpr const char* kStartupResource = "nvidia.com/gpu";
constexpr const char* kNodePatch = "PATCH /api/v1/nodes/node-1";

StartupState ready_state() {
  return {.config_known = true,
          .driver_answers = true,
          .health_known = true,
          .healthy = {{kStartupResource, 8}},
          .claim_devices = {}};
}

TEST(StartupWaitReason, EachThingThatIsMissing) {
  const std::map<std::string, std::string> eight{{kStartupResource, "8"}, {"cpu", "4"}};
  struct Row {
    const char* what;
    std::function<void(StartupState&)> change;
    std::map<std::string, std::string> allocatable;
    const char* reason;  // a part of it; null: the taint may go
  };
  const Row rows[] = {
      {"all there", [](auto&) {}, eight, nullptr},
      {"labels not read", [](auto& s) { s.config_known = false; }, eight, "labels are not known"},
      {"no driver", [](auto& s) { s.driver_answers = false; }, eight, "driver does not answer"},
      {"no health", [](auto& s) { s.health_known = false; }, eight, "health of the GPUs"},
      {"MIG", [](auto& s) { s.mig_changing = true; }, eight, "MIG layout"},
      {"no resource", [](auto& s) { s.healthy.clear(); }, eight, "no healthy device"},
      {"all unhealthy", [](auto& s) { s.healthy = {{kStartupResource, 0}}; }, eight, "no healthy device"},
      {"the kubelet has not registered it",
       [](auto&) {},
       {{"cpu", "4"}},
       "nvidia.com/gpu is not allocatable"},
      {"zero", [](auto&) {}, {{kStartupResource, "0"}}, "nvidia.com/gpu is not allocatable"},
      {"no quantity", [](auto&) {}, {{kStartupResource, ""}}, "nvidia.com/gpu is not allocatable"},
      {"one of two", [](auto& s) { s.healthy["nvidia.com/mig-1g.10gb"] = 7; }, eight, "mig-1g.10gb is not"},
      {"the other has only faults", [](auto& s) { s.healthy["nvidia.com/mig-1g.10gb"] = 0; }, eight, nullptr},
      {"no slices", [](auto& s) { s.claim_devices = 0; }, eight, "ResourceSlices"},
      {"slices", [](auto& s) { s.claim_devices = 8, s.healthy.clear(); }, {}, nullptr},
      {"slices, and a resource that the kubelet has not registered",
       [](auto& s) { s.claim_devices = 4; },
       {},
       "not allocatable"},
      {"slices, and a resource", [](auto& s) { s.claim_devices = 4; }, eight, nullptr},
      {"slices without a driver",
       [](auto& s) { s.claim_devices = 8, s.driver_answers = false; },
       {},
       "driver"},
      {"every GPU is excluded",
       [](auto& s) { s.all_excluded = true, s.healthy.clear(); },
       {{"cpu", "4"}},
       nullptr},
      {"no GPU", [](auto& s) { s = {.config_known = true, .without_gpu = true}; }, {}, nullptr},
      {"no GPU as far as is known", [](auto& s) { s = {.without_gpu = true}; }, {}, "not known"},
  };
  for (const auto& [what, change, allocatable, wanted] : rows) {
    auto state = ready_state();
    change(state);
    const auto reason = startup_wait_reason(state, allocatable);
    ASSERT_EQ(reason.has_value(), wanted != nullptr) << what << ": " << reason.value_or("");
    if (reason) {
      EXPECT_NE(reason->find(wanted), std::string::npos) << what << ": " << *reason;
    }
  }
}

// An API server with one Node, whose changes it streams.
class StartupTaintTest : public k8s::ApiTest {
 protected:
  void release_source() override { taint_.reset(); }

  static json other_taint() { return {{"key", "example.com/own"}, {"effect", "NoSchedule"}}; }
  static json startup_taint(const char* effect = "NoSchedule") {
    return {{"key", kStartupKey}, {"effect", effect}};
  }

  void begin() {
    start_server([this](const Received& request) {
      if (request.line() == kNodePatch) return on_write(request);
      const std::lock_guard lock(mutex_);
      if (request.line() == "GET /api/v1/nodes/node-1") return Reply{200, node().dump()};
      EXPECT_TRUE(request.line().starts_with("GET /api/v1/nodes?fieldSelector=metadata.name%3Dnode-1"));
      if (request.line().find("watch=true") == std::string::npos) {
        return Reply{200, json{{"metadata", {{"resourceVersion", std::to_string(version_)}}},
                               {"items", json::array({node()})}}
                              .dump()};
      }
      return Reply{200, "", Act::kRespond, [this, seen = version_](Stream& stream) mutable {
                     while (stream.wait_open(1)) stream_change(stream, seen);
                     return false;
                   }};
    });
    call_on_loop([&] {
      taint_.emplace(
          StartupTaintPorts{.loop = loop_,
                            .access = client_config(),
                            .read_state =
                                [this] {
                                  ++reads_;
                                  const std::lock_guard lock(mutex_);
                                  return state_;
                                },
                            .removed =
                                [this](const std::string& message) {
                                  EXPECT_NE(message.find(kStartupKey), std::string::npos);
                                  ++removed_;
                                }},
          kStartupKey,
          StartupTaintTiming{
              .watch = {10s, 300s, {1ms, 2ms}}, .taints = {{10s, {1ms, 2ms}}, 5min}, .check = 2ms});
    });
  }
  void change(const std::function<void()>& task) {
    const std::lock_guard lock(mutex_);
    task();
    ++version_;
  }
  json taints() {
    const std::lock_guard lock(mutex_);
    return taints_;
  }
  // After some evaluations.
  bool stays_tainted() {
    const int before = reads_;
    EXPECT_TRUE(k8s::eventually([&] { return reads_ >= before + 5; }));
    return request_count(kNodePatch) == 0 && taints().size() == 2;
  }
  bool is_removed() {
    return k8s::eventually([&] { return taints() == json::array({other_taint()}); });
  }

  std::mutex mutex_;
  StartupState state_ = ready_state();
  json taints_ = json::array({other_taint(), startup_taint()});
  json allocatable_ = {{kStartupResource, "8"}};
  std::atomic<int> reads_ = 0, removed_ = 0;
  std::atomic<int> conflicts_ = 0;  // the next writes that are refused
  std::optional<StartupTaint> taint_;

 private:
  json node() const {
    return {{"metadata", {{"name", "node-1"}, {"resourceVersion", std::to_string(version_)}}},
            {"spec", {{"taints", taints_}}},
            {"status", {{"allocatable", allocatable_}}}};
  }
  Reply on_write(const Received& request) {
    const std::lock_guard lock(mutex_);
    if (conflicts_ > 0) {
      --conflicts_;
      return Reply{409, "{}"};
    }
    const auto patch = json::parse(request.body);
    EXPECT_EQ(patch["spec"].size(), 1u);
    taints_ = patch["spec"]["taints"];
    ++version_;
    return Reply{200, "{}"};
  }
  void stream_change(Stream& stream, int& seen) {
    const std::lock_guard lock(mutex_);
    if (std::exchange(seen, version_) != version_)
      stream.chunk(json{{"type", "MODIFIED"}, {"object", node()}}.dump() + "\n");
  }

  int version_ = 1;
};

TEST_F(StartupTaintTest, GoesOnceTheNodeShowsTheResources) {
  allocatable_ = {{kStartupResource, "0"}};
  begin();
  EXPECT_TRUE(stays_tainted());
  change([&] { allocatable_[kStartupResource] = "8"; });
  EXPECT_TRUE(is_removed());
  EXPECT_TRUE(k8s::eventually([&] { return removed_ == 1; }));
}

TEST_F(StartupTaintTest, GoesOnceTheAgentIsReadyWithoutAChangeOfTheNode) {
  state_.driver_answers = false;
  begin();
  EXPECT_TRUE(stays_tainted());
  {
    const std::lock_guard lock(mutex_);
    state_.driver_answers = true;
  }
  EXPECT_TRUE(is_removed());
}

TEST_F(StartupTaintTest, EveryEffectOfTheKeyGoesAndNoOtherTaint) {
  taints_.push_back(startup_taint("NoExecute"));
  begin();
  EXPECT_TRUE(is_removed());
}

TEST_F(StartupTaintTest, IsNeverSet) {
  taints_ = json::array({other_taint()});
  allocatable_ = {{kStartupResource, "0"}};
  begin();
  ASSERT_TRUE(k8s::eventually([&] { return server_->connections() >= 1; }));
  change([&] { allocatable_[kStartupResource] = "8"; });
  // The only write is for a taint that somebody else sets.
  change([&] { taints_.push_back(startup_taint()); });
  EXPECT_TRUE(is_removed());
  EXPECT_TRUE(k8s::eventually([&] { return removed_ == 1; }));
  EXPECT_EQ(request_count(kNodePatch), 1);
}

TEST_F(StartupTaintTest, AConflictWithAnotherWriterIsTriedAgain) {
  conflicts_ = 2;
  begin();
  EXPECT_TRUE(is_removed());
  EXPECT_GE(request_count(kNodePatch), 3);
}

TEST_F(StartupTaintTest, ANodeThatRegistersAgainLosesItAgain) {
  begin();
  ASSERT_TRUE(k8s::eventually([&] { return removed_ == 1; }));
  change([&] {
    taints_.push_back(startup_taint());
    allocatable_ = json::object();
  });
  const int before = reads_;
  ASSERT_TRUE(k8s::eventually([&] { return reads_ >= before + 5; }));
  EXPECT_EQ(taints().size(), 2u);
  change([&] { allocatable_[kStartupResource] = "8"; });
  EXPECT_TRUE(is_removed());
  EXPECT_TRUE(k8s::eventually([&] { return removed_ == 2; }));
}

}  // namespace
}  // namespace gpulet::agent

#include <atomic>
#include <mutex>

#include <nlohmann/json.hpp>

#include "k8s/node_status.h"
#include "k8s/test_api.h"

namespace gpulet::k8s {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using ConditionStatus = Condition::Status;

constexpr const char* kRead = "GET /api/v1/nodes/node-1";
constexpr const char* kWrite = "PATCH /api/v1/nodes/node-1/status";

// An API server that merges conditions as the real one does.
class NodeConditionsTest : public ApiTest {
 protected:
  void release_source() override { status_.reset(); }
  void begin(std::function<std::optional<Reply>(const Received&)> first = {},
             NodeConditionsTiming timing = kFast) {
    start_server([this, first = std::move(first)](const Received& request) {
      std::lock_guard lock(mutex_);
      if (auto reply = first ? first(request) : std::nullopt) return *reply;
      if (request.line() == kRead) return Reply{200, node_.dump()};
      EXPECT_EQ(request.line(), kWrite);
      EXPECT_NE(request.head.find("Content-Type: application/strategic-merge-patch+json\r\n"),
                std::string::npos);
      const json patch = json::parse(request.body);
      for (const auto& one : patch["status"]["conditions"]) merge_patch(one);
      return Reply{200, "{}"};
    });
    call_on_loop([&] { status_ = NodeConditions::start_conditions(loop_, client_config(), timing); });
  }
  void merge_patch(json one) {
    auto& all = node_["status"]["conditions"];
    const auto is = [&](const json& there) { return there["type"] == one["type"]; };
    const auto found = std::find_if(all.begin(), all.end(), is);
    if (one.contains("$patch")) {
      EXPECT_EQ(one["$patch"], "delete");
      EXPECT_NE(found, all.end());
      if (found != all.end()) all.erase(found);
    } else if (found == all.end()) {
      all.push_back(one);
    } else {
      *found = one;
    }
  }
  void set_and_wait(ConditionStatus status, const std::string& message = "",
                    const std::string& type = "GpuHealthy") {
    call_on_loop([&] { status_->set_condition({type, status, "Reason", message}); });
  }
  SendStatus status_now() {
    SendStatus delivery;
    call_on_loop([&] { delivery = status_->condition_status(); });
    return delivery;
  }
  bool wait_until_settled() {
    return eventually([&] { return !status_now().pending; });
  }
  json stored_condition(const std::string& type = "GpuHealthy") {
    std::lock_guard lock(mutex_);
    for (const auto& one : node_["status"]["conditions"]) {
      if (one["type"] == type) return one;
    }
    return nullptr;
  }
  std::ptrdiff_t writes() {
    const auto all = server_->received_requests();
    return std::ranges::count_if(all, [](const auto& one) { return one.line() == kWrite; });
  }

  static constexpr NodeConditionsTiming kFast{.sending = {.request_limit = 10s, .backoff = {1ms, 5ms}},
                                              .heartbeat = 1h};
  std::mutex mutex_;
  json node_ = json::parse(R"({"status": {"conditions": [
      {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})");
  std::unique_ptr<NodeConditions> status_;
};

TEST_F(NodeConditionsTest, ConditionIsMergedWithOthers) {
  begin();
  set_and_wait(ConditionStatus::kFalse, "GPU 3: XID 79\xff");
  ASSERT_TRUE(wait_until_settled());
  const json got = stored_condition();
  EXPECT_EQ(got["status"], "False");
  EXPECT_EQ(got["reason"], "Reason");
  EXPECT_EQ(got["message"], "GPU 3: XID 79\xEF\xBF\xBD");
  EXPECT_LE(got["lastTransitionTime"], got["lastHeartbeatTime"]);
  EXPECT_EQ(got["lastTransitionTime"].get<std::string>().size(), std::string("2026-01-01T00:00:00Z").size());
  EXPECT_EQ(stored_condition("Ready")["lastTransitionTime"], "2026-01-01T00:00:00Z");
  EXPECT_EQ(status_now().accepted, 1u);
}

TEST_F(NodeConditionsTest, TransitionTimeFollowsTheStatusAndSurvivesARestart) {
  merge_patch({{"type", "GpuHealthy"}, {"status", "False"}, {"lastTransitionTime", "2026-01-02T03:04:05Z"}});
  begin();
  set_and_wait(ConditionStatus::kFalse, "another message");
  ASSERT_TRUE(wait_until_settled());
  EXPECT_EQ(stored_condition()["message"], "another message");
  EXPECT_EQ(stored_condition()["lastTransitionTime"], "2026-01-02T03:04:05Z");
  set_and_wait(ConditionStatus::kFalse, "and another");
  ASSERT_TRUE(wait_until_settled());
  EXPECT_EQ(stored_condition()["lastTransitionTime"], "2026-01-02T03:04:05Z");
  set_and_wait(ConditionStatus::kTrue);
  ASSERT_TRUE(wait_until_settled());
  EXPECT_GT(stored_condition()["lastTransitionTime"], "2026-01-02T03:04:05Z");
}

TEST_F(NodeConditionsTest, UnchangedConditionIsNotSent) {
  merge_patch({{"type", "GpuHealthy"}, {"status", "True"}, {"reason", "Reason"}, {"message", ""}});
  begin();
  set_and_wait(ConditionStatus::kTrue);
  ASSERT_TRUE(wait_until_settled());
  EXPECT_EQ(writes(), 0);
  set_and_wait(ConditionStatus::kFalse);
  ASSERT_TRUE(wait_until_settled());
  for (int i = 0; i < 100; ++i) set_and_wait(ConditionStatus::kFalse);
  EXPECT_FALSE(status_now().pending);
  EXPECT_EQ(writes(), 1);
}

TEST_F(NodeConditionsTest, ChangesOfOneTurnAreOneRequest) {
  begin();
  call_on_loop([&] {
    for (int i = 0; i < 100; ++i)
      status_->set_condition({"GpuHealthy", ConditionStatus::kFalse, "Reason", std::to_string(i)});
    status_->set_condition({"GpuFabric", ConditionStatus::kTrue, "Reason", ""});
  });
  ASSERT_TRUE(wait_until_settled());
  EXPECT_EQ(writes(), 1);
  EXPECT_EQ(stored_condition()["message"], "99");
  EXPECT_EQ(stored_condition("GpuFabric")["status"], "True");
}

TEST_F(NodeConditionsTest, SlowServerGetsTheNewestNext) {
  std::atomic<bool> asked = false, go_on = false;
  begin([&](const Received& request) -> std::optional<Reply> {
    if (request.line() == kWrite && !asked.exchange(true)) {
      EXPECT_TRUE(eventually([&] { return go_on.load(); }));
    }
    return std::nullopt;
  });
  set_and_wait(ConditionStatus::kFalse, "first");
  ASSERT_TRUE(eventually([&] { return asked.load(); }));
  for (int i = 0; i < 100; ++i) set_and_wait(ConditionStatus::kFalse, std::to_string(i));
  EXPECT_TRUE(status_now().pending);
  go_on = true;
  ASSERT_TRUE(wait_until_settled());
  EXPECT_EQ(writes(), 2);
  EXPECT_EQ(stored_condition()["message"], "99");
}

TEST_F(NodeConditionsTest, RetriesUntilTheServerIsBack) {
  std::atomic<int> requests = 0;
  begin([&](const Received&) -> std::optional<Reply> {
    switch (requests++) {
      case 0:
        return Reply{.act = Act::kClose};
      case 1:
        return Reply{503};
      case 3:
        return Reply{.act = Act::kClose};
      case 4:
        return Reply{409};
      default:
        return std::nullopt;
    }
  });
  set_and_wait(ConditionStatus::kFalse, "x");
  ASSERT_TRUE(wait_until_settled());
  EXPECT_EQ(stored_condition()["message"], "x");
  EXPECT_TRUE(status_now().error.empty());
  EXPECT_EQ(status_now().accepted, 1u);
}

TEST_F(NodeConditionsTest, MissingPermissionIsLoggedOnce) {
  std::atomic<int> refused = 0;
  std::atomic<bool> allowed = false;
  begin([&](const Received& request) -> std::optional<Reply> {
    if (request.line() != kWrite || allowed) return std::nullopt;
    return Reply{403, R"({"message": "try )" + std::to_string(++refused) + R"("})"};
  });
  set_and_wait(ConditionStatus::kFalse);
  ASSERT_TRUE(eventually([&] { return refused > 5; }));
  const SendStatus refusal = status_now();
  EXPECT_TRUE(refusal.pending);
  EXPECT_EQ(refusal.warnings, 1u);
  EXPECT_NE(refusal.error.find("(the agent needs patch on nodes/status)"), std::string::npos)
      << refusal.error;
  allowed = true;
  ASSERT_TRUE(wait_until_settled());
  EXPECT_TRUE(eventually([&] { return status_now().error.empty(); }));
  EXPECT_EQ(status_now().warnings, 1u);
}

TEST_F(NodeConditionsTest, HeartbeatRestoresARemovedCondition) {
  std::atomic<bool> lose = true;
  NodeConditionsTiming timing = kFast;
  timing.heartbeat = 20ms;
  begin(
      [&](const Received& request) -> std::optional<Reply> {
        if (request.line() == kWrite && lose.exchange(false)) return Reply{200, "{}"};  // the write is lost
        return std::nullopt;
      },
      timing);
  set_and_wait(ConditionStatus::kFalse, "x");
  ASSERT_TRUE(eventually([&] { return status_now().accepted >= 2; }));
  call_on_loop([&] { status_.reset(); });
  EXPECT_EQ(stored_condition()["message"], "x");
}

TEST_F(NodeConditionsTest, RemovesAConditionOfAnEarlierRun) {
  merge_patch({{"type", "GpuHealthy"}, {"status", "False"}});
  begin();
  call_on_loop([&] {
    status_->remove_condition("GpuHealthy");
    status_->remove_condition("GpuFabric");
  });
  ASSERT_TRUE(wait_until_settled());
  EXPECT_EQ(stored_condition(), nullptr);
  EXPECT_EQ(stored_condition("Ready")["status"], "True");
  EXPECT_EQ(writes(), 1);
}

TEST_F(NodeConditionsTest, RecreatedNodeIsReadAgain) {
  std::atomic<bool> away = true;
  begin([&](const Received& request) -> std::optional<Reply> {
    if (request.line() == kWrite && away.exchange(false)) return Reply{404};
    return std::nullopt;
  });
  set_and_wait(ConditionStatus::kFalse, "x");
  ASSERT_TRUE(wait_until_settled());
  const auto all = server_->received_requests();
  EXPECT_EQ(std::ranges::count_if(all, [](const auto& one) { return one.line() == kRead; }), 2);
  EXPECT_EQ(stored_condition()["message"], "x");
}

TEST_F(NodeConditionsTest, LongMessageIsTruncated) {
  begin();
  set_and_wait(ConditionStatus::kFalse, std::string(kMaxConditionBytes + 10, 'x'));
  ASSERT_TRUE(wait_until_settled());
  EXPECT_EQ(stored_condition()["message"].get<std::string>().size(), kMaxConditionBytes);
}

}  // namespace

namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr const char* kReadTaints = "GET /api/v1/nodes/node-1";
constexpr const char* kWriteTaints = "PATCH /api/v1/nodes/node-1";
const Taint kOurs{"gpulet.io/gpu-fault", "reset", "NoSchedule"};

// An API server that stores a Node and its version.
class NodeTaintsTest : public ApiTest {
 protected:
  void release_source() override { taints_.reset(); }
  void begin(std::function<std::optional<Reply>(const Received&)> first = {}, Duration check = 1h) {
    start_server([this, first = std::move(first)](const Received& request) {
      std::lock_guard lock(mutex_);
      if (auto reply = first ? first(request) : std::nullopt) return *reply;
      if (request.line() == kReadTaints) return Reply{200, tainted_node_json().dump()};
      EXPECT_EQ(request.line(), kWriteTaints);
      EXPECT_NE(request.head.find("Content-Type: application/merge-patch+json\r\n"), std::string::npos);
      const json patch = json::parse(request.body);
      if (patch["metadata"]["resourceVersion"] != std::to_string(version_)) return Reply{409};
      EXPECT_EQ(patch["spec"].size(), 1u);
      replace_taints(patch["spec"]["taints"]);
      return Reply{200};
    });
    call_on_loop([&] {
      const NodeTaintsTiming timing{.sending = {.request_limit = 10s, .backoff = {1ms, 5ms}}, .check = check};
      taints_ = NodeTaints::start_taints(loop_, client_config(), {"gpulet.io/gpu-fault", "gpulet.io/driver"},
                                         timing);
    });
  }
  json tainted_node_json() const {
    json node = {{"metadata", {{"resourceVersion", std::to_string(version_)}}}, {"spec", json::object()}};
    if (!there_.empty()) node["spec"]["taints"] = there_;
    return node;
  }
  void replace_taints(json taints) {
    there_ = std::move(taints);
    ++version_;
  }
  Status set_and_wait(std::vector<Taint> taints) {
    Status result;
    call_on_loop([&] { result = taints_->set_taints(std::move(taints)); });
    return result;
  }
  SendStatus status_now() {
    SendStatus delivery;
    call_on_loop([&] { delivery = taints_->taint_status(); });
    return delivery;
  }
  bool wait_until_settled() {
    return eventually([&] { return !status_now().pending; });
  }

  json stored_taints() {
    std::lock_guard lock(mutex_);
    return there_;
  }

  std::mutex mutex_;
  int version_ = 7;
  json there_ = json::array();
  const json others_ = json::parse(R"([
      {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"},
      {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}])");
  const json ours_ =
      json::parse(R"({"key": "gpulet.io/gpu-fault", "value": "reset", "effect": "NoSchedule"})");
  std::unique_ptr<NodeTaints> taints_;
};

TEST_F(NodeTaintsTest, SetsAndRemovesOnlyItsOwnTaints) {
  there_ = others_;
  begin();
  ASSERT_TRUE(set_and_wait({kOurs}));
  ASSERT_TRUE(wait_until_settled());
  json both = others_;
  both.push_back(ours_);
  EXPECT_EQ(stored_taints(), both);
  ASSERT_TRUE(set_and_wait({}));
  ASSERT_TRUE(wait_until_settled());
  EXPECT_EQ(stored_taints(), others_);
}

TEST_F(NodeTaintsTest, AddsTheFirstAndRemovesTheLastTaint) {
  begin();
  ASSERT_TRUE(set_and_wait({{"gpulet.io/driver", "", "NoExecute"}}));
  ASSERT_TRUE(wait_until_settled());
  EXPECT_EQ(stored_taints(), json::parse(R"([{"key": "gpulet.io/driver", "effect": "NoExecute"}])"));
  ASSERT_TRUE(set_and_wait({}));
  ASSERT_TRUE(wait_until_settled());
  EXPECT_EQ(stored_taints(), json::array());
}

TEST_F(NodeTaintsTest, RemovesObsoleteTaintsOfAnEarlierRun) {
  there_ = json::parse(R"([
      {"key": "gpulet.io/driver", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"},
      {"key": "gpulet.io/gpu-fault", "value": "old", "effect": "NoSchedule"},
      {"key": "gpulet.io/gpu-fault-of-another", "effect": "NoSchedule"}])");
  json wanted = there_;
  wanted.erase(1);
  wanted.push_back(ours_);
  begin();
  ASSERT_TRUE(set_and_wait({kOurs, {"gpulet.io/driver", "", "NoExecute"}}));
  ASSERT_TRUE(wait_until_settled());
  EXPECT_EQ(stored_taints(), wanted);
}

TEST_F(NodeTaintsTest, ExistingTaintIsNotWritten) {
  there_ = json::array({ours_});
  begin();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(set_and_wait({kOurs}));
  ASSERT_TRUE(wait_until_settled());
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(set_and_wait({kOurs}));
  EXPECT_FALSE(status_now().pending);
  EXPECT_EQ(request_count(kWriteTaints), 0);
  EXPECT_EQ(request_count(kReadTaints), 1);
}

TEST_F(NodeTaintsTest, WritesNothingBeforeTheFirstCall) {
  there_ = json::array({ours_});
  begin();
  EXPECT_FALSE(status_now().pending);
  EXPECT_TRUE(server_->received_requests().empty());
}

TEST_F(NodeTaintsTest, KeepsConcurrentWritesOfOthers) {
  std::atomic<int> races = 3;
  begin([&](const Received& request) -> std::optional<Reply> {
    if (request.line() == kWriteTaints && races-- > 0) {
      json taints = there_;
      taints.push_back({{"key", "other/" + std::to_string(races)}, {"effect", "NoSchedule"}});
      replace_taints(std::move(taints));
    }
    return std::nullopt;
  });
  ASSERT_TRUE(set_and_wait({kOurs}));
  ASSERT_TRUE(wait_until_settled());
  const json all = stored_taints();
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0]["key"], "other/2");
  EXPECT_EQ(all[2]["key"], "other/0");
  EXPECT_EQ(all[3], ours_);
  EXPECT_EQ(status_now().warnings, 0u);  // a race is not logged
  EXPECT_EQ(status_now().accepted, 1u);
}

TEST_F(NodeTaintsTest, NewestTaintsWinWhileTheServerIsSlow) {
  std::atomic<bool> asked_once = false, go_on = false;
  begin([&](const Received& request) -> std::optional<Reply> {
    if (request.line() == kWriteTaints && !asked_once.exchange(true)) {
      EXPECT_TRUE(eventually([&] { return go_on.load(); }));
    }
    return std::nullopt;
  });
  ASSERT_TRUE(set_and_wait({kOurs}));
  ASSERT_TRUE(eventually([&] { return asked_once.load(); }));
  ASSERT_TRUE(set_and_wait({kOurs, {"gpulet.io/driver", "", "NoExecute"}}));
  ASSERT_TRUE(set_and_wait({}));
  EXPECT_TRUE(status_now().pending);
  go_on = true;
  ASSERT_TRUE(wait_until_settled());
  EXPECT_EQ(stored_taints(), json::array());
  EXPECT_EQ(request_count(kWriteTaints), 2);
}

TEST_F(NodeTaintsTest, RecoversFromOutageAndMissingPermission) {
  std::atomic<int> requests = 0;
  std::atomic<bool> allowed = false;
  begin([&](const Received& request) -> std::optional<Reply> {
    if (requests++ == 0) return Reply{.act = Act::kClose};
    if (requests == 2) return Reply{500};
    if (request.line() == kWriteTaints && !allowed) return Reply{403, R"({"message": "forbidden"})"};
    return std::nullopt;
  });
  ASSERT_TRUE(set_and_wait({kOurs}));
  ASSERT_TRUE(eventually([&] { return requests > 12; }));
  const SendStatus refusal = status_now();
  EXPECT_EQ(refusal.warnings, 3u);  // closed, 500, 403: each once
  EXPECT_NE(refusal.error.find("(the agent needs patch on nodes)"), std::string::npos) << refusal.error;
  allowed = true;
  ASSERT_TRUE(wait_until_settled());
  EXPECT_EQ(stored_taints(), json::array({ours_}));
  EXPECT_TRUE(eventually([&] { return status_now().error.empty(); }));
}

TEST_F(NodeTaintsTest, NodeWithoutResourceVersionIsNotOverwritten) {
  std::atomic<int> reads = 0;
  begin([&](const Received& request) -> std::optional<Reply> {
    if (request.line() == kReadTaints && reads++ < 3) return Reply{200, reads == 1 ? "[]" : "{\"spec\": {}}"};
    return std::nullopt;
  });
  ASSERT_TRUE(set_and_wait({kOurs}));
  ASSERT_TRUE(wait_until_settled());
  EXPECT_EQ(reads, 4);
  EXPECT_EQ(request_count(kWriteTaints), 1);
}

TEST_F(NodeTaintsTest, RecreatedNodeIsTaintedAgain) {
  std::atomic<bool> retried = false;
  begin(
      [&](const Received& request) -> std::optional<Reply> {
        if (request.line() == kReadTaints && version_ == 8 && !retried.exchange(true))
          replace_taints(json::array());
        return std::nullopt;
      },
      20ms);
  ASSERT_TRUE(set_and_wait({kOurs}));
  ASSERT_TRUE(eventually([&] { return status_now().accepted == 2; }));
  call_on_loop([&] { taints_.reset(); });
  EXPECT_TRUE(retried);
  EXPECT_EQ(stored_taints(), json::array({ours_}));
}

TEST_F(NodeTaintsTest, RejectsInvalidTaints) {
  begin();
  EXPECT_EQ(set_and_wait({{"other/key", "", "NoSchedule"}}).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(set_and_wait({{"gpulet.io/driver", "", "Nothing"}}).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(set_and_wait({kOurs, {kOurs.key, "x", kOurs.effect}}).error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(set_and_wait({kOurs, {kOurs.key, kOurs.value, "NoExecute"}}));
}

}  // namespace
}  // namespace gpulet::k8s

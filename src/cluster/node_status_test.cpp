#include "cluster/node_status.h"

#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>

#include "cluster/test_api.h"

namespace gpulet::cluster {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using ConditionStatus = Condition::Status;

constexpr const char* kRead = "GET /api/v1/nodes/node-1";
constexpr const char* kWrite = "PATCH /api/v1/nodes/node-1/status";

// An API server that merges conditions as the real one does.
class NodeStatusTest : public ApiTest {
 protected:
  void let_go() override { status_.reset(); }
  void begin(std::function<std::optional<Reply>(const Received&)> first = {},
             NodeStatusTiming timing = kFast) {
    serve([this, first = std::move(first)](const Received& request) {
      std::lock_guard lock(mutex_);
      if (auto reply = first ? first(request) : std::nullopt) return *reply;
      if (request.line() == kRead) return Reply{200, node_.dump()};
      EXPECT_EQ(request.line(), kWrite);
      EXPECT_NE(request.head.find("Content-Type: application/strategic-merge-patch+json\r\n"),
                std::string::npos);
      const json patch = json::parse(request.body);
      for (const auto& one : patch["status"]["conditions"]) merge(one);
      return Reply{200, "{}"};
    });
    call([&] { status_ = NodeStatus::start(loop_, access(), timing); });
  }
  void merge(json one) {
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
  void set(ConditionStatus status, const std::string& message = "", const std::string& type = "GpuHealthy") {
    call([&] { status_->set({type, status, "Reason", message}); });
  }
  Delivery delivery() {
    Delivery delivery;
    call([&] { delivery = status_->delivery(); });
    return delivery;
  }
  bool settled() {
    return eventually([&] { return !delivery().waiting; });
  }
  json there(const std::string& type = "GpuHealthy") {
    std::lock_guard lock(mutex_);
    for (const auto& one : node_["status"]["conditions"]) {
      if (one["type"] == type) return one;
    }
    return nullptr;
  }
  std::ptrdiff_t writes() {
    const auto all = server_->received();
    return std::ranges::count_if(all, [](const auto& one) { return one.line() == kWrite; });
  }

  static constexpr NodeStatusTiming kFast{.sending = {.request_limit = 10s, .backoff = {1ms, 5ms}},
                                          .heartbeat = 1h};
  std::mutex mutex_;
  json node_ = json::parse(R"({"status": {"conditions": [
      {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})");
  std::unique_ptr<NodeStatus> status_;
};

TEST_F(NodeStatusTest, AConditionIsMergedAmongTheOthers) {
  begin();
  set(ConditionStatus::kFalse, "GPU 3: XID 79\xff");
  ASSERT_TRUE(settled());
  const json got = there();
  EXPECT_EQ(got["status"], "False");
  EXPECT_EQ(got["reason"], "Reason");
  EXPECT_EQ(got["message"], "GPU 3: XID 79\xEF\xBF\xBD");
  EXPECT_LE(got["lastTransitionTime"], got["lastHeartbeatTime"]);
  EXPECT_EQ(got["lastTransitionTime"].get<std::string>().size(), std::string("2026-01-01T00:00:00Z").size());
  EXPECT_EQ(there("Ready")["lastTransitionTime"], "2026-01-01T00:00:00Z");
  EXPECT_EQ(delivery().taken, 1u);
}

TEST_F(NodeStatusTest, TheTransitionIsThatOfTheStatusAndOutlivesARestart) {
  merge({{"type", "GpuHealthy"}, {"status", "False"}, {"lastTransitionTime", "2026-01-02T03:04:05Z"}});
  begin();
  set(ConditionStatus::kFalse, "another message");
  ASSERT_TRUE(settled());
  EXPECT_EQ(there()["message"], "another message");
  EXPECT_EQ(there()["lastTransitionTime"], "2026-01-02T03:04:05Z");
  set(ConditionStatus::kFalse, "and another");
  ASSERT_TRUE(settled());
  EXPECT_EQ(there()["lastTransitionTime"], "2026-01-02T03:04:05Z");
  set(ConditionStatus::kTrue);
  ASSERT_TRUE(settled());
  EXPECT_GT(there()["lastTransitionTime"], "2026-01-02T03:04:05Z");
}

TEST_F(NodeStatusTest, WhatTheServerHasIsNotSent) {
  merge({{"type", "GpuHealthy"}, {"status", "True"}, {"reason", "Reason"}, {"message", ""}});
  begin();
  set(ConditionStatus::kTrue);
  ASSERT_TRUE(settled());
  EXPECT_EQ(writes(), 0);
  set(ConditionStatus::kFalse);
  ASSERT_TRUE(settled());
  for (int i = 0; i < 100; ++i) set(ConditionStatus::kFalse);
  EXPECT_FALSE(delivery().waiting);
  EXPECT_EQ(writes(), 1);
}

TEST_F(NodeStatusTest, AllOfOneTurnIsOneRequestWithTheNewest) {
  begin();
  call([&] {
    for (int i = 0; i < 100; ++i)
      status_->set({"GpuHealthy", ConditionStatus::kFalse, "Reason", std::to_string(i)});
    status_->set({"GpuFabric", ConditionStatus::kTrue, "Reason", ""});
  });
  ASSERT_TRUE(settled());
  EXPECT_EQ(writes(), 1);
  EXPECT_EQ(there()["message"], "99");
  EXPECT_EQ(there("GpuFabric")["status"], "True");
}

TEST_F(NodeStatusTest, ASlowServerIsToldTheNewestNext) {
  std::atomic<bool> asked = false, go_on = false;
  begin([&](const Received& request) -> std::optional<Reply> {
    if (request.line() == kWrite && !asked.exchange(true)) {
      EXPECT_TRUE(eventually([&] { return go_on.load(); }));
    }
    return std::nullopt;
  });
  set(ConditionStatus::kFalse, "first");
  ASSERT_TRUE(eventually([&] { return asked.load(); }));
  for (int i = 0; i < 100; ++i) set(ConditionStatus::kFalse, std::to_string(i));
  EXPECT_TRUE(delivery().waiting);
  go_on = true;
  ASSERT_TRUE(settled());
  EXPECT_EQ(writes(), 2);
  EXPECT_EQ(there()["message"], "99");
}

TEST_F(NodeStatusTest, AServerThatIsAwayIsToldOnceItIsBack) {
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
  set(ConditionStatus::kFalse, "x");
  ASSERT_TRUE(settled());
  EXPECT_EQ(there()["message"], "x");
  EXPECT_TRUE(delivery().trouble.empty());
  EXPECT_EQ(delivery().taken, 1u);
}

TEST_F(NodeStatusTest, ARightThatIsMissingIsSaidOnce) {
  std::atomic<int> refused = 0;
  std::atomic<bool> allowed = false;
  begin([&](const Received& request) -> std::optional<Reply> {
    if (request.line() != kWrite || allowed) return std::nullopt;
    return Reply{403, R"({"message": "try )" + std::to_string(++refused) + R"("})"};
  });
  set(ConditionStatus::kFalse);
  ASSERT_TRUE(eventually([&] { return refused > 5; }));
  const Delivery refusal = delivery();
  EXPECT_TRUE(refusal.waiting);
  EXPECT_EQ(refusal.told, 1u);
  EXPECT_NE(refusal.trouble.find("(the agent needs patch on nodes/status)"), std::string::npos)
      << refusal.trouble;
  allowed = true;
  ASSERT_TRUE(settled());
  EXPECT_TRUE(eventually([&] { return delivery().trouble.empty(); }));
  EXPECT_EQ(delivery().told, 1u);
}

TEST_F(NodeStatusTest, TheHeartbeatBringsBackWhatWasTakenAway) {
  std::atomic<bool> lose = true;
  NodeStatusTiming timing = kFast;
  timing.heartbeat = 20ms;
  begin(
      [&](const Received& request) -> std::optional<Reply> {
        if (request.line() == kWrite && lose.exchange(false)) return Reply{200, "{}"};  // and it is not there
        return std::nullopt;
      },
      timing);
  set(ConditionStatus::kFalse, "x");
  ASSERT_TRUE(eventually([&] { return delivery().taken >= 2; }));
  call([&] { status_.reset(); });
  EXPECT_EQ(there()["message"], "x");
}

TEST_F(NodeStatusTest, IsTakenAwayAlsoWhenARunBeforeThisSetIt) {
  merge({{"type", "GpuHealthy"}, {"status", "False"}});
  begin();
  call([&] {
    status_->remove("GpuHealthy");
    status_->remove("GpuFabric");
  });
  ASSERT_TRUE(settled());
  EXPECT_EQ(there(), nullptr);
  EXPECT_EQ(there("Ready")["status"], "True");
  EXPECT_EQ(writes(), 1);
}

TEST_F(NodeStatusTest, ANodeThatIsMadeAnewIsReadAnew) {
  std::atomic<bool> away = true;
  begin([&](const Received& request) -> std::optional<Reply> {
    if (request.line() == kWrite && away.exchange(false)) return Reply{404};
    return std::nullopt;
  });
  set(ConditionStatus::kFalse, "x");
  ASSERT_TRUE(settled());
  const auto all = server_->received();
  EXPECT_EQ(std::ranges::count_if(all, [](const auto& one) { return one.line() == kRead; }), 2);
  EXPECT_EQ(there()["message"], "x");
}

TEST_F(NodeStatusTest, ALongMessageIsCut) {
  begin();
  set(ConditionStatus::kFalse, std::string(kMaxConditionBytes + 10, 'x'));
  ASSERT_TRUE(settled());
  EXPECT_EQ(there()["message"].get<std::string>().size(), kMaxConditionBytes);
}

}  // namespace
}  // namespace gpulet::cluster

#include "cluster/node_taints.h"

#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>

#include "cluster/test_api.h"

namespace gpulet::cluster {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr const char* kReadTaints = "GET /api/v1/nodes/node-1";
constexpr const char* kWriteTaints = "PATCH /api/v1/nodes/node-1";
const Taint kOurs{"gpulet.io/gpu-fault", "reset", "NoSchedule"};

// An API server that keeps a Node and its version.
class NodeTaintsTest : public ApiTest {
 protected:
  void let_go() override { taints_.reset(); }
  void begin(std::function<std::optional<Reply>(const Received&)> first = {}, Duration check = 1h) {
    serve([this, first = std::move(first)](const Received& request) {
      std::lock_guard lock(mutex_);
      if (auto reply = first ? first(request) : std::nullopt) return *reply;
      if (request.line() == kReadTaints) return Reply{200, node().dump()};
      EXPECT_EQ(request.line(), kWriteTaints);
      EXPECT_NE(request.head.find("Content-Type: application/merge-patch+json\r\n"), std::string::npos);
      const json patch = json::parse(request.body);
      if (patch["metadata"]["resourceVersion"] != std::to_string(version_)) return Reply{409};
      EXPECT_EQ(patch["spec"].size(), 1u);
      write(patch["spec"]["taints"]);
      return Reply{200};
    });
    call([&] {
      const NodeTaintsTiming timing{.sending = {.request_limit = 10s, .backoff = {1ms, 5ms}}, .check = check};
      taints_ = NodeTaints::start(loop_, access(), {"gpulet.io/gpu-fault", "gpulet.io/driver"}, timing);
    });
  }
  json node() const {
    json node = {{"metadata", {{"resourceVersion", std::to_string(version_)}}}, {"spec", json::object()}};
    if (!there_.empty()) node["spec"]["taints"] = there_;
    return node;
  }
  void write(json taints) {
    there_ = std::move(taints);
    ++version_;
  }
  Status set(std::vector<Taint> taints) {
    Status result;
    call([&] { result = taints_->set(std::move(taints)); });
    return result;
  }
  Delivery delivery() {
    Delivery delivery;
    call([&] { delivery = taints_->delivery(); });
    return delivery;
  }
  bool settled() {
    return eventually([&] { return !delivery().waiting; });
  }

  json there() {
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

TEST_F(NodeTaintsTest, OursComeAndGoAmongTheOthers) {
  there_ = others_;
  begin();
  ASSERT_TRUE(set({kOurs}));
  ASSERT_TRUE(settled());
  json both = others_;
  both.push_back(ours_);
  EXPECT_EQ(there(), both);
  ASSERT_TRUE(set({}));
  ASSERT_TRUE(settled());
  EXPECT_EQ(there(), others_);
}

TEST_F(NodeTaintsTest, ANodeWithoutAnyGetsItsFirstAndLosesItsLast) {
  begin();
  ASSERT_TRUE(set({{"gpulet.io/driver", "", "NoExecute"}}));
  ASSERT_TRUE(settled());
  EXPECT_EQ(there(), json::parse(R"([{"key": "gpulet.io/driver", "effect": "NoExecute"}])"));
  ASSERT_TRUE(set({}));
  ASSERT_TRUE(settled());
  EXPECT_EQ(there(), json::array());
}

TEST_F(NodeTaintsTest, OfARunBeforeThisOnlyWhatIsWantedStays) {
  there_ = json::parse(R"([
      {"key": "gpulet.io/driver", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"},
      {"key": "gpulet.io/gpu-fault", "value": "old", "effect": "NoSchedule"},
      {"key": "gpulet.io/gpu-fault-of-another", "effect": "NoSchedule"}])");
  json wanted = there_;
  wanted.erase(1);
  wanted.push_back(ours_);
  begin();
  ASSERT_TRUE(set({kOurs, {"gpulet.io/driver", "", "NoExecute"}}));
  ASSERT_TRUE(settled());
  EXPECT_EQ(there(), wanted);
}

TEST_F(NodeTaintsTest, WhatIsThereIsNotWritten) {
  there_ = json::array({ours_});
  begin();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(set({kOurs}));
  ASSERT_TRUE(settled());
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(set({kOurs}));
  EXPECT_FALSE(delivery().waiting);
  EXPECT_EQ(asked(kWriteTaints), 0);
  EXPECT_EQ(asked(kReadTaints), 1);
}

TEST_F(NodeTaintsTest, NothingIsTouchedBeforeTheFirstCall) {
  there_ = json::array({ours_});
  begin();
  EXPECT_FALSE(delivery().waiting);
  EXPECT_TRUE(server_->received().empty());
}

TEST_F(NodeTaintsTest, WhatAnotherWritesInBetweenIsKept) {
  std::atomic<int> races = 3;
  begin([&](const Received& request) -> std::optional<Reply> {
    if (request.line() == kWriteTaints && races-- > 0) {
      json taints = there_;
      taints.push_back({{"key", "other/" + std::to_string(races)}, {"effect", "NoSchedule"}});
      write(std::move(taints));
    }
    return std::nullopt;
  });
  ASSERT_TRUE(set({kOurs}));
  ASSERT_TRUE(settled());
  const json all = there();
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0]["key"], "other/2");
  EXPECT_EQ(all[2]["key"], "other/0");
  EXPECT_EQ(all[3], ours_);
  EXPECT_EQ(delivery().told, 0u);  // a race is no trouble
  EXPECT_EQ(delivery().taken, 1u);
}

TEST_F(NodeTaintsTest, ANewWishWhileTheServerIsSlowWins) {
  std::atomic<bool> asked_once = false, go_on = false;
  begin([&](const Received& request) -> std::optional<Reply> {
    if (request.line() == kWriteTaints && !asked_once.exchange(true)) {
      EXPECT_TRUE(eventually([&] { return go_on.load(); }));
    }
    return std::nullopt;
  });
  ASSERT_TRUE(set({kOurs}));
  ASSERT_TRUE(eventually([&] { return asked_once.load(); }));
  ASSERT_TRUE(set({kOurs, {"gpulet.io/driver", "", "NoExecute"}}));
  ASSERT_TRUE(set({}));
  EXPECT_TRUE(delivery().waiting);
  go_on = true;
  ASSERT_TRUE(settled());
  EXPECT_EQ(there(), json::array());
  EXPECT_EQ(asked(kWriteTaints), 2);
}

TEST_F(NodeTaintsTest, ServerAwayThenARightThatIsMissingThenDone) {
  std::atomic<int> requests = 0;
  std::atomic<bool> allowed = false;
  begin([&](const Received& request) -> std::optional<Reply> {
    if (requests++ == 0) return Reply{.act = Act::kClose};
    if (requests == 2) return Reply{500};
    if (request.line() == kWriteTaints && !allowed) return Reply{403, R"({"message": "forbidden"})"};
    return std::nullopt;
  });
  ASSERT_TRUE(set({kOurs}));
  ASSERT_TRUE(eventually([&] { return requests > 12; }));
  const Delivery refusal = delivery();
  EXPECT_EQ(refusal.told, 3u);  // closed, 500, 403: each once
  EXPECT_NE(refusal.trouble.find("(the agent needs patch on nodes)"), std::string::npos) << refusal.trouble;
  allowed = true;
  ASSERT_TRUE(settled());
  EXPECT_EQ(there(), json::array({ours_}));
  EXPECT_TRUE(eventually([&] { return delivery().trouble.empty(); }));
}

TEST_F(NodeTaintsTest, ANodeWithoutItsVersionIsNotWrittenOver) {
  std::atomic<int> reads = 0;
  begin([&](const Received& request) -> std::optional<Reply> {
    if (request.line() == kReadTaints && reads++ < 3) return Reply{200, reads == 1 ? "[]" : "{\"spec\": {}}"};
    return std::nullopt;
  });
  ASSERT_TRUE(set({kOurs}));
  ASSERT_TRUE(settled());
  EXPECT_EQ(reads, 4);
  EXPECT_EQ(asked(kWriteTaints), 1);
}

TEST_F(NodeTaintsTest, ComesBackWhenTheNodeWasMadeAnew) {
  std::atomic<bool> anew = false;
  begin(
      [&](const Received& request) -> std::optional<Reply> {
        if (request.line() == kReadTaints && version_ == 8 && !anew.exchange(true)) write(json::array());
        return std::nullopt;
      },
      20ms);
  ASSERT_TRUE(set({kOurs}));
  ASSERT_TRUE(eventually([&] { return delivery().taken == 2; }));
  call([&] { taints_.reset(); });
  EXPECT_TRUE(anew);
  EXPECT_EQ(there(), json::array({ours_}));
}

TEST_F(NodeTaintsTest, OnlyWhatCanBeATaintOfOurs) {
  begin();
  EXPECT_EQ(set({{"other/key", "", "NoSchedule"}}).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(set({{"gpulet.io/driver", "", "Nothing"}}).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(set({kOurs, {kOurs.key, "x", kOurs.effect}}).error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(set({kOurs, {kOurs.key, kOurs.value, "NoExecute"}}));
}

}  // namespace
}  // namespace gpulet::cluster

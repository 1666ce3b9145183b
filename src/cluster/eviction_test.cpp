#include "cluster/eviction.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "cluster/test_api.h"

namespace gpulet::cluster {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using Kind = EvictionNews::Kind;

constexpr EvictionTiming kFast{.request_limit = 10s, .backoff = {1ms, 5ms}};

class EvictionTest : public ApiTest {
 protected:
  void let_go() override { eviction_.reset(); }

  static std::string pod(const std::string& uid, json metadata = json::object(),
                         const std::string& node = "node-1") {
    metadata["uid"] = uid;
    return json{{"kind", "Pod"}, {"metadata", metadata}, {"spec", {{"nodeName", node}}}}.dump();
  }
  static Reply status(int code, const std::string& message, const std::string& cause = "") {
    json body = {{"kind", "Status"}, {"message", message}};
    if (!cause.empty()) body["details"]["causes"] = {{{"reason", "DisruptionBudget"}, {"message", cause}}};
    return {.status = code, .body = body.dump()};
  }
  // Answers by the request's line; the last of several stays.
  void answer(const std::string& line, std::vector<Reply> replies) { replies_[line] = std::move(replies); }
  void start(std::vector<std::string> pods) {
    serve([this](const Received& request) {
      auto& replies = replies_[request.line()];
      if (replies.empty()) return status(404, "not found");
      const Reply reply = replies.front();
      if (replies.size() > 1) replies.erase(replies.begin());
      return reply;
    });
    call([&] {
      eviction_ = Eviction::start(
          loop_, access(), std::move(pods),
          [this](const EvictionNews& news) {
            std::lock_guard lock(mutex_);
            news_.push_back(news);
            if (end_at_ && news.kind == *end_at_) eviction_.reset();
          },
          kFast);
    });
  }
  std::vector<EvictionNews> news() {
    std::lock_guard lock(mutex_);
    return news_;
  }
  bool heard(const std::string& pod, Kind kind) {
    const auto all = news();
    return std::ranges::any_of(all, [&](const auto& one) { return one.pod == pod && one.kind == kind; });
  }
  std::vector<std::string> lines() {
    std::vector<std::string> lines;
    for (const auto& request : server_->received()) lines.push_back(request.line());
    return lines;
  }

  std::map<std::string, std::vector<Reply>> replies_;
  std::unique_ptr<Eviction> eviction_;
  std::mutex mutex_;
  std::vector<EvictionNews> news_;
  std::optional<Kind> end_at_;
};

constexpr const char* kSee = "GET /api/v1/namespaces/default/pods/train";
constexpr const char* kAsk = "POST /api/v1/namespaces/default/pods/train/eviction";

TEST_F(EvictionTest, ThePodThatWasSeenIsAskedToLeave) {
  answer(kSee, {{.status = 200, .body = pod("u-1")}});
  answer(kAsk, {{.status = 201}});
  start({"default/train"});
  ASSERT_TRUE(eventually([&] { return heard("default/train", Kind::kLeaving); }));
  EXPECT_EQ(news(), (std::vector<EvictionNews>{{"default/train", Kind::kLeaving, ""}}));
  ASSERT_EQ(lines(), (std::vector<std::string>{kSee, kAsk}));
  EXPECT_EQ(json::parse(server_->received()[1].body),
            json::parse(R"({"apiVersion": "policy/v1", "kind": "Eviction",
                            "metadata": {"namespace": "default", "name": "train"},
                            "deleteOptions": {"preconditions": {"uid": "u-1"}}})"));
  EXPECT_NE(server_->received()[1].head.find("Content-Type: application/json"), std::string::npos);
}

TEST_F(EvictionTest, ABudgetIsWaitedForAndSaidOnce) {
  answer(kSee, {{.status = 200, .body = pod("u-1")}});
  const auto no = status(429, "Cannot evict pod as it would violate the pod's disruption budget.",
                         "The disruption budget web needs 2 healthy pods and has 2 currently");
  answer(kAsk, {no, no, no, {.status = 201}});
  start({"default/train"});
  ASSERT_TRUE(eventually([&] { return heard("default/train", Kind::kLeaving); }));
  const auto all = news();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].kind, Kind::kWaiting);
  EXPECT_EQ(
      all[0].why,
      "the API server answered 429: Cannot evict pod as it would violate the pod's disruption budget. The "
      "disruption budget web needs 2 healthy pods and has 2 currently");
  EXPECT_EQ(std::ranges::count(lines(), kAsk), 4);
}

TEST_F(EvictionTest, OneThatIsNotThereIsGone) {
  answer(kSee, {status(404, "not found")});
  start({"default/train"});
  ASSERT_TRUE(eventually([&] { return heard("default/train", Kind::kGone); }));
  EXPECT_EQ(lines(), std::vector<std::string>{kSee});
}

TEST_F(EvictionTest, OneThatWentMeanwhileIsGone) {
  answer(kSee, {{.status = 200, .body = pod("u-1")}});
  answer(kAsk, {status(404, "not found")});
  start({"default/train"});
  ASSERT_TRUE(eventually([&] { return heard("default/train", Kind::kGone); }));
}

TEST_F(EvictionTest, AnotherOfTheSameNameIsLeftAlone) {
  // A StatefulSet's Pod came back elsewhere, between our look and our asking.
  answer(kSee, {{.status = 200, .body = pod("u-1")}, {.status = 200, .body = pod("u-2", {}, "node-2")}});
  answer(kAsk, {status(409, "the UID in the precondition (u-1) does not match the UID in record (u-2)")});
  start({"default/train"});
  ASSERT_TRUE(eventually([&] { return heard("default/train", Kind::kGone); }));
  EXPECT_EQ(lines(), (std::vector<std::string>{kSee, kAsk, kSee}));
}

TEST_F(EvictionTest, OneThatLeavesAlreadyIsNotAskedAgain) {
  answer(kSee, {{.status = 200, .body = pod("u-1", {{"deletionTimestamp", "2026-01-01T00:00:00Z"}})}});
  start({"default/train"});
  ASSERT_TRUE(eventually([&] { return heard("default/train", Kind::kLeaving); }));
  EXPECT_EQ(lines(), std::vector<std::string>{kSee});
}

TEST_F(EvictionTest, AStaticPodIsSkippedAndNoOtherAskedForNothing) {
  answer(kSee, {{.status = 200, .body = pod("u-1")}});
  answer("GET /api/v1/namespaces/kube-system/pods/dcgm-node-1",
         {{.status = 200, .body = pod("u-2", {{"annotations", {{"kubernetes.io/config.mirror", "f00d"}}}})}});
  answer(kAsk, {{.status = 201}});
  start({"default/train", "kube-system/dcgm-node-1"});
  ASSERT_TRUE(eventually([&] { return heard("kube-system/dcgm-node-1", Kind::kRefused); }));
  EXPECT_NE(news().back().why.find("static Pod"), std::string::npos);
  // Whatever else it would do, it would do before this comes.
  call([] {});
  EXPECT_EQ(std::ranges::count(lines(), kAsk), 0);
}

TEST_F(EvictionTest, SeveralAreAskedOneWaitingHoldsNoOtherBack) {
  const std::string other = "/api/v1/namespaces/other/pods/infer";
  answer(kSee, {{.status = 200, .body = pod("u-1")}});
  answer("GET " + other, {{.status = 200, .body = pod("u-2")}});
  answer(kAsk, {status(429, "budget")});
  answer("POST " + other + "/eviction", {{.status = 201}});
  start({"default/train", "other/infer"});
  ASSERT_TRUE(eventually([&] { return heard("other/infer", Kind::kLeaving); }));
  EXPECT_TRUE(heard("default/train", Kind::kWaiting));
}

TEST_F(EvictionTest, WhatMayChangeIsTriedAgainWithTheRightThatIsMissing) {
  answer(kSee, {status(403, "pods \"train\" is forbidden"),
                {.status = 500},
                {.act = Act::kClose},
                {.status = 200, .body = "[]"},
                {.status = 200, .body = pod("u-1")}});
  answer(kAsk, {status(403, "forbidden"),
                status(500, "This pod has more than one PodDisruptionBudget"),
                {.act = Act::kClose},
                {.status = 201}});
  start({"default/train"});
  ASSERT_TRUE(eventually([&] { return heard("default/train", Kind::kLeaving); }));
  const auto all = news();
  EXPECT_NE(all[0].why.find("(the agent needs get on pods)"), std::string::npos) << all[0].why;
  const auto told = [&](const std::string& words) {
    return std::ranges::any_of(all, [&](const auto& one) {
      return one.kind == Kind::kWaiting && one.why.find(words) != std::string::npos;
    });
  };
  EXPECT_TRUE(told("(the agent needs create on pods/eviction)"));
  EXPECT_TRUE(told("more than one PodDisruptionBudget"));
  EXPECT_TRUE(told("no Pod"));
}

TEST_F(EvictionTest, WhatIsRefusedForGoodIsNotTriedAgain) {
  answer(kSee, {{.status = 200, .body = pod("u-1")}});
  answer(kAsk, {status(422, "no such kind")});
  start({"default/train"});
  ASSERT_TRUE(eventually([&] { return heard("default/train", Kind::kRefused); }));
  EXPECT_EQ(news().back().why, "the API server answered 422: no such kind");
  EXPECT_EQ(std::ranges::count(lines(), kAsk), 1);
}

TEST_F(EvictionTest, ANameThatLeadsElsewhereIsRefused) {
  for (const char* bad : {"default/../secrets", "default", "a/b/c", "default/Train", "/train", "default/"}) {
    news_.clear();
    start({bad});
    ASSERT_TRUE(eventually([&] { return heard(bad, Kind::kRefused); })) << bad;
    EXPECT_TRUE(server_->received().empty()) << bad;
    call([&] { eviction_.reset(); });
  }
}

TEST_F(EvictionTest, MayBeEndedByWhoIsTold) {
  end_at_ = Kind::kWaiting;
  answer(kSee, {{.status = 200, .body = pod("u-1")}});
  answer(kAsk, {status(429, "budget")});
  start({"default/train"});
  ASSERT_TRUE(eventually([&] { return heard("default/train", Kind::kWaiting); }));
  bool ended = false;
  call([&] { ended = eviction_ == nullptr; });
  EXPECT_TRUE(ended);
}

TEST_F(EvictionTest, AnotherPodOfTheNameIsLeftAlone) {
  answer(kSee, {{.status = 200, .body = pod("u-2")}});
  answer(kAsk, {{.status = 201}});
  start({});
  call([&] {
    eviction_ = Eviction::start(
        loop_, access(), std::vector<PodRef>{{"default", "train", "u-1"}},
        [this](const EvictionNews& news) {
          std::lock_guard lock(mutex_);
          news_.push_back(news);
        },
        kFast);
  });
  ASSERT_TRUE(eventually([&] { return heard("default/train", Kind::kGone); }));
  EXPECT_EQ(lines(), (std::vector<std::string>{kSee}));
}

}  // namespace
}  // namespace gpulet::cluster

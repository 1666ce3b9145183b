#include "k8s/pods.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "k8s/test_api.h"

namespace gpulet::k8s {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using Kind = EvictionUpdate::Kind;

constexpr EvictionTiming kFast{.request_limit = 10s, .backoff = {1ms, 5ms}};

class EvictionTest : public ApiTest {
 protected:
  void release_source() override { eviction_.reset(); }

  static std::string pod_json(const std::string& uid, json metadata = json::object(),
                              const std::string& node = "node-1") {
    metadata["uid"] = uid;
    return json{{"kind", "Pod"}, {"metadata", metadata}, {"spec", {{"nodeName", node}}}}.dump();
  }
  static Reply status_json(int code, const std::string& message, const std::string& cause = "") {
    json body = {{"kind", "Status"}, {"message", message}};
    if (!cause.empty()) body["details"]["causes"] = {{{"reason", "DisruptionBudget"}, {"message", cause}}};
    return {.status = code, .body = body.dump()};
  }
  // Responses by request line; the last of several is repeated.
  void respond(const std::string& line, std::vector<Reply> replies) { replies_[line] = std::move(replies); }
  void begin(std::vector<std::string> pods) {
    start_server([this](const Received& request) {
      auto& replies = replies_[request.line()];
      if (replies.empty()) return status_json(404, "not found");
      const Reply reply = replies.front();
      if (replies.size() > 1) replies.erase(replies.begin());
      return reply;
    });
    call_on_loop([&] {
      eviction_ = Eviction::start_eviction(
          loop_, client_config(), std::move(pods),
          [this](const EvictionUpdate& update) {
            std::lock_guard lock(mutex_);
            updates_.push_back(update);
            if (end_at_ && update.kind == *end_at_) eviction_.reset();
          },
          kFast);
    });
  }
  std::vector<EvictionUpdate> update_text() {
    std::lock_guard lock(mutex_);
    return updates_;
  }
  bool heard(const std::string& pod, Kind kind) {
    const auto all = update_text();
    return std::ranges::any_of(all, [&](const auto& one) { return one.pod == pod && one.kind == kind; });
  }
  std::vector<std::string> update_lines() {
    std::vector<std::string> lines;
    for (const auto& request : server_->received_requests()) lines.push_back(request.line());
    return lines;
  }

  std::map<std::string, std::vector<Reply>> replies_;
  std::unique_ptr<Eviction> eviction_;
  std::mutex mutex_;
  std::vector<EvictionUpdate> updates_;
  std::optional<Kind> end_at_;
};

constexpr const char* kReadPod = "GET /api/v1/namespaces/default/pods/train";
constexpr const char* kEvictPod = "POST /api/v1/namespaces/default/pods/train/eviction";

TEST_F(EvictionTest, EvictsThePodThatWasRead) {
  respond(kReadPod, {{.status = 200, .body = pod_json("u-1")}});
  respond(kEvictPod, {{.status = 201}});
  begin({"default/train"});
  ASSERT_TRUE(eventually([&] { return heard("default/train", Kind::kTerminating); }));
  EXPECT_EQ(update_text(), (std::vector<EvictionUpdate>{{"default/train", Kind::kTerminating, ""}}));
  ASSERT_EQ(update_lines(), (std::vector<std::string>{kReadPod, kEvictPod}));
  EXPECT_EQ(json::parse(server_->received_requests()[1].body),
            json::parse(R"({"apiVersion": "policy/v1", "kind": "Eviction",
                            "metadata": {"namespace": "default", "name": "train"},
                            "deleteOptions": {"preconditions": {"uid": "u-1"}}})"));
  EXPECT_NE(server_->received_requests()[1].head.find("Content-Type: application/json"), std::string::npos);
}

TEST_F(EvictionTest, RetriesOnDisruptionBudgetAndReportsOnce) {
  respond(kReadPod, {{.status = 200, .body = pod_json("u-1")}});
  const auto no = status_json(429, "Cannot evict pod as it would violate the pod's disruption budget.",
                              "The disruption budget web needs 2 healthy pods and has 2 currently");
  respond(kEvictPod, {no, no, no, {.status = 201}});
  begin({"default/train"});
  ASSERT_TRUE(eventually([&] { return heard("default/train", Kind::kTerminating); }));
  const auto all = update_text();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].kind, Kind::kWaiting);
  EXPECT_EQ(
      all[0].reason,
      "the API server answered 429: Cannot evict pod as it would violate the pod's disruption budget. The "
      "disruption budget web needs 2 healthy pods and has 2 currently");
  EXPECT_EQ(std::ranges::count(update_lines(), kEvictPod), 4);
}

TEST_F(EvictionTest, MissingPodIsGone) {
  respond(kReadPod, {status_json(404, "not found")});
  begin({"default/train"});
  ASSERT_TRUE(eventually([&] { return heard("default/train", Kind::kGone); }));
  EXPECT_EQ(update_lines(), std::vector<std::string>{kReadPod});
}

TEST_F(EvictionTest, PodDeletedMeanwhileIsGone) {
  respond(kReadPod, {{.status = 200, .body = pod_json("u-1")}});
  respond(kEvictPod, {status_json(404, "not found")});
  begin({"default/train"});
  ASSERT_TRUE(eventually([&] { return heard("default/train", Kind::kGone); }));
}

TEST_F(EvictionTest, AnotherPodOfTheNameIsNotEvicted) {
  // A StatefulSet's Pod was recreated on another node between the read and the eviction.
  respond(kReadPod,
          {{.status = 200, .body = pod_json("u-1")}, {.status = 200, .body = pod_json("u-2", {}, "node-2")}});
  respond(kEvictPod,
          {status_json(409, "the UID in the precondition (u-1) does not match the UID in record (u-2)")});
  begin({"default/train"});
  ASSERT_TRUE(eventually([&] { return heard("default/train", Kind::kGone); }));
  EXPECT_EQ(update_lines(), (std::vector<std::string>{kReadPod, kEvictPod, kReadPod}));
}

TEST_F(EvictionTest, TerminatingPodIsNotEvictedAgain) {
  respond(kReadPod,
          {{.status = 200, .body = pod_json("u-1", {{"deletionTimestamp", "2026-01-01T00:00:00Z"}})}});
  begin({"default/train"});
  ASSERT_TRUE(eventually([&] { return heard("default/train", Kind::kTerminating); }));
  EXPECT_EQ(update_lines(), std::vector<std::string>{kReadPod});
}

TEST_F(EvictionTest, StaticPodIsRefusedAndNoOtherIsEvicted) {
  respond(kReadPod, {{.status = 200, .body = pod_json("u-1")}});
  respond("GET /api/v1/namespaces/kube-system/pods/dcgm-node-1",
          {{.status = 200,
            .body = pod_json("u-2", {{"annotations", {{"kubernetes.io/config.mirror", "f00d"}}}})}});
  respond(kEvictPod, {{.status = 201}});
  begin({"default/train", "kube-system/dcgm-node-1"});
  ASSERT_TRUE(eventually([&] { return heard("kube-system/dcgm-node-1", Kind::kRefused); }));
  EXPECT_NE(update_text().back().reason.find("static Pod"), std::string::npos);
  // Any further request would arrive before this one.
  call_on_loop([] {});
  EXPECT_EQ(std::ranges::count(update_lines(), kEvictPod), 0);
}

TEST_F(EvictionTest, WaitingPodDoesNotDelayOthers) {
  const std::string other = "/api/v1/namespaces/other/pods/infer";
  respond(kReadPod, {{.status = 200, .body = pod_json("u-1")}});
  respond("GET " + other, {{.status = 200, .body = pod_json("u-2")}});
  respond(kEvictPod, {status_json(429, "budget")});
  respond("POST " + other + "/eviction", {{.status = 201}});
  begin({"default/train", "other/infer"});
  ASSERT_TRUE(eventually([&] { return heard("other/infer", Kind::kTerminating); }));
  EXPECT_TRUE(heard("default/train", Kind::kWaiting));
}

TEST_F(EvictionTest, TemporaryErrorsAreRetriedAndNameTheMissingPermission) {
  respond(kReadPod, {status_json(403, "pods \"train\" is forbidden"),
                     {.status = 500},
                     {.act = Act::kClose},
                     {.status = 200, .body = "[]"},
                     {.status = 200, .body = pod_json("u-1")}});
  respond(kEvictPod, {status_json(403, "forbidden"),
                      status_json(500, "This pod has more than one PodDisruptionBudget"),
                      {.act = Act::kClose},
                      {.status = 201}});
  begin({"default/train"});
  ASSERT_TRUE(eventually([&] { return heard("default/train", Kind::kTerminating); }));
  const auto all = update_text();
  EXPECT_NE(all[0].reason.find("(the agent needs get on pods)"), std::string::npos) << all[0].reason;
  const auto told = [&](const std::string& words) {
    return std::ranges::any_of(all, [&](const auto& one) {
      return one.kind == Kind::kWaiting && one.reason.find(words) != std::string::npos;
    });
  };
  EXPECT_TRUE(told("(the agent needs create on pods/eviction)"));
  EXPECT_TRUE(told("more than one PodDisruptionBudget"));
  EXPECT_TRUE(told("not a Pod"));
}

TEST_F(EvictionTest, PermanentErrorsAreNotRetried) {
  respond(kReadPod, {{.status = 200, .body = pod_json("u-1")}});
  respond(kEvictPod, {status_json(422, "no such kind")});
  begin({"default/train"});
  ASSERT_TRUE(eventually([&] { return heard("default/train", Kind::kRefused); }));
  EXPECT_EQ(update_text().back().reason, "the API server answered 422: no such kind");
  EXPECT_EQ(std::ranges::count(update_lines(), kEvictPod), 1);
}

TEST_F(EvictionTest, InvalidNameIsRefused) {
  for (const char* bad : {"default/../secrets", "default", "a/b/c", "default/Train", "/train", "default/"}) {
    updates_.clear();
    begin({bad});
    ASSERT_TRUE(eventually([&] { return heard(bad, Kind::kRefused); })) << bad;
    EXPECT_TRUE(server_->received_requests().empty()) << bad;
    call_on_loop([&] { eviction_.reset(); });
  }
}

TEST_F(EvictionTest, CallbackMayDestroyTheEviction) {
  end_at_ = Kind::kWaiting;
  respond(kReadPod, {{.status = 200, .body = pod_json("u-1")}});
  respond(kEvictPod, {status_json(429, "budget")});
  begin({"default/train"});
  ASSERT_TRUE(eventually([&] { return heard("default/train", Kind::kWaiting); }));
  bool ended = false;
  call_on_loop([&] { ended = eviction_ == nullptr; });
  EXPECT_TRUE(ended);
}

TEST_F(EvictionTest, PodWithAnotherUidIsNotEvicted) {
  respond(kReadPod, {{.status = 200, .body = pod_json("u-2")}});
  respond(kEvictPod, {{.status = 201}});
  begin({});
  call_on_loop([&] {
    eviction_ = Eviction::start_eviction(
        loop_, client_config(), std::vector<PodRef>{{"default", "train", "u-1"}},
        [this](const EvictionUpdate& update) {
          std::lock_guard lock(mutex_);
          updates_.push_back(update);
        },
        kFast);
  });
  ASSERT_TRUE(eventually([&] { return heard("default/train", Kind::kGone); }));
  EXPECT_EQ(update_lines(), (std::vector<std::string>{kReadPod}));
}

}  // namespace
}  // namespace gpulet::k8s

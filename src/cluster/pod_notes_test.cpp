#include "cluster/pod_notes.h"

#include <atomic>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "cluster/test_api.h"

namespace gpulet::cluster {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr const char* kNote = "gpulet.io/gpu-fault";
const PodRef kTrain{"default", "train", "u-1"}, kInfer{"team-a", "infer.0", "u-2"};

std::string line_of(const PodRef& pod) {
  return "PATCH /api/v1/namespaces/" + pod.name_space + "/pods/" + pod.name;
}

// An API server that keeps what is noted, by the request's line.
class PodNotesTest : public ApiTest {
 protected:
  void let_go() override { notes_.reset(); }
  void begin(std::function<std::optional<Reply>(const Received&)> first = {}, Duration limit = 10s) {
    serve([this, first = std::move(first)](const Received& request) {
      if (auto reply = first ? first(request) : std::nullopt) return *reply;
      EXPECT_NE(request.head.find("Content-Type: application/merge-patch+json\r\n"), std::string::npos);
      std::lock_guard lock(mutex_);
      there_[request.line()].merge_patch(json::parse(request.body));
      return Reply{200};
    });
    call([&] { notes_ = PodNotes::start(loop_, access(), {.request_limit = limit, .backoff = {1ms, 5ms}}); });
  }
  Status set(const PodRef& pod, std::optional<std::string> value) {
    Status result;
    call([&] { result = notes_->set(pod, kNote, std::move(value)); });
    return result;
  }
  Delivery delivery() {
    Delivery delivery;
    call([&] { delivery = notes_->delivery(); });
    return delivery;
  }
  std::size_t pods() {
    std::size_t pods = 0;
    call([&] { pods = notes_->pods(); });
    return pods;
  }
  bool settled() {
    return eventually([&] { return !delivery().waiting; });
  }
  json there(const PodRef& pod) {
    std::lock_guard lock(mutex_);
    return there_[line_of(pod)];
  }
  json note(const PodRef& pod) {
    const json all = there(pod);
    return all.is_object() ? all["metadata"]["annotations"].value(kNote, json()) : json();
  }

  std::mutex mutex_;
  std::map<std::string, json> there_;
  std::unique_ptr<PodNotes> notes_;
};

TEST_F(PodNotesTest, ANoteComesAndGoesForTheVeryPod) {
  begin();
  ASSERT_TRUE(set(kTrain, "GPU-3: XID 79\xff"));
  ASSERT_TRUE(settled());
  EXPECT_EQ(there(kTrain),
            (json{{"metadata", {{"uid", "u-1"}, {"annotations", {{kNote, "GPU-3: XID 79\xEF\xBF\xBD"}}}}}}));
  ASSERT_TRUE(set(kTrain, std::nullopt));
  ASSERT_TRUE(settled());
  EXPECT_EQ(there(kTrain)["metadata"]["annotations"], json::object());
  EXPECT_EQ(delivery().taken, 2u);
}

TEST_F(PodNotesTest, AllOfOneTurnIsOneRequestAndWhatItHasIsNotSent) {
  begin();
  call([&] {
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(notes_->set(kTrain, kNote, std::to_string(i)));
    EXPECT_TRUE(notes_->set(kTrain, "gpulet.io/other", "x"));
    EXPECT_TRUE(notes_->set(kInfer, kNote, "y"));
  });
  ASSERT_TRUE(settled());
  EXPECT_EQ(server_->received().size(), 2u);
  EXPECT_EQ(note(kTrain), "99");
  EXPECT_EQ(there(kTrain)["metadata"]["annotations"]["gpulet.io/other"], "x");
  EXPECT_EQ(note(kInfer), "y");
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(set(kTrain, "99"));
  EXPECT_FALSE(delivery().waiting);
  EXPECT_EQ(server_->received().size(), 2u);
  ASSERT_TRUE(set(kTrain, "100"));
  ASSERT_TRUE(settled());
  EXPECT_EQ(json::parse(server_->received().back().body)["metadata"]["annotations"], (json{{kNote, "100"}}));
}

TEST_F(PodNotesTest, ASlowServerGetsTheNewestNext) {
  std::atomic<bool> asked = false, go_on = false;
  begin([&](const Received&) -> std::optional<Reply> {
    if (!asked.exchange(true)) {
      EXPECT_TRUE(eventually([&] { return go_on.load(); }));
    }
    return std::nullopt;
  });
  ASSERT_TRUE(set(kTrain, "first"));
  ASSERT_TRUE(eventually([&] { return asked.load(); }));
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(set(kTrain, std::to_string(i)));
  go_on = true;
  ASSERT_TRUE(settled());
  EXPECT_EQ(note(kTrain), "99");
  EXPECT_EQ(server_->received().size(), 2u);
}

TEST_F(PodNotesTest, AServerThatIsAwayOrNeverAnswersIsAskedAgain) {
  std::atomic<int> requests = 0;
  begin(
      [&](const Received&) -> std::optional<Reply> {
        switch (requests++) {
          case 0:
            return Reply{.act = Act::kHang};
          case 1:
            return Reply{.act = Act::kClose};
          case 2:
            return Reply{500};
          case 3:
            return Reply{409};
          default:
            return std::nullopt;
        }
      },
      200ms);
  ASSERT_TRUE(set(kTrain, "x"));
  ASSERT_TRUE(set(kInfer, "y"));
  ASSERT_TRUE(eventually([&] { return note(kTrain) == "x" && note(kInfer) == "y"; }));
  ASSERT_TRUE(settled());
  EXPECT_TRUE(eventually([&] { return delivery().trouble.empty(); }));
}

TEST_F(PodNotesTest, ARefusedPodHoldsNoOtherBackAndIsSaidOnce) {
  std::atomic<int> refused = 0;
  std::atomic<bool> allowed = false;
  begin([&](const Received& request) -> std::optional<Reply> {
    if (request.line() != line_of(kTrain) || allowed) return std::nullopt;
    return Reply{403, R"({"message": "try )" + std::to_string(++refused) + R"("})"};
  });
  ASSERT_TRUE(set(kTrain, "x"));
  ASSERT_TRUE(eventually([&] { return refused > 3; }));
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(set(kInfer, std::to_string(i)));
    ASSERT_TRUE(eventually([&] { return note(kInfer) == std::to_string(i); }));
    const int before = refused;
    ASSERT_TRUE(eventually([&] { return refused > before; }));
  }
  const Delivery refusal = delivery();
  EXPECT_TRUE(refusal.waiting);
  EXPECT_EQ(refusal.told, 1u);
  EXPECT_NE(refusal.trouble.find("(the agent needs patch on pods)"), std::string::npos) << refusal.trouble;
  allowed = true;
  ASSERT_TRUE(settled());
  EXPECT_EQ(note(kTrain), "x");
}

TEST_F(PodNotesTest, APodThatIsGoneOrAnotherByNowIsForgotten) {
  begin([&](const Received& request) -> std::optional<Reply> {
    return Reply{request.line() == line_of(kTrain) ? 404 : 422, R"({"message": "uid is immutable"})"};
  });
  ASSERT_TRUE(set(kTrain, "x"));
  ASSERT_TRUE(set(kInfer, "x"));
  ASSERT_TRUE(eventually([&] { return pods() == 0; }));
  EXPECT_EQ(server_->received().size(), 2u);
  EXPECT_EQ(delivery().told, 0u);
}

TEST_F(PodNotesTest, WhatIsForgottenIsNotSent) {
  std::atomic<int> refused = 0;
  begin([&](const Received& request) -> std::optional<Reply> {
    if (request.line() != line_of(kTrain)) return std::nullopt;
    ++refused;
    return Reply{503};
  });
  ASSERT_TRUE(set(kTrain, "x"));
  ASSERT_TRUE(eventually([&] { return refused > 2; }));
  call([&] { notes_->forget(kTrain); });
  EXPECT_EQ(pods(), 0u);
  ASSERT_TRUE(set(kInfer, "y"));
  ASSERT_TRUE(settled());
  const int before = refused;
  ASSERT_TRUE(set(kInfer, "z"));
  ASSERT_TRUE(settled());
  EXPECT_EQ(refused, before);
}

TEST_F(PodNotesTest, MemoryIsBounded) {
  begin([](const Received&) -> std::optional<Reply> { return Reply{503}; });
  call([&] {
    for (std::size_t i = 0; i < kMaxNotedPods + 100; ++i) {
      EXPECT_TRUE(notes_->set({"default", "pod-" + std::to_string(i), "u"}, kNote, "x"));
    }
    EXPECT_EQ(notes_->pods(), kMaxNotedPods);
    notes_->forget({"default", "pod-50", "u"});  // was forgotten already
    EXPECT_EQ(notes_->pods(), kMaxNotedPods);
  });
}

TEST_F(PodNotesTest, ANameThatLeadsElsewhereIsRefused) {
  begin();
  for (const PodRef& bad : {PodRef{"default", "../secrets", "u"}, PodRef{"a/b", "x", "u"},
                            PodRef{"", "x", "u"}, PodRef{"default", "x", ""}}) {
    EXPECT_EQ(set(bad, "x").error().code(), Code::kInvalidArgument);
  }
  EXPECT_TRUE(server_->received().empty());
}

}  // namespace
}  // namespace gpulet::cluster

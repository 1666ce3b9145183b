#include "k8s/pods.h"

#include <atomic>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "k8s/test_api.h"

namespace gpulet::k8s {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr const char* kNote = "gpulet.io/gpu-fault";
const PodRef kTrain{"default", "train", "u-1"}, kInfer{"team-a", "infer.0", "u-2"};

std::string line_of(const PodRef& pod) {
  return "PATCH /api/v1/namespaces/" + pod.name_space + "/pods/" + pod.name;
}

// An API server that stores the annotations by request line.
class PodAnnotationsTest : public ApiTest {
 protected:
  void release_source() override { notes_.reset(); }
  void begin(std::function<std::optional<Reply>(const Received&)> first = {}, Duration limit = 10s) {
    start_server([this, first = std::move(first)](const Received& request) {
      if (auto reply = first ? first(request) : std::nullopt) return *reply;
      EXPECT_NE(request.head.find("Content-Type: application/merge-patch+json\r\n"), std::string::npos);
      std::lock_guard lock(mutex_);
      there_[request.line()].merge_patch(json::parse(request.body));
      return Reply{200};
    });
    call_on_loop([&] {
      notes_ = PodAnnotations::start_annotations(loop_, client_config(),
                                                 {.request_limit = limit, .backoff = {1ms, 5ms}});
    });
  }
  Status set_on_loop(const PodRef& pod, std::optional<std::string> value) {
    Status result;
    call_on_loop([&] { result = notes_->set_annotation(pod, kNote, std::move(value)); });
    return result;
  }
  SendStatus status_on_loop() {
    SendStatus delivery;
    call_on_loop([&] { delivery = notes_->annotation_status(); });
    return delivery;
  }
  std::size_t pods_on_loop() {
    std::size_t pods = 0;
    call_on_loop([&] { pods = notes_->pod_count(); });
    return pods;
  }
  bool settled_on_loop() {
    return eventually([&] { return !status_on_loop().pending; });
  }
  json stored_annotations(const PodRef& pod) {
    std::lock_guard lock(mutex_);
    return there_[line_of(pod)];
  }
  json stored_annotation(const PodRef& pod) {
    const json all = stored_annotations(pod);
    return all.is_object() ? all["metadata"]["annotations"].value(kNote, json()) : json();
  }

  std::mutex mutex_;
  std::map<std::string, json> there_;
  std::unique_ptr<PodAnnotations> notes_;
};

TEST_F(PodAnnotationsTest, SetsAndRemovesTheAnnotationOfThatPod) {
  begin();
  ASSERT_TRUE(set_on_loop(kTrain, "GPU-3: XID 79\xff"));
  ASSERT_TRUE(settled_on_loop());
  EXPECT_EQ(stored_annotations(kTrain),
            (json{{"metadata", {{"uid", "u-1"}, {"annotations", {{kNote, "GPU-3: XID 79\xEF\xBF\xBD"}}}}}}));
  ASSERT_TRUE(set_on_loop(kTrain, std::nullopt));
  ASSERT_TRUE(settled_on_loop());
  EXPECT_EQ(stored_annotations(kTrain)["metadata"]["annotations"], json::object());
  EXPECT_EQ(status_on_loop().accepted, 2u);
}

TEST_F(PodAnnotationsTest, ChangesOfOneTurnAreOneRequest) {
  begin();
  call_on_loop([&] {
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(notes_->set_annotation(kTrain, kNote, std::to_string(i)));
    EXPECT_TRUE(notes_->set_annotation(kTrain, "gpulet.io/other", "x"));
    EXPECT_TRUE(notes_->set_annotation(kInfer, kNote, "y"));
  });
  ASSERT_TRUE(settled_on_loop());
  EXPECT_EQ(server_->received_requests().size(), 2u);
  EXPECT_EQ(stored_annotation(kTrain), "99");
  EXPECT_EQ(stored_annotations(kTrain)["metadata"]["annotations"]["gpulet.io/other"], "x");
  EXPECT_EQ(stored_annotation(kInfer), "y");
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(set_on_loop(kTrain, "99"));
  EXPECT_FALSE(status_on_loop().pending);
  EXPECT_EQ(server_->received_requests().size(), 2u);
  ASSERT_TRUE(set_on_loop(kTrain, "100"));
  ASSERT_TRUE(settled_on_loop());
  EXPECT_EQ(json::parse(server_->received_requests().back().body)["metadata"]["annotations"],
            (json{{kNote, "100"}}));
}

TEST_F(PodAnnotationsTest, SlowServerGetsTheNewestNext) {
  std::atomic<bool> asked = false, go_on = false;
  begin([&](const Received&) -> std::optional<Reply> {
    if (!asked.exchange(true)) {
      EXPECT_TRUE(eventually([&] { return go_on.load(); }));
    }
    return std::nullopt;
  });
  ASSERT_TRUE(set_on_loop(kTrain, "first"));
  ASSERT_TRUE(eventually([&] { return asked.load(); }));
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(set_on_loop(kTrain, std::to_string(i)));
  go_on = true;
  ASSERT_TRUE(settled_on_loop());
  EXPECT_EQ(stored_annotation(kTrain), "99");
  EXPECT_EQ(server_->received_requests().size(), 2u);
}

TEST_F(PodAnnotationsTest, RetriesWhileTheServerIsUnavailableOrSilent) {
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
  ASSERT_TRUE(set_on_loop(kTrain, "x"));
  ASSERT_TRUE(set_on_loop(kInfer, "y"));
  ASSERT_TRUE(
      eventually([&] { return stored_annotation(kTrain) == "x" && stored_annotation(kInfer) == "y"; }));
  ASSERT_TRUE(settled_on_loop());
  EXPECT_TRUE(eventually([&] { return status_on_loop().error.empty(); }));
}

TEST_F(PodAnnotationsTest, RefusedPodDelaysNoOtherAndIsLoggedOnce) {
  std::atomic<int> refused = 0;
  std::atomic<bool> allowed = false;
  begin([&](const Received& request) -> std::optional<Reply> {
    if (request.line() != line_of(kTrain) || allowed) return std::nullopt;
    return Reply{403, R"({"message": "try )" + std::to_string(++refused) + R"("})"};
  });
  ASSERT_TRUE(set_on_loop(kTrain, "x"));
  ASSERT_TRUE(eventually([&] { return refused > 3; }));
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(set_on_loop(kInfer, std::to_string(i)));
    ASSERT_TRUE(eventually([&] { return stored_annotation(kInfer) == std::to_string(i); }));
    const int before = refused;
    ASSERT_TRUE(eventually([&] { return refused > before; }));
  }
  const SendStatus refusal = status_on_loop();
  EXPECT_TRUE(refusal.pending);
  EXPECT_EQ(refusal.warnings, 1u);
  EXPECT_NE(refusal.error.find("(the agent needs patch on pods)"), std::string::npos) << refusal.error;
  allowed = true;
  ASSERT_TRUE(settled_on_loop());
  EXPECT_EQ(stored_annotation(kTrain), "x");
}

TEST_F(PodAnnotationsTest, DeletedOrReplacedPodIsDropped) {
  begin([&](const Received& request) -> std::optional<Reply> {
    return Reply{request.line() == line_of(kTrain) ? 404 : 422, R"({"message": "uid is immutable"})"};
  });
  ASSERT_TRUE(set_on_loop(kTrain, "x"));
  ASSERT_TRUE(set_on_loop(kInfer, "x"));
  ASSERT_TRUE(eventually([&] { return pods_on_loop() == 0; }));
  EXPECT_EQ(server_->received_requests().size(), 2u);
  EXPECT_EQ(status_on_loop().warnings, 0u);
}

TEST_F(PodAnnotationsTest, DroppedPodIsNotSent) {
  std::atomic<int> refused = 0;
  begin([&](const Received& request) -> std::optional<Reply> {
    if (request.line() != line_of(kTrain)) return std::nullopt;
    ++refused;
    return Reply{503};
  });
  ASSERT_TRUE(set_on_loop(kTrain, "x"));
  ASSERT_TRUE(eventually([&] { return refused > 2; }));
  call_on_loop([&] { notes_->forget_pod(kTrain); });
  EXPECT_EQ(pods_on_loop(), 0u);
  ASSERT_TRUE(set_on_loop(kInfer, "y"));
  ASSERT_TRUE(settled_on_loop());
  const int before = refused;
  ASSERT_TRUE(set_on_loop(kInfer, "z"));
  ASSERT_TRUE(settled_on_loop());
  EXPECT_EQ(refused, before);
}

TEST_F(PodAnnotationsTest, MemoryIsBounded) {
  begin([](const Received&) -> std::optional<Reply> { return Reply{503}; });
  call_on_loop([&] {
    for (std::size_t i = 0; i < kMaxAnnotatedPods + 100; ++i) {
      EXPECT_TRUE(notes_->set_annotation({"default", "pod-" + std::to_string(i), "u"}, kNote, "x"));
    }
    EXPECT_EQ(notes_->pod_count(), kMaxAnnotatedPods);
    notes_->forget_pod({"default", "pod-50", "u"});  // already dropped
    EXPECT_EQ(notes_->pod_count(), kMaxAnnotatedPods);
  });
}

TEST_F(PodAnnotationsTest, InvalidNameIsRefused) {
  begin();
  for (const PodRef& bad : {PodRef{"default", "../secrets", "u"}, PodRef{"a/b", "x", "u"},
                            PodRef{"", "x", "u"}, PodRef{"default", "x", ""}}) {
    EXPECT_EQ(set_on_loop(bad, "x").error().code(), Code::kInvalidArgument);
  }
  EXPECT_TRUE(server_->received_requests().empty());
}

}  // namespace
}  // namespace gpulet::k8s

#include "cluster/reader.h"

#include <atomic>
#include <nlohmann/json.hpp>

#include "cluster/test_api.h"

namespace gpulet::cluster {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

class ReaderTest : public ApiTest {
 protected:
  void let_go() override { reader_.reset(); }
  void begin(TestApiServer::Handler handler, Duration limit = 10s) {
    serve(std::move(handler));
    call([&] { reader_ = Reader::start(loop_, access(), limit); });
  }
  template <class Value>
  Result<Value> ask(const std::function<void(std::function<void(Result<Value>)>)>& how) {
    auto answer = std::make_shared<std::promise<Result<Value>>>();
    auto told = answer->get_future();
    call([&] { how([answer](Result<Value> value) { answer->set_value(std::move(value)); }); });
    return told.get();
  }
  Result<std::optional<PodFacts>> pod(const std::string& name) {
    return ask<std::optional<PodFacts>>([&](auto done) { reader_->pod("team-a", name, std::move(done)); });
  }
  Result<Annotations> annotations(const std::string& name) {
    return ask<Annotations>([&](auto done) { reader_->namespace_annotations(name, std::move(done)); });
  }
  Result<std::size_t> count(const std::string& selector) {
    return ask<std::size_t>([&](auto done) { reader_->count_nodes(selector, std::move(done)); });
  }
  static json pod_object(json metadata, const std::string& node = "node-1") {
    metadata["namespace"] = "team-a";
    metadata["name"] = "train";
    metadata["uid"] = "u-1";
    return {{"kind", "Pod"}, {"metadata", metadata}, {"spec", {{"nodeName", node}}}};
  }

  std::unique_ptr<Reader> reader_;
};

TEST_F(ReaderTest, ThePodAsItIs) {
  const json metadata = {
      {"ownerReferences", {{{"kind", "Other"}}, {{"kind", "ReplicaSet"}, {"controller", true}}}},
      {"annotations", {{"a", "b"}, {"odd", 3}}},
      {"labels", {{"app", "bert"}}}};
  begin([&](const Received& request) {
    EXPECT_EQ(request.line(), "GET /api/v1/namespaces/team-a/pods/train");
    return Reply{200, pod_object(metadata).dump()};
  });
  const auto facts = pod("train");
  ASSERT_TRUE(facts && *facts) << (facts ? "" : facts.error().text());
  EXPECT_EQ((*facts)->pod, (PodRef{"team-a", "train", "u-1"}));
  EXPECT_EQ((*facts)->owner, "ReplicaSet");
  EXPECT_FALSE((*facts)->mirror);
  EXPECT_FALSE((*facts)->leaving);
  EXPECT_EQ((*facts)->annotations, (Annotations{{"a", "b"}, {"odd", ""}}));
  EXPECT_EQ((*facts)->labels, (std::map<std::string, std::string>{{"app", "bert"}}));
}

TEST_F(ReaderTest, AStaticPodAndOneThatLeaves) {
  begin([&](const Received&) {
    return Reply{200, pod_object({{"annotations", {{"kubernetes.io/config.mirror", "x"}}},
                                  {"deletionTimestamp", "2026-01-01T00:00:00Z"}})
                          .dump()};
  });
  const auto facts = pod("train");
  ASSERT_TRUE(facts && *facts);
  EXPECT_TRUE((*facts)->mirror);
  EXPECT_TRUE((*facts)->leaving);
  EXPECT_EQ((*facts)->owner, "");
}

TEST_F(ReaderTest, OneThatIsGoneOrOnAnotherNodeIsNone) {
  begin([&](const Received& request) {
    if (request.line().ends_with("/gone")) return Reply{404, "{}"};
    return Reply{200, pod_object({}, "node-2").dump()};
  });
  for (const auto* name : {"gone", "train"}) {
    const auto facts = pod(name);
    ASSERT_TRUE(facts);
    EXPECT_FALSE(*facts);
  }
}

TEST_F(ReaderTest, ARightThatIsMissingIsNamed) {
  begin([&](const Received& request) {
    if (request.line().find("/pods/") != std::string::npos) return Reply{200, "[]"};
    return Reply{403, R"({"message": "no"})"};
  });
  const auto refused = annotations("team-a");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kPermissionDenied);
  EXPECT_EQ(refused.error().text(),
            "get on namespaces: the agent needs this right: the API server answered 403: no");
  EXPECT_EQ(count("a").error().code(), Code::kPermissionDenied);
  EXPECT_EQ(pod("train").error().code(), Code::kIo);  // what is no Pod
}

TEST_F(ReaderTest, NamespacesTellTheirAnnotations) {
  begin([&](const Received& request) {
    if (request.line() == "GET /api/v1/namespaces/gone") return Reply{404, "{}"};
    EXPECT_NE(request.head.find("as=PartialObjectMetadata"), std::string::npos);
    return Reply{200, R"({"metadata": {"annotations": {"gpulet.io/on-gpu-fault": "stay"}}})"};
  });
  EXPECT_EQ(*annotations("team-a"), (Annotations{{"gpulet.io/on-gpu-fault", "stay"}}));
  EXPECT_EQ(*annotations("gone"), Annotations());
}

TEST_F(ReaderTest, NodesAreCountedByPages) {
  begin([&](const Received& request) {
    EXPECT_NE(request.head.find("Accept: application/json;as=Table"), std::string::npos);
    EXPECT_NE(
        request.line().find("includeObject=None&labelSelector=gpulet.io%2Fgpu-health%20in%20%28lost%29"),
        std::string::npos)
        << request.line();
    const bool second = request.line().ends_with("&continue=a%3D");
    return Reply{200, second ? R"({"kind": "Table", "metadata": {}, "rows": [{}]})"
                             : R"({"kind": "Table", "metadata": {"continue": "a="}, "rows": [{}, {}]})"};
  });
  EXPECT_EQ(*count("gpulet.io/gpu-health in (lost)"), 3u);
  EXPECT_EQ(server_->received().size(), 2u);
}

TEST_F(ReaderTest, AServerThatKnowsNoTablesIsNotCounted) {
  begin([](const Received&) { return Reply{200, R"({"kind": "NodeList", "items": []})"}; });
  EXPECT_EQ(count("a").error().code(), Code::kIo);
}

TEST_F(ReaderTest, OneThatNeverAnswersHoldsTheNextUpNoLonger) {
  begin(
      [](const Received& request) {
        if (request.line().ends_with("/hangs")) return Reply{.act = Act::kHang};
        return Reply{404, "{}"};
      },
      100ms);
  EXPECT_EQ(pod("hangs").error().code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(pod("gone"));
}

TEST_F(ReaderTest, WhatWouldLeadElsewhereAndWhatIsTooMuchIsNotAsked) {
  std::promise<void> go_on;
  auto held = go_on.get_future().share();
  begin([&](const Received&) {
    held.wait();
    return Reply{404, "{}"};
  });
  EXPECT_EQ(pod("../secrets").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(annotations("a/b").error().code(), Code::kInvalidArgument);
  std::atomic<std::size_t> refused = 0, answered = 0;
  call([&] {
    for (std::size_t i = 0; i < kMaxReads + 10; ++i) {
      reader_->pod("team-a", "train", [&](const auto& facts) { ++(facts ? answered : refused); });
    }
  });
  EXPECT_TRUE(eventually([&] { return refused == 10; }));
  EXPECT_EQ(answered, 0u);
  go_on.set_value();
  EXPECT_TRUE(eventually([&] { return answered == kMaxReads; }));
}

TEST_F(ReaderTest, WhoIsAnsweredMayEndIt) {
  begin([](const Received&) { return Reply{404, "{}"}; });
  std::promise<void> ended;
  call([&] {
    reader_->pod("team-a", "train", [&](const auto&) {
      reader_.reset();
      ended.set_value();
    });
    reader_->pod("team-a", "train", [](const auto&) { ADD_FAILURE() << "answered after its end"; });
  });
  ended.get_future().wait();
}

}  // namespace
}  // namespace gpulet::cluster

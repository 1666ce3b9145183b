#include "agent/fault_care.h"

#include <gtest/gtest.h>

#include <mutex>
#include <nlohmann/json.hpp>

#include "agent/test_faults.h"
#include "base/text.h"
#include "cluster/test_api.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using cluster::Received;
using health::FaultClass;
using nlohmann::json;

constexpr BackoffLimits kQuick{1ms, 5ms};

// An API server with one node and two Pods on it, which merges what it is told as the real one does.
class FaultCareTest : public cluster::ApiTest {
 protected:
  FaultCareTest() {
    for (const auto* name : {"train", "infer"}) {
      pods_["team-a/" + std::string(name)] = {
          {"metadata",
           {{"namespace", "team-a"},
            {"name", name},
            {"uid", "uid-" + std::string(name)},
            {"annotations", json::object()},
            {"ownerReferences", {{{"kind", "ReplicaSet"}, {"controller", true}}}}}},
          {"spec", {{"nodeName", "node-1"}}}};
    }
  }
  void let_go() override { care_.reset(); }

  void begin(config::FaultSettings settings = {}, Duration request_limit = 10s) {
    serve([this](const Received& request) { return answer(request); });
    call([&] {
      const cluster::SendTiming sending{request_limit, kQuick};
      FaultCareTiming timing{.node = {.status = {.sending = sending},
                                      .patch = {request_limit, kQuick},
                                      .taints = {.sending = sending}},
                             .events = {.backoff = kQuick, .request_limit = request_limit},
                             .notes = sending,
                             .eviction = {request_limit, kQuick},
                             .read_limit = request_limit};
      care_ = std::make_unique<FaultCare>(
          FaultCarePorts{.loop = loop_,
                         .access = access(),
                         .holders =
                             [this](auto done) {
                               loop_.post([done = std::move(done)] {
                                 done(std::vector{container("train", {"GPU-3"}, "team-a"),
                                                  container("infer", {"GPU-4"}, "team-a")});
                               });
                             }},
          std::move(settings), 1, timing);
    });
  }
  void health(const std::map<unsigned, FaultClass>& broken) {
    call([&] { care_->on_health(std::make_shared<const health::View>(view_with(8, broken, loop_.now()))); });
  }

  // What the server refuses or hangs on: a part of the request's line, its end where it ends with '$'.
  void refuse(const std::string& part, Reply reply) {
    std::lock_guard lock(mutex_);
    refused_[part] = std::move(reply);
  }
  void allow_all() {
    std::lock_guard lock(mutex_);
    refused_.clear();
  }

  Reply answer(const Received& request) {
    std::lock_guard lock(mutex_);
    const std::string line = request.line();
    for (const auto& [part, reply] : refused_) {
      if ((line + "$").find(part) == std::string::npos) continue;
      ++refusals_;
      return reply;
    }
    const auto words = text::split(line, '/');  // "PATCH ", "api", "v1", …
    const json body = request.body.empty() ? json() : json::parse(request.body);
    if (line == "GET /api/v1/nodes/node-1") return {200, node_.dump()};
    if (line == "PATCH /api/v1/nodes/node-1/status") {
      condition_ = body["status"]["conditions"][0];
      return {200};
    }
    if (line == "PATCH /api/v1/nodes/node-1") {
      node_.merge_patch(body);
      return {200};
    }
    if (words.size() < 6 && line.starts_with("GET")) return {200, namespace_.dump()};
    if (words[5] == "events") {
      events_.push_back({{"namespace", words[4]}, {"event", body}});
      return {201};
    }
    if (line.ends_with("/eviction")) {
      evicted_.push_back(words[6]);
      return {201};
    }
    auto& pod = pods_[words[4] + "/" + words[6]];
    if (line.starts_with("PATCH")) pod.merge_patch(body);
    return {200, pod.dump()};
  }

  template <class Is>
  bool sees(Is is) {
    return cluster::eventually([&] {
      std::lock_guard lock(mutex_);
      return is();
    });
  }
  bool has_event(const std::string& pod, const std::string& reason) const {
    return std::ranges::any_of(events_, [&](const json& one) {
      const auto& about = one["event"]["involvedObject"];
      return one["event"]["reason"] == reason && about["name"] == pod && one["namespace"] == "team-a" &&
             about["namespace"] == "team-a" && about["uid"] == "uid-" + pod;
    });
  }
  bool told_of(const std::string& status) const { return condition_.value("status", "") == status; }
  bool labelled(const std::string& value) const {
    return node_["metadata"]["labels"].value(health::kHealthLabel, json()) == value;
  }
  json note(const std::string& pod) const {
    return pods_.at("team-a/" + pod)["metadata"]["annotations"].value(health::kFaultAnnotation, json());
  }
  static config::FaultSettings moves() {
    config::FaultSettings settings;
    settings.moving.enabled = true;
    return settings;
  }

  std::mutex mutex_;
  json node_ = json::parse(
      R"({"metadata": {"resourceVersion": "1", "labels": {}}, "spec": {}, "status": {"conditions": []}})");
  json namespace_ = {{"metadata", json::object()}};
  json condition_ = json::object();
  std::map<std::string, json> pods_;
  std::vector<json> events_;
  std::vector<std::string> evicted_;
  std::map<std::string, Reply> refused_;
  int refusals_ = 0;
  std::unique_ptr<FaultCare> care_;
};

TEST_F(FaultCareTest, AHealthyNodeSaysSoAndAsksForNoPod) {
  begin();
  health({});
  ASSERT_TRUE(sees([&] { return told_of("True") && labelled("healthy"); }));
  for (const auto& request : server_->received()) {
    EXPECT_EQ(request.line().find("/pods/"), std::string::npos) << request.line();
  }
  std::lock_guard lock(mutex_);
  EXPECT_FALSE(node_["spec"].contains("taints"));
}

TEST_F(FaultCareTest, AFaultIsToldToTheNodeAndToItsPodAndBothHearOfItsEnd) {
  begin();
  health({});
  health({{3, FaultClass::kLost}});
  ASSERT_TRUE(sees([&] { return told_of("False") && labelled("lost"); }));
  ASSERT_TRUE(sees([&] { return has_event("train", "GpuFault"); }));
  {
    std::lock_guard lock(mutex_);
    EXPECT_EQ(condition_["type"], "GpuHealthy");
    EXPECT_EQ(condition_["reason"], "GpuLost");
    EXPECT_NE(condition_["message"].get<std::string>().find("GPU 3 (GPU-3) is lost"), std::string::npos);
    EXPECT_FALSE(has_event("infer", "GpuFault"));
    EXPECT_TRUE(evicted_.empty());                   // moving is off
    EXPECT_TRUE(note("train").is_null());            // and so are notes
    EXPECT_FALSE(node_["spec"].contains("taints"));  // and taints
  }
  health({});
  ASSERT_TRUE(sees([&] { return told_of("True") && labelled("healthy"); }));
  ASSERT_TRUE(sees([&] { return has_event("train", "GpuRecovered"); }));
}

TEST_F(FaultCareTest, OnlyThePodOnTheBrokenDeviceIsEvicted) {
  begin(moves());
  health({{3, FaultClass::kLost}});
  ASSERT_TRUE(sees([&] { return !evicted_.empty(); }));
  ASSERT_TRUE(sees([&] { return has_event("train", "GpuFaultEviction"); }));
  std::lock_guard lock(mutex_);
  EXPECT_EQ(evicted_, (std::vector<std::string>{"train"}));
}

TEST_F(FaultCareTest, ANamespaceMaySayThatItsPodsStay) {
  namespace_["metadata"]["annotations"] = {{health::kGraceAnnotation, "stay"}};
  begin(moves());
  health({{3, FaultClass::kLost}});
  ASSERT_TRUE(sees([&] { return has_event("train", "GpuFaultStays"); }));
  std::lock_guard lock(mutex_);
  EXPECT_TRUE(evicted_.empty());
}

TEST_F(FaultCareTest, TheNoteOnAPodComesAndGoes) {
  config::FaultSettings settings;
  settings.pod_notes = true;
  begin(settings);
  health({{3, FaultClass::kLost}});
  ASSERT_TRUE(sees([&] { return note("train").is_string(); }));
  {
    std::lock_guard lock(mutex_);
    EXPECT_NE(note("train").get<std::string>().find("GPU 3 (GPU-3) is lost"), std::string::npos);
    EXPECT_TRUE(note("infer").is_null());
  }
  health({});
  ASSERT_TRUE(sees([&] { return note("train").is_null(); }));
}

TEST_F(FaultCareTest, ANoteOfARunBeforeGoesWhenAllIsWell) {
  pods_["team-a/infer"]["metadata"]["annotations"][health::kFaultAnnotation] = "what was";
  config::FaultSettings settings;
  settings.pod_notes = true;
  begin(settings);
  health({});
  ASSERT_TRUE(sees([&] { return note("infer").is_null(); }));
}

TEST_F(FaultCareTest, TheTaintFollowsTheSeverityAndOnlyWhereItIsWanted) {
  config::FaultSettings settings;
  settings.taints[health::Severity::kLost] = "NoSchedule";
  begin(settings);
  health({{3, FaultClass::kLost}});
  ASSERT_TRUE(sees([&] {
    return node_["spec"].value("taints", json()) ==
           json::parse(R"([{"key": "gpulet.io/gpu-fault", "value": "lost", "effect": "NoSchedule"}])");
  }));
  health({{3, FaultClass::kXidReset}});
  ASSERT_TRUE(sees([&] { return node_["spec"].value("taints", json()) == json::array(); }));
}

TEST_F(FaultCareTest, WhatIsTurnedOffIsTakenAway) {
  begin();
  health({{3, FaultClass::kLost}});
  ASSERT_TRUE(sees([&] { return told_of("False") && labelled("lost"); }));
  config::FaultSettings none;
  none.condition = none.label = none.pod_events = false;
  call([&] { care_->apply(none); });
  ASSERT_TRUE(sees([&] { return condition_.value("$patch", "") == "delete" && !labelled("lost"); }));
}

struct Right {
  const char* part;
  bool condition, label, event, eviction;  // what is done all the same
};
class MissingRight : public FaultCareTest, public testing::WithParamInterface<Right> {};

TEST_P(MissingRight, HarmsNothingElse) {
  const Right& right = GetParam();
  refuse(right.part, {403, R"({"message": "forbidden"})"});
  begin(moves());
  health({{3, FaultClass::kLost}});
  ASSERT_TRUE(sees([&] {
    return refusals_ > 1 && (!right.condition || told_of("False")) && (!right.label || labelled("lost")) &&
           (!right.event || has_event("train", "GpuFault")) && (!right.eviction || !evicted_.empty());
  }));
  {
    std::lock_guard lock(mutex_);
    EXPECT_EQ(told_of("False"), right.condition);
    EXPECT_EQ(labelled("lost"), right.label);
    EXPECT_EQ(has_event("train", "GpuFault"), right.event);
    EXPECT_TRUE(right.eviction || evicted_.empty());
    refused_.clear();
  }
  // What was refused comes once the right is there, within the longest wait.
  EXPECT_TRUE(sees([&] {
    return told_of("False") && labelled("lost") && has_event("train", "GpuFault") && !evicted_.empty();
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Rights, MissingRight,
    testing::Values(Right{"PATCH /api/v1/nodes/node-1/status", false, true, true, true},
                    Right{"PATCH /api/v1/nodes/node-1$", true, false, true, true},
                    Right{"GET /api/v1/namespaces/team-a$", true, true, true, false},
                    Right{"/events", true, true, false, true},
                    Right{"GET /api/v1/namespaces/team-a/pods", true, true, false, false},
                    Right{"POST /api/v1/namespaces/team-a/pods", true, true, true, false}));

TEST_F(FaultCareTest, AServerThatHangsHoldsNobodyUp) {
  refuse("/", {.act = Act::kHang});
  begin(moves(), 300ms);
  // Each is a turn of the loop: it is back before any request has ended.
  for (unsigned i = 0; i < 200; ++i) health({{i % 8, FaultClass::kLost}});
  health({{3, FaultClass::kLost}});
  allow_all();
  ASSERT_TRUE(sees([&] { return told_of("False") && labelled("lost"); }));
  ASSERT_TRUE(sees([&] { return !evicted_.empty() && evicted_.back() == "train"; }));
  std::lock_guard lock(mutex_);
  EXPECT_NE(condition_["message"].get<std::string>().find("GPU 3"), std::string::npos);
}

TEST_F(FaultCareTest, AServerThatIsAwayIsToldWhenItIsBack) {
  refuse("/", {.act = Act::kClose});
  begin(moves());
  health({{3, FaultClass::kLost}});
  ASSERT_TRUE(cluster::eventually([&] { return server_->received().size() > 5; }));
  allow_all();
  ASSERT_TRUE(sees([&] { return told_of("False") && !evicted_.empty(); }));
}

}  // namespace
}  // namespace gpulet::agent

#include <mutex>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "agent/remediation/remediation_controller.h"
#include "agent/remediation/test_faults.h"
#include "base/text.h"
#include "k8s/test_api.h"

namespace gpulet::agent {
namespace {

using health::FaultClass;

class PodNotifierTest : public testing::Test {
 protected:
  static HeldPod pod_holding(const std::string& name, std::vector<unsigned> gpus,
                             std::optional<std::string> note = {}) {
    HeldPod held;
    held.pod = health::pod_on_devices(name, {});
    for (const auto index : gpus) held.pod.devices.push_back(gpu_scope(index));
    held.annotation = std::move(note);
    return held;
  }
  void update_notifier(const health::HealthView& view, std::vector<HeldPod> pods,
                       PodNotifierOptions wants = {true, true}) {
    events_.clear();
    notes_.clear();
    gone_.clear();
    notifier_.notify_pods(view, pods, wants);
  }

  std::vector<k8s::Event> events_;
  std::vector<std::pair<std::string, std::optional<std::string>>> notes_;
  std::vector<std::string> gone_;
  PodNotifier notifier_{{[this](k8s::Event event) { events_.push_back(std::move(event)); },
                         [this](const PodRef& pod, std::optional<std::string> note) {
                           notes_.emplace_back(pod.name, std::move(note));
                         },
                         [this](const PodRef& pod) { gone_.push_back(pod.name); }}};
};

TEST_F(PodNotifierTest, ForgetsAnAnnotatedPodOnce) {
  const auto broken = view_with(4, {{2, FaultClass::kLost}}), well = view_with(4, {});
  update_notifier(broken, {pod_holding("train", {2}), pod_holding("infer", {1})});
  update_notifier(well, {pod_holding("train", {2}), pod_holding("infer", {1})});
  EXPECT_TRUE(gone_.empty());
  update_notifier(well, {});
  EXPECT_EQ(gone_, std::vector<std::string>{"train"});
  update_notifier(well, {});
  EXPECT_TRUE(gone_.empty());
}

TEST_F(PodNotifierTest, NotifiesOnlyHoldersOnce) {
  const auto view = view_with(4, {{2, FaultClass::kLost}});
  const std::vector<HeldPod> pods{pod_holding("train", {2}), pod_holding("infer", {1})};
  update_notifier(view, pods);
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_TRUE(events_[0].warning);
  EXPECT_EQ(events_[0].reason, "GpuFault");
  EXPECT_EQ(events_[0].pod, (PodRef{"default", "train", "uid-train"}));
  EXPECT_NE(events_[0].message.find("GPU 2 (GPU-2) is lost"), std::string::npos) << events_[0].message;
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_EQ(notes_[0].first, "train");
  EXPECT_EQ(notes_[0].second, events_[0].message);
  update_notifier(view, pods);
  EXPECT_TRUE(events_.empty());
  EXPECT_TRUE(notes_.empty());
}

TEST_F(PodNotifierTest, ARecoveryIsNotifiedAndTheAnnotationRemoved) {
  update_notifier(view_with(4, {{2, FaultClass::kLost}}), {pod_holding("train", {2})});
  update_notifier(view_with(4, {}), {pod_holding("train", {2})});
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_FALSE(events_[0].warning);
  EXPECT_EQ(events_[0].reason, "GpuRecovered");
  EXPECT_EQ(events_[0].message, "GPU 2 (GPU-2) is healthy");
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_EQ(notes_[0].second, std::nullopt);
  update_notifier(view_with(4, {}), {pod_holding("train", {2})});
  EXPECT_TRUE(events_.empty());
  EXPECT_TRUE(notes_.empty());
}

TEST_F(PodNotifierTest, RemovesAnOutdatedAnnotationOfAnEarlierRun) {
  update_notifier(view_with(4, {}), {pod_holding("train", {2}, "what was")});
  EXPECT_TRUE(events_.empty());
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_EQ(notes_[0].second, std::nullopt);

  const auto view = view_with(4, {{1, FaultClass::kLost}});
  update_notifier(view, {pod_holding("infer", {1}, health::device_health_text(view.devices[1]))});
  EXPECT_TRUE(notes_.empty());
}

TEST_F(PodNotifierTest, TheAnnotationListsTheRemainingFaultyDevices) {
  update_notifier(view_with(4, {{1, FaultClass::kLost}, {2, FaultClass::kRowRemapPending}}),
                  {pod_holding("train", {1, 2})});
  ASSERT_EQ(events_.size(), 2u);
  EXPECT_EQ(events_[1].reason, "GpuDegraded");
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_NE(notes_[0].second->find("GPU 2"), std::string::npos);
  update_notifier(view_with(4, {{1, FaultClass::kLost}}), {pod_holding("train", {1, 2})});
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(events_[0].message, "GPU 2 (GPU-2) is healthy");
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_EQ(notes_[0].second->find("GPU 2"), std::string::npos);
}

TEST_F(PodNotifierTest, DisabledNotificationsAreNotSent) {
  const auto view = view_with(4, {{2, FaultClass::kLost}});
  update_notifier(view, {pod_holding("train", {2})}, {.events = false, .annotations = true});
  EXPECT_TRUE(events_.empty());
  EXPECT_EQ(notes_.size(), 1u);
  // No longer configured: the annotation is removed.
  update_notifier(view, {pod_holding("train", {2})}, {.events = false, .annotations = false});
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_EQ(notes_[0].second, std::nullopt);
}

TEST_F(PodNotifierTest, AMigDeviceIsNotifiedSeparately) {
  auto view = view_with(2, {});
  for (const unsigned instance : {1u, 2u}) {
    health::DeviceView mig;
    mig.scope = {DeviceUuid("GPU-1"), instance, 0};
    mig.uuid = DeviceUuid("MIG-" + std::to_string(instance));
    mig.gpu_index = 1;
    mig.mig_index = instance;
    if (instance == 2) mig.status = health::faulty_device(mig.scope, FaultClass::kXidReset).status;
    view.devices.push_back(mig);
  }
  HeldPod one = pod_holding("one", {}), two = pod_holding("two", {});
  one.pod.devices = {{DeviceUuid("GPU-1"), 1, 0}};
  two.pod.devices = {{DeviceUuid("GPU-1"), 2, 0}};
  update_notifier(view, {one, two});
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(events_[0].pod->name, "two");
}

}  // namespace

namespace {

using namespace std::chrono_literals;
using health::FaultClass;
using k8s::Received;
using nlohmann::json;

constexpr BackoffLimits kQuick{1ms, 5ms};

// An API server with one node and two Pods on it, which merges patches as the real one does.
class RemediationTest : public k8s::ApiTest {
 protected:
  RemediationTest() {
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
  void release_source() override { controller_.reset(); }

  void begin(config::FaultSettings settings = {}, Duration request_limit = 10s) {
    start_server([this](const Received& request) { return respond(request); });
    call_on_loop([&] {
      const k8s::SendTiming sending{request_limit, kQuick};
      RemediationTiming timing{.node = {.status = {.sending = sending},
                                        .patch = {request_limit, kQuick},
                                        .taints = {.sending = sending}},
                               .events = {.backoff = kQuick, .request_limit = request_limit},
                               .annotations = sending,
                               .eviction = {request_limit, kQuick},
                               .read_limit = request_limit};
      controller_ = std::make_unique<RemediationController>(
          RemediationPorts{.loop = loop_,
                           .access = client_config(),
                           .holders =
                               [this](auto done) {
                                 loop_.post([done = std::move(done)] {
                                   done(std::vector{container_with_devices("train", {"GPU-3"}, "team-a"),
                                                    container_with_devices("infer", {"GPU-4"}, "team-a")});
                                 });
                               }},
          std::move(settings), 1, timing);
    });
  }
  void set_health(const std::map<unsigned, FaultClass>& broken) {
    call_on_loop([&] {
      controller_->on_health_view(
          std::make_shared<const health::HealthView>(view_with(8, broken, loop_.now())));
    });
  }

  // Requests that the server refuses or hangs on: a part of the request line, or its end if it ends with '$'.
  void refuse_requests(const std::string& part, Reply reply) {
    std::lock_guard lock(mutex_);
    refused_[part] = std::move(reply);
  }
  void allow_all() {
    std::lock_guard lock(mutex_);
    refused_.clear();
  }

  Reply respond(const Received& request) {
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
    return k8s::eventually([&] {
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
  bool condition_is(const std::string& status) const { return condition_.value("status", "") == status; }
  bool labelled(const std::string& value) const {
    return node_["metadata"]["labels"].value(health::kHealthLabel, json()) == value;
  }
  json annotation_of(const std::string& pod) const {
    return pods_.at("team-a/" + pod)["metadata"]["annotations"].value(health::kFaultAnnotation, json());
  }
  static config::FaultSettings moves() {
    config::FaultSettings settings;
    settings.eviction.enabled = true;
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
  std::unique_ptr<RemediationController> controller_;
};

TEST_F(RemediationTest, AHealthyNodePublishesAndReadsNoPod) {
  begin();
  set_health({});
  ASSERT_TRUE(sees([&] { return condition_is("True") && labelled("healthy"); }));
  for (const auto& request : server_->received_requests()) {
    EXPECT_EQ(request.line().find("/pods/"), std::string::npos) << request.line();
  }
  std::lock_guard lock(mutex_);
  EXPECT_FALSE(node_["spec"].contains("taints"));
}

TEST_F(RemediationTest, TheWorstPreflightIsALabelOfTheNode) {
  begin();
  const auto set_preflight = [&](const std::string& result) {
    call_on_loop([&] {
      auto view = view_with(8, {}, loop_.now());
      view.devices[3].preflight = result;
      controller_->on_health_view(std::make_shared<const health::HealthView>(std::move(view)));
    });
  };
  const auto label = [&] { return node_["metadata"]["labels"].value(health::kPreflightLabel, json()); };
  set_preflight("waiting");
  ASSERT_TRUE(sees([&] { return label() == "waiting"; }));
  set_preflight("");
  ASSERT_TRUE(sees([&] { return label().is_null(); }));
}

TEST_F(RemediationTest, AFaultAndItsEndReachTheNodeAndThePod) {
  begin();
  set_health({});
  set_health({{3, FaultClass::kLost}});
  ASSERT_TRUE(sees([&] { return condition_is("False") && labelled("lost"); }));
  ASSERT_TRUE(sees([&] { return has_event("train", "GpuFault"); }));
  {
    std::lock_guard lock(mutex_);
    EXPECT_EQ(condition_["type"], "GpuHealthy");
    EXPECT_EQ(condition_["reason"], "GpuLost");
    EXPECT_NE(condition_["message"].get<std::string>().find("GPU 3 (GPU-3) is lost"), std::string::npos);
    EXPECT_FALSE(has_event("infer", "GpuFault"));
    EXPECT_TRUE(evicted_.empty());                   // moving is off
    EXPECT_TRUE(annotation_of("train").is_null());   // and so are notes
    EXPECT_FALSE(node_["spec"].contains("taints"));  // and taints
  }
  set_health({});
  ASSERT_TRUE(sees([&] { return condition_is("True") && labelled("healthy"); }));
  ASSERT_TRUE(sees([&] { return has_event("train", "GpuRecovered"); }));
}

TEST_F(RemediationTest, OnlyThePodOnTheFaultyDeviceIsEvicted) {
  begin(moves());
  set_health({{3, FaultClass::kLost}});
  ASSERT_TRUE(sees([&] { return !evicted_.empty(); }));
  ASSERT_TRUE(sees([&] { return has_event("train", "GpuFaultEviction"); }));
  std::lock_guard lock(mutex_);
  EXPECT_EQ(evicted_, (std::vector<std::string>{"train"}));
}

TEST_F(RemediationTest, ANamespaceAnnotationKeepsItsPods) {
  namespace_["metadata"]["annotations"] = {{health::kGraceAnnotation, "stay"}};
  begin(moves());
  set_health({{3, FaultClass::kLost}});
  ASSERT_TRUE(sees([&] { return has_event("train", "GpuFaultStays"); }));
  std::lock_guard lock(mutex_);
  EXPECT_TRUE(evicted_.empty());
}

TEST_F(RemediationTest, PodAnnotationIsSetAndRemoved) {
  config::FaultSettings settings;
  settings.pod_annotations = true;
  begin(settings);
  set_health({{3, FaultClass::kLost}});
  ASSERT_TRUE(sees([&] { return annotation_of("train").is_string(); }));
  {
    std::lock_guard lock(mutex_);
    EXPECT_NE(annotation_of("train").get<std::string>().find("GPU 3 (GPU-3) is lost"), std::string::npos);
    EXPECT_TRUE(annotation_of("infer").is_null());
  }
  set_health({});
  ASSERT_TRUE(sees([&] { return annotation_of("train").is_null(); }));
}

TEST_F(RemediationTest, RemovesAnAnnotationOfAnEarlierRun) {
  pods_["team-a/infer"]["metadata"]["annotations"][health::kFaultAnnotation] = "what was";
  config::FaultSettings settings;
  settings.pod_annotations = true;
  begin(settings);
  set_health({});
  ASSERT_TRUE(sees([&] { return annotation_of("infer").is_null(); }));
}

TEST_F(RemediationTest, TheTaintFollowsTheSeverityIfConfigured) {
  config::FaultSettings settings;
  settings.taints[health::Severity::kLost] = "NoSchedule";
  begin(settings);
  set_health({{3, FaultClass::kLost}});
  ASSERT_TRUE(sees([&] {
    return node_["spec"].value("taints", json()) ==
           json::parse(R"([{"key": "gpulet.io/gpu-fault", "value": "lost", "effect": "NoSchedule"}])");
  }));
  set_health({{3, FaultClass::kXidReset}});
  ASSERT_TRUE(sees([&] { return node_["spec"].value("taints", json()) == json::array(); }));
}

TEST_F(RemediationTest, DisabledOutputsAreRemoved) {
  begin();
  set_health({{3, FaultClass::kLost}});
  ASSERT_TRUE(sees([&] { return condition_is("False") && labelled("lost"); }));
  config::FaultSettings none;
  none.condition = none.label = none.pod_events = false;
  call_on_loop([&] { controller_->apply_settings(none); });
  ASSERT_TRUE(sees([&] { return condition_.value("$patch", "") == "delete" && !labelled("lost"); }));
}

struct Right {
  const char* part;
  bool condition, label, event, eviction;  // done all the same
};
class MissingPermission : public RemediationTest, public testing::WithParamInterface<Right> {};

TEST_P(MissingPermission, AffectsNothingElse) {
  const Right& right = GetParam();
  refuse_requests(right.part, {403, R"({"message": "forbidden"})"});
  begin(moves());
  set_health({{3, FaultClass::kLost}});
  ASSERT_TRUE(sees([&] {
    return refusals_ > 1 && (!right.condition || condition_is("False")) &&
           (!right.label || labelled("lost")) && (!right.event || has_event("train", "GpuFault")) &&
           (!right.eviction || !evicted_.empty());
  }));
  {
    std::lock_guard lock(mutex_);
    EXPECT_EQ(condition_is("False"), right.condition);
    EXPECT_EQ(labelled("lost"), right.label);
    EXPECT_EQ(has_event("train", "GpuFault"), right.event);
    EXPECT_TRUE(right.eviction || evicted_.empty());
    refused_.clear();
  }
  // Refused requests succeed once the permission is granted, within the longest backoff.
  EXPECT_TRUE(sees([&] {
    return condition_is("False") && labelled("lost") && has_event("train", "GpuFault") && !evicted_.empty();
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Rights, MissingPermission,
    testing::Values(Right{"PATCH /api/v1/nodes/node-1/status", false, true, true, true},
                    Right{"PATCH /api/v1/nodes/node-1$", true, false, true, true},
                    Right{"GET /api/v1/namespaces/team-a$", true, true, true, false},
                    Right{"/events", true, true, false, true},
                    Right{"GET /api/v1/namespaces/team-a/pods", true, true, false, false},
                    Right{"POST /api/v1/namespaces/team-a/pods", true, true, true, false}));

TEST_F(RemediationTest, AHangingServerBlocksNothing) {
  refuse_requests("/", {.act = Act::kHang});
  begin(moves(), 300ms);
  // Each is a turn of the loop: it is back before any request has ended.
  for (unsigned i = 0; i < 200; ++i) set_health({{i % 8, FaultClass::kLost}});
  set_health({{3, FaultClass::kLost}});
  allow_all();
  ASSERT_TRUE(sees([&] { return condition_is("False") && labelled("lost"); }));
  ASSERT_TRUE(sees([&] { return !evicted_.empty() && evicted_.back() == "train"; }));
  std::lock_guard lock(mutex_);
  EXPECT_NE(condition_["message"].get<std::string>().find("GPU 3"), std::string::npos);
}

TEST_F(RemediationTest, AnUnavailableServerIsUpdatedWhenItReturns) {
  refuse_requests("/", {.act = Act::kClose});
  begin(moves());
  set_health({{3, FaultClass::kLost}});
  ASSERT_TRUE(k8s::eventually([&] { return server_->received_requests().size() > 5; }));
  allow_all();
  ASSERT_TRUE(sees([&] { return condition_is("False") && !evicted_.empty(); }));
}

}  // namespace
}  // namespace gpulet::agent

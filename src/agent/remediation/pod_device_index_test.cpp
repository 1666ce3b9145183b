#include <algorithm>

#include <gtest/gtest.h>

#include "agent/remediation/pod_device_index.h"
#include "agent/remediation/test_faults.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using health::FaultClass;
using Holders = std::vector<ContainerDevices>;

class PodDeviceIndexTest : public testing::Test {
 protected:
  void update_index_with(std::map<unsigned, FaultClass> classes, PodDeviceIndex::Options wants = {}) {
    pods_.update_index(view_with(8, classes), wants);
    loop_.run_ready();
  }
  std::string pod_names() const {
    std::string out;
    for (const auto& held : pods_.held_pods()) out += (out.empty() ? "" : " ") + held.pod.name;
    return out;
  }
  std::ptrdiff_t requests_made(const std::string& what) const {
    return std::ranges::count(reader_.asked, what);
  }

  ManualLoop loop_;
  FakeReader reader_{loop_};
  Result<Holders> holders_ =
      Holders{container_with_devices("train", {"GPU-3"}), container_with_devices("infer", {"GPU-4::1"})};
  bool answers_ = true;
  int lists_ = 0, rounds_ = 0;
  PodDeviceIndex pods_{{.loop = loop_,
                        .holders =
                            [this](auto done) {
                              ++lists_;
                              if (answers_) loop_.post([this, done = std::move(done)] { done(holders_); });
                            },
                        .reader = reader_,
                        .changed = [this] { ++rounds_; }},
                       1};
};

TEST_F(PodDeviceIndexTest, ReadsNothingWithoutAFault) {
  update_index_with({});
  loop_.advance(1h);
  EXPECT_EQ(lists_, 0);
  EXPECT_EQ(loop_.pending_timers(), 0u);
}

TEST_F(PodDeviceIndexTest, ReadsOnlyHoldersOfFaultyDevices) {
  reader_.add_pod("train", {{health::kGraceAnnotation, "stay"}, {health::kFaultAnnotation, "old"}});
  reader_.add_pod("infer");
  update_index_with({{3, FaultClass::kLost}});
  ASSERT_EQ(pod_names(), "train");
  const auto held = pods_.held_pods().front();
  EXPECT_EQ(held.pod.uid, "uid-train");
  EXPECT_EQ(held.pod.owner, "ReplicaSet");
  EXPECT_EQ(held.pod.annotation, "stay");
  EXPECT_EQ(held.annotation, "old");
  EXPECT_EQ(held.pod.devices, (std::vector<health::Scope>{gpu_scope(3)}));
  EXPECT_TRUE(held.is_current);  // its own annotation overrides its namespace's
  EXPECT_EQ(reader_.asked, (std::vector<std::string>{"default/train"}));
  EXPECT_EQ(rounds_, 1);
}

TEST_F(PodDeviceIndexTest, AReplicaMapsToItsDevice) {
  reader_.add_pod("infer");
  update_index_with({{4, FaultClass::kLost}});
  EXPECT_EQ(pod_names(), "infer");
  EXPECT_FALSE(pods_.held_pods().front().is_current);  // its namespace was not read
}

TEST_F(PodDeviceIndexTest, ReadsANamespaceOnceForAllItsPods) {
  reader_.add_pod("train");
  reader_.add_pod("infer");
  reader_.namespaces["default"] = {{health::kGraceAnnotation, "finish"}};
  update_index_with({{3, FaultClass::kLost}, {4, FaultClass::kLost}}, {.namespaces = true});
  ASSERT_EQ(pod_names(), "infer train");
  for (const auto& held : pods_.held_pods()) {
    EXPECT_TRUE(held.is_current);
    EXPECT_EQ(held.pod.namespace_annotation, "finish");
  }
  EXPECT_EQ(requests_made("default"), 1);
}

TEST_F(PodDeviceIndexTest, ARefusedNamespaceLeavesItsPodsIncomplete) {
  reader_.add_pod("train");
  reader_.namespace_error = Error(Code::kPermissionDenied, "no", "get on namespaces");
  update_index_with({{3, FaultClass::kLost}}, {.namespaces = true});
  ASSERT_EQ(pod_names(), "train");
  EXPECT_FALSE(pods_.held_pods().front().is_current);
  EXPECT_NE(pods_.last_problem().find("get on namespaces"), std::string::npos);
  reader_.namespace_error.reset();
  loop_.advance(kPodsRetryBackoff.max);
  EXPECT_TRUE(pods_.held_pods().front().is_current);
  EXPECT_EQ(pods_.last_problem(), "");
}

TEST_F(PodDeviceIndexTest, FollowsPodsWhileThereIsAFault) {
  reader_.add_pod("train");
  reader_.add_pod("next");
  update_index_with({{3, FaultClass::kLost}});
  holders_ = Holders{container_with_devices("next", {"GPU-3"})};
  loop_.advance(kPodsPollInterval);
  EXPECT_EQ(pod_names(), "next");
  update_index_with({});
  const int before = lists_;
  loop_.advance(1h);
  EXPECT_EQ(lists_, before);
}

TEST_F(PodDeviceIndexTest, RereadsOldData) {
  reader_.add_pod("train");
  update_index_with({{3, FaultClass::kLost}});
  reader_.add_pod("train", {{health::kGraceAnnotation, "stay"}});
  loop_.advance(kPodInfoTtl + kPodsPollInterval);
  EXPECT_EQ(pods_.held_pods().front().pod.annotation, "stay");
  EXPECT_EQ(requests_made("default/train"), 2);
}

TEST_F(PodDeviceIndexTest, RereadsAPodOfTheSameNameOnAnotherDevice) {
  reader_.add_pod("train");
  update_index_with({{3, FaultClass::kLost}, {5, FaultClass::kLost}});
  reader_.add_pod("train", {}, "second");
  holders_ = Holders{container_with_devices("train", {"GPU-5"})};
  loop_.advance(kPodsPollInterval);
  EXPECT_EQ(pods_.held_pods().front().pod.uid, "second");
}

TEST_F(PodDeviceIndexTest, ExpiredDataIsNotUsed) {
  reader_.add_pod("train");
  update_index_with({{3, FaultClass::kLost}});
  update_index_with({});
  EXPECT_EQ(pod_names(), "train");  // it must get the event that its device is healthy
  loop_.advance(1h);
  answers_ = false;
  pods_.update_index(view_with(8, {{3, FaultClass::kLost}}), {});
  EXPECT_EQ(pod_names(), "");
}

TEST_F(PodDeviceIndexTest, ADeletedPodIsNotListed) {
  update_index_with({{3, FaultClass::kLost}});
  EXPECT_EQ(pod_names(), "");
  EXPECT_EQ(rounds_, 1);
}

TEST_F(PodDeviceIndexTest, RetriesAnUnavailableKubelet) {
  reader_.add_pod("train");
  holders_ = fail(Code::kUnavailable, "nobody listens");
  update_index_with({{3, FaultClass::kLost}});
  EXPECT_EQ(pod_names(), "");
  EXPECT_NE(pods_.last_problem().find("nobody listens"), std::string::npos);
  holders_ = Holders{container_with_devices("train", {"GPU-3"})};
  loop_.advance(kPodsRetryBackoff.max);
  EXPECT_EQ(pod_names(), "train");
}

TEST_F(PodDeviceIndexTest, LostResponseTimesOut) {
  reader_.add_pod("train");
  answers_ = false;
  update_index_with({{3, FaultClass::kLost}});
  answers_ = true;
  loop_.advance(kHoldersTimeout + kPodsRetryBackoff.max);
  EXPECT_EQ(pod_names(), "train");
}

TEST_F(PodDeviceIndexTest, ABurstOfChangesIsOneMoreRefresh) {
  reader_.add_pod("train");
  for (unsigned i = 0; i < 100; ++i) pods_.update_index(view_with(8, {{i % 8, FaultClass::kLost}}), {});
  loop_.run_ready();
  loop_.advance(kRefreshMinInterval);
  EXPECT_EQ(lists_, 2);
}

TEST_F(PodDeviceIndexTest, ReadsAllPodsOnceForEarlierAnnotations) {
  reader_.add_pod("train", {{health::kFaultAnnotation, "old"}});
  reader_.add_pod("infer");
  update_index_with({}, {.all_pods = true});
  EXPECT_EQ(pod_names(), "infer train");
  EXPECT_EQ(lists_, 1);
  update_index_with({}, {.all_pods = true});
  loop_.advance(1h);
  EXPECT_EQ(lists_, 1);
}

TEST_F(PodDeviceIndexTest, ARemovedDeviceKeepsItsHolder) {
  reader_.add_pod("train");
  holders_ = Holders{container_with_devices("train", {"MIG-1"})};
  auto view = view_with(8, {});
  health::DeviceView mig;
  mig.scope = {DeviceUuid("GPU-3"), 2, 0};
  mig.uuid = DeviceUuid("MIG-1");
  view.devices.push_back(mig);
  pods_.update_index(view, {});
  update_index_with({{3, FaultClass::kLost}});  // and its MIG device is no more in the view
  EXPECT_EQ(pod_names(), "train");
  EXPECT_EQ(pods_.held_pods().front().pod.devices, (std::vector<health::Scope>{mig.scope}));
}

}  // namespace

namespace {

using namespace std::chrono_literals;

class PodLabelCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    reader_.add_pod("train");
    reader_.pods["default/train"].labels = {{"app", "bert"}};
    reader_.add_pod("bare");
  }
  void see(const std::vector<ContainerDevices>& containers) {
    labels_.on_containers(containers);
    loop_.run_ready();
  }
  PodLabelCache::Labels last() const { return changes_.empty() ? PodLabelCache::Labels() : changes_.back(); }

  ManualLoop loop_;
  FakeReader reader_{loop_};
  std::vector<PodLabelCache::Labels> changes_;
  PodLabelCache labels_{loop_, reader_, [this](const auto& labels) { changes_.push_back(labels); }};
  const std::vector<ContainerDevices> both_ = {container_with_devices("train", {"GPU-0"}),
                                               container_with_devices("bare", {"GPU-1"})};
};

TEST_F(PodLabelCacheTest, ReadsEachPodOnce) {
  for (int i = 0; i < 3; ++i) see(both_);
  EXPECT_EQ(reader_.asked, (std::vector<std::string>{"default/bare", "default/train"}));
  EXPECT_EQ(changes_.size(), 1u);
  EXPECT_EQ(last(), (PodLabelCache::Labels{{{"default", "train"}, {{"app", "bert"}}}}));
}

TEST_F(PodLabelCacheTest, RereadsOldLabels) {
  see(both_);
  reader_.pods["default/train"].labels["app"] = "gpt";
  loop_.advance(kPodLabelsTtl);
  see(both_);
  EXPECT_EQ(reader_.asked.size(), 4u);
  EXPECT_EQ(last().at({"default", "train"}).at("app"), "gpt");
}

TEST_F(PodLabelCacheTest, DropsADeletedPod) {
  see(both_);
  see({});
  EXPECT_TRUE(last().empty());
  see(both_);
  EXPECT_EQ(reader_.asked.size(), 4u) << "it may be another by that name";
}

TEST_F(PodLabelCacheTest, RetriesAFailedRead) {
  reader_.error = Error(Code::kUnavailable, "the API server is away");
  see(both_);
  EXPECT_TRUE(changes_.empty());
  reader_.error.reset();
  see(both_);
  EXPECT_EQ(last().size(), 1u);
}

TEST_F(PodLabelCacheTest, DropsAResponseForADeletedPod) {
  labels_.on_containers(both_);
  labels_.on_containers({});
  loop_.run_ready();
  EXPECT_TRUE(changes_.empty());
}

}  // namespace
}  // namespace gpulet::agent

#include "extender/ask_monitor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/loop.h"
#include "k8s/test_api.h"

namespace gpulet::extender {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr const char* kGpu = "nvidia.com/gpu";
constexpr const char* kKey = "default-scheduler.nvidia.com_gpu";

scheduler::PodRequest pod_of(const std::string& name, const std::string& scheduler = kDefaultScheduler) {
  scheduler::PodRequest pod;
  pod.name_space = "team";
  pod.name = name;
  pod.uid = "uid-" + name;
  pod.node = "n1";
  pod.scheduler = scheduler;
  pod.bound_at = "2026-01-31T12:00:00Z";
  pod.containers = {{.name = "main", .devices = {{ResourceName(kGpu), 1}}}};
  return pod;
}

// The ConfigMap in memory, shared by the replicas of a test.
class MemoryStore final : public AskRecordStore {
 public:
  explicit MemoryStore(Loop& loop) : loop_(loop) {}
  void set_entry(std::string key, std::string value) override {
    ++writes;
    data[std::move(key)] = std::move(value);
  }
  void read_record(std::function<void(AskRecord)> done) override {
    ++reads;
    if (!silent) loop_.post([this, done = std::move(done)] { done(parse_ask_record(data)); });
  }
  std::map<std::string, std::string> data;
  int reads = 0, writes = 0;
  bool silent = false;

 private:
  Loop& loop_;
};

class AskMonitorTest : public testing::Test {
 protected:
  AskMonitorTest() { loop_.advance(24h); }  // the wall clock is not in 1970's first minutes
  AskMonitor& start(bool shared = true) {
    monitors_.push_back(std::make_unique<AskMonitor>(
        AskMonitorPorts{.loop = loop_,
                        .send_event = [this](k8s::Event event) { events_.push_back(std::move(event)); },
                        .record = shared ? &store_ : nullptr},
        std::set<std::string>{kDefaultScheduler}));
    return *monitors_.back();
  }
  void bind(AskMonitor& monitor, const scheduler::PodRequest& pod, std::set<std::string> resources = {kGpu}) {
    monitor.on_bound(pod, resources);
    loop_.advance(1min);
  }

  ManualLoop loop_;
  MemoryStore store_{loop_};
  std::vector<k8s::Event> events_;
  std::vector<std::unique_ptr<AskMonitor>> monitors_;
};

TEST_F(AskMonitorTest, APodThatNobodyAskedAboutIsReportedOnce) {
  auto& monitor = start();
  bind(monitor, pod_of("a"));
  ASSERT_EQ(events_.size(), 1U);
  EXPECT_EQ(events_[0].reason, kNotAskedReason);
  ASSERT_TRUE(events_[0].pod);
  EXPECT_EQ(events_[0].pod->name, "a");
  EXPECT_NE(events_[0].message.find("default-scheduler bound the Pod to n1"), std::string::npos);
  bind(monitor, pod_of("b"));
  EXPECT_EQ(monitor.missed_count(), 2U) << "each is counted";
  EXPECT_EQ(events_.size(), 1U) << "but reported every ten minutes at most";
  loop_.advance(10min);
  bind(monitor, pod_of("c"));
  EXPECT_EQ(events_.size(), 2U);
  const auto misses = current_misses(parse_ask_record(store_.data));
  ASSERT_EQ(misses.size(), 1U);
  EXPECT_EQ(misses[0].pod, "team/c");
  EXPECT_EQ(misses[0].resource, kGpu);
}

TEST_F(AskMonitorTest, ReplicasShareWhatTheyWereAskedAndReport) {
  auto& asked = start();
  auto& idle = start();
  asked.on_asked(pod_of("a"));
  bind(asked, pod_of("a"));
  bind(idle, pod_of("a"));
  EXPECT_TRUE(events_.empty());
  EXPECT_EQ(idle.missed_count(), 0U);
  loop_.advance(1h);
  bind(asked, pod_of("b"));
  bind(idle, pod_of("b"));
  EXPECT_EQ(events_.size(), 1U);
  EXPECT_EQ(asked.missed_count() + idle.missed_count(), 2U);
}

TEST_F(AskMonitorTest, ARestartedReplicaKnowsWhatWasAsked) {
  start().on_asked(pod_of("a"));
  monitors_.clear();
  bind(start(), pod_of("a"));
  EXPECT_TRUE(events_.empty());
}

TEST_F(AskMonitorTest, ADecisionMayPrecedeTheBindingByTenMinutes) {
  auto& monitor = start(false);
  monitor.on_asked(pod_of("a"));
  loop_.advance(10min);
  bind(monitor, pod_of("a"));
  EXPECT_EQ(monitor.missed_count(), 0U);
  loop_.advance(10min);
  bind(monitor, pod_of("b"));
  EXPECT_EQ(monitor.missed_count(), 1U);
}

TEST_F(AskMonitorTest, AnotherResourceIsJudgedByItself) {
  auto& monitor = start();
  monitor.on_asked(pod_of("a"));
  bind(monitor, pod_of("b"), {kGpu, "nvidia.com/mig-1g.10gb"});
  EXPECT_EQ(monitor.missed_count(), 1U);
  ASSERT_EQ(events_.size(), 1U);
  EXPECT_NE(events_[0].message.find("about nvidia.com/mig-1g.10gb"), std::string::npos);
}

TEST_F(AskMonitorTest, PodsThatNoSchedulerAsksAboutAreNotJudged) {
  auto& monitor = start();
  bind(monitor, pod_of("volcano", "volcano"));
  auto direct = pod_of("direct");
  direct.bound_at.clear();  // spec.nodeName is its author's
  bind(monitor, direct);
  bind(monitor, pod_of("elsewhere"), {});  // no agent offers what it requests
  EXPECT_EQ(monitor.missed_count(), 0U);
  EXPECT_EQ(store_.reads, 0);
}

TEST_F(AskMonitorTest, WithoutTheRecordNothingIsKnownAndNothingReported) {
  store_.silent = true;
  auto& monitor = start();
  for (int i = 0; i < 2000; ++i) bind(monitor, pod_of("p" + std::to_string(i)));
  EXPECT_EQ(monitor.missed_count(), 0U);
  EXPECT_EQ(store_.reads, 1);
}

TEST_F(AskMonitorTest, TheRecordIsWrittenEveryFiveMinutes) {
  auto& monitor = start();
  for (int i = 0; i < 60; ++i) {
    monitor.on_asked(pod_of("a"));
    loop_.advance(10s);
  }
  EXPECT_EQ(store_.writes, 2);
  EXPECT_TRUE(parse_ask_record(store_.data).asked.contains(kKey));
}

TEST(AskRecordTest, LaterQuestionsEndAMissAndOddEntriesAreIgnored) {
  auto record = parse_ask_record({{"missed.s.r", "2026-01-31T12:00:00.000Z s nvidia.com/gpu team/a"},
                                  {"asked.s.r", "yesterday"},
                                  {"missed.s.q", "2026-01-31T12:00:00.000Z s"},
                                  {"asked.", ""},
                                  {"else", "2026-01-31T12:00:00.000Z"}});
  ASSERT_EQ(current_misses(record).size(), 1U);
  EXPECT_EQ(current_misses(record)[0].pod, "team/a");
  record.asked["s.r"] = record.missed["s.r"].at;
  EXPECT_TRUE(current_misses(record).empty());
}

class AskRecordStoreTest : public k8s::ApiTest {
 protected:
  void release_source() override { store_.reset(); }
  std::unique_ptr<AskRecordStore> store_;
};

TEST_F(AskRecordStoreTest, PatchesAndReadsTheConfigMap) {
  std::mutex mutex;
  json data = json::object();
  std::optional<AskRecord> found;
  bool refused = false;
  start_server([&](const k8s::Received& request) {
    std::lock_guard lock(mutex);
    if (request.line().starts_with("PATCH")) {
      if (!std::exchange(refused, true)) return Reply{503, "{}"};
      data.merge_patch(json::parse(request.body)["data"]);
    }
    return Reply{200, json{{"data", data}}.dump()};
  });
  call_on_loop([&] {
    store_ = AskRecordStore::start_store(loop_, client_config(), "record", {10s, {1ms, 2ms}});
    store_->set_entry("asked.s.r", "2026-01-31T12:00:00.000Z");
    store_->read_record([&](AskRecord record) {
      std::lock_guard lock(mutex);
      found = std::move(record);
    });
  });
  ASSERT_TRUE(k8s::eventually([&] {
    std::lock_guard lock(mutex);
    return found.has_value();
  }));
  EXPECT_TRUE(found->asked.contains("s.r")) << "written, after a failure, before it is read";
  EXPECT_EQ(request_count("GET /api/v1/namespaces/default/configmaps/record"), 1);
}

}  // namespace
}  // namespace gpulet::extender

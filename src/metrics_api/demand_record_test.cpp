#include "metrics_api/demand_record.h"

#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "k8s/test_api.h"

namespace gpulet::metrics_api {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

const WallTime kDayTwo(std::chrono::seconds(1'767'571'200 + 86'400));  // 2026-01-06T00:00:00Z

// A ConfigMap, and the replicas that share it.
class DemandRecordTest : public k8s::ApiTest {
 protected:
  void SetUp() override {
    k8s::ApiTest::SetUp();
    start_server([this](const k8s::Received& request) {
      const std::lock_guard lock(mutex_);
      EXPECT_NE(request.line().find("/namespaces/gpulet/configmaps/demand"), std::string::npos);
      if (request.line().starts_with("PATCH ")) map_.merge_patch(json::parse(request.body));
      return Reply{200, map_.dump(), {}, {}};
    });
  }
  void release_source() override { records_.clear(); }
  void start_replica(DemandForecasts& forecasts) {
    call_on_loop([&] {
      auto access = client_config();
      access.pod_namespace = "gpulet";
      records_.push_back(std::make_unique<DemandRecord>(
          loop_, access, "demand", forecasts, [] { return kDayTwo; }, 5ms, k8s::SendTiming{10s, {1ms, 2ms}}));
    });
  }
  std::size_t entries() {
    const std::lock_guard lock(mutex_);
    return map_.contains("data") ? map_["data"].size() : 0;
  }

  std::mutex mutex_;
  json map_ = {{"data", {{"demand-0", "of another form"}}}};
  DemandForecasts one_, other_;  // until the records have gone from the loop
  std::vector<std::unique_ptr<DemandRecord>> records_;
};

TEST_F(DemandRecordTest, AnotherReplicaKnowsWhatOneHasLearned) {
  for (WallTime now = kDayTwo - 24h; now < kDayTwo; now += 1min) one_.add_sample("team app=web", now, 250);
  start_replica(one_);
  ASSERT_TRUE(k8s::eventually([&] { return entries() == 1; })) << "the entry of another form is removed";
  start_replica(other_);
  ASSERT_TRUE(k8s::eventually([&] {
    std::optional<double> known;
    call_on_loop([&] { known = other_.greatest_demand("team app=web", kDayTwo, 1h); });
    return known && std::abs(*known - 250) < 2;
  }));
}

}  // namespace
}  // namespace gpulet::metrics_api

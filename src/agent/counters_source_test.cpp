#include "agent/counters_source.h"

#include <nlohmann/json.hpp>

#include "agent/test_reporter.h"
#include "cluster/test_api.h"

namespace gpulet::agent {
namespace {

constexpr const char* kTemperature = "DCGM_FI_DEV_GPU_TEMP, gauge, Temperature\n";
constexpr const char* kTwo = "DCGM_FI_DEV_GPU_TEMP, gauge, Temperature\nDCGM_FI_DEV_SM_CLOCK, gauge, Clock\n";

std::string config_map(const std::string& version, const std::string& key, const std::string& counters) {
  return nlohmann::json{{"metadata", {{"name", "counters"}, {"resourceVersion", version}}},
                        {"data", {{key, counters}}}}
      .dump();
}
std::string event(const std::string& type, const std::string& object) {
  return R"({"type":")" + type + R"(","object":)" + object + "}\n";
}

class CountersSourceTest : public cluster::ApiTest {
 protected:
  void let_go() override { source_.reset(); }
  void start(const std::string& file, const std::string& map) {
    call([&] {
      source_.emplace(loop_, told_, [this] { ++changes_; });
      source_->apply(file, map);
    });
  }
  std::size_t metrics() {
    std::size_t count = 0;
    call([&] { count = source_->counters().all.size(); });
    return count;
  }
  bool becomes(std::size_t count) {
    return cluster::eventually([&] { return metrics() == count; });
  }

  Told told_;
  std::atomic<int> changes_ = 0;
  std::optional<CountersSource> source_;
  const std::size_t defaults_ = metrics::default_counters().all.size();
};

TEST_F(CountersSourceTest, AFileIsFollowedAndABadOneLeavesTheLast) {
  const std::string file = folder_ + "/counters.csv";
  ASSERT_TRUE(write_file_atomic(file, kTemperature));
  start(file, "");
  EXPECT_EQ(metrics(), 1u);
  ASSERT_TRUE(write_file_atomic(file, kTwo));
  EXPECT_TRUE(becomes(2));
  ASSERT_TRUE(write_file_atomic(file, "DCGM_FI_DEV_GPU_TEMP, gage, Temperature\n"));
  EXPECT_TRUE(cluster::eventually([&] { return told_.texts().size() == 1; }));
  EXPECT_EQ(metrics(), 2u);
  EXPECT_NE(told_.texts().front().find(file + ": line 1: \"gage\""), std::string::npos)
      << told_.texts().front();
  call([&] { source_->apply("", ""); });
  EXPECT_EQ(metrics(), defaults_);
}

TEST_F(CountersSourceTest, AConfigMapIsFollowed) {
  std::mutex mutex;
  std::vector<std::string> asked;
  std::atomic<bool> seen = false;  // the first change
  serve([&](const auto& request) {
    const std::lock_guard lock(mutex);
    asked.push_back(request.line());
    if (request.line().find("watch=true") == std::string::npos)
      return Reply{200,
                   R"({"kind":"ConfigMapList","metadata":{"resourceVersion":"1"},"items":[)" +
                       config_map("1", "metrics", kTemperature) + "]}",
                   {},
                   {}};
    return Reply{200, "", {}, [&](Stream& stream) {
                   stream.chunk(event("MODIFIED", config_map("2", "metrics", kTwo)));
                   while (!seen && stream.wait(5)) {
                   }
                   stream.chunk(event("MODIFIED", config_map("3", "counters", kTwo)));
                   return stream.wait(60'000);
                 }};
  });
  start("/nowhere", "monitoring:counters");
  EXPECT_EQ(metrics(), defaults_) << "the API server is not known yet";
  call([&] { source_->set_access(access()); });
  EXPECT_TRUE(becomes(2));
  seen = true;
  EXPECT_TRUE(cluster::eventually([&] { return told_.texts().size() == 1; }));
  EXPECT_EQ(
      told_.texts().front(),
      "Counters: ConfigMap monitoring:counters: it has no key metrics, which has the counters; the metrics "
      "stay as they are");
  EXPECT_EQ(metrics(), 2u);
  EXPECT_GE(changes_, 1);
  const std::lock_guard lock(mutex);
  EXPECT_EQ(asked.front(),
            "GET /api/v1/namespaces/monitoring/configmaps?fieldSelector=metadata.name%3Dcounters");
}

TEST_F(CountersSourceTest, WhatIsNoNameOfAConfigMapIsSaid) {
  for (const char* name : {"counters", "a:b:c", "../x:y", ":y", "x:"}) start("", name);
  const auto told = told_.texts();
  ASSERT_EQ(told.size(), 5u);
  EXPECT_EQ(told.front(),
            "Counters: gpulet.metrics.countersConfigMap 'counters': that is no NAMESPACE:NAME, as "
            "monitoring:gpu-counters is; the metrics stay as they are");
}

}  // namespace
}  // namespace gpulet::agent

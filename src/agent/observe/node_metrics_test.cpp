#include "agent/observe/node_metrics.h"

#include <nlohmann/json.hpp>

#include "agent/node/test_reporter.h"
#include "k8s/test_api.h"

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

class CountersSourceTest : public k8s::ApiTest {
 protected:
  void release_source() override { source_.reset(); }
  void start_source(const std::string& file, const std::string& map) {
    call_on_loop([&] {
      source_.emplace(loop_, reporter_, [this] { ++changes_; });
      source_->set_source(file, map);
    });
  }
  std::size_t metrics() {
    std::size_t count = 0;
    call_on_loop([&] { count = source_->counters().all.size(); });
    return count;
  }
  bool becomes(std::size_t count) {
    return k8s::eventually([&] { return metrics() == count; });
  }

  RecordingReporter reporter_;
  std::atomic<int> changes_ = 0;
  std::optional<CountersSource> source_;
  const std::size_t defaults_ = metrics::default_counters().all.size();
};

TEST_F(CountersSourceTest, ReloadsAFileAndKeepsTheLastValidOne) {
  const std::string file = directory_ + "/counters.csv";
  ASSERT_TRUE(write_file_atomic(file, kTemperature));
  start_source(file, "");
  EXPECT_EQ(metrics(), 1u);
  ASSERT_TRUE(write_file_atomic(file, kTwo));
  EXPECT_TRUE(becomes(2));
  ASSERT_TRUE(write_file_atomic(file, "DCGM_FI_DEV_GPU_TEMP, gage, Temperature\n"));
  EXPECT_TRUE(k8s::eventually([&] { return reporter_.reported_texts().size() == 1; }));
  EXPECT_EQ(metrics(), 2u);
  EXPECT_NE(reporter_.reported_texts().front().find(file + ": line 1: \"gage\""), std::string::npos)
      << reporter_.reported_texts().front();
  call_on_loop([&] { source_->set_source("", ""); });
  EXPECT_EQ(metrics(), defaults_);
}

TEST_F(CountersSourceTest, ReloadsAConfigMap) {
  std::mutex mutex;
  std::vector<std::string> requests;
  std::atomic<bool> seen = false;  // the first change
  start_server([&](const auto& request) {
    const std::lock_guard lock(mutex);
    requests.push_back(request.line());
    if (request.line().find("watch=true") == std::string::npos)
      return Reply{200,
                   R"({"kind":"ConfigMapList","metadata":{"resourceVersion":"1"},"items":[)" +
                       config_map("1", "metrics", kTemperature) + "]}",
                   {},
                   {}};
    return Reply{200, "", {}, [&](Stream& stream) {
                   stream.chunk(event("MODIFIED", config_map("2", "metrics", kTwo)));
                   while (!seen && stream.wait_open(5)) {
                   }
                   stream.chunk(event("MODIFIED", config_map("3", "counters", kTwo)));
                   return stream.wait_open(60'000);
                 }};
  });
  start_source("/nowhere", "monitoring:counters");
  EXPECT_EQ(metrics(), defaults_) << "the API server is not known yet";
  call_on_loop([&] { source_->set_access(client_config()); });
  EXPECT_TRUE(becomes(2));
  seen = true;
  EXPECT_TRUE(k8s::eventually([&] { return reporter_.reported_texts().size() == 1; }));
  EXPECT_EQ(
      reporter_.reported_texts().front(),
      "Counters: ConfigMap monitoring:counters: it has no key metrics, the list of counters; the previous "
      "counters stay in force");
  EXPECT_EQ(metrics(), 2u);
  EXPECT_GE(changes_, 1);
  const std::lock_guard lock(mutex);
  EXPECT_EQ(requests.front(),
            "GET /api/v1/namespaces/monitoring/configmaps?fieldSelector=metadata.name%3Dcounters");
}

TEST_F(CountersSourceTest, ReportsAnInvalidConfigMapName) {
  for (const char* name : {"counters", "a:b:c", "../x:y", ":y", "x:"}) start_source("", name);
  const auto reported = reporter_.reported_texts();
  ASSERT_EQ(reported.size(), 5u);
  EXPECT_EQ(reported.front(),
            "Counters: gpulet.metrics.countersConfigMap 'counters': expected NAMESPACE:NAME, such as "
            "monitoring:gpu-counters; the previous counters stay in force");
}

}  // namespace
}  // namespace gpulet::agent

// The page of metrics of the agent as a process: what each GPU measures, whose it is, and what becomes of the
// page when a GPU, a counters file or the kubelet fails.
#include <cstdio>

#include "base/text.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

namespace control = sim::control;

class SimMetrics : public NodeTest {
 protected:
  static cli::AgentOptions each_second(std::vector<std::string> more = {}) {
    more.insert(more.end(), {"GPULET_METRICS_INTERVAL=1s", "GPULET_HEALTH_ALIVE_INTERVAL=1s",
                             "GPULET_DRIVER_CALL_TIMEOUT=300ms"});
    return {.environment = std::move(more)};
  }
  // The samples of the metric that say `part`, as the page has them now.
  std::vector<std::string> series(const std::string& name, const std::string& part = {}) {
    const auto body = http_get(port(), "/metrics").body;
    std::vector<std::string> found;
    for (const auto& line : text::split(body, '\n')) {
      if (line.starts_with(name + "{") && line.find(part) != std::string::npos) found.push_back(line);
    }
    return found;
  }
  bool has(const std::string& name, std::size_t count, const std::string& part = {}) {
    return eventually([&] { return series(name, part).size() == count; });
  }
  static void write(const std::string& file, const std::string& text) {
    std::FILE* const opened = std::fopen(file.c_str(), "w");
    ASSERT_NE(opened, nullptr);
    std::fputs(text.c_str(), opened);
    std::fclose(opened);
  }
  static std::string gpu(std::uint32_t index) { return "gpu=\"" + std::to_string(index) + "\""; }
};

TEST_F(SimMetrics, AreThoseOfDcgmForEachGpu) {
  serve("hgx-h100", each_second({"NODE_NAME=node-7"}));
  ASSERT_TRUE(has("DCGM_FI_DEV_GPU_TEMP", 8, "hostname=\"node-7\""));
  for (const char* name : {"DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_UTIL",
                           "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_XID_ERRORS", "gpulet_device_state"}) {
    EXPECT_EQ(series(name).size(), 8u) << name;
  }
  EXPECT_EQ(series("DCGM_FI_DEV_FB_FREE", gpu(0) + ",UUID=\"" + uuid(0) + "\"").size(), 1u);
  // Between two samples.
  EXPECT_TRUE(has("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 8));
  const auto page = http_get(port(), "/metrics").body;
  for (const char* name : {"gpulet_driver_calls_total ", "gpulet_driver_calls_hanging 0\n",
                           "gpulet_snapshot_age_seconds ", "gpulet_sample_age_seconds "}) {
    EXPECT_NE(page.find(std::string("\n") + name), std::string::npos) << name;
  }
}

TEST_F(SimMetrics, AGpuThatHangsLosesItsOwnSeriesAlone) {
  serve("hgx-h100", each_second());
  ASSERT_TRUE(has("DCGM_FI_DEV_GPU_TEMP", 8));
  ASSERT_TRUE(control::hang(machine(), 2));
  ASSERT_TRUE(has("DCGM_FI_DEV_GPU_TEMP", 7));
  EXPECT_TRUE(series("DCGM_FI_DEV_GPU_TEMP", gpu(2)).empty());
  EXPECT_TRUE(has("gpulet_device_state", 1, "state=\"quarantined\""));
  ASSERT_TRUE(control::heal(machine(), 2));
  EXPECT_TRUE(has("DCGM_FI_DEV_GPU_TEMP", 8));
}

TEST_F(SimMetrics, AnXidIsItsGpusLast) {
  serve("hgx-h100", each_second());
  ASSERT_TRUE(has("DCGM_FI_DEV_XID_ERRORS", 8, "err_code=\"0\""));
  ASSERT_TRUE(control::xid(machine(), 3, 13));
  ASSERT_TRUE(has("DCGM_FI_DEV_XID_ERRORS", 1, "err_code=\"13\""));
  const auto line = series("DCGM_FI_DEV_XID_ERRORS", "err_code=\"13\"").at(0);
  EXPECT_NE(line.find(gpu(3)), std::string::npos) << line;
  EXPECT_TRUE(line.ends_with(" 13")) << line;
  EXPECT_EQ(line.find("No Error"), std::string::npos) << line;
}

TEST_F(SimMetrics, NameThePodThatHoldsTheGpu) {
  serve("hgx-h100", each_second());
  const auto held = ids_of(admit("trainer", 1)).at(0);
  ASSERT_TRUE(has("DCGM_FI_DEV_GPU_TEMP", 1, "namespace=\"default\",pod=\"trainer\""));
  const auto line = series("DCGM_FI_DEV_GPU_TEMP", "pod=\"trainer\"").at(0);
  EXPECT_NE(line.find("UUID=\"" + held + "\""), std::string::npos) << line;
  EXPECT_EQ(series("gpulet_device_allocated", "pod=\"trainer\"").size(), 1u);
  // The kubelet is away: as it was last known.
  kubelet().stop();
  ASSERT_TRUE(eventually([&] {
    return http_get(port(), "/metrics").body.find("\ngpulet_pod_resources_errors_total 0\n") ==
           std::string::npos;
  }));
  EXPECT_EQ(series("DCGM_FI_DEV_GPU_TEMP", "pod=\"trainer\"").size(), 1u);
}

TEST_F(SimMetrics, ABadCountersFileChangesNothing) {
  up();
  const auto file = node().folder() + "/counters.csv";
  write(file, "DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).\n");
  start_agent(each_second({"DCGM_EXPORTER_COLLECTORS=" + file}));
  ASSERT_TRUE(offered(8));
  ASSERT_TRUE(has("DCGM_FI_DEV_GPU_TEMP", 8));
  EXPECT_TRUE(series("DCGM_FI_DEV_SM_CLOCK").empty());
  write(file, "DCGM_FI_DEV_GPU_TEMP, gouge, GPU temperature (in C).\n");
  const auto told = said("Counters");
  EXPECT_NE(told.find(file), std::string::npos) << told;
  EXPECT_NE(told.find("gouge"), std::string::npos) << told;
  EXPECT_EQ(series("DCGM_FI_DEV_GPU_TEMP").size(), 8u);
  write(file, "DCGM_FI_DEV_SM_CLOCK, gauge, SM clock frequency (in MHz).\n");
  EXPECT_TRUE(has("DCGM_FI_DEV_SM_CLOCK", 8));
  EXPECT_TRUE(series("DCGM_FI_DEV_GPU_TEMP").empty());
}

TEST_F(SimMetrics, OfNoGpuWhereTheyAreNotWanted) {
  serve("hgx-h100", {.environment = {"GPULET_METRICS=false"}});
  ASSERT_TRUE(has("gpulet_device_state", 8));
  EXPECT_TRUE(series("DCGM_FI_DEV_GPU_TEMP").empty());
}

TEST_F(SimMetrics, TheNodePageHasThemToo) {
  serve("hgx-h100", each_second({"NODE_NAME=node-7"}));
  const auto held = ids_of(admit("trainer", 1)).at(0);
  const auto answers = [&](const std::string& path, const std::string& part) {
    return eventually([&] {
      const auto answer = http_get(port(), path);
      return answer.status == 200 && answer.body.find(part) != std::string::npos;
    });
  };
  EXPECT_TRUE(answers("/", "<html"));
  EXPECT_TRUE(answers("/api/node", "\"name\":\"node-7\""));
  EXPECT_TRUE(answers("/api/node", "\"pod\":\"trainer\""));
  EXPECT_TRUE(answers("/api/node", "\"uuid\":\"" + uuid(7) + "\""));
  EXPECT_TRUE(answers("/api/node", "metrics:"));  // the config in force
  EXPECT_TRUE(answers("/api/now", "\"" + held + "\":{\"util\":"));
  ASSERT_TRUE(control::xid(machine(), index_of(held), kFallenOffTheBus));
  EXPECT_TRUE(answers("/api/node", "\"reason\":\"GPUUnhealthy\""));
}

TEST_F(SimMetrics, AWebConfigAsksForAPassword) {
  up();
  const auto file = node().folder() + "/web.yaml";
  write(file, "basic_auth_user: {}\n");
  start_agent(each_second({"DCGM_EXPORTER_WEB_CONFIG_FILE=" + file}));
  ASSERT_TRUE(offered(8));
  const auto told = said("WebConfig");
  EXPECT_NE(told.find("basic_auth_user"), std::string::npos) << told;
  EXPECT_NE(told.find("nothing is served"), std::string::npos) << told;
  // A hash of nothing that anybody knows.
  write(file, "basic_auth_users: {alice: $2b$04$abcdefghijklmnopqrstuuSgLrnGBEMGIXBYQFYiBQYBrqdRLQTmW}\n");
  EXPECT_TRUE(eventually([&] { return http_get(port(), "/metrics").status == 401; }));
}

}  // namespace
}  // namespace gpulet::tests

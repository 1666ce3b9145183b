// The metrics page of the agent as a process: values of each GPU, their Pods, and the effect of a failing
// GPU, counters file or kubelet.
#include <cstdio>

#include "base/text.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

namespace control = sim::control;

class SimMetrics : public NodeTest {
 protected:
  static sim::AgentOptions every_second(std::vector<std::string> more = {}) {
    more.insert(more.end(), {"GPULET_METRICS_INTERVAL=1s", "GPULET_HEALTH_LIVENESS_INTERVAL=1s",
                             "GPULET_DRIVER_CALL_TIMEOUT=300ms"});
    return {.environment = std::move(more)};
  }
  // Returns the current samples of the metric that contain `part`.
  std::vector<std::string> series_values(const std::string& name, const std::string& part = {}) {
    const auto body = http_get(listener_port(), "/metrics").body;
    std::vector<std::string> found;
    for (const auto& line : text::split(body, '\n')) {
      if (line.starts_with(name + "{") && line.find(part) != std::string::npos) found.push_back(line);
    }
    return found;
  }
  bool has_series(const std::string& name, std::size_t count, const std::string& part = {}) {
    return becomes_true([&] { return series_values(name, part).size() == count; });
  }
  static void write_text_file(const std::string& file, const std::string& text) {
    std::FILE* const opened = std::fopen(file.c_str(), "w");
    ASSERT_NE(opened, nullptr);
    std::fputs(text.c_str(), opened);
    std::fclose(opened);
  }
  static std::string gpu_label(std::uint32_t index) { return "gpu=\"" + std::to_string(index) + "\""; }
};

TEST_F(SimMetrics, AreThoseOfDcgmForEachGpu) {
  start_node("hgx-h100", every_second({"NODE_NAME=node-7"}));
  ASSERT_TRUE(has_series("DCGM_FI_DEV_GPU_TEMP", 8, "Hostname=\"node-7\""));
  for (const char* name : {"DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_UTIL",
                           "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_XID_ERRORS", "gpulet_device_state"}) {
    EXPECT_EQ(series_values(name).size(), 8u) << name;
  }
  EXPECT_EQ(series_values("DCGM_FI_DEV_FB_FREE", gpu_label(0) + ",UUID=\"" + gpu_uuid(0) + "\"").size(), 1u);
  // Between two samples.
  EXPECT_TRUE(has_series("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 8));
  const auto page = http_get(listener_port(), "/metrics").body;
  for (const char* name : {"gpulet_driver_calls_total ", "gpulet_driver_calls_hanging 0\n",
                           "gpulet_snapshot_age_seconds ", "gpulet_sample_age_seconds "}) {
    EXPECT_NE(page.find(std::string("\n") + name), std::string::npos) << name;
  }
}

TEST_F(SimMetrics, AHangingGpuLosesOnlyItsOwnSeries) {
  start_node("hgx-h100", every_second());
  ASSERT_TRUE(has_series("DCGM_FI_DEV_GPU_TEMP", 8));
  ASSERT_TRUE(control::hang_calls(machine_state(), 2));
  ASSERT_TRUE(has_series("DCGM_FI_DEV_GPU_TEMP", 7));
  EXPECT_TRUE(series_values("DCGM_FI_DEV_GPU_TEMP", gpu_label(2)).empty());
  EXPECT_TRUE(has_series("gpulet_device_state", 1, "state=\"quarantined\""));
  ASSERT_TRUE(control::heal_faults(machine_state(), 2));
  EXPECT_TRUE(has_series("DCGM_FI_DEV_GPU_TEMP", 8));
}

TEST_F(SimMetrics, ShowsTheLastXidOfAGpu) {
  start_node("hgx-h100", every_second());
  ASSERT_TRUE(has_series("DCGM_FI_DEV_XID_ERRORS", 8, "err_code=\"0\""));
  ASSERT_TRUE(control::post_xid(machine_state(), 3, 13));
  ASSERT_TRUE(has_series("DCGM_FI_DEV_XID_ERRORS", 1, "err_code=\"13\""));
  const auto line = series_values("DCGM_FI_DEV_XID_ERRORS", "err_code=\"13\"").at(0);
  EXPECT_NE(line.find(gpu_label(3)), std::string::npos) << line;
  EXPECT_TRUE(line.ends_with(" 13")) << line;
  EXPECT_EQ(line.find("No Error"), std::string::npos) << line;
}

TEST_F(SimMetrics, SumsGoOnAfterARestart) {
  start_node("hgx-h100", every_second());
  const auto trainer = admit_pod("trainer", 1).uid;
  const auto value = [&](const std::string& name, const std::string& labels) {
    const auto lines = series_values(name, labels);
    return lines.empty() ? -1 : std::stod(lines[0].substr(lines[0].rfind(' ') + 1));
  };
  const auto of_namespace = [&] {
    return value("gpulet_namespace_gpu_held_seconds_total", "{namespace=\"default\"}");
  };
  const auto of_pod = [&] { return value("gpulet_pod_gpu_held_seconds_total", "pod=\"trainer\""); };
  ASSERT_TRUE(becomes_true([&] { return of_namespace() > 1 && of_pod() > 1; }));
  const double namespace_before = of_namespace(), pod_before = of_pod();
  allow_agent_exit();
  ASSERT_TRUE(sim_node().stop_agent());
  start_agent(every_second());
  ASSERT_TRUE(becomes_true([&] { return of_namespace() >= 0 && of_pod() >= 0; }));
  EXPECT_GE(of_namespace(), namespace_before);
  EXPECT_GE(of_pod(), pod_before);

  const auto shown = sim::program_output(
      {std::string(GPULET_PROGRAMS) + "/gpulet", "usage", "--socket", sim_node().socket()}, {});
  ASSERT_TRUE(shown) << shown.error().full_message();
  EXPECT_NE(shown->find("default    trainer  1.00"), std::string::npos) << *shown;

  ASSERT_TRUE(sim_kubelet().remove_pod(trainer));
  ASSERT_TRUE(becomes_true([&] { return of_pod() < 0; }));
  EXPECT_GE(of_namespace(), pod_before) << "a Pod that has ended";
}

TEST_F(SimMetrics, AShareHoldsItsPartOfAGpu) {
  bring_up_node();
  write_config("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n");
  auto options = every_second();
  options.arguments = {"--config-file=" + config_path()};
  start_agent(options);
  ASSERT_TRUE(becomes_allocatable(32));
  admit_pod("notebook", 1);
  EXPECT_TRUE(becomes_true([&] {
    return http_get(listener_port(), "/api/usage").body.find("\"pod\":\"notebook\",\"gpus\":0.25") !=
           std::string::npos;
  }));
}

TEST_F(SimMetrics, NameThePodThatHoldsTheGpu) {
  start_node("hgx-h100", every_second());
  const auto held = granted_ids(admit_pod("trainer", 1)).at(0);
  ASSERT_TRUE(has_series("DCGM_FI_DEV_GPU_TEMP", 1, "namespace=\"default\",pod=\"trainer\""));
  const auto line = series_values("DCGM_FI_DEV_GPU_TEMP", "pod=\"trainer\"").at(0);
  EXPECT_NE(line.find("UUID=\"" + held + "\""), std::string::npos) << line;
  EXPECT_EQ(series_values("gpulet_device_allocated", "pod=\"trainer\"").size(), 1u);
  // The kubelet is absent: the last known Pods.
  sim_kubelet().stop_kubelet();
  ASSERT_TRUE(becomes_true([&] {
    return http_get(listener_port(), "/metrics").body.find("\ngpulet_pod_resources_errors_total 0\n") ==
           std::string::npos;
  }));
  EXPECT_EQ(series_values("DCGM_FI_DEV_GPU_TEMP", "pod=\"trainer\"").size(), 1u);
}

TEST_F(SimMetrics, ABadCountersFileChangesNothing) {
  bring_up_node();
  const auto file = sim_node().directory() + "/counters.csv";
  write_text_file(file, "DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).\n");
  start_agent(every_second({"DCGM_EXPORTER_COLLECTORS=" + file}));
  ASSERT_TRUE(becomes_allocatable(8));
  ASSERT_TRUE(has_series("DCGM_FI_DEV_GPU_TEMP", 8));
  EXPECT_TRUE(series_values("DCGM_FI_DEV_SM_CLOCK").empty());
  write_text_file(file, "DCGM_FI_DEV_GPU_TEMP, gouge, GPU temperature (in C).\n");
  const auto told = wait_for_log("Counters");
  EXPECT_NE(told.find(file), std::string::npos) << told;
  EXPECT_NE(told.find("gouge"), std::string::npos) << told;
  EXPECT_EQ(series_values("DCGM_FI_DEV_GPU_TEMP").size(), 8u);
  write_text_file(file, "DCGM_FI_DEV_SM_CLOCK, gauge, SM clock frequency (in MHz).\n");
  EXPECT_TRUE(has_series("DCGM_FI_DEV_SM_CLOCK", 8));
  EXPECT_TRUE(series_values("DCGM_FI_DEV_GPU_TEMP").empty());
}

TEST_F(SimMetrics, CanBeDisabled) {
  start_node("hgx-h100", {.environment = {"GPULET_METRICS=false"}});
  ASSERT_TRUE(has_series("gpulet_device_state", 8));
  EXPECT_TRUE(series_values("DCGM_FI_DEV_GPU_TEMP").empty());
}

TEST_F(SimMetrics, AreOnTheNodePageToo) {
  start_node("hgx-h100", every_second({"NODE_NAME=node-7"}));
  const auto held = granted_ids(admit_pod("trainer", 1)).at(0);
  const auto answers = [&](const std::string& path, const std::string& part) {
    return becomes_true([&] {
      const auto answer = http_get(listener_port(), path);
      return answer.status == 200 && answer.body.find(part) != std::string::npos;
    });
  };
  EXPECT_TRUE(answers("/", "<html"));
  EXPECT_TRUE(answers("/api/node", "\"name\":\"node-7\""));
  EXPECT_TRUE(answers("/api/node", "\"pod\":\"trainer\""));
  EXPECT_TRUE(answers("/api/node", "\"uuid\":\"" + gpu_uuid(7) + "\""));
  EXPECT_TRUE(answers("/api/node", "metrics:"));  // the config in force
  EXPECT_TRUE(answers("/api/now", "\"" + held + "\":{\"util\":"));
  ASSERT_TRUE(control::post_xid(machine_state(), gpu_index(held), kFallenOffTheBus));
  EXPECT_TRUE(answers("/api/node", "\"reason\":\"GPUUnhealthy\""));
}

TEST_F(SimMetrics, AWebConfigRequiresAPassword) {
  bring_up_node();
  const auto file = sim_node().directory() + "/web.yaml";
  write_text_file(file, "basic_auth_user: {}\n");
  start_agent(every_second({"DCGM_EXPORTER_WEB_CONFIG_FILE=" + file}));
  ASSERT_TRUE(becomes_allocatable(8));
  const auto told = wait_for_log("WebConfig");
  EXPECT_NE(told.find("basic_auth_user"), std::string::npos) << told;
  EXPECT_NE(told.find("nothing is served"), std::string::npos) << told;
  // The hash of an unknown password.
  write_text_file(
      file, "basic_auth_users: {alice: $2b$04$abcdefghijklmnopqrstuuSgLrnGBEMGIXBYQFYiBQYBrqdRLQTmW}\n");
  EXPECT_TRUE(becomes_true([&] { return http_get(listener_port(), "/metrics").status == 401; }));
}

}  // namespace
}  // namespace gpulet::tests

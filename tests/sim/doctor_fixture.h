// For tests of `gpulet doctor`: a healthy simulated node, and assertions on the checks.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>  // tidy: heavy-header because two tests alone include this
#include <string>
#include <vector>

#include "base/file.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {

inline constexpr const char* kSpec = "/var/run/cdi/nvidia.json";
inline constexpr const char* kEngineConfig = "/etc/containerd/config.toml";
inline constexpr const char* kCdiOn =
    "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = true\n";
inline constexpr const char* kCdiOff =
    "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = false\n";

class SimDoctor : public NodeTest {
 protected:
  // A node whose host root is the driver root, with containerd, a CDI spec, and an agent that allocates by
  // CDI.
  void SetUp() override { prepare_root("hgx-h100"); }
  void prepare_root(const std::string& machine) {
    bring_up_node(machine);
    write_host_file(kEngineConfig, kCdiOn);
    write_host_file("/usr/bin/gpulet-hook", "");
    // Paths of the host, whose root is the driver root.
    const std::string made = sim_node().directory() + "/made.json";
    std::filesystem::create_directories(host_path("/var/run/cdi"));
    run_program({"/gpulet", "cdi", "generate", "--driver-root", sim_node().driver_root(),
                 "--nvidia-cdi-hook-path", "/usr/bin/gpulet-hook", "--output", made});
    run_program({"/gpulet", "cdi", "transform", "root", "--from", sim_node().driver_root(), "--to", "/",
                 "--input", made, "--output", host_path(kSpec)});
  }
  void run_program(std::vector<std::string> command) {
    command[0] = GPULET_PROGRAMS + command[0];
    const auto done = sim::program_output(std::move(command));
    ASSERT_TRUE(done) << done.error().full_message();
  }
  std::string host_path(const std::string& path) { return sim_node().driver_root() + path; }
  void write_host_file(const std::string& path, const std::string& content) {
    ASSERT_TRUE(write_file_atomic(host_path(path), content));
  }
  void move_away(const std::string& path) {
    std::filesystem::rename(host_path(path), host_path(path) + ".away");
  }
  void move_back(const std::string& path) {
    std::filesystem::remove_all(host_path(path));
    std::filesystem::rename(host_path(path) + ".away", host_path(path));
  }
  void serve_by_cdi() {
    // Tests remove device nodes, which stay away.
    write_config(
        "version: v1\nflags: {plugin: {deviceListStrategy: [cdi-cri]}}\ngpulet: {createDeviceNodes: "
        "false}\n");
    start_agent({.arguments = {"--config-file=" + config_path(),
                               "--cdi-spec-dir=" + sim_node().directory() + "/cdi"}});
    ASSERT_TRUE(becomes_allocatable(gpu_count())) << agent_log();
    ASSERT_TRUE(becomes_true([&] { return http_get(sim_node().socket(), "/readyz").status == 200; }))
        << agent_log();
  }

  std::vector<std::string> doctor_command(std::vector<std::string> more = {}) {
    std::vector<std::string> all{std::string(GPULET_PROGRAMS) + "/gpulet",
                                 "doctor",
                                 "--host-root",
                                 sim_node().driver_root(),
                                 "--kubelet-dir",
                                 sim_node().directory() + "/kubelet",
                                 "--socket",
                                 sim_node().socket()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // Returns its report, also if a check failed.
  nlohmann::json run_doctor(std::vector<std::string> more = {}, std::vector<std::string> launcher = {}) {
    more.push_back("--json");
    auto all = doctor_command(std::move(more));
    all.insert(all.begin(), launcher.begin(), launcher.end());
    const auto done = sim::program_output(std::move(all), sanitizer_options());
    const std::string printed = done ? *done : done.error().full_message();
    const auto begin = printed.find('{');
    auto report = begin == std::string::npos ? nlohmann::json()
                                             : nlohmann::json::parse(printed.substr(begin), nullptr, false);
    EXPECT_TRUE(report.is_object()) << printed;
    EXPECT_EQ(done.has_value(), report.value("verdict", "") != "fail");
    return report;
  }
  static std::string checks_with(const nlohmann::json& report, const std::string& verdict) {
    std::string ids;
    for (const auto& check : report["checks"]) {
      // The clock synchronisation of the test machine is ignored.
      const bool of_this_machine = check["id"] == "clock" && verdict != "fail";
      if (check["verdict"] == verdict && !of_this_machine)
        ids += (ids.empty() ? "" : " ") + check.value("id", "");
    }
    return ids;
  }
  static std::string finding_of(const nlohmann::json& report, const std::string& id) {
    for (const auto& check : report["checks"]) {
      if (check["id"] == id) return check.value("found", "");
    }
    return "there is no check " + id;
  }
  void expect_finding(const std::string& verdict, const std::string& id, const std::string& says,
                      std::vector<std::string> more = {}, std::vector<std::string> launcher = {}) {
    const auto report = run_doctor(std::move(more), std::move(launcher));
    EXPECT_EQ(checks_with(report, verdict), id) << report.dump(1);
    EXPECT_EQ(checks_with(report, verdict == "warn" ? "fail" : "warn"), "") << report.dump(1);
    EXPECT_NE(finding_of(report, id).find(says), std::string::npos) << finding_of(report, id);
    EXPECT_NE(report.value("summary", "").find(finding_of(report, id)), std::string::npos)
        << report["summary"];
  }
};

}  // namespace gpulet::tests

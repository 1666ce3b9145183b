// A node for tests of `gpulet doctor`: simulated, whole, and ways to say which check must name what.
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
  // A node whose host root is the driver's: with containerd, a CDI spec, and an agent that hands devices out
  // by CDI.
  void SetUp() override { lay_out("hgx-h100"); }
  void lay_out(const std::string& machine) {
    up(machine);
    put(kEngineConfig, kCdiOn);
    put("/usr/bin/gpulet-hook", "");
    // As the host, whose root is the driver's, calls the files.
    const std::string made = node().folder() + "/made.json";
    std::filesystem::create_directories(at("/var/run/cdi"));
    run_program({"/gpulet", "cdi", "generate", "--driver-root", node().root(), "--nvidia-cdi-hook-path",
                 "/usr/bin/gpulet-hook", "--output", made});
    run_program({"/gpulet", "cdi", "transform", "root", "--from", node().root(), "--to", "/", "--input", made,
                 "--output", at(kSpec)});
  }
  void run_program(std::vector<std::string> command) {
    command[0] = GPULET_PROGRAMS + command[0];
    const auto done = cli::output_of(std::move(command), {kNoLeaks});
    ASSERT_TRUE(done) << done.error().text();
  }
  std::string at(const std::string& path) { return node().root() + path; }
  void put(const std::string& path, const std::string& content) {
    ASSERT_TRUE(write_file_atomic(at(path), content));
  }
  void away(const std::string& path) { std::filesystem::rename(at(path), at(path) + ".away"); }
  void back(const std::string& path) {
    std::filesystem::remove_all(at(path));
    std::filesystem::rename(at(path) + ".away", at(path));
  }
  void serve_by_cdi() {
    write_config("version: v1\nflags: {plugin: {deviceListStrategy: [cdi-cri]}}\n");
    start_agent(
        {.arguments = {"--config-file=" + config_path(), "--cdi-spec-dir=" + node().folder() + "/cdi"}});
    ASSERT_TRUE(offered(gpu_count())) << log();
    ASSERT_TRUE(eventually([&] { return http_get(node().socket(), "/readyz").status == 200; })) << log();
  }

  std::vector<std::string> command(std::vector<std::string> more = {}) {
    std::vector<std::string> all{std::string(GPULET_PROGRAMS) + "/gpulet",
                                 "doctor",
                                 "--host-root",
                                 node().root(),
                                 "--kubelet-dir",
                                 node().folder() + "/kubelet",
                                 "--socket",
                                 node().socket()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // Its report, whether or not something failed.
  nlohmann::json doctor(std::vector<std::string> more = {}, std::vector<std::string> launcher = {}) {
    more.push_back("--json");
    auto all = command(std::move(more));
    all.insert(all.begin(), launcher.begin(), launcher.end());
    const auto done = cli::output_of(std::move(all), sanitizer_options());
    const std::string printed = done ? *done : done.error().text();
    const auto begin = printed.find('{');
    auto report = begin == std::string::npos ? nlohmann::json()
                                             : nlohmann::json::parse(printed.substr(begin), nullptr, false);
    EXPECT_TRUE(report.is_object()) << printed;
    EXPECT_EQ(done.has_value(), report.value("verdict", "") != "fail");
    return report;
  }
  static std::string with(const nlohmann::json& report, const std::string& verdict) {
    std::string ids;
    for (const auto& check : report["checks"]) {
      // Whether somebody keeps the clock of the machine that the tests run on is not theirs to say.
      const bool of_this_machine = check["id"] == "clock" && verdict != "fail";
      if (check["verdict"] == verdict && !of_this_machine)
        ids += (ids.empty() ? "" : " ") + check.value("id", "");
    }
    return ids;
  }
  static std::string found(const nlohmann::json& report, const std::string& id) {
    for (const auto& check : report["checks"]) {
      if (check["id"] == id) return check.value("found", "");
    }
    return "there is no check " + id;
  }
  void expect_fault(const std::string& verdict, const std::string& id, const std::string& says,
                    std::vector<std::string> more = {}, std::vector<std::string> launcher = {}) {
    const auto report = doctor(std::move(more), std::move(launcher));
    EXPECT_EQ(with(report, verdict), id) << report.dump(1);
    EXPECT_EQ(with(report, verdict == "warn" ? "fail" : "warn"), "") << report.dump(1);
    EXPECT_NE(found(report, id).find(says), std::string::npos) << found(report, id);
    EXPECT_NE(report.value("summary", "").find(found(report, id)), std::string::npos) << report["summary"];
  }
};

}  // namespace gpulet::tests

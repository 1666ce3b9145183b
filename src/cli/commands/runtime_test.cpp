#include "cli/commands/commands.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "cli/main/test_output.h"
#include "runtimes/test_root.h"

namespace gpulet::cli {
namespace {

CommandOutput configure_captured(const RuntimeConfigureOptions& options) {
  return run_captured([&] { return run_runtime_configure(options); });
}

const std::string kOff = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n";

class RuntimeCommand : public ::testing::Test {
 protected:
  RuntimeConfigureOptions containerd_options() const {
    return {.runtime = "containerd", .host_root = root_.host_root()};
  }
  runtimes::TestRoot root_;
};

TEST_F(RuntimeCommand, PrintsChangesAndTheNeededRestart) {
  root_.add_file("/etc/containerd/config.toml", kOff);
  const CommandOutput first = configure_captured(containerd_options());
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.out,
            "wrote /etc/containerd/conf.d/99-gpulet.toml\nwrote /etc/containerd/config.toml\n"
            "a restart is needed: `systemctl restart containerd.service`\n");
  const auto main = root_.read_text("/etc/containerd/config.toml");
  EXPECT_EQ(configure_captured(containerd_options()).out, "nothing to do\n");
  EXPECT_EQ(root_.read_text("/etc/containerd/config.toml"), main);
  auto back = containerd_options();
  back.remove = true;
  EXPECT_EQ(configure_captured(back).exit_code, 0);
  EXPECT_EQ(root_.read_text("/etc/containerd/config.toml"), kOff);
  EXPECT_EQ(configure_captured(back).out, "nothing to do\n");
}

TEST_F(RuntimeCommand, DryRunPrintsTheFilesAndChangesNone) {
  root_.add_file("/etc/containerd/config.toml", kOff);
  auto options = containerd_options();
  options.dry_run = true;
  options.restart = true;
  const CommandOutput result = configure_captured(options);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.out.find("would write /etc/containerd/conf.d/99-gpulet.toml\n"), std::string::npos);
  EXPECT_NE(result.out.find("enable_cdi = true\n"), std::string::npos);
  EXPECT_NE(result.out.find("a restart would be needed"), std::string::npos);
  EXPECT_EQ(root_.read_text("/etc/containerd/config.toml"), kOff);
  EXPECT_FALSE(root_.has_file("/etc/containerd/conf.d"));
}

TEST_F(RuntimeCommand, AsJson) {
  root_.add_file("/etc/containerd/config.toml", kOff);
  auto options = containerd_options();
  options.output = "json";
  const auto json = nlohmann::json::parse(configure_captured(options).out);
  EXPECT_EQ(json["runtime"], "containerd");
  EXPECT_EQ(json["changed"], true);
  EXPECT_EQ(json["restartNeeded"], true);
  ASSERT_EQ(json["changes"].size(), 2u);
  EXPECT_EQ(json["changes"][1]["path"], "/etc/containerd/config.toml");
  const auto again = nlohmann::json::parse(configure_captured(options).out);
  EXPECT_EQ(again["changed"], false);
  EXPECT_EQ(again["restartNeeded"], false);
}

TEST_F(RuntimeCommand, ReportsARestartThatIsImpossibleHere) {
  root_.add_file("/etc/containerd/config.toml", kOff);
  auto options = containerd_options();
  options.restart = true;
  const CommandOutput result = configure_captured(options);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("nsenter --target 1 --mount -- systemctl restart containerd.service"),
            std::string::npos);
  EXPECT_TRUE(root_.has_file("/etc/containerd/conf.d/99-gpulet.toml"));  // configured all the same
}

TEST_F(RuntimeCommand, InvalidInputGivesOneLine) {
  root_.add_file("/etc/containerd/config.toml", "version = 3\na = [\n");
  CommandOutput result = configure_captured(containerd_options());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err, "gpulet runtime configure: /etc/containerd/config.toml:3: expected `]`\n");
  auto options = containerd_options();
  options.runtime = "lxc";
  EXPECT_EQ(configure_captured(options).exit_code, 2);
  options = containerd_options();
  options.host_root = "relative";
  EXPECT_EQ(configure_captured(options).exit_code, 2);
  options.host_root = root_.at("/none");
  EXPECT_EQ(configure_captured(options).exit_code, 1);
}

TEST_F(RuntimeCommand, DeniesImagesTheVariable) {
  const std::string path = "/etc/nvidia-container-runtime/config.toml", text = "disable-require = false\n";
  root_.add_file(path, text, 0640);
  RuntimeConfigureOptions options{
      .runtime = "", .deny_visible_devices_env = true, .dry_run = true, .host_root = root_.host_root()};
  CommandOutput result = configure_captured(options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(result.out.starts_with("would write " + path + "\ndisable-require = false\naccept-"));
  EXPECT_NE(result.out.find("`deviceListStrategy` must be cdi-cri or volume-mounts"), std::string::npos);
  EXPECT_EQ(root_.read_text(path), text);
  options.dry_run = false;
  options.restart = true;  // nothing needs one
  EXPECT_TRUE(configure_captured(options).out.starts_with("wrote " + path + "\nwith this, "));
  EXPECT_NE(root_.read_text(path).find("-envvar-when-unprivileged = false # gpulet: added\n"),
            std::string::npos);
  EXPECT_EQ(configure_captured(options).out,
            "nothing to do: NVIDIA_VISIBLE_DEVICES of unprivileged containers is ignored already\n");
  options.remove = true;
  options.output = "json";
  const auto json = nlohmann::json::parse(configure_captured(options).out);
  EXPECT_EQ(json["runtime"], "nvidia");
  EXPECT_EQ(json["changed"], true);
  EXPECT_EQ(root_.read_text(path), text);
}

TEST_F(RuntimeCommand, CheckExitsWith1IfAnEngineIsNotReady) {
  RuntimeCheckOptions options{.host_root = root_.host_root()};
  const auto check = [&](const std::string& output) {
    auto with = options;
    with.output = output;
    return run_captured([&] { return run_runtime_check(with); });
  };
  EXPECT_EQ(check("table").exit_code, 1);  // none at all
  root_.add_file("/driver/run/gpulet-sim/state", "");
  options.driver_root = root_.at("/driver");
  EXPECT_EQ(check("table").exit_code, 0);
  EXPECT_EQ(check("table").out, "no container engine found; a simulated node (gpulet-sim) needs none\n");
  EXPECT_EQ(nlohmann::json::parse(check("json").out)["engines"].size(), 0u);
  root_.add_file("/etc/containerd/config.toml", kOff);
  const CommandOutput unfit = check("table");
  EXPECT_EQ(unfit.exit_code, 1);
  EXPECT_NE(unfit.out.find("containerd: not ready\n"), std::string::npos) << unfit.out;
  EXPECT_NE(unfit.out.find("off (/etc/containerd/config.toml:3)"), std::string::npos) << unfit.out;
  EXPECT_NE(unfit.out.find("gpulet runtime configure --runtime containerd"), std::string::npos);
  configure_captured(containerd_options());
  EXPECT_EQ(check("table").exit_code, 0);
  const auto json = nlohmann::json::parse(check("json").out);
  ASSERT_EQ(json["engines"].size(), 1u);
  EXPECT_EQ(json["engines"][0]["fit"], true);
  EXPECT_EQ(json["engines"][0]["version"], nullptr);
}

}  // namespace
}  // namespace gpulet::cli

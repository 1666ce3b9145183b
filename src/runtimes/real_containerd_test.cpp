// The real containerd reads the written config: `containerd -c FILE config dump`, with the testbed's
// containerd 2 that `tests/cluster/testbed/tb build` builds.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <cstdio>
#include <optional>

#include "base/process.h"
#include "runtimes/configure.h"
#include "runtimes/test_root.h"

namespace gpulet::runtimes {
namespace {

// Returns the newest build in the cache.
std::optional<std::string> real_containerd() {
  const char* cache = ::getenv("GPULET_CACHE");
  const char* home = ::getenv("HOME");
  const std::filesystem::path directory =
      (cache != nullptr ? std::filesystem::path(cache)
                        : std::filesystem::path(home == nullptr ? "" : home) / ".cache/gpulet") /
      "testbed";
  std::optional<std::filesystem::path> newest;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    const auto path = entry.path() / "containerd";
    if (!std::filesystem::exists(path)) continue;
    if (!newest || std::filesystem::last_write_time(path) > std::filesystem::last_write_time(*newest))
      newest = path;
  }
  return newest ? std::optional(newest->string()) : std::nullopt;
}

std::string dump_config(const std::string& containerd, const TestRoot& root, const std::string& config) {
  const std::string out = root.at("/dump");
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(out.c_str(), "w"), std::fclose);
  auto process = Process::spawn({.program = containerd,
                                 .arguments = {"containerd", "-c", config, "config", "dump"},
                                 .environment = {"PATH=/usr/bin:/bin"},
                                 .descriptors = {{::fileno(file.get()), 1}}});
  EXPECT_TRUE(process) << process.error().full_message();
  const auto exit = (*process)->wait_for_exit(std::chrono::seconds(60));
  EXPECT_TRUE(exit && exit->succeeded()) << root.read_text(config.substr(root.host_root().size()));
  return root.read_text("/dump");
}

// Configures a file below the temporary directory: containerd has no root option, so the host root is "/"
// here.
void check_with(const std::string& containerd, const std::string& text) {
  const TestRoot root;
  root.add_file("/config.toml", text);
  const ConfigureRequest request{.engine = Engine::kContainerd,
                                 .config = root.at("/config.toml"),
                                 .drop_in = root.at("/conf.d/99-gpulet.toml")};
  const Host host = Host::open_host({}).value();
  EXPECT_EQ(dump_config(containerd, root, root.at("/config.toml")).find("enable_cdi = true"),
            std::string::npos)
      << text;
  const auto done = configure_engine(host, request);
  ASSERT_TRUE(done) << done.error().full_message();
  const std::string after = dump_config(containerd, root, root.at("/config.toml"));
  EXPECT_NE(after.find("enable_cdi = true"), std::string::npos) << after;
  EXPECT_NE(after.find("'/etc/cdi', '/var/run/cdi'"), std::string::npos) << after;
  EXPECT_NE(after.find("SystemdCgroup = true"), std::string::npos) << after;
  EXPECT_NE(after.find("example/pause:7"), std::string::npos) << after;
  EXPECT_TRUE(configure_engine(host, request)->changes.empty());
  ConfigureRequest back = request;
  back.remove = true;
  ASSERT_TRUE(configure_engine(host, back));
  EXPECT_EQ(root.read_text("/config.toml"), text);
  EXPECT_EQ(dump_config(containerd, root, root.at("/config.toml")).find("enable_cdi = true"),
            std::string::npos);
}

class RealContainerd : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto found = real_containerd();
    if (!found) GTEST_SKIP() << "no containerd: run `tests/cluster/testbed/tb build`";
    containerd_ = *found;
  }
  std::string containerd_;
};

TEST_F(RealContainerd, ReadsAConfigOfVersion2) {
  check_with(containerd_,
             "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  enable_cdi = false\n  sandbox_image = "
             "\"example/pause:7\"\n"
             "  [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n    runtime_type = "
             "'io.containerd.runc.v2'\n"
             "    [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n      "
             "SystemdCgroup = true\n");
}

TEST_F(RealContainerd, ReadsAConfigOfVersion3WithImports) {
  check_with(containerd_,
             "version = 3\nimports = [\n  \"/nothing/*.toml\", # of the site\n]\n"
             "[plugins.'io.containerd.cri.v1.images'.pinned_images]\n  sandbox = 'example/pause:7'\n"
             "[plugins.'io.containerd.cri.v1.runtime']\n  enable_cdi = false\n"
             "  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n    runtime_type = "
             "'io.containerd.runc.v2'\n"
             "    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\n      "
             "SystemdCgroup = true\n");
}

TEST_F(RealContainerd, ReadsAConfigOfVersion4WithCrlf) {
  check_with(containerd_,
             "version = 4\r\n[plugins.'io.containerd.cri.v1.images'.pinned_images]\r\nsandbox = "
             "'example/pause:7'\r\n"
             "[plugins.'io.containerd.cri.v1.runtime']\r\nenable_cdi = false\r\n"
             "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\r\nruntime_type = "
             "'io.containerd.runc.v2'\r\n"
             "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\r\nSystemdCgroup = "
             "true\r\n");
}

// containerd's own default config: every plugin with all its settings.
TEST_F(RealContainerd, ParsesItsDefaultConfig) {
  const TestRoot root;
  root.add_file("/config.toml", "version = 3\n");
  const std::string defaults = dump_config(containerd_, root, root.at("/config.toml"));
  ASSERT_FALSE(defaults.empty());
  root.add_file("/config.toml", defaults);
  const auto done =
      configure_engine(Host::open_host({}).value(), {.engine = Engine::kContainerd,
                                                     .dry_run = true,
                                                     .config = root.at("/config.toml"),
                                                     .drop_in = root.at("/conf.d/99-gpulet.toml")});
  ASSERT_TRUE(done) << done.error().full_message();
  EXPECT_TRUE(done->changes.empty());
}

}  // namespace
}  // namespace gpulet::runtimes

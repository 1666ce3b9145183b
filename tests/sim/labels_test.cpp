// The node's labels, as a file: kept by the agent while GPUs change, and by the program that stands in for
// NVIDIA's.
#include <signal.h>

#include <filesystem>

#include "base/file.h"
#include "base/text.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

class SimLabels : public NodeTest {
 protected:
  std::string path() { return node().folder() + "/features.d/gfd"; }
  // What any of the two programs is told.
  std::vector<std::string> environment() {
    return {"GFD_OUTPUT_FILE=" + path(), "USE_NODE_FEATURE_API=false",
            "GFD_MACHINE_TYPE_FILE=" + node().root() + "/sys/class/dmi/id/product_name",
            "GPULET_HEALTH_ALIVE_INTERVAL=1s"};
  }
  cli::AgentOptions agent(std::vector<std::string> arguments = {}) {
    auto variables = environment();
    variables.emplace_back("GPULET_LABELS=file");
    return {.arguments = std::move(arguments), .environment = std::move(variables)};
  }
  cli::AgentOptions discovery(std::vector<std::string> arguments) {
    return {.name = "gpu-feature-discovery", .arguments = std::move(arguments), .environment = environment()};
  }
  std::string file() { return read_file(path()).value_or(""); }
  std::string value(const std::string& key) {
    for (const auto& line : text::split(file(), '\n')) {
      if (line.starts_with(key + "=")) return line.substr(key.size() + 1);
    }
    return "(absent)";
  }
  bool becomes(const std::string& key, const std::string& wanted) {
    const bool was = eventually([&] { return value(key) == wanted; });
    if (!was) ADD_FAILURE() << key << " is " << value(key) << "\n" << file();
    return was;
  }
};

TEST_F(SimLabels, TheAgentRelabelsAsGpusAreCutUp) {
  up();
  start_agent(agent({"--mig-strategy=mixed"}));
  ASSERT_TRUE(becomes("nvidia.com/gpu.count", "8"));
  EXPECT_EQ(value("nvidia.com/gpu.product"), "NVIDIA-H100-80GB-HBM3");
  EXPECT_EQ(value("nvidia.com/gpu.mode"), "compute");
  EXPECT_NE(value("nvidia.com/gpu.machine"), "unknown");
  EXPECT_EQ(value("nvidia.com/mig-1g.10gb.count"), "(absent)");
  cut_up(3, {"1g.10gb", "1g.10gb", "1g.10gb"});
  ASSERT_TRUE(becomes("nvidia.com/mig-1g.10gb.count", "3"));
  EXPECT_EQ(value("nvidia.com/mig-1g.10gb.product"), "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb");
  make_whole(3);
  ASSERT_TRUE(becomes("nvidia.com/mig-1g.10gb.count", "(absent)"));

  // `gpulet labels` says the same, but for when and for the host's own name.
  const auto said = cli::output_of({std::string(GPULET_PROGRAMS) + "/gpulet", "labels", "--mig-strategy",
                                    "mixed", "--driver-root", node().root()},
                                   {kNoLeaks});
  ASSERT_TRUE(said) << said.error().text();
  const auto without = [](const std::string& text) {
    std::vector<std::string> lines;
    for (const auto& line : text::split(text, '\n')) {
      if (!line.starts_with("nvidia.com/gpu.machine=") && !line.starts_with("nvidia.com/gfd.timestamp=")) {
        lines.push_back(line);
      }
    }
    return text::join(lines, "\n");
  };
  EXPECT_EQ(without(*said), without(file()));

  agent_may_end();
  ASSERT_TRUE(node().stop_agent());
  EXPECT_EQ(value("nvidia.com/gpu.count"), "8") << "labels outlive the agent";
}

TEST_F(SimLabels, ALostGpuCountsOn) {
  up();
  start_agent(agent());
  ASSERT_TRUE(becomes("nvidia.com/gpu.count", "8"));
  ASSERT_TRUE(sim::control::xid(machine(), 0, kFallenOffTheBus));
  ASSERT_TRUE(unhealthy({uuid(0)}));
  EXPECT_EQ(value("nvidia.com/gpu.count"), "8");
}

TEST_F(SimLabels, AChangedConfigurationRelabels) {
  up();
  write_config("version: v1\n");
  start_agent(agent({"--config-file", config_path()}));
  ASSERT_TRUE(becomes("nvidia.com/gpu.replicas", "1"));
  write_config("version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}\n");
  ASSERT_TRUE(becomes("nvidia.com/gpu.replicas", "4"));
  EXPECT_EQ(value("nvidia.com/gpu.product"), "NVIDIA-H100-80GB-HBM3-SHARED");
  write_config("version: v1\nflags: {gfd: {noTimestamp: true}}\n");
  ASSERT_TRUE(becomes("nvidia.com/gfd.timestamp", "(absent)"));
}

TEST_F(SimLabels, CalledByNvidiasNameItLabelsOnceAndEnds) {
  up();
  start_agent(discovery({"-oneshot", "--no-timestamp", "-mig-strategy=single"}));
  agent_may_end();
  const auto exit = node().wait_agent(kPatience);
  ASSERT_TRUE(exit) << exit.error().text();
  EXPECT_EQ(exit->code, 0) << log();
  EXPECT_EQ(value("nvidia.com/gpu.count"), "8");
  EXPECT_EQ(value("nvidia.com/mig.strategy"), "single");
  EXPECT_EQ(value("nvidia.com/gfd.timestamp"), "(absent)");
}

TEST_F(SimLabels, CalledByNvidiasNameItGoesOnAndFollows) {
  up();
  write_config("version: v1\nflags: {migStrategy: mixed, gfd: {sleepInterval: 1s}}\n");
  const auto other = node().folder() + "/other";
  start_agent(discovery({"-config-file=" + config_path(), "-o=" + other}));
  agent_may_end();
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(other); }));
  EXPECT_FALSE(std::filesystem::exists(path())) << "a flag goes before the variable";
  const auto holds = [&](const std::string& line) {
    return eventually([&] { return read_file(other).value_or("").find(line + "\n") != std::string::npos; });
  };
  cut_up(0, {"3g.40gb", "3g.40gb"});
  ASSERT_TRUE(holds("nvidia.com/mig-3g.40gb.count=2"));
  write_config(
      "version: v1\nflags: {migStrategy: mixed, gfd: {sleepInterval: infinite}}\n"
      "sharing: {timeSlicing: {resources: [{name: mig-3g.40gb, replicas: 2}]}}\n");
  node().signal_agent(SIGHUP);
  ASSERT_TRUE(holds("nvidia.com/mig-3g.40gb.replicas=2"));
  ASSERT_TRUE(node().stop_agent());
  EXPECT_TRUE(std::filesystem::exists(other)) << "labels outlive the program";
}

TEST_F(SimLabels, WithoutAClusterTheObjectIsRefused) {
  up();
  start_agent(discovery({"--use-node-feature-api=true", "--node-name=n1"}));
  agent_may_end();
  const auto exit = node().wait_agent(kPatience);
  ASSERT_TRUE(exit) << exit.error().text();
  EXPECT_EQ(exit->code, 1);
  EXPECT_NE(log().find("KUBERNETES_SERVICE_HOST"), std::string::npos) << log();
}

}  // namespace
}  // namespace gpulet::tests

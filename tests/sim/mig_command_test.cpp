// `gpulet mig` beside the agent and the kubelet: a Pod is as good a holder as a process, and what the command
// made is offered by the agent.
#include <dlfcn.h>

#include "cli/mig_command.h"
#include "sim/root/driver_files.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

class SimMigCommand : public NodeTest {
 protected:
  void SetUp() override {
    up();
    // The command opens the driver in this process, and what a library keeps until the process ends is no
    // leak while it stays mapped.
    const std::string library = node().root() + "/" + std::string(sim::kLibraryFolder) + "/libnvidia-ml.so.1";
    ASSERT_NE(::dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE), nullptr) << ::dlerror();
    cut_up(7, {"1g.10gb@0", "1g.10gb@1", "1g.10gb@2", "1g.10gb@3"});
    start_agent({.arguments = {"--mig-strategy=mixed"}, .environment = {"GPULET_HEALTH_ALIVE_INTERVAL=1s"}});
    ASSERT_TRUE(offered(4, kSmall)) << log();
    ASSERT_TRUE(offered(7));
  }
  cli::MigAnswer run(cli::MigVerb verb, const std::string& config, const std::string& gpu) {
    cli::MigOptions options;
    options.driver_root = node().root();
    options.kubelet_dir = node().folder() + "/kubelet";
    options.selected_config = config;
    options.gpus = {gpu};
    return cli::mig_answer(verb, options);
  }
};

TEST_F(SimMigCommand, PodsAreNamedByTheirName) {
  const auto grant = admit("holder", 4, kSmall);
  const auto planned = run(cli::MigVerb::kPlan, "all-7g.80gb", "7");
  EXPECT_EQ(planned.exit_code, 2) << planned.err;
  EXPECT_EQ(planned.err, "");
  for (const char* slice : {"0", "1", "2", "3"}) {
    EXPECT_NE(
        planned.out.find("GPU 7: blocked by Pod default/holder, on 1g.10gb at " + std::string(slice) + "\n"),
        std::string::npos)
        << planned.out;
  }
  EXPECT_EQ(run(cli::MigVerb::kApply, "all-7g.80gb", "7").exit_code, 2);
  EXPECT_EQ(healthy_ids(*find(kubelet().state(), kSmall)).size(), 4u);
  const auto whole = admit("whole", 7);
  const auto blocked = run(cli::MigVerb::kPlan, "all-1g.10gb", "2");
  EXPECT_EQ(
      blocked.out,
      "GPU 2: blocked; would enable MIG; create 1g.10gb at 0, 1g.10gb at 1, 1g.10gb at 2, 1g.10gb at 3, "
      "1g.10gb at 4, 1g.10gb at 5, 1g.10gb at 6\nGPU 2: blocked by Pod default/whole, on the GPU\n");
  ASSERT_TRUE(kubelet().remove(whole.uid));
  EXPECT_EQ(run(cli::MigVerb::kPlan, "all-1g.10gb", "2").exit_code, 0);
  ASSERT_TRUE(kubelet().remove(grant.uid));
  EXPECT_EQ(run(cli::MigVerb::kApply, "all-7g.80gb", "7").exit_code, 0);
}

TEST_F(SimMigCommand, WhatIsAppliedAroundAPodIsOfferedByTheAgent) {
  const auto held = ids_of(admit("holder", 1, kSmall), kSmall).at(0);
  const auto applied = run(cli::MigVerb::kApply, "all-balanced", "7");
  ASSERT_EQ(applied.exit_code, 0) << applied.out << applied.err;
  ASSERT_TRUE(offered(1, kLarge)) << log();
  ASSERT_TRUE(offered(2, kSmall));
  EXPECT_TRUE(healthy_ids(*find(kubelet().state(), kSmall)).contains(held))
      << "what the Pod holds is still there";
  EXPECT_EQ(run(cli::MigVerb::kAssert, "all-balanced", "7").exit_code, 0);
}

}  // namespace
}  // namespace gpulet::tests

// `gpulet mig` together with the agent and the kubelet: Pods count as users like processes, and the agent
// offers the new instances.
#include <dlfcn.h>

#include "cli/commands/mig.h"
#include "sim/root/driver_files.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

class SimMigCommand : public NodeTest {
 protected:
  void SetUp() override {
    bring_up_node();
    // The command opens the driver in this process; while the library stays mapped, its memory is not a leak.
    const std::string library =
        sim_node().driver_root() + "/" + std::string(sim::kLibraryDirectory) + "/libnvidia-ml.so.1";
    ASSERT_NE(::dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE), nullptr) << ::dlerror();
    create_mig_devices(7, {"1g.10gb@0", "1g.10gb@1", "1g.10gb@2", "1g.10gb@3"});
    start_agent(
        {.arguments = {"--mig-strategy=mixed"}, .environment = {"GPULET_HEALTH_LIVENESS_INTERVAL=1s"}});
    ASSERT_TRUE(becomes_allocatable(4, kSmall)) << agent_log();
    ASSERT_TRUE(becomes_allocatable(7));
  }
  cli::CommandOutput run_mig(cli::MigVerb verb, const std::string& config, const std::string& gpu) {
    cli::MigOptions options;
    options.driver_root = sim_node().driver_root();
    options.kubelet_dir = sim_node().directory() + "/kubelet";
    options.selected_config = config;
    options.gpus = {gpu};
    return cli::mig_output(verb, options);
  }
};

TEST_F(SimMigCommand, NamesPods) {
  const auto grant = admit_pod("holder", 4, kSmall);
  const auto planned = run_mig(cli::MigVerb::kPlan, "all-7g.80gb", "7");
  EXPECT_EQ(planned.exit_code, cli::kNeedsAction) << planned.err;
  EXPECT_EQ(planned.err, "");
  for (const char* slice : {"0", "1", "2", "3"}) {
    EXPECT_NE(
        planned.out.find("GPU 7: blocked by Pod default/holder, on 1g.10gb at " + std::string(slice) + "\n"),
        std::string::npos)
        << planned.out;
  }
  EXPECT_EQ(run_mig(cli::MigVerb::kApply, "all-7g.80gb", "7").exit_code, cli::kNeedsAction);
  EXPECT_EQ(healthy_ids(*find_resource(sim_kubelet().kubelet_state(), kSmall)).size(), 4u);
  const auto whole = admit_pod("whole", 7);
  const auto blocked = run_mig(cli::MigVerb::kPlan, "all-1g.10gb", "2");
  EXPECT_EQ(
      blocked.out,
      "GPU 2: blocked; would enable MIG; create 1g.10gb at 0, 1g.10gb at 1, 1g.10gb at 2, 1g.10gb at 3, "
      "1g.10gb at 4, 1g.10gb at 5, 1g.10gb at 6\nGPU 2: blocked by Pod default/whole, on the GPU\n");
  ASSERT_TRUE(sim_kubelet().remove_pod(whole.uid));
  EXPECT_EQ(run_mig(cli::MigVerb::kPlan, "all-1g.10gb", "2").exit_code, 0);
  ASSERT_TRUE(sim_kubelet().remove_pod(grant.uid));
  EXPECT_EQ(run_mig(cli::MigVerb::kApply, "all-7g.80gb", "7").exit_code, 0);
}

TEST_F(SimMigCommand, TheAgentOffersALayoutAppliedAroundAPod) {
  const auto held = granted_ids(admit_pod("holder", 1, kSmall), kSmall).at(0);
  const auto applied = run_mig(cli::MigVerb::kApply, "all-balanced", "7");
  ASSERT_EQ(applied.exit_code, 0) << applied.out << applied.err;
  ASSERT_TRUE(becomes_allocatable(1, kLarge)) << agent_log();
  ASSERT_TRUE(becomes_allocatable(2, kSmall));
  EXPECT_TRUE(healthy_ids(*find_resource(sim_kubelet().kubelet_state(), kSmall)).contains(held))
      << "what the Pod holds is still there";
  EXPECT_EQ(run_mig(cli::MigVerb::kAssert, "all-balanced", "7").exit_code, 0);
}

}  // namespace
}  // namespace gpulet::tests

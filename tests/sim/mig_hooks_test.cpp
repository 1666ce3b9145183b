// Operator hooks of MIG changes, run by the agent as real processes on the simulated driver.
#include "base/file.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

class SimMigHooks : public NodeTest {
 protected:
  void SetUp() override {
    bring_up_node();
    hooks_ = sim_node().directory() + "/hooks.yaml";
    written_ = sim_node().directory() + "/written";
  }
  // Returns a hook that writes a line with its name and subject, then runs `then`.
  std::string hook_that_writes(const std::string& moment, const std::string& then = "true") const {
    return "  " + moment +
           ":\n    - command: /bin/sh\n"
           "      args: [-c, 'echo $GPULET_HOOK $MIG_PARTED_SELECTED_CONFIG $GPULET_GPU >>" +
           written_ + "; " + then + "']\n";
  }
  void write_hooks(const std::string& text) {
    ASSERT_TRUE(write_file_atomic(hooks_, "version: v1\nhooks:\n" + text));
  }
  void serve_rule() {
    write_config("version: v1\ngpulet:\n  mig: {hooksFile: " + hooks_ +
                 "}\n  partition:\n  - {devices: [7], mig: {layout: all-1g.10gb}}\n");
    start_agent({.arguments = {"--config-file=" + config_path()}});
  }
  std::string written_text() const { return read_file(written_).value_or(""); }
  std::string all_hooks() const {
    const std::string about = " all-1g.10gb " + gpu_uuid(7) + "\n";
    return "apply-start" + about + "pre-apply-mode" + about + "pre-apply-config" + about + "apply-exit" +
           about;
  }

  std::string hooks_, written_;
};

TEST_F(SimMigHooks, RunInMigPartedsOrder) {
  write_hooks(hook_that_writes("apply-start") + hook_that_writes("pre-apply-mode") +
              hook_that_writes("pre-apply-config") + hook_that_writes("apply-exit"));
  serve_rule();
  ASSERT_TRUE(becomes_allocatable(7, kSmall)) << agent_log();
  ASSERT_TRUE(becomes_true([&] { return written_text() == all_hooks(); })) << written_text();
}

TEST_F(SimMigHooks, AFailingHookBlocksTheChange) {
  const std::string gate = sim_node().directory() + "/gate";
  write_hooks(hook_that_writes("apply-start") + hook_that_writes("pre-apply-mode", "test -e " + gate) +
              hook_that_writes("apply-exit"));
  serve_rule();
  const auto why = wait_for_log("MigHookFailed");
  EXPECT_NE(why.find(hooks_ + ":7:7: pre-apply-mode: /bin/sh: exit code 1"), std::string::npos) << why;
  EXPECT_EQ(machine_state().lock_for_read()->gpus[7].mig.current, 0u);
  ASSERT_TRUE(becomes_true([&] { return written_text().find("apply-exit") != std::string::npos; }))
      << written_text();
  ASSERT_TRUE(becomes_allocatable(7)) << "the others never heard of it";
  ASSERT_TRUE(write_file_atomic(gate, ""));
  ASSERT_TRUE(becomes_allocatable(7, kSmall)) << agent_log();
}

TEST_F(SimMigHooks, AMistakeInTheFileChangesNothing) {
  write_hooks("  pre-aply-mode: []\n");
  serve_rule();
  const auto why = wait_for_log("MigHookFailed");
  EXPECT_NE(why.find(hooks_ + ":3:3: hooks: unknown key 'pre-aply-mode'; did you mean pre-apply-mode?"),
            std::string::npos)
      << why;
  EXPECT_EQ(machine_state().lock_for_read()->gpus[7].mig.current, 0u);
  write_hooks("");
  ASSERT_TRUE(becomes_allocatable(7, kSmall)) << agent_log();
}

}  // namespace
}  // namespace gpulet::tests

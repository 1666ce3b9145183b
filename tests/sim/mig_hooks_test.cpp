// An operator's commands around a change of MIG, run by the agent as real processes on the simulated driver.
#include "base/file.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

class SimMigHooks : public NodeTest {
 protected:
  void SetUp() override {
    up();
    hooks_ = node().folder() + "/hooks.yaml";
    written_ = node().folder() + "/written";
  }
  // At that moment a line with its name and what it is about; it ends as `then` does.
  std::string writing(const std::string& moment, const std::string& then = "true") const {
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
  std::string written() const { return read_file(written_).value_or(""); }
  std::string all() const {
    const std::string about = " all-1g.10gb " + uuid(7) + "\n";
    return "apply-start" + about + "pre-apply-mode" + about + "pre-apply-config" + about + "apply-exit" +
           about;
  }

  std::string hooks_, written_;
};

TEST_F(SimMigHooks, RunInMigPartedsOrder) {
  write_hooks(writing("apply-start") + writing("pre-apply-mode") + writing("pre-apply-config") +
              writing("apply-exit"));
  serve_rule();
  ASSERT_TRUE(offered(7, kSmall)) << log();
  ASSERT_TRUE(eventually([&] { return written() == all(); })) << written();
}

TEST_F(SimMigHooks, OneThatFailsKeepsTheGpuAsItIsUntilItSucceeds) {
  const std::string gate = node().folder() + "/gate";
  write_hooks(writing("apply-start") + writing("pre-apply-mode", "test -e " + gate) + writing("apply-exit"));
  serve_rule();
  const auto why = said("MigHookFailed");
  EXPECT_NE(why.find(hooks_ + ":7:7: pre-apply-mode: /bin/sh: exit code 1"), std::string::npos) << why;
  EXPECT_EQ(machine().read()->gpus[7].mig.current, 0u);
  ASSERT_TRUE(eventually([&] { return written().find("apply-exit") != std::string::npos; })) << written();
  ASSERT_TRUE(offered(7)) << "the others never heard of it";
  ASSERT_TRUE(write_file_atomic(gate, ""));
  ASSERT_TRUE(offered(7, kSmall)) << log();
}

TEST_F(SimMigHooks, AMistakeInTheFileIsOneLineAndNothingChanges) {
  write_hooks("  pre-aply-mode: []\n");
  serve_rule();
  const auto why = said("MigHookFailed");
  EXPECT_NE(why.find(hooks_ + ":3:3: hooks: unknown key 'pre-aply-mode'; did you mean pre-apply-mode?"),
            std::string::npos)
      << why;
  EXPECT_EQ(machine().read()->gpus[7].mig.current, 0u);
  write_hooks("");
  ASSERT_TRUE(offered(7, kSmall)) << log();
}

}  // namespace
}  // namespace gpulet::tests

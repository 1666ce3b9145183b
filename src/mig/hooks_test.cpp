#include "mig/hooks.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/file.h"
#include "base/text.h"

namespace gpulet::mig {
namespace {

using namespace std::chrono_literals;

// Real processes on a real loop. What they write to files says what ran.
class HooksTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "hooks.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    folder_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static Hook shell(const std::string& script) {
    return {"/bin/sh", {"-c", script}, {{"PATH", "/usr/bin:/bin"}}, "/", "hooks.yaml:4:7"};
  }
  Status run(std::vector<Hook> hooks, Duration limit = 60s,
             std::map<std::string, std::string> environment = {}) {
    HooksFile file;
    file.hooks[static_cast<std::size_t>(HookPoint::kPreApplyMode)] = std::move(hooks);
    runner_ = std::make_unique<HookRunner>(loop_, limit);
    Status result = fail(Code::kInternal, "never ended");
    bool inside = true;
    runner_->run(file, HookPoint::kPreApplyMode, std::move(environment), [&](Status status) {
      EXPECT_FALSE(inside) << "called from inside run()";
      result = std::move(status);
      loop_.stop();
    });
    inside = false;
    loop_.run();
    return result;
  }
  std::string wrote(const std::string& name) const {
    return read_file(folder_ + "/" + name).value_or("nothing");
  }

  EpollLoop loop_;
  std::string folder_;
  std::unique_ptr<HookRunner> runner_;
};

TEST_F(HooksTest, RunInOrderOneAfterTheOther) {
  const std::string file = folder_ + "/order";
  // The second would be first if it did not wait for the first.
  ASSERT_TRUE(run({shell("sleep 0.05; echo one >>" + file), shell("echo two >>" + file)}));
  EXPECT_EQ(wrote("order"), "one\ntwo\n");
}

TEST_F(HooksTest, NoHookIsSuccess) { EXPECT_TRUE(run({})); }

TEST_F(HooksTest, GetOnlyWhatTheyAreGiven) {
  auto hook = shell("env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD= | sort >" + folder_ +
                    "/env; pwd >" + folder_ + "/pwd; cat >" + folder_ + "/input");
  hook.envs["OWN"] = "its";
  hook.envs["MIG_PARTED_SELECTED_CONFIG"] = "mine";
  hook.workdir = "/usr";
  ::setenv("GPULET_HOOKS_TEST", "leaks", 1);
  ASSERT_TRUE(run({hook}, 60s, {{"MIG_PARTED_SELECTED_CONFIG", "all-balanced"}, {"GPULET_GPU", "GPU-1"}}));
  EXPECT_EQ(wrote("env"),
            "GPULET_GPU=GPU-1\nMIG_PARTED_SELECTED_CONFIG=all-balanced\nOWN=its\nPATH=/usr/bin:/bin\n");
  EXPECT_EQ(wrote("pwd"), "/usr\n");
  EXPECT_EQ(wrote("input"), "");
}

TEST_F(HooksTest, AFailingOneIsAnErrorWithItsLastWordsAndEndsTheList) {
  const auto status =
      run({shell("echo first; echo cannot stop it >&2; exit 3"), shell("touch " + folder_ + "/ran")});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), Code::kFailedPrecondition);
  EXPECT_EQ(status.error().text(),
            "hooks.yaml:4:7: pre-apply-mode: /bin/sh: exit code 3; it said: cannot stop it");
  EXPECT_EQ(wrote("ran"), "nothing");
}

TEST_F(HooksTest, ASignalIsAnError) {
  const auto status = run({shell("kill -TERM $$")});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().text(), "hooks.yaml:4:7: pre-apply-mode: /bin/sh: signal 15 (Terminated)");
}

TEST_F(HooksTest, AHangingOneIsKilledAtItsLimitWithWhatItStarted) {
  const auto status = run({shell("sleep 1000 & echo $! >" + folder_ + "/child; wait")}, 300ms);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(status.error().text(),
            "hooks.yaml:4:7: pre-apply-mode: /bin/sh: had not ended after 0.3 s and was killed");
  const auto child = text::parse_unsigned(text::trim(wrote("child")));
  ASSERT_TRUE(child);
  // Its parent is gone, so who reaps it is not ours to know: a zombie is dead too.
  for (int i = 0; i < 5000; ++i) {
    const auto stat = read_file("/proc/" + std::to_string(*child) + "/stat");
    if (!stat || stat->find(") Z ") != std::string::npos) return;
    ::poll(nullptr, 0, 2);
  }
  FAIL() << "what it started still runs";
}

TEST_F(HooksTest, AnAbsentProgramIsOneLine) {
  auto hook = shell("");
  hook.command = "/nonexistent/program";
  const auto status = run({hook});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), Code::kNotFound);
  EXPECT_EQ(status.error().text(),
            "hooks.yaml:4:7: pre-apply-mode: /nonexistent/program: cannot start: No such file or directory");

  auto nowhere = shell("true");
  nowhere.workdir = "/nonexistent";
  const auto left = run({nowhere});
  ASSERT_FALSE(left);
  EXPECT_EQ(left.error().text(),
            "hooks.yaml:4:7: pre-apply-mode: /nonexistent: cannot enter: No such file or directory");
}

TEST_F(HooksTest, OneThatIsNoProgramIsOneLine) {
  ASSERT_TRUE(write_file_atomic(folder_ + "/text", "no program", 0644));
  auto hook = shell("");
  hook.command = folder_ + "/text";
  const auto status = run({hook});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), Code::kPermissionDenied);
}

TEST_F(HooksTest, AFloodOfOutputNeitherBlocksNorBreaksALineEndlessly) {
  const auto status =
      run({shell("i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; "
                 "head -c 100000 /dev/zero | tr '\\0' x; exit 1")});
  ASSERT_FALSE(status);
  EXPECT_LE(status.error().text().size(), kMaxHookLineBytes + 200);
  EXPECT_NE(status.error().text().find("xxxx"), std::string::npos);
}

TEST_F(HooksTest, WhatItLeavesRunningNeitherHoldsTheNextUpNorIsHarmed) {
  ASSERT_EQ(::mkfifo((folder_ + "/gate").c_str(), 0600), 0);
  // The service writes to the hook's output after the hook has ended; a closed pipe would end it.
  ASSERT_TRUE(run({shell("(read go <" + folder_ + "/gate; echo still here; touch " + folder_ + "/alive) &"),
                   shell("echo go >" + folder_ + "/gate")}));
  auto poll = std::make_shared<std::function<void()>>();
  Subscription timer;
  int left = 5000;
  *poll = [&] {
    if (wrote("alive") != "nothing" || --left == 0) return loop_.stop();
    timer = loop_.after(2ms, *poll);
  };
  loop_.post(*poll);
  loop_.run();
  EXPECT_EQ(wrote("alive"), "");
}

TEST_F(HooksTest, DestroyingTheRunnerKillsWhatRuns) {
  HooksFile file;
  file.hooks[0] = {shell("echo $$ >" + folder_ + "/id.part; mv " + folder_ + "/id.part " + folder_ +
                         "/id; exec sleep 1000")};
  auto runner = std::make_unique<HookRunner>(loop_);
  runner->run(file, HookPoint::kApplyStart, {}, [](const Status&) { FAIL() << "it never ends"; });
  Subscription timer;
  std::function<void()> poll = [&] {
    if (wrote("id") != "nothing") return loop_.stop();
    timer = loop_.after(2ms, poll);
  };
  loop_.post(poll);
  loop_.run();
  const auto id = text::parse_unsigned(text::trim(wrote("id")));
  ASSERT_TRUE(id);
  runner.reset();
  EXPECT_EQ(::kill(static_cast<pid_t>(*id), 0), -1);
}

}  // namespace
}  // namespace gpulet::mig

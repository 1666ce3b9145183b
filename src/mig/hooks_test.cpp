#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/text.h"
#include "mig/hooks.h"

namespace gpulet::mig {
namespace {

// Like mig-parted's own deployments/systemd/hooks-default.yaml.
constexpr const char* kHooksFile = R"(version: v1
hooks:
    apply-start:
    - workdir: "/etc/nvidia-mig-manager"
      command: "/bin/bash"
      args: ["-x", "-c", "source hooks.sh; persist-config ${MIG_PARTED_SELECTED_CONFIG}"]
    pre-apply-mode:
    - command: /bin/one
      envs: {LEVEL: 2, EMPTY: , NAME: "a=b"}
    - command: /bin/two
    apply-exit: []
)";

std::string hooks_file_error(const std::string& text) {
  const auto file = parse_hooks_file(text, "hooks.yaml");
  return file ? "" : file.error().full_message();
}

TEST(HooksFile, ReadsMigPartedsFile) {
  const auto file = parse_hooks_file(kHooksFile, "hooks.yaml");
  ASSERT_TRUE(file) << file.error().full_message();
  EXPECT_EQ(file->path, "hooks.yaml");
  ASSERT_EQ(file->at(HookPoint::kApplyStart).size(), 1u);
  const auto& start = file->at(HookPoint::kApplyStart)[0];
  EXPECT_EQ(start.command, "/bin/bash");
  EXPECT_EQ(start.args, (std::vector<std::string>{
                            "-x", "-c", "source hooks.sh; persist-config ${MIG_PARTED_SELECTED_CONFIG}"}));
  EXPECT_EQ(start.workdir, "/etc/nvidia-mig-manager");
  EXPECT_EQ(start.location, "hooks.yaml:4:7");
  const auto& mode = file->at(HookPoint::kPreApplyMode);
  ASSERT_EQ(mode.size(), 2u);
  EXPECT_EQ(mode[0].envs,
            (std::map<std::string, std::string>{{"LEVEL", "2"}, {"EMPTY", ""}, {"NAME", "a=b"}}));
  EXPECT_EQ(mode[1].command, "/bin/two");
  EXPECT_EQ(mode[1].workdir, "/");
  EXPECT_TRUE(file->at(HookPoint::kPreApplyConfig).empty());
  EXPECT_TRUE(file->at(HookPoint::kApplyExit).empty());
}

TEST(HooksFile, AcceptsAFileWithoutHooks) {
  for (const char* text :
       {"version: v1\n", "version: v1\nhooks:\n", "version: v1\nhooks: {apply-exit: }\n"}) {
    const auto file = parse_hooks_file(text, "hooks.yaml");
    ASSERT_TRUE(file) << text << file.error().full_message();
    for (const auto& hooks : file->hooks) EXPECT_TRUE(hooks.empty());
  }
}

TEST(HooksFile, NamesTheHookPoints) {
  EXPECT_EQ(hook_point_name(HookPoint::kApplyStart), "apply-start");
  EXPECT_EQ(hook_point_name(HookPoint::kPreApplyMode), "pre-apply-mode");
  EXPECT_EQ(hook_point_name(HookPoint::kPreApplyConfig), "pre-apply-config");
  EXPECT_EQ(hook_point_name(HookPoint::kApplyExit), "apply-exit");
}

TEST(HooksFile, ReportsErrorsWithPositionAndExpectation) {
  const std::string head = "version: v1\nhooks:\n  apply-start:\n";
  const std::vector<std::pair<std::string, std::string>> table = {
      {"", "hooks.yaml:1:1: expected a mapping with version and hooks, found nothing"},
      {"hooks: {}\n", "hooks.yaml:1:1: version is missing; expected version: v1"},
      {"version: v2\n", "hooks.yaml:1:10: version: expected v1, found 'v2'"},
      {"version: v1\nhook: {}\n", "hooks.yaml:2:1: unknown key 'hook'; did you mean hooks?"},
      {"version: v1\nhooks: []\n",
       "hooks.yaml:2:8: hooks: expected a mapping of lists of commands, found a list"},
      {"version: v1\nhooks:\n  pre-aply-mode: []\n",
       "hooks.yaml:3:3: hooks: unknown key 'pre-aply-mode'; did you mean pre-apply-mode?"},
      {"version: v1\nhooks:\n  apply-exit: /bin/true\n",
       "hooks.yaml:3:15: hooks.apply-exit: expected a list of commands, found '/bin/true'"},
      {head + "    - /bin/true\n",
       "hooks.yaml:4:7: hooks.apply-start[0]: expected a mapping with a command, found '/bin/true'"},
      {head + "    - args: [a]\n",
       "hooks.yaml:4:7: hooks.apply-start[0]: command is missing; expected the absolute path of a program"},
      {head + "    - command: systemctl\n",
       "hooks.yaml:4:16: hooks.apply-start[0].command: expected an absolute path, found 'systemctl'"},
      {head + "    - command: /bin/sh\n      arg: [a]\n",
       "hooks.yaml:5:7: hooks.apply-start[0]: unknown key 'arg'; did you mean args?"},
      {head + "    - command: /bin/sh\n      args: -c\n",
       "hooks.yaml:5:13: hooks.apply-start[0].args: expected a list of strings, found '-c'"},
      {head + "    - command: /bin/sh\n      args: [[a]]\n",
       "hooks.yaml:5:14: hooks.apply-start[0].args: expected a string, found a list"},
      {head + "    - command: /bin/sh\n      args: [\"a\\0b\"]\n",
       "hooks.yaml:5:14: hooks.apply-start[0].args: contains a NUL character, which no argument can have"},
      {head + "    - command: /bin/sh\n      envs: [A=1]\n",
       "hooks.yaml:5:13: hooks.apply-start[0].envs: expected a mapping of names and values, found a list"},
      {head + "    - command: /bin/sh\n      envs: {A=B: 1}\n",
       "hooks.yaml:5:14: hooks.apply-start[0].envs: expected a variable's name, found 'A=B'"},
      {head + "    - command: /bin/sh\n      workdir: here\n",
       "hooks.yaml:5:16: hooks.apply-start[0].workdir: expected an absolute path, found 'here'"},
      {head + "    - command: /bin/sh\n      workdir: {}\n",
       "hooks.yaml:5:16: hooks.apply-start[0].workdir: expected a string, found a mapping"},
      {"version: v1\nhooks: {}\nhooks: {}\n",
       "hooks.yaml:3:1: hooks: is given twice, first at hooks.yaml:2:1"},
      {"version: v1\n---\nversion: v1\n", "hooks.yaml:2:1: a second document; expected one"},
  };
  for (const auto& [text, expected] : table) EXPECT_EQ(hooks_file_error(text), expected) << text;
}

TEST(HooksFile, ReportsAMissingFile) {
  const auto file = load_hooks_file("/nonexistent/hooks.yaml");
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code(), Code::kNotFound);
  EXPECT_EQ(file.error().subject(), "/nonexistent/hooks.yaml");
}

}  // namespace

namespace {

using namespace std::chrono_literals;

// Real processes on a real loop. Files that they write show what ran.
class HooksTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "hooks.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  static Hook shell(const std::string& script) {
    return {"/bin/sh", {"-c", script}, {{"PATH", "/usr/bin:/bin"}}, "/", "hooks.yaml:4:7"};
  }
  Status run_point(std::vector<Hook> hooks, Duration limit = 60s,
                   std::map<std::string, std::string> environment = {}) {
    HooksFile file;
    file.hooks[static_cast<std::size_t>(HookPoint::kPreApplyMode)] = std::move(hooks);
    runner_ = std::make_unique<HookRunner>(loop_, limit);
    Status result = fail(Code::kInternal, "never ended");
    bool inside = true;
    runner_->run_hooks(file, HookPoint::kPreApplyMode, std::move(environment), [&](Status status) {
      EXPECT_FALSE(inside) << "called from inside run_hooks()";
      result = std::move(status);
      loop_.stop_loop();
    });
    inside = false;
    loop_.run_loop();
    return result;
  }
  std::string wrote(const std::string& name) const {
    return read_file(directory_ + "/" + name).value_or("nothing");
  }

  EpollLoop loop_;
  std::string directory_;
  std::unique_ptr<HookRunner> runner_;
};

TEST_F(HooksTest, RunsInOrder) {
  const std::string file = directory_ + "/order";
  // The second would finish first if it did not wait for the first.
  ASSERT_TRUE(run_point({shell("sleep 0.05; echo one >>" + file), shell("echo two >>" + file)}));
  EXPECT_EQ(wrote("order"), "one\ntwo\n");
}

TEST_F(HooksTest, NoHookIsSuccess) { EXPECT_TRUE(run_point({})); }

TEST_F(HooksTest, PassesOnlyTheGivenEnvironment) {
  auto hook = shell("env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD= | sort >" + directory_ +
                    "/env; pwd >" + directory_ + "/pwd; cat >" + directory_ + "/input");
  hook.envs["OWN"] = "its";
  hook.envs["MIG_PARTED_SELECTED_CONFIG"] = "mine";
  hook.workdir = "/usr";
  ::setenv("GPULET_HOOKS_TEST", "leaks", 1);
  ASSERT_TRUE(
      run_point({hook}, 60s, {{"MIG_PARTED_SELECTED_CONFIG", "all-balanced"}, {"GPULET_GPU", "GPU-1"}}));
  EXPECT_EQ(wrote("env"),
            "GPULET_GPU=GPU-1\nMIG_PARTED_SELECTED_CONFIG=all-balanced\nOWN=its\nPATH=/usr/bin:/bin\n");
  EXPECT_EQ(wrote("pwd"), "/usr\n");
  EXPECT_EQ(wrote("input"), "");
}

TEST_F(HooksTest, StopsAtAFailureAndReportsItsLastLine) {
  const auto status = run_point(
      {shell("echo first; echo cannot stop it >&2; exit 3"), shell("touch " + directory_ + "/ran")});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), Code::kFailedPrecondition);
  EXPECT_EQ(status.error().full_message(),
            "hooks.yaml:4:7: pre-apply-mode: /bin/sh: exit code 3; last output: cannot stop it");
  EXPECT_EQ(wrote("ran"), "nothing");
}

TEST_F(HooksTest, ReportsASignal) {
  const auto status = run_point({shell("kill -TERM $$")});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().full_message(), "hooks.yaml:4:7: pre-apply-mode: /bin/sh: signal 15 (Terminated)");
}

TEST_F(HooksTest, KillsAHangingCommandWithItsChildren) {
  const auto status = run_point({shell("sleep 1000 & echo $! >" + directory_ + "/child; wait")}, 300ms);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(status.error().full_message(),
            "hooks.yaml:4:7: pre-apply-mode: /bin/sh: did not exit within 0.3 s and was killed");
  const auto child = text::parse_unsigned(text::trim(wrote("child")));
  ASSERT_TRUE(child);
  // Its parent is gone and another process reaps it, so a zombie counts as dead.
  for (int i = 0; i < 5000; ++i) {
    const auto stat = read_file("/proc/" + std::to_string(*child) + "/stat");
    if (!stat || stat->find(") Z ") != std::string::npos) return;
    ::poll(nullptr, 0, 2);
  }
  FAIL() << "its child process still runs";
}

TEST_F(HooksTest, ReportsAMissingProgram) {
  auto hook = shell("");
  hook.command = "/nonexistent/program";
  const auto status = run_point({hook});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), Code::kNotFound);
  EXPECT_EQ(status.error().full_message(),
            "hooks.yaml:4:7: pre-apply-mode: /nonexistent/program: cannot start: No such file or directory");

  auto nowhere = shell("true");
  nowhere.workdir = "/nonexistent";
  const auto left = run_point({nowhere});
  ASSERT_FALSE(left);
  EXPECT_EQ(left.error().full_message(),
            "hooks.yaml:4:7: pre-apply-mode: /nonexistent: cannot enter: No such file or directory");
}

TEST_F(HooksTest, ReportsAFileThatIsNoProgram) {
  ASSERT_TRUE(write_file_atomic(directory_ + "/text", "no program", 0644));
  auto hook = shell("");
  hook.command = directory_ + "/text";
  const auto status = run_point({hook});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), Code::kPermissionDenied);
}

TEST_F(HooksTest, BoundsTheOutput) {
  const auto status =
      run_point({shell("i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; "
                       "head -c 100000 /dev/zero | tr '\\0' x; exit 1")});
  ASSERT_FALSE(status);
  EXPECT_LE(status.error().full_message().size(), kMaxHookLineBytes + 200);
  EXPECT_NE(status.error().full_message().find("xxxx"), std::string::npos);
}

TEST_F(HooksTest, LeavesBackgroundProcessesAlone) {
  ASSERT_EQ(::mkfifo((directory_ + "/gate").c_str(), 0600), 0);
  // The service writes to the hook's output after the hook has exited; a closed pipe would kill it.
  ASSERT_TRUE(run_point(
      {shell("(read go <" + directory_ + "/gate; echo still here; touch " + directory_ + "/alive) &"),
       shell("echo go >" + directory_ + "/gate")}));
  auto poll = std::make_shared<std::function<void()>>();
  Subscription timer;
  int left = 5000;
  *poll = [&] {
    if (wrote("alive") != "nothing" || --left == 0) return loop_.stop_loop();
    timer = loop_.after(2ms, *poll);
  };
  loop_.post(*poll);
  loop_.run_loop();
  EXPECT_EQ(wrote("alive"), "");
}

TEST_F(HooksTest, DestroyingTheRunnerKillsItsProcess) {
  HooksFile file;
  file.hooks[0] = {shell("echo $$ >" + directory_ + "/id.part; mv " + directory_ + "/id.part " + directory_ +
                         "/id; exec sleep 1000")};
  auto runner = std::make_unique<HookRunner>(loop_);
  runner->run_hooks(file, HookPoint::kApplyStart, {}, [](const Status&) { FAIL() << "it never ends"; });
  Subscription timer;
  std::function<void()> poll = [&] {
    if (wrote("id") != "nothing") return loop_.stop_loop();
    timer = loop_.after(2ms, poll);
  };
  loop_.post(poll);
  loop_.run_loop();
  const auto id = text::parse_unsigned(text::trim(wrote("id")));
  ASSERT_TRUE(id);
  runner.reset();
  EXPECT_EQ(::kill(static_cast<pid_t>(*id), 0), -1);
}

}  // namespace
}  // namespace gpulet::mig

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>

#include <gtest/gtest.h>

#include "base/file_watch.h"
#include "base/process.h"

namespace gpulet {
namespace {

using namespace std::chrono_literals;

struct Pipe {
  FileDescriptor read, write;
};
Pipe make_pipe() {
  std::array<int, 2> ends;
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

ProcessOptions shell(const std::string& script) {
  return {.program = "/bin/sh", .arguments = {"sh", "-c", script}};
}

TEST(Process, ReturnsExitCodeAndSignal) {
  auto process = Process::spawn(shell("exit 7"));
  ASSERT_TRUE(process) << process.error().full_message();
  auto exit = (*process)->wait_for_exit(10s);
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->code, 7);
  EXPECT_EQ(exit->signal, 0);
  EXPECT_EQ(exit->exit_text(), "exit code 7");

  auto killed = Process::spawn(shell("kill -TERM $$"));
  ASSERT_TRUE(killed);
  exit = (*killed)->wait_for_exit(10s);
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->signal, SIGTERM);
}

TEST(Process, MissingProgramFailsImmediately) {
  const auto process = Process::spawn({.program = "/nonexistent/program", .arguments = {"x"}});
  ASSERT_FALSE(process);
  EXPECT_EQ(process.error().code(), Code::kNotFound);
  EXPECT_EQ(process.error().subject(), "/nonexistent/program");
}

TEST(Process, InheritsOnlyTheGivenEnvironmentAndDescriptors) {
  Pipe output = make_pipe();
  // Neither close-on-exec nor passed on: the child must not have it.
  const FileDescriptor leaking(::open("/dev/zero", O_RDONLY));
  auto options = shell(
      "env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD=; "
      "ls -l /proc/$$/fd | sed -n 's/.* \\([0-9]* ->.*\\)/\\1/p'");
  options.environment = {"ONLY=this", "PATH=/usr/bin:/bin"};
  options.descriptors = {{output.write.get(), 1}, {output.write.get(), 7}};
  auto process = Process::spawn(options);
  ASSERT_TRUE(process) << process.error().full_message();
  output.write.reset();
  const auto text = read_all(output.read.get(), "pipe");
  ASSERT_TRUE(text);
  EXPECT_NE(text->find("ONLY=this\n"), std::string::npos) << *text;
  EXPECT_EQ(text->find("HOME="), std::string::npos) << *text;
  EXPECT_NE(text->find("0 -> /dev/null"), std::string::npos) << *text;
  EXPECT_NE(text->find("2 -> /dev/null"), std::string::npos) << *text;
  EXPECT_NE(text->find("7 -> pipe:"), std::string::npos) << *text;
  EXPECT_EQ(text->find("/dev/zero"), std::string::npos) << *text;
  ASSERT_TRUE((*process)->wait_for_exit(10s));
}

TEST(Process, DescriptorsMaySwapNumbers) {
  Pipe one = make_pipe(), two = make_pipe();
  auto options =
      shell("echo a >&" + std::to_string(one.write.get()) + "; echo b >&" + std::to_string(two.write.get()));
  options.descriptors = {{one.write.get(), two.write.get()}, {two.write.get(), one.write.get()}};
  ASSERT_LT(std::max(one.write.get(), two.write.get()), 10) << "a shell redirects single digits only";
  auto process = Process::spawn(options);
  ASSERT_TRUE(process);
  one.write.reset();
  two.write.reset();
  EXPECT_EQ(read_all(one.read.get(), "one"), "b\n");
  EXPECT_EQ(read_all(two.read.get(), "two"), "a\n");
}

TEST(Process, ExitIsAnEventWhoseCallbackMayDestroyTheProcess) {
  EpollLoop loop;
  Pipe gate = make_pipe();
  auto options = shell("read line");
  options.descriptors = {{gate.read.get(), 0}};
  auto started = Process::spawn(options);
  ASSERT_TRUE(started);
  std::unique_ptr<Process> process = std::move(*started);
  EXPECT_EQ(process->wait_for_exit(0s).error().code(), Code::kDeadlineExceeded);
  int code = -1;
  process->on_exit(loop, [&](const ProcessExit& exit) {
    process.reset();
    code = exit.code;
    loop.stop_loop();
  });
  ASSERT_EQ(::write(gate.write.get(), "x\n", 2), 2);
  auto late = loop.after(10s, [&] { loop.stop_loop(); });
  loop.run_loop();
  EXPECT_EQ(code, 0);
}

TEST(Process, RunsInTheWorkingDirectory) {
  Pipe output = make_pipe();
  auto options = shell("pwd");
  options.working_directory = "/usr";
  options.descriptors = {{output.write.get(), 1}};
  auto process = Process::spawn(options);
  ASSERT_TRUE(process) << process.error().full_message();
  output.write.reset();
  EXPECT_EQ(read_all(output.read.get(), "pipe"), "/usr\n");

  options.working_directory = "/nonexistent";
  const auto nowhere = Process::spawn(options);
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().full_message(), "/nonexistent: cannot enter: No such file or directory");
}

TEST(Process, KillingTheGroupKillsItsChildren) {
  Pipe output = make_pipe();
  auto options = shell("sleep 1000 & echo started; wait");
  options.environment = {"PATH=/usr/bin:/bin"};
  options.descriptors = {{output.write.get(), 1}};
  options.own_group = true;
  auto process = Process::spawn(options);
  ASSERT_TRUE(process);
  output.write.reset();
  char started = 0;
  ASSERT_EQ(::read(output.read.get(), &started, 1), 1);
  (*process)->send_signal(SIGKILL);
  // End of file is read only once both have closed it.
  EXPECT_TRUE(read_all(output.read.get(), "pipe"));
  const auto exit = (*process)->wait_for_exit(10s);
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->signal, SIGKILL);
}

TEST(Process, DestructorKillsTheProcess) {
  auto process = Process::spawn(shell("exec sleep 1000"));
  ASSERT_TRUE(process);
  const pid_t id = (*process)->pid();
  ASSERT_EQ(::kill(id, 0), 0);
  process->reset();
  EXPECT_EQ(::kill(id, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST(Process, SignalMaskAndDispositionsAreResetInTheChild) {
  EpollLoop loop;
  auto signals = SignalWatcher::watch_signals(loop, {SIGTERM, SIGUSR1}, [](int) {});
  ASSERT_TRUE(signals);
  const auto before = ::signal(SIGUSR2, SIG_IGN);
  Pipe output = make_pipe();
  ProcessOptions options{.program = "/bin/grep",
                         .arguments = {"grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"}};
  options.descriptors = {{output.write.get(), 1}};
  auto process = Process::spawn(options);
  ASSERT_TRUE(process);
  output.write.reset();
  const std::string dispositions = read_all(output.read.get(), "pipe").value_or("");
  unsigned long long blocked = ~0ull, ignored = ~0ull;
  // NOLINTNEXTLINE(cert-err34-c): two numbers in one known form; a mask that overflows fails below
  ASSERT_EQ(std::sscanf(dispositions.c_str(), "SigBlk: %llx SigIgn: %llx", &blocked, &ignored), 2)
      << dispositions;
  EXPECT_EQ(blocked, 0u) << dispositions;
  // Signals 32 and 33 are glibc's own, which cannot be set; make's children inherit 32 as ignored.
  EXPECT_EQ(ignored & ~0x1'8000'0000ull, 0u) << dispositions;
  ::signal(SIGUSR2, before);
}

TEST(SignalWatch, DeliversSignalsOnTheLoopAndUnblocksThemAfterwards) {
  EpollLoop loop;
  std::vector<int> seen;
  std::unique_ptr<SignalWatcher> watch;
  auto started = SignalWatcher::watch_signals(loop, {SIGHUP, SIGTERM}, [&](int signal) {
    seen.push_back(signal);
    if (seen.size() < 2) return;
    watch.reset();
    loop.stop_loop();
  });
  ASSERT_TRUE(started);
  watch = std::move(*started);
  ASSERT_EQ(::raise(SIGHUP), 0);
  ASSERT_EQ(::raise(SIGTERM), 0);
  auto late = loop.after(10s, [&] { loop.stop_loop(); });
  loop.run_loop();
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, (std::vector{SIGHUP, SIGTERM}));
  sigset_t now;
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, nullptr, &now), 0);
  EXPECT_EQ(::sigismember(&now, SIGTERM), 0);
}

}  // namespace

namespace {

class PresenceTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "presence.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
    path_ = directory_ + "/deep/agent.lock";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  bool held() const {
    const auto held = ProcessLock::is_locked(path_);
    EXPECT_TRUE(held) << held.error().full_message();
    return held.value_or(false);
  }

  std::string directory_, path_;
};

TEST_F(PresenceTest, LockIsHeldUntilTheObjectIsDestroyed) {
  EXPECT_FALSE(held()) << "there is no such file";
  {
    auto first = ProcessLock::acquire_lock(path_);
    ASSERT_TRUE(first) << first.error().full_message();
    EXPECT_TRUE(held());
    EXPECT_TRUE(held()) << "asking takes nothing away";
    const auto second = ProcessLock::acquire_lock(path_);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code(), Code::kFailedPrecondition);
    const ProcessLock moved = std::move(*first);
    EXPECT_TRUE(held());
  }
  EXPECT_FALSE(held());
  EXPECT_TRUE(ProcessLock::acquire_lock(path_)) << "what is left behind is in nobody's way";
}

// Another process that holds the lock until it is killed.
class LockHolder {
 public:
  explicit LockHolder(const std::string& path) {
    EXPECT_EQ(::pipe(ready_), 0);
    child_ = ::fork();
    if (child_ == 0) {
      const auto presence = ProcessLock::acquire_lock(path);
      const char answer = presence ? 'y' : 'n';
      if (::write(ready_[1], &answer, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    char answer = 0;
    EXPECT_EQ(::read(ready_[0], &answer, 1), 1);
    EXPECT_EQ(answer, 'y');
  }
  ~LockHolder() {
    kill();
    ::waitpid(child_, nullptr, 0);
    ::close(ready_[0]);
    ::close(ready_[1]);
  }
  LockHolder(const LockHolder&) = delete;
  void kill() const { EXPECT_EQ(::kill(child_, SIGKILL), 0); }

 private:
  int ready_[2]{};
  pid_t child_ = -1;
};

TEST_F(PresenceTest, KilledProcessReleasesTheLockAndNotifiesWatches) {
  const LockHolder holder(path_);
  EXPECT_TRUE(held());

  EpollLoop loop;
  bool told = false;
  const auto watch = FileWatcher::watch_path(loop, path_, [&] {
    told = true;
    loop.stop_loop();
  });
  ASSERT_TRUE(watch) << watch.error().full_message();
  const auto late = loop.after(std::chrono::seconds(20), [&] { loop.stop_loop(); });
  holder.kill();
  loop.run_loop();
  EXPECT_TRUE(told);
  EXPECT_FALSE(held());
}

TEST_F(PresenceTest, WaitsForTheLockUntilItsProcessIsKilled) {
  const LockHolder holder(path_);
  std::atomic<bool> waited = false;
  std::thread waiter([&] { waited = ProcessLock::wait_for_lock(path_).has_value(); });
  EXPECT_FALSE(waited);
  holder.kill();
  waiter.join();
  EXPECT_TRUE(waited);
  EXPECT_FALSE(held());
}

TEST_F(PresenceTest, FollowsNoLinkAndReportsErrors) {
  std::filesystem::create_directories(directory_ + "/deep");
  std::filesystem::create_symlink("/etc/passwd", path_);
  const auto presence = ProcessLock::acquire_lock(path_);
  ASSERT_FALSE(presence);
  EXPECT_EQ(presence.error().subject(), path_);
  EXPECT_FALSE(ProcessLock::acquire_lock("/proc/none/agent.lock"));
}

}  // namespace
}  // namespace gpulet

// The real process of the simulated control daemon, on a real loop.
#include "mps/daemon.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>
#include <array>

#include "mps/test_care.h"

namespace gpulet::mps {
namespace {

using namespace std::chrono_literals;

TEST(MpsDaemon, StartsWithItsLimitsAndStopsWithAllPutBack) {
  Care care;
  auto daemon = care.daemon(care.spec(2));
  daemon->start();
  EXPECT_FALSE(care.history.front().healthy);
  ASSERT_TRUE(care.until([&] { return daemon->health().healthy; })) << daemon->health().reason;
  EXPECT_EQ(care.ask("get_default_device_pinned_mem_limit 0"), "19G\n");
  EXPECT_EQ(care.ask("get_default_device_pinned_mem_limit 1"), "19G\n");
  EXPECT_EQ(care.ask("get_default_active_thread_percentage"), "25.0\n");
  EXPECT_EQ(care.modes(), (std::vector<unsigned>{3, 3, 0, 0}));
  const std::string folder = care.root.root() + "/nvidia.com/gpu";
  EXPECT_TRUE(std::filesystem::exists(folder + "/.started"));
  EXPECT_TRUE(std::filesystem::exists(folder + "/log/control.log"));

  bool stopped = false;
  daemon->stop([&] { stopped = true; });
  ASSERT_TRUE(care.until([&] { return stopped; }));
  EXPECT_EQ(care.ask("get_server_list"), "gone");
  EXPECT_EQ(care.modes(), (std::vector<unsigned>{0, 0, 0, 0}));
  EXPECT_FALSE(std::filesystem::exists(folder + "/.started"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/log"));
}

TEST(MpsDaemon, OneThatDiesIsStartedAgainAndItsHealthIsTold) {
  Care care;
  auto daemon = care.daemon(care.spec(1));
  daemon->start();
  ASSERT_TRUE(care.until([&] { return daemon->health().healthy; })) << daemon->health().reason;
  const auto first = care.pid();
  care.history.clear();
  ASSERT_TRUE(sim::mps::die(care.pipes()));
  ASSERT_TRUE(care.until([&] { return care.history.size() >= 2 && daemon->health().healthy; }));
  EXPECT_EQ(care.history.front().reason, "the MPS control daemon of nvidia.com/gpu has ended");
  EXPECT_NE(care.pid(), first);
  EXPECT_EQ(care.ask("get_default_active_thread_percentage"), "25.0\n");
}

TEST(MpsDaemon, OneThatHangsIsKilledAndStartedAgain) {
  Care care;
  care.options.check_interval = 20ms;
  care.options.answer_limit = 400ms;
  auto daemon = care.daemon(care.spec(1));
  daemon->start();
  ASSERT_TRUE(care.until([&] { return daemon->health().healthy; })) << daemon->health().reason;
  const auto first = care.pid();
  care.history.clear();
  ASSERT_TRUE(sim::mps::hang(care.pipes()));
  ASSERT_TRUE(care.until([&] { return care.history.size() >= 3 && daemon->health().healthy; }));
  EXPECT_NE(care.history[0].reason.find("does not answer"), std::string::npos) << care.history[0].reason;
  EXPECT_NE(care.history[1].reason.find("hangs"), std::string::npos) << care.history[1].reason;
  EXPECT_NE(care.pid(), first);
}

TEST(MpsDaemon, OneThatIsLateOnceStays) {
  Care care;
  care.options.check_interval = 20ms;
  care.options.answer_limit = 400ms;
  auto daemon = care.daemon(care.spec(1));
  daemon->start();
  ASSERT_TRUE(care.until([&] { return daemon->health().healthy; })) << daemon->health().reason;
  const auto first = care.pid();
  care.history.clear();
  ASSERT_TRUE(sim::mps::hang(care.pipes()));
  ASSERT_TRUE(care.until([&] { return !care.history.empty(); }));
  ASSERT_TRUE(sim::mps::heal(care.pipes()));
  ASSERT_TRUE(care.until([&] { return daemon->health().healthy; }));
  EXPECT_EQ(care.pid(), first);
  EXPECT_EQ(care.history.size(), 2u);
}

TEST(MpsDaemon, AMissingProgramIsToldOnceAndTriedAgain) {
  Care care;
  care.options.retry = {1ms, 4ms};
  const std::string aside = care.root.program() + ".aside";
  std::filesystem::rename(care.root.program(), aside);
  auto daemon = care.daemon(care.spec(1));
  daemon->start();
  ASSERT_EQ(care.history.size(), 2u);
  EXPECT_EQ(daemon->health().reason.find("nvidia-cuda-mps-control: is in no bin folder below "), 0u)
      << daemon->health().reason;
  care.run_for(50ms);
  EXPECT_EQ(care.history.size(), 2u);
  EXPECT_EQ(care.mode_calls, 0u);
  std::filesystem::rename(aside, care.root.program());
  EXPECT_TRUE(care.until([&] { return daemon->health().healthy; }));
}

TEST(MpsDaemon, WhatTheDaemonSaysWhenItDoesNotStartIsTheReason) {
  Care care;
  auto spec = care.spec(1);
  spec.visible_devices = {DeviceUuid("GPU-of-another-node")};
  auto daemon = care.daemon(spec);
  daemon->start();
  ASSERT_TRUE(care.until([&] { return care.history.size() >= 2; }));
  EXPECT_EQ(
      daemon->health().reason,
      "nvidia-cuda-mps-control: the MPS control daemon does not start: no CUDA-capable device is visible "
      "(exit code 1)");
}

TEST(MpsDaemon, AComputeModeThatCannotBeSetIsTheReasonUnlessItIsUnsupported) {
  Care care;
  care.mode_error = Error(Code::kPermissionDenied, "not allowed");
  auto daemon = care.daemon(care.spec(1));
  daemon->start();
  ASSERT_TRUE(care.until([&] { return care.history.size() >= 2; }));
  EXPECT_EQ(daemon->health().reason, "cannot set the compute mode to EXCLUSIVE_PROCESS: not allowed");
  care.mode_error = Error(Code::kUnsupported, "has none");
  EXPECT_TRUE(care.until([&] { return daemon->health().healthy; }));
}

TEST(MpsDaemon, OtherLimitsReachTheRunningDaemonAndItsServers) {
  Care care;
  auto daemon = care.daemon(care.spec(1));
  daemon->start();
  ASSERT_TRUE(care.until([&] { return daemon->health().healthy; })) << daemon->health().reason;
  const auto first = care.pid();
  const auto client = sim::mps::attach(care.pipes(), "", "");
  ASSERT_TRUE(client);
  EXPECT_EQ(client->allowed, "threads 25.0 memory 0=20389M");
  auto spec = care.spec(1);
  spec.thread_percentage = 12;
  spec.memory_limits[0].mebibytes = 10194;
  daemon->change(spec);
  ASSERT_TRUE(care.until([&] {
    const auto next = sim::mps::attach(care.pipes(), "", "");
    return next && next->allowed == "threads 12.0 memory 0=10194M";
  }));
  EXPECT_EQ(care.pid(), first);
  EXPECT_EQ(care.history.size(), 2u);
}

TEST(MpsDaemon, OneLeftByAKilledAgentIsTakenOver) {
  Care care;
  std::array<int, 2> ends;
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const pid_t agent = ::fork();
  if (agent == 0) {
    auto daemon = care.daemon(care.spec(1));
    daemon->start();
    const bool healthy = care.until([&] { return daemon->health().healthy; });
    static_cast<void>(::write(ends[1], healthy ? "+" : "-", 1) < 0);
    for (;;) ::pause();
  }
  char told = 0;
  ASSERT_EQ(::read(ends[0], &told, 1), 1);
  ASSERT_EQ(told, '+');
  ::kill(agent, SIGKILL);
  ASSERT_EQ(::waitpid(agent, nullptr, 0), agent);
  const FileDescriptor read_end(ends[0]), write_end(ends[1]);
  const auto first = care.pid();
  const auto client = sim::mps::attach(care.pipes(), "", "");
  ASSERT_TRUE(client);

  auto same = care.daemon(care.spec(1));
  same->start();
  ASSERT_TRUE(care.until([&] { return same->health().healthy; })) << same->health().reason;
  EXPECT_EQ(care.pid(), first);
  EXPECT_NE(care.ask("get_server_list"), "");
  same.reset();

  auto limits = care.spec(1);
  limits.thread_percentage = 50;
  auto other_limits = care.daemon(limits);
  other_limits->start();
  ASSERT_TRUE(care.until([&] { return other_limits->health().healthy; }));
  EXPECT_EQ(care.pid(), first);
  EXPECT_EQ(care.ask("get_default_active_thread_percentage"), "50.0\n");
  other_limits.reset();

  auto other_devices = care.daemon(care.spec(2));
  other_devices->start();
  ASSERT_TRUE(care.until([&] { return other_devices->health().healthy; }));
  EXPECT_NE(care.pid(), first);
}

TEST(MpsDaemon, OneThatDoesNotQuitIsKilled) {
  Care care;
  care.options.quit_grace = 200ms;
  auto daemon = care.daemon(care.spec(1));
  daemon->start();
  ASSERT_TRUE(care.until([&] { return daemon->health().healthy; })) << daemon->health().reason;
  ASSERT_TRUE(sim::mps::hang(care.pipes()));
  bool stopped = false;
  daemon->stop([&] {
    stopped = true;
    daemon.reset();
  });
  ASSERT_TRUE(care.until([&] { return stopped; }));
  EXPECT_EQ(care.ask("get_server_list"), "gone");
  EXPECT_EQ(care.modes()[0], 0u);
}

TEST(MpsDaemon, StoppedOnItsWayUpItLeavesNothing) {
  Care care;
  for (const auto delay : {0ms, 1ms, 2ms, 4ms, 8ms, 16ms}) {
    auto daemon = care.daemon(care.spec(2));
    daemon->start();
    care.run_for(delay);
    bool stopped = false;
    daemon->stop([&] { stopped = true; });
    ASSERT_TRUE(care.until([&] { return stopped; }));
    EXPECT_EQ(care.ask("get_server_list"), "gone");
    EXPECT_EQ(care.modes(), (std::vector<unsigned>{0, 0, 0, 0}));
    EXPECT_FALSE(std::filesystem::exists(care.root.root() + "/nvidia.com/gpu/.started"));
  }
}

TEST(MpsDaemonProcess, APidFileThatNamesAnotherProcessIsNotBelieved) {
  Care care;
  EXPECT_EQ(DaemonProcess::find(care.pipes()).error().code(), Code::kNotFound);
  for (const std::string& text : {std::to_string(::getpid()), std::string("1"), std::string("x"),
                                  std::string("-1"), std::string("99999999999999999999")}) {
    ASSERT_TRUE(write_file_atomic(care.pipes() + "/nvidia-cuda-mps-control.pid", text));
    EXPECT_EQ(DaemonProcess::find(care.pipes()).error().code(), Code::kNotFound) << text;
  }
}

TEST(MpsDaemonProcess, APidFileThatIsAPipeOrALinkIsNotWaitedFor) {
  Care care;
  const std::string path = care.pipes() + "/nvidia-cuda-mps-control.pid";
  ASSERT_TRUE(make_directories(care.pipes()));
  ASSERT_EQ(::mkfifo(path.c_str(), 0666), 0);
  EXPECT_FALSE(DaemonProcess::find(care.pipes()));
  const FileDescriptor writer(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(DaemonProcess::find(care.pipes()));
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/dev/zero", path);
  EXPECT_FALSE(DaemonProcess::find(care.pipes()));
}

}  // namespace
}  // namespace gpulet::mps

// The real process of the simulated control daemon, on a real loop.
#include "mps/daemon.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>
#include <algorithm>
#include <array>

#include "base/test_foreign_root.h"
#include "mps/manager.h"
#include "mps/test_mps_node.h"

namespace gpulet::mps {
namespace {

using namespace std::chrono_literals;

TEST(MpsDaemon, StartsWithItsLimitsAndRestoresEverythingAtStop) {
  TestMpsNode node;
  auto daemon = node.make_daemon(node.make_spec(2));
  daemon->start_daemon();
  EXPECT_FALSE(node.history.front().healthy);
  ASSERT_TRUE(node.wait_until([&] { return daemon->daemon_health().healthy; }))
      << daemon->daemon_health().reason;
  EXPECT_EQ(node.send_command("get_default_device_pinned_mem_limit 0"), "19G\n");
  EXPECT_EQ(node.send_command("get_default_device_pinned_mem_limit 1"), "19G\n");
  EXPECT_EQ(node.send_command("get_default_active_thread_percentage"), "25.0\n");
  EXPECT_EQ(node.modes(), (std::vector<unsigned>{3, 3, 0, 0}));
  const std::string directory = node.root.mps_root() + "/nvidia.com/gpu";
  EXPECT_TRUE(std::filesystem::exists(directory + "/.started"));
  EXPECT_TRUE(std::filesystem::exists(directory + "/log/control.log"));

  bool stopped = false;
  daemon->stop_daemon([&] { stopped = true; });
  ASSERT_TRUE(node.wait_until([&] { return stopped; }));
  EXPECT_EQ(node.send_command("get_server_list"), "gone");
  EXPECT_EQ(node.modes(), (std::vector<unsigned>{0, 0, 0, 0}));
  EXPECT_FALSE(std::filesystem::exists(directory + "/.started"));
  EXPECT_FALSE(std::filesystem::exists(directory + "/log"));
}

// The driver root is a whole root with a glibc of its own; the MPS root is one of its directories.
class ForeignMpsRoot {
 public:
  ForeignMpsRoot() : foreign_(node.root.driver_root()) {
    std::filesystem::remove(node.root.control_program());
    foreign_.install_program(GPULET_SIM_MPS_CONTROL, "/usr/bin/nvidia-cuda-mps-control");
    node.options.root = node.root.driver_root() + "/run/nvidia/mps";
    node.options.host_root = "/run/nvidia/mps";
  }
  // The variable of the daemon's environment.
  std::string daemon_variable(const std::string& name) const {
    const auto text = read_file("/proc/" + std::to_string(node.pid()) + "/environ");
    for (const auto& variable : text::split(text.value_or(""), '\0')) {
      if (variable.starts_with(name + "=")) return variable.substr(name.size() + 1);
    }
    return "none";
  }

  TestMpsNode node;

 private:
  ForeignRoot foreign_;
};

TEST(MpsDaemon, RunsInADriverRootOfAnotherGlibc) {
  if (!has_capability(CAP_SYS_CHROOT)) GTEST_SKIP() << "needs CAP_SYS_CHROOT";
  ForeignMpsRoot root;
  auto& node = root.node;
  auto daemon = node.make_daemon(node.make_spec(1));
  daemon->start_daemon();
  ASSERT_TRUE(node.wait_until([&] { return daemon->daemon_health().healthy; }))
      << daemon->daemon_health().reason;
  EXPECT_EQ(root.daemon_variable("CUDA_MPS_PIPE_DIRECTORY"), "/run/nvidia/mps/nvidia.com/gpu/pipe");
  const auto first = node.pid();
  ASSERT_GT(first, 0);
  daemon = node.make_daemon(node.make_spec(1));  // of the next agent
  daemon->start_daemon();
  ASSERT_TRUE(node.wait_until([&] { return daemon->daemon_health().healthy; }))
      << daemon->daemon_health().reason;
  EXPECT_EQ(node.pid(), first);
  bool stopped = false;
  daemon->stop_daemon([&] { stopped = true; });
  ASSERT_TRUE(node.wait_until([&] { return stopped; }));
  EXPECT_EQ(node.send_command("get_server_list"), "gone");
}

TEST(MpsDaemon, RunsByTheRootsLoaderWithoutACommonDirectory) {
  ForeignMpsRoot root;
  auto& node = root.node;
  node.options.root = node.root.mps_root();  // outside the driver root, which has no such directory
  node.options.host_root.clear();
  auto daemon = node.make_daemon(node.make_spec(1));
  daemon->start_daemon();
  ASSERT_TRUE(node.wait_until([&] { return daemon->daemon_health().healthy; }))
      << daemon->daemon_health().reason;
  EXPECT_EQ(root.daemon_variable("CUDA_MPS_PIPE_DIRECTORY"), node.pipes());
  bool stopped = false;
  daemon->stop_daemon([&] { stopped = true; });
  ASSERT_TRUE(node.wait_until([&] { return stopped; }));
  EXPECT_EQ(node.send_command("get_server_list"), "gone");
}

TEST(MpsDaemon, FindsTheMpsRootInTheDriverRoot) {
  if (!has_capability(CAP_SYS_ADMIN)) GTEST_SKIP() << "needs CAP_SYS_ADMIN";
  ForeignMpsRoot root;
  auto& node = root.node;
  ASSERT_TRUE(make_directories(node.options.root));
  const std::string& driver = node.root.driver_root();
  auto same = find_control_program(driver, node.options.root, "/run/nvidia/mps", "");
  ASSERT_TRUE(same) << same.error().full_message();
  EXPECT_EQ(same->root, "/run/nvidia/mps");
  // Another directory of that name there: ours is mounted over it.
  ASSERT_TRUE(make_directories(node.root.mps_root()));
  const auto mounted = find_control_program(driver, node.root.mps_root(), "/run/nvidia/mps", "");
  ASSERT_TRUE(mounted);
  EXPECT_EQ(mounted->root, "/run/nvidia/mps");
  EXPECT_EQ(
      std::ranges::count(mounted->program.bind_mounts, std::pair<std::string, std::string>(
                                                           node.root.mps_root(), driver + "/run/nvidia/mps")),
      1);
  const auto none = find_control_program(driver, node.root.mps_root(), "/none", "");
  ASSERT_TRUE(none);
  EXPECT_EQ(none->root, node.root.mps_root());
  EXPECT_EQ(none->program.root, "");
}

TEST(MpsDaemon, RestartsADeadDaemonAndReportsItsHealth) {
  TestMpsNode node;
  auto daemon = node.make_daemon(node.make_spec(1));
  daemon->start_daemon();
  ASSERT_TRUE(node.wait_until([&] { return daemon->daemon_health().healthy; }))
      << daemon->daemon_health().reason;
  const auto first = node.pid();
  node.history.clear();
  ASSERT_TRUE(sim::mps::crash_daemon(node.pipes()));
  ASSERT_TRUE(node.wait_until([&] { return node.history.size() >= 2 && daemon->daemon_health().healthy; }));
  EXPECT_EQ(node.history.front().reason, "the MPS control daemon of nvidia.com/gpu has ended");
  EXPECT_NE(node.pid(), first);
  EXPECT_EQ(node.send_command("get_default_active_thread_percentage"), "25.0\n");
}

TEST(MpsDaemon, RestartsAHangingDaemon) {
  TestMpsNode node;
  node.options.check_interval = 20ms;
  node.options.response_limit = 400ms;
  auto daemon = node.make_daemon(node.make_spec(1));
  daemon->start_daemon();
  ASSERT_TRUE(node.wait_until([&] { return daemon->daemon_health().healthy; }))
      << daemon->daemon_health().reason;
  const auto first = node.pid();
  node.history.clear();
  ASSERT_TRUE(sim::mps::hang_daemon(node.pipes()));
  ASSERT_TRUE(node.wait_until([&] { return node.history.size() >= 3 && daemon->daemon_health().healthy; }));
  EXPECT_NE(node.history[0].reason.find("does not respond"), std::string::npos) << node.history[0].reason;
  EXPECT_NE(node.history[1].reason.find("hangs"), std::string::npos) << node.history[1].reason;
  EXPECT_NE(node.pid(), first);
}

TEST(MpsDaemon, KeepsADaemonThatIsLateOnce) {
  TestMpsNode node;
  node.options.check_interval = 20ms;
  node.options.response_limit = 400ms;
  auto daemon = node.make_daemon(node.make_spec(1));
  daemon->start_daemon();
  ASSERT_TRUE(node.wait_until([&] { return daemon->daemon_health().healthy; }))
      << daemon->daemon_health().reason;
  const auto first = node.pid();
  node.history.clear();
  ASSERT_TRUE(sim::mps::hang_daemon(node.pipes()));
  ASSERT_TRUE(node.wait_until([&] { return !node.history.empty(); }));
  ASSERT_TRUE(sim::mps::restore_daemon(node.pipes()));
  ASSERT_TRUE(node.wait_until([&] { return daemon->daemon_health().healthy; }));
  EXPECT_EQ(node.pid(), first);
  EXPECT_EQ(node.history.size(), 2u);
}

TEST(MpsDaemon, ReportsAMissingProgramOnceAndRetries) {
  TestMpsNode node;
  node.options.retry = {1ms, 4ms};
  const std::string aside = node.root.control_program() + ".aside";
  std::filesystem::rename(node.root.control_program(), aside);
  auto daemon = node.make_daemon(node.make_spec(1));
  daemon->start_daemon();
  ASSERT_EQ(node.history.size(), 2u);
  EXPECT_EQ(daemon->daemon_health().reason.find("nvidia-cuda-mps-control: is in no bin directory below "), 0u)
      << daemon->daemon_health().reason;
  node.run_for(50ms);
  EXPECT_EQ(node.history.size(), 2u);
  EXPECT_EQ(node.mode_calls, 0u);
  std::filesystem::rename(aside, node.root.control_program());
  EXPECT_TRUE(node.wait_until([&] { return daemon->daemon_health().healthy; }));
}

TEST(MpsDaemon, ReportsTheOutputOfADaemonThatDoesNotStart) {
  TestMpsNode node;
  auto spec = node.make_spec(1);
  spec.visible_devices = {DeviceUuid("GPU-of-another-node")};
  auto daemon = node.make_daemon(spec);
  daemon->start_daemon();
  ASSERT_TRUE(node.wait_until([&] { return node.history.size() >= 2; }));
  EXPECT_EQ(
      daemon->daemon_health().reason,
      "nvidia-cuda-mps-control: the MPS control daemon does not start: no CUDA-capable device is visible "
      "(exit code 1)");
}

TEST(MpsDaemon, ReportsAComputeModeThatCannotBeSetUnlessUnsupported) {
  TestMpsNode node;
  node.mode_error = Error(Code::kPermissionDenied, "not allowed");
  auto daemon = node.make_daemon(node.make_spec(1));
  daemon->start_daemon();
  ASSERT_TRUE(node.wait_until([&] { return node.history.size() >= 2; }));
  EXPECT_EQ(daemon->daemon_health().reason, "cannot set the compute mode to EXCLUSIVE_PROCESS: not allowed");
  node.mode_error = Error(Code::kUnsupported, "has none");
  EXPECT_TRUE(node.wait_until([&] { return daemon->daemon_health().healthy; }));
}

TEST(MpsDaemon, SendsNewLimitsToTheRunningDaemonAndItsServers) {
  TestMpsNode node;
  auto daemon = node.make_daemon(node.make_spec(1));
  daemon->start_daemon();
  ASSERT_TRUE(node.wait_until([&] { return daemon->daemon_health().healthy; }))
      << daemon->daemon_health().reason;
  const auto first = node.pid();
  const auto client = sim::mps::attach_client(node.pipes(), "", "");
  ASSERT_TRUE(client);
  EXPECT_EQ(client->limits_text, "threads 25.0 memory 0=20389M");
  auto spec = node.make_spec(1);
  spec.thread_percentage = 12;
  spec.memory_limits[0].mebibytes = 10194;
  daemon->update_spec(spec);
  ASSERT_TRUE(node.wait_until([&] {
    const auto next = sim::mps::attach_client(node.pipes(), "", "");
    return next && next->limits_text == "threads 12.0 memory 0=10194M";
  }));
  EXPECT_EQ(node.pid(), first);
  EXPECT_EQ(node.history.size(), 2u);
}

TEST(MpsDaemon, AdoptsADaemonOfAKilledAgent) {
  TestMpsNode node;
  std::array<int, 2> ends;
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const pid_t agent = ::fork();
  if (agent == 0) {
    auto daemon = node.make_daemon(node.make_spec(1));
    daemon->start_daemon();
    const bool healthy = node.wait_until([&] { return daemon->daemon_health().healthy; });
    static_cast<void>(::write(ends[1], healthy ? "+" : "-", 1) < 0);
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ends[0], &byte, 1), 1);
  ASSERT_EQ(byte, '+');
  ::kill(agent, SIGKILL);
  ASSERT_EQ(::waitpid(agent, nullptr, 0), agent);
  const FileDescriptor read_end(ends[0]), write_end(ends[1]);
  const auto first = node.pid();
  const auto client = sim::mps::attach_client(node.pipes(), "", "");
  ASSERT_TRUE(client);

  auto same = node.make_daemon(node.make_spec(1));
  same->start_daemon();
  ASSERT_TRUE(node.wait_until([&] { return same->daemon_health().healthy; })) << same->daemon_health().reason;
  EXPECT_EQ(node.pid(), first);
  EXPECT_NE(node.send_command("get_server_list"), "");
  same.reset();

  auto limits = node.make_spec(1);
  limits.thread_percentage = 50;
  auto other_limits = node.make_daemon(limits);
  other_limits->start_daemon();
  ASSERT_TRUE(node.wait_until([&] { return other_limits->daemon_health().healthy; }));
  EXPECT_EQ(node.pid(), first);
  EXPECT_EQ(node.send_command("get_default_active_thread_percentage"), "50.0\n");
  other_limits.reset();

  auto other_devices = node.make_daemon(node.make_spec(2));
  other_devices->start_daemon();
  ASSERT_TRUE(node.wait_until([&] { return other_devices->daemon_health().healthy; }));
  EXPECT_NE(node.pid(), first);
}

// The record is of an earlier process whose id another daemon has: that one's limits are unknown.
TEST(MpsDaemon, DoesNotAdoptAnotherProcessWithTheRecordedId) {
  TestMpsNode node;
  auto daemon = node.make_daemon(node.make_spec(1));
  daemon->start_daemon();
  ASSERT_TRUE(node.wait_until([&] { return daemon->daemon_health().healthy; }));
  const auto first = node.pid();
  daemon.reset();
  const auto started = process_start_time(first);
  ASSERT_TRUE(started);
  const std::string path = node.root.mps_root() + "/nvidia.com/gpu/.started";
  std::string record = read_file(path).value_or("");
  const std::string identity = "pid " + std::to_string(first) + " started ";
  const auto at = record.find(identity + std::to_string(*started) + "\n");
  ASSERT_NE(at, std::string::npos) << record;
  record.replace(at + identity.size(), std::to_string(*started).size(), std::to_string(*started - 1));
  ASSERT_TRUE(write_file_atomic(path, record));

  daemon = node.make_daemon(node.make_spec(1));
  daemon->start_daemon();
  ASSERT_TRUE(node.wait_until([&] { return daemon->daemon_health().healthy; }))
      << daemon->daemon_health().reason;
  EXPECT_NE(node.pid(), first);
}

TEST(MpsDaemon, KillsADaemonThatDoesNotQuit) {
  TestMpsNode node;
  node.options.quit_grace = 200ms;
  auto daemon = node.make_daemon(node.make_spec(1));
  daemon->start_daemon();
  ASSERT_TRUE(node.wait_until([&] { return daemon->daemon_health().healthy; }))
      << daemon->daemon_health().reason;
  ASSERT_TRUE(sim::mps::hang_daemon(node.pipes()));
  bool stopped = false;
  daemon->stop_daemon([&] {
    stopped = true;
    daemon.reset();
  });
  ASSERT_TRUE(node.wait_until([&] { return stopped; }));
  EXPECT_EQ(node.send_command("get_server_list"), "gone");
  EXPECT_EQ(node.modes()[0], 0u);
}

// What a client reads until its connection ends.
std::string last_words(const sim::mps::AttachedClient& client) {
  std::string text;
  char byte = 0;
  while (::recv(client.connection.get(), &byte, 1, 0) == 1) text += byte;
  return text;
}

TEST(MpsDaemon, EndsTheWorkOfItsClientsBeforeItQuits) {
  TestMpsNode node;
  auto daemon = node.make_daemon(node.make_spec(1));
  daemon->start_daemon();
  ASSERT_TRUE(node.wait_until([&] { return daemon->daemon_health().healthy; }))
      << daemon->daemon_health().reason;
  const auto client = sim::mps::attach_client(node.pipes(), "", "");
  ASSERT_TRUE(client);
  bool stopped = false;
  daemon->stop_daemon([&] { stopped = true; });
  ASSERT_TRUE(node.wait_until([&] { return stopped; }));
  EXPECT_EQ(last_words(*client), sim::mps::kClientTerminated);
}

TEST(MpsDaemon, LeavesNothingIfStoppedDuringStart) {
  TestMpsNode node;
  for (const auto delay : {0ms, 1ms, 2ms, 4ms, 8ms, 16ms}) {
    auto daemon = node.make_daemon(node.make_spec(2));
    daemon->start_daemon();
    node.run_for(delay);
    bool stopped = false;
    daemon->stop_daemon([&] { stopped = true; });
    ASSERT_TRUE(node.wait_until([&] { return stopped; }));
    EXPECT_EQ(node.send_command("get_server_list"), "gone");
    EXPECT_EQ(node.modes(), (std::vector<unsigned>{0, 0, 0, 0}));
    EXPECT_FALSE(std::filesystem::exists(node.root.mps_root() + "/nvidia.com/gpu/.started"));
  }
}

// Killed at any time, the agent leaves a record by which the next one ends the daemon and restores the modes.
TEST(MpsDaemon, AKilledStartIsCleanedUpByTheNextAgent) {
  for (const auto delay : {0ms, 1ms, 2ms, 4ms, 8ms, 16ms, 32ms}) {
    TestMpsNode node;
    const pid_t agent = ::fork();
    if (agent == 0) {
      auto daemon = node.make_daemon(node.make_spec(2));
      daemon->start_daemon();
      node.run_for(delay);
      ::kill(::getpid(), SIGKILL);
    }
    ASSERT_EQ(::waitpid(agent, nullptr, 0), agent);
    DaemonManager manager(node.loop, node.options, node.set_compute_mode(), [](const auto&, const auto&) {});
    manager.apply_specs({});
    const std::string record = node.root.mps_root() + "/nvidia.com/gpu/.started";
    EXPECT_TRUE(node.wait_until([&] { return !std::filesystem::exists(record); }));
    EXPECT_EQ(node.modes(), (std::vector<unsigned>{0, 0, 0, 0})) << delay.count() << " ms";
  }
}

TEST(MpsDaemon, NewLimitsAreOnRecordOnlyOnceTheyAreSet) {
  TestMpsNode node;
  auto daemon = node.make_daemon(node.make_spec(1));
  daemon->start_daemon();
  ASSERT_TRUE(node.wait_until([&] { return daemon->daemon_health().healthy; }));
  const std::string path = node.root.mps_root() + "/nvidia.com/gpu/.started";
  const auto before = read_file(path);
  ASSERT_TRUE(before);
  EXPECT_NE(before->find("set_default_active_thread_percentage 25"), std::string::npos);
  auto more = node.make_spec(1);
  more.thread_percentage = 50;
  daemon->update_spec(more);
  const auto during = read_file(path);
  ASSERT_TRUE(during);
  EXPECT_EQ(during->find("set_default"), std::string::npos) << *during;
  EXPECT_TRUE(node.wait_until([&] {
    return read_file(path).value_or("").find("set_default_active_thread_percentage 50") != std::string::npos;
  }));
}

// "An instance of this daemon is already running", and nothing says which.
TEST(MpsDaemon, ReplacesADaemonThatItDidNotStart) {
  TestMpsNode node;
  std::filesystem::create_directories(node.pipes());
  const std::string program = node.root.control_program();
  const std::string variable = "CUDA_MPS_PIPE_DIRECTORY=" + node.pipes() + "/.";
  const pid_t other = ::fork();
  if (other == 0) {
    ::execle(program.c_str(), program.c_str(), "-f", nullptr,
             std::array<const char*, 2>{variable.c_str(), nullptr}.data());
    ::_exit(2);
  }
  ASSERT_TRUE(node.wait_until([&] { return node.send_command("get_server_list") != "gone"; }));
  auto daemon = node.make_daemon(node.make_spec(1));
  daemon->start_daemon();
  EXPECT_TRUE(node.wait_until([&] { return daemon->daemon_health().healthy; }))
      << daemon->daemon_health().reason;
  EXPECT_EQ(node.send_command("get_default_active_thread_percentage"), "25.0\n");
  ::kill(other, SIGKILL);
  ASSERT_EQ(::waitpid(other, nullptr, 0), other);
  EXPECT_NE(node.pid(), other);
  bool stopped = false;
  daemon->stop_daemon([&] { stopped = true; });
  EXPECT_TRUE(node.wait_until([&] { return stopped; }));
}

TEST(MpsDaemon, FindsItsDaemonWithoutThePidFile) {
  for (const bool hangs : {false, true}) {
    TestMpsNode node;
    node.options.response_limit = node.options.quit_grace = 200ms;
    auto daemon = node.make_daemon(node.make_spec(1));
    daemon->start_daemon();
    ASSERT_TRUE(node.wait_until([&] { return daemon->daemon_health().healthy; }));
    const auto first = node.pid();
    daemon.reset();
    std::filesystem::remove(node.pipes() + "/nvidia-cuda-mps-control.pid");
    if (hangs) {
      ASSERT_TRUE(sim::mps::hang_daemon(node.pipes()));
    }
    daemon = node.make_daemon(node.make_spec(1));
    daemon->start_daemon();
    ASSERT_TRUE(node.wait_until([&] { return daemon->daemon_health().healthy; }))
        << daemon->daemon_health().reason;
    EXPECT_EQ(node.pid() == first, !hangs) << "adopted if it answers, else replaced";
    bool stopped = false;
    daemon->stop_daemon([&] { stopped = true; });
    EXPECT_TRUE(node.wait_until([&] { return stopped; }));
  }
}

}  // namespace
}  // namespace gpulet::mps

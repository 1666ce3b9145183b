// The program as a process: the daemon in the background, commands on standard input.
#include "sim/mps/daemon.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>

#include "base/process.h"
#include "sim/mps/test_mps_root.h"

namespace gpulet::sim::mps {
namespace {

using namespace std::chrono_literals;

struct ControlRun {
  int code = -1;
  std::string output;
};

ControlRun run_control(const TestMpsRoot& root, std::vector<std::string> options, const std::string& input,
                       const std::string& visible = "") {
  std::array<int, 2> in, out;
  EXPECT_EQ(::pipe2(in.data(), O_CLOEXEC), 0);
  EXPECT_EQ(::pipe2(out.data(), O_CLOEXEC), 0);
  FileDescriptor in_read(in[0]), in_write(in[1]), out_read(out[0]), out_write(out[1]);
  options.insert(options.begin(), "nvidia-cuda-mps-control");
  std::vector<std::string> environment{"CUDA_MPS_PIPE_DIRECTORY=" + root.pipe_directory("r"),
                                       "CUDA_MPS_LOG_DIRECTORY=" + root.mps_root() + "/r/log"};
  if (!visible.empty()) environment.push_back("CUDA_VISIBLE_DEVICES=" + visible);
  auto process = gpulet::Process::spawn(
      {.program = root.control_program(),
       .arguments = options,
       .environment = environment,
       .descriptors = {{in_read.get(), 0}, {out_write.get(), 1}, {out_write.get(), 2}}});
  EXPECT_TRUE(process) << process.error().full_message();
  EXPECT_EQ(::write(in_write.get(), input.data(), input.size()), static_cast<ssize_t>(input.size()));
  in_write.reset();
  out_write.reset();
  const auto exit = (*process)->wait_for_exit(20s);
  EXPECT_TRUE(exit);
  return {exit ? exit->code : -1, read_all(out_read.get(), "output").value_or("")};
}

TEST(MpsDaemon, ServesTheControlProgramUntilQuit) {
  TestMpsRoot root;
  EXPECT_EQ(run_control(root, {}, "get_server_list\n").output, "Cannot find MPS control daemon process\n");
  ASSERT_EQ(run_control(root, {"-d"}, "").code, 0);
  EXPECT_EQ(
      run_control(root, {}, "set_default_active_thread_percentage 25\nget_default_active_thread_percentage")
          .output,
      "25.0\n25.0\n");
  EXPECT_EQ(run_control(root, {},
                        "set_default_device_pinned_mem_limit 3 20G\nget_default_device_pinned_mem_limit 3\n")
                .output,
            "20G\n");
  const auto pid = daemon_pid(root.pipe_directory("r"));
  ASSERT_TRUE(pid);
  EXPECT_EQ(read_file(root.pipe_directory("r") + "/" + std::string(kPidName)).value_or(""),
            std::to_string(*pid) + "\n");

  const ControlRun second = run_control(root, {"-d"}, "");
  EXPECT_EQ(second.code, 1);
  EXPECT_EQ(second.output, "An instance of this daemon is already running\n");

  EXPECT_EQ(run_control(root, {}, "quit\n").code, 0);
  EXPECT_EQ(run_control(root, {}, "get_server_list\n").code, 1);
  const auto log = read_file(root.mps_root() + "/r/log/control.log");
  ASSERT_TRUE(log);
  EXPECT_NE(log->find("Starting control daemon using socket " + root.pipe_directory("r") + "/control"),
            log->npos);
  EXPECT_NE(log->find("is not in EXCLUSIVE_PROCESS mode"), log->npos);
}

TEST(MpsDaemon, StartsAfterACrash) {
  TestMpsRoot root;
  ASSERT_EQ(run_control(root, {"-d"}, "set").code, 0);
  ASSERT_TRUE(crash_daemon(root.pipe_directory("r")));
  // Until the kernel has released its lock.
  while (run_control(root, {"-d"}, "").code != 0) {
  }
  EXPECT_EQ(run_control(root, {}, "get_default_active_thread_percentage\n").output, "100.0\n");
}

TEST(MpsDaemon, NeedsAVisibleDevice) {
  TestMpsRoot root(2);
  EXPECT_EQ(run_control(root, {"-d"}, "", "5").output, "no CUDA-capable device is visible\n");
  root.edit_machine()->gpus[0].mig.current = 1;
  const std::string uuid = root.copy_machine()->gpus[1].uuid;
  ASSERT_EQ(run_control(root, {"-d"}, "", uuid).code, 0);
  EXPECT_EQ(run_control(root, {}, "set_default_device_pinned_mem_limit 1 1G\n").output,
            "Invalid device: 1\n");
  EXPECT_EQ(run_control(root, {}, "get_device_client_list\n").output, uuid + "\n");
}

TEST(MpsDaemon, ServesAClientUntilItDisconnects) {
  TestMpsRoot root;
  ASSERT_EQ(run_control(root, {"-d"}, "").code, 0);
  run_control(root, {},
              "set_default_active_thread_percentage 60\nset_default_device_pinned_mem_limit 0 60G\n");
  {
    const auto client = attach_client(root.pipe_directory("r"), "40", "0=1000M");
    ASSERT_TRUE(client) << client.error().full_message();
    EXPECT_EQ(client->limits_text, "threads 40.0 memory 0=1000M");
    const auto servers = send_command(root.pipe_directory("r"), "get_server_list");
    ASSERT_TRUE(servers);
    const auto server = std::string(text::trim(*servers));
    EXPECT_EQ(send_command(root.pipe_directory("r"), "get_client_list " + server),
              std::to_string(::getpid()) + "\n");
    EXPECT_EQ(send_command(root.pipe_directory("r"), "get_server_status " + server), "ACTIVE\n");
  }
  const auto servers = send_command(root.pipe_directory("r"), "get_server_list");
  EXPECT_EQ(send_command(root.pipe_directory("r"), "get_client_list " + std::string(text::trim(*servers))),
            "");
}

TEST(MpsDaemon, HangsAndIsHealed) {
  TestMpsRoot root;
  ASSERT_EQ(run_control(root, {"-d"}, "").code, 0);
  ASSERT_TRUE(hang_daemon(root.pipe_directory("r")));
  ASSERT_TRUE(delay_daemon(root.pipe_directory("r"), 1));
  ASSERT_TRUE(restore_daemon(root.pipe_directory("r")));
  EXPECT_EQ(run_control(root, {}, "get_default_active_thread_percentage\n").output, "100.0\n");
}

TEST(MpsDaemon, TakesProtocol3AsArguments) {
  TestMpsRoot root;
  EXPECT_EQ(run_control(root, {"-d", "-p", "3", "-m"}, "").code, 1) << "the driver is older";
  root.use_driver("615.71.09");
  EXPECT_NE(run_control(root, {"-p", "3", "namespace", "--help"}, "").output.find("  create\n"),
            std::string::npos);
  ASSERT_EQ(run_control(root, {"-d", "-p", "3", "-m"}, "").code, 0);
  const std::string uuid = root.copy_machine()->gpus[0].uuid;
  ASSERT_EQ(
      run_control(root, {"server", "create", "s", "--uid=0", std::string("--allowed-devices=") + uuid}, "")
          .code,
      0);
  ASSERT_EQ(run_control(root, {"namespace", "create", "a", "--server=s"}, "").code, 0);
  ASSERT_EQ(
      run_control(root, {"namespace", "set", "a", "--server=s", "--active-thread-percentage=30"}, "").code,
      0);
  EXPECT_EQ(run_control(root, {"namespace", "set", "a", "--server=s"}, "").code, 1);
  EXPECT_EQ(run_control(root, {}, "get_server_list\n").output,
            "Error: the daemon that runs has protocol 3\n");
  const auto client = attach_client(root.pipe_directory("r") + "/s/a", "100", "");
  ASSERT_TRUE(client) << client.error().full_message();
  EXPECT_EQ(client->limits_text, "threads 30.0");
  EXPECT_EQ(
      send_arguments(root.pipe_directory("r"), {"client", "terminate", std::to_string(::getpid())})->code, 0);
  EXPECT_EQ(run_control(root, {"namespace", "delete", "a", "--server=s"}, "").code, 0);
  EXPECT_FALSE(attach_client(root.pipe_directory("r") + "/s/a", "", ""));
  EXPECT_EQ(run_control(root, {"-q"}, "").code, 0);
  EXPECT_EQ(run_control(root, {"server", "list"}, "").code, 1);
}

TEST(MpsDaemon, OfProtocol2FollowsNoArguments) {
  TestMpsRoot root;
  root.use_driver("615.71.09");
  ASSERT_EQ(run_control(root, {"-d"}, "").code, 0);
  EXPECT_EQ(run_control(root, {"-p", "3", "server", "list"}, "").output,
            "Error: the daemon that runs has protocol 2\n");
}

}  // namespace
}  // namespace gpulet::sim::mps

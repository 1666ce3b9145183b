#include "agent/fraction/container_processes.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace gpulet::agent {
namespace {

const metrics::PodCgroup kExpected{"0b1d2a3c-4d5e-4f60-8172-93a4b5c6d7e8", std::string(64, 'a')};

// A child that waits, and a /proc that says of which container it is.
class ContainerProcessTest : public ::testing::Test {
 protected:
  ContainerProcessTest() {
    child_ = ::fork();
    if (child_ == 0) {
      for (;;) ::pause();
    }
    std::filesystem::create_directories(proc_ + "/" + std::to_string(child_));
  }
  ~ContainerProcessTest() override {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
    std::filesystem::remove_all(proc_);
  }
  unsigned pid() const { return static_cast<unsigned>(child_); }
  void write_cgroup(const std::string& path) {
    std::ofstream(proc_ + "/" + std::to_string(child_) + "/cgroup") << "0::" << path << "\n";
  }

  pid_t child_ = -1;
  const std::string proc_ = ::testing::TempDir() + "container_processes." + std::to_string(::getpid());
};

TEST_F(ContainerProcessTest, KillsAProcessOfTheContainer) {
  write_cgroup("/kubepods/burstable/pod" + kExpected.uid + "/" + kExpected.container);
  EXPECT_EQ(read_pod_cgroups(pid(), proc_), std::vector{kExpected});
  ASSERT_TRUE(kill_container_process(pid(), kExpected, proc_));
  int status = 0;
  ASSERT_EQ(::waitpid(child_, &status, 0), child_);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  const auto again = kill_container_process(pid(), kExpected, proc_);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), Code::kNotFound);
  child_ = -1;
}

TEST_F(ContainerProcessTest, LeavesAProcessOfAnotherContainer) {
  for (const std::string& path : {"/kubepods/burstable/pod" + kExpected.uid + "/" + std::string(64, 'b'),
                                  "/kubepods/burstable/pod" + kExpected.uid, std::string("/user.slice")}) {
    write_cgroup(path);
    const auto result = kill_container_process(pid(), kExpected, proc_);
    ASSERT_FALSE(result) << path;
    EXPECT_EQ(result.error().code(), Code::kNotFound);
  }
  EXPECT_EQ(::kill(child_, 0), 0);
  EXPECT_EQ(::waitpid(child_, nullptr, WNOHANG), 0) << "it runs";
}

TEST_F(ContainerProcessTest, SeesTheNodeUnlessAContainerIsFirst) {
  EXPECT_FALSE(sees_host_processes(proc_, 1)) << "the agent itself";
  EXPECT_TRUE(sees_host_processes(proc_, pid())) << "what cannot be read says nothing";
  std::filesystem::create_directories(proc_ + "/1");
  for (const auto& [first, expected] :
       {std::pair{"systemd\n", true}, {"pause\n", false}, {"pauser\n", true}}) {
    std::ofstream(proc_ + "/1/comm") << first;
    EXPECT_EQ(sees_host_processes(proc_, pid()), expected) << first;
  }
}

// In a PID namespace of its own, as a Pod's container is without hostPID.
TEST_F(ContainerProcessTest, APodsOwnProcessesAreNotTheNodes) {
  const pid_t outer = ::fork();
  if (outer == 0) {
    if (::unshare(CLONE_NEWPID) != 0) ::_exit(2);
    const pid_t inner = ::fork();
    if (inner == 0) ::_exit(sees_host_processes() ? 1 : 0);
    int status = 0;
    ::_exit(::waitpid(inner, &status, 0) == inner && WIFEXITED(status) ? WEXITSTATUS(status) : 3);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(outer, &status, 0), outer);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "needs CAP_SYS_ADMIN";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace gpulet::agent

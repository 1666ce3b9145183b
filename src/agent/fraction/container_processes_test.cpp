#include "agent/fraction/container_processes.h"

#include <gtest/gtest.h>
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

}  // namespace
}  // namespace gpulet::agent

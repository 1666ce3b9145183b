#include "mps/manager.h"

#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mps/compute_mode.h"
#include "mps/shm.h"
#include "mps/test_care.h"

namespace gpulet::mps {
namespace {

using namespace std::chrono_literals;

struct Managed {
  Care care;
  std::map<std::string, std::vector<inventory::Health>> told;
  std::unique_ptr<Manager> manager = make();

  std::unique_ptr<Manager> make() {
    return std::make_unique<Manager>(
        care.loop, care.options, care.set_compute_mode(),
        [this](const std::string& name, const inventory::Health& health) { told[name].push_back(health); });
  }
  bool healthy(const std::string& name) {
    return care.until([&] {
      const auto health = manager->health(name);
      return health && health->healthy;
    });
  }
  bool ready() const { return std::filesystem::exists(ready_file(care.options.root)); }
  bool stop() {
    bool stopped = false;
    manager->stop([&] { stopped = true; });
    return care.until([&] { return stopped; });
  }
};

TEST(MpsManager, StartsWhatIsNewStopsWhatHasGoneLeavesWhatIsTheSame) {
  Managed m;
  m.manager->apply({m.care.spec(1, "nvidia.com/a"), m.care.spec(1, "nvidia.com/b", 1)});
  EXPECT_FALSE(m.ready());
  ASSERT_TRUE(m.healthy("nvidia.com/a"));
  ASSERT_TRUE(m.healthy("nvidia.com/b"));
  EXPECT_TRUE(m.ready());
  const auto a = m.care.pid("nvidia.com/a");
  const auto told_of_a = m.told["nvidia.com/a"].size();

  m.manager->apply({m.care.spec(1, "nvidia.com/a"), m.care.spec(1, "nvidia.com/c", 2)});
  EXPECT_EQ(m.manager->health("nvidia.com/b"), std::nullopt);
  ASSERT_TRUE(m.healthy("nvidia.com/c"));
  ASSERT_TRUE(m.care.until([&] { return m.care.modes()[1] == 0; }));
  EXPECT_EQ(m.care.ask("get_server_list", "nvidia.com/b"), "gone");
  EXPECT_EQ(m.care.pid("nvidia.com/a"), a);
  EXPECT_EQ(m.told["nvidia.com/a"].size(), told_of_a);

  auto limits = m.care.spec(1, "nvidia.com/a");
  limits.thread_percentage = 50;
  m.manager->apply({limits, m.care.spec(1, "nvidia.com/c", 2)});
  ASSERT_TRUE(m.care.until(
      [&] { return m.care.ask("get_default_active_thread_percentage", "nvidia.com/a") == "50.0\n"; }));
  EXPECT_EQ(m.care.pid("nvidia.com/a"), a);

  ASSERT_TRUE(m.stop());
  EXPECT_EQ(m.care.modes(), (std::vector<unsigned>{0, 0, 0, 0}));
  EXPECT_EQ(m.care.ask("get_server_list", "nvidia.com/a"), "gone");
  EXPECT_FALSE(m.ready());
}

TEST(MpsManager, AGpuThatMovesIsLetGoBeforeItIsTaken) {
  Managed m;
  m.manager->apply({m.care.spec(1, "nvidia.com/a")});
  ASSERT_TRUE(m.healthy("nvidia.com/a"));
  m.manager->apply({m.care.spec(1, "nvidia.com/b")});
  EXPECT_EQ(m.told["nvidia.com/b"].front().reason,
            "the MPS control daemon of nvidia.com/b waits for another to end");
  ASSERT_TRUE(m.healthy("nvidia.com/b"));
  EXPECT_EQ(m.care.ask("get_server_list", "nvidia.com/a"), "gone");
  EXPECT_EQ(m.care.modes()[0], 3u);
  // More devices under the same name: another process, in the same folder.
  const auto before = m.care.pid("nvidia.com/b");
  m.manager->apply({m.care.spec(2, "nvidia.com/b")});
  ASSERT_TRUE(m.healthy("nvidia.com/b"));
  EXPECT_NE(m.care.pid("nvidia.com/b"), before);
  EXPECT_TRUE(m.stop());
}

TEST(MpsManager, WhatAnEarlierAgentLeftIsTakenOverOrEnded) {
  Managed m;
  m.manager->apply({m.care.spec(1, "nvidia.com/a"), m.care.spec(1, "nvidia.com/b", 1)});
  ASSERT_TRUE(m.healthy("nvidia.com/a"));
  ASSERT_TRUE(m.healthy("nvidia.com/b"));
  const auto a = m.care.pid("nvidia.com/a");
  m.manager = m.make();
  m.manager->apply({m.care.spec(1, "nvidia.com/a")});
  ASSERT_TRUE(m.healthy("nvidia.com/a"));
  EXPECT_EQ(m.care.pid("nvidia.com/a"), a);
  ASSERT_TRUE(m.care.until([&] { return m.care.modes()[1] == 0; }));
  EXPECT_EQ(m.care.ask("get_server_list", "nvidia.com/b"), "gone");
  EXPECT_TRUE(m.stop());
}

TEST(MpsManager, AnothersStartedFileIsLeftAlone) {
  Managed m;
  const std::string file = started_file(m.care.options.root, "nvidia.com/gpu");
  ASSERT_TRUE(write_file_atomic(file, ""));
  m.manager->apply({});
  EXPECT_TRUE(m.ready());
  EXPECT_TRUE(m.stop());
  EXPECT_TRUE(std::filesystem::exists(file));
}

TEST(MpsManager, WhatContainersWriteIsNotBelieved) {
  Managed m;
  m.manager->apply({m.care.spec(1, "nvidia.com/a")});
  ASSERT_TRUE(m.healthy("nvidia.com/a"));
  const auto honest = read_file(started_file(m.care.options.root, "nvidia.com/a"));
  ASSERT_TRUE(honest);
  for (const char* folder : {"/shm/x", "/shm", "/nvidia.com/a/pipe", "/nvidia.com/a/pipe/x"}) {
    ASSERT_TRUE(write_file_atomic(m.care.options.root + folder + "/.started", *honest));
  }
  const auto calls = m.care.mode_calls;
  m.manager = m.make();
  m.manager->apply({m.care.spec(1, "nvidia.com/a")});
  ASSERT_TRUE(m.healthy("nvidia.com/a"));
  EXPECT_EQ(m.care.mode_calls, calls + 1);
  EXPECT_EQ(m.care.modes()[0], 3u);
  EXPECT_TRUE(m.stop());
}

TEST(MpsManager, TakesOverAndEndsADaemonInADeepFolder) {
  Managed m;
  const std::string name = "nvidia.com/mig-3g.40gb/MIG-1";
  m.manager->apply({m.care.spec(1, name)});
  ASSERT_TRUE(m.healthy(name));
  m.manager = m.make();
  m.manager->apply({});
  ASSERT_TRUE(m.care.until([&] { return m.care.ask("get_server_list", name) == "gone"; }));
  EXPECT_TRUE(m.stop());
  EXPECT_EQ(m.care.modes()[0], 0u);
}

TEST(MpsComputeMode, NvidiaSmiSetsIt) {
  Care care;
  care.root.install("nvidia-smi", GPULET_SIM_SMI);
  const std::string libraries = care.root.driver_root() + "/usr/lib/x86_64-linux-gnu";
  std::filesystem::create_directories(libraries);
  std::filesystem::copy_file(GPULET_SIM_LIBRARY, libraries + "/libnvidia-ml.so.1");
  const auto set = compute_mode_by_nvidia_smi(care.loop, care.root.driver_root());
  std::vector<Status> done;
  const auto spec = care.spec(2);
  set(spec.devices[0].uuid, ComputeMode::kExclusiveProcess, [&](Status status) { done.push_back(status); });
  set(spec.devices[1].uuid, ComputeMode::kExclusiveProcess, [&](Status status) { done.push_back(status); });
  set(DeviceUuid("GPU-x"), ComputeMode::kDefault, [&](Status status) { done.push_back(status); });
  ASSERT_TRUE(care.until([&] { return done.size() == 3; }));
  EXPECT_TRUE(done[0]) << done[0].error().text();
  EXPECT_TRUE(done[1]);
  ASSERT_FALSE(done[2]);
  EXPECT_EQ(done[2].error().text(), "nvidia-smi: No devices were found (exit code 6)");
  EXPECT_EQ(care.modes(), (std::vector<unsigned>{3, 3, 0, 0}));
}

TEST(MpsShm, IsHalfOfTheMemory) {
  EXPECT_EQ(shm_mount_options("MemTotal:       65536001 kB\nMemFree: 1 kB\n").value_or(""), "size=32768000k");
  for (const char* text : {"", "MemTotal:", "MemTotal: x kB", "MemTotal: 0 kB", "MemFree: 12 kB\n"}) {
    EXPECT_FALSE(shm_mount_options(text)) << text;
  }
}

// In a mount namespace of its own; who may not make one is told so.
TEST(MpsShm, IsMountedAnewEachTimeOrRefusedWithTheReason) {
  Care care;
  const std::string root = care.options.root;
  ASSERT_TRUE(make_directories(root));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool own =
        ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    const auto first = mount_shm(root);
    if (!own) ::_exit(!first && first.error().code() == Code::kPermissionDenied ? 0 : 1);
    if (!first || !shm_is_mounted(root)) ::_exit(2);
    if (!write_file_atomic(root + "/shm/old", "")) ::_exit(3);
    if (!mount_shm(root) || ::access((root + "/shm/old").c_str(), F_OK) == 0) ::_exit(4);
    struct statfs found{};
    ::statfs((root + "/shm").c_str(), &found);
    if (found.f_type != TMPFS_MAGIC) ::_exit(5);
    ::_exit(unmount_shm(root) && !shm_is_mounted(root) && unmount_shm(root) ? 0 : 6);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << WEXITSTATUS(status);
  EXPECT_FALSE(shm_is_mounted(root));
}

}  // namespace
}  // namespace gpulet::mps

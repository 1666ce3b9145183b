#include <linux/magic.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "mps/daemon.h"
#include "mps/manager.h"
#include "mps/plan.h"
#include "mps/shared_memory.h"
#include "mps/test_mps_node.h"

namespace gpulet::mps {
namespace {

using namespace std::chrono_literals;

struct ManagedNode {
  TestMpsNode node;
  std::map<std::string, std::vector<inventory::Health>> reported;
  std::unique_ptr<DaemonManager> manager = make_manager();

  std::unique_ptr<DaemonManager> make_manager() {
    return std::make_unique<DaemonManager>(node.loop, node.options, node.set_compute_mode(),
                                           [this](const std::string& name, const inventory::Health& health) {
                                             reported[name].push_back(health);
                                           });
  }
  bool healthy(const std::string& name) {
    return node.wait_until([&] {
      const auto health = manager->daemon_health(name);
      return health && health->healthy;
    });
  }
  bool is_ready() const { return std::filesystem::exists(ready_file(node.options.root)); }
  bool stop_manager() {
    bool stopped = false;
    manager->stop_all([&] { stopped = true; });
    return node.wait_until([&] { return stopped; });
  }
};

TEST(MpsManager, StartsNewStopsOldAndKeepsUnchangedDaemons) {
  ManagedNode m;
  m.manager->apply_specs({m.node.make_spec(1, "nvidia.com/a"), m.node.make_spec(1, "nvidia.com/b", 1)});
  EXPECT_FALSE(m.is_ready());
  ASSERT_TRUE(m.healthy("nvidia.com/a"));
  ASSERT_TRUE(m.healthy("nvidia.com/b"));
  EXPECT_TRUE(m.is_ready());
  const auto a = m.node.pid("nvidia.com/a");
  const auto told_of_a = m.reported["nvidia.com/a"].size();

  m.manager->apply_specs({m.node.make_spec(1, "nvidia.com/a"), m.node.make_spec(1, "nvidia.com/c", 2)});
  EXPECT_EQ(m.manager->daemon_health("nvidia.com/b"), std::nullopt);
  ASSERT_TRUE(m.healthy("nvidia.com/c"));
  ASSERT_TRUE(m.node.wait_until([&] { return m.node.modes()[1] == 0; }));
  EXPECT_EQ(m.node.send_command("get_server_list", "nvidia.com/b"), "gone");
  EXPECT_EQ(m.node.pid("nvidia.com/a"), a);
  EXPECT_EQ(m.reported["nvidia.com/a"].size(), told_of_a);

  auto limits = m.node.make_spec(1, "nvidia.com/a");
  limits.thread_percentage = 50;
  m.manager->apply_specs({limits, m.node.make_spec(1, "nvidia.com/c", 2)});
  ASSERT_TRUE(m.node.wait_until([&] {
    return m.node.send_command("get_default_active_thread_percentage", "nvidia.com/a") == "50.0\n";
  }));
  EXPECT_EQ(m.node.pid("nvidia.com/a"), a);

  ASSERT_TRUE(m.stop_manager());
  EXPECT_EQ(m.node.modes(), (std::vector<unsigned>{0, 0, 0, 0}));
  EXPECT_EQ(m.node.send_command("get_server_list", "nvidia.com/a"), "gone");
  EXPECT_FALSE(m.is_ready());
}

TEST(MpsManager, ReleasesAMovingGpuBeforeTheNextStart) {
  ManagedNode m;
  m.manager->apply_specs({m.node.make_spec(1, "nvidia.com/a")});
  ASSERT_TRUE(m.healthy("nvidia.com/a"));
  m.manager->apply_specs({m.node.make_spec(1, "nvidia.com/b")});
  EXPECT_EQ(m.reported["nvidia.com/b"].front().reason,
            "the MPS control daemon of nvidia.com/b waits for another to stop");
  ASSERT_TRUE(m.healthy("nvidia.com/b"));
  EXPECT_EQ(m.node.send_command("get_server_list", "nvidia.com/a"), "gone");
  EXPECT_EQ(m.node.modes()[0], 3u);
  // More devices under the same name: another process in the same directory.
  const auto before = m.node.pid("nvidia.com/b");
  m.manager->apply_specs({m.node.make_spec(2, "nvidia.com/b")});
  ASSERT_TRUE(m.healthy("nvidia.com/b"));
  EXPECT_NE(m.node.pid("nvidia.com/b"), before);
  EXPECT_TRUE(m.stop_manager());
}

TEST(MpsManager, AdoptsOrStopsDaemonsOfAnEarlierAgent) {
  ManagedNode m;
  m.manager->apply_specs({m.node.make_spec(1, "nvidia.com/a"), m.node.make_spec(1, "nvidia.com/b", 1)});
  ASSERT_TRUE(m.healthy("nvidia.com/a"));
  ASSERT_TRUE(m.healthy("nvidia.com/b"));
  const auto a = m.node.pid("nvidia.com/a");
  m.manager = m.make_manager();
  m.manager->apply_specs({m.node.make_spec(1, "nvidia.com/a")});
  ASSERT_TRUE(m.healthy("nvidia.com/a"));
  EXPECT_EQ(m.node.pid("nvidia.com/a"), a);
  ASSERT_TRUE(m.node.wait_until([&] { return m.node.modes()[1] == 0; }));
  EXPECT_EQ(m.node.send_command("get_server_list", "nvidia.com/b"), "gone");
  EXPECT_TRUE(m.stop_manager());
}

TEST(MpsManager, LeavesAnothersStartedFileAlone) {
  ManagedNode m;
  const std::string file = started_file(m.node.options.root, "nvidia.com/gpu");
  ASSERT_TRUE(write_file_atomic(file, ""));
  m.manager->apply_specs({});
  EXPECT_TRUE(m.is_ready());
  EXPECT_TRUE(m.stop_manager());
  EXPECT_TRUE(std::filesystem::exists(file));
}

TEST(MpsManager, DoesNotTrustWhatContainersWrite) {
  ManagedNode m;
  m.manager->apply_specs({m.node.make_spec(1, "nvidia.com/a")});
  ASSERT_TRUE(m.healthy("nvidia.com/a"));
  const auto honest = read_file(started_file(m.node.options.root, "nvidia.com/a"));
  ASSERT_TRUE(honest);
  for (const char* directory :
       {"/shm/x", "/shm", "/nvidia.com/a/pipe", "/nvidia.com/a/pipe/x", "/nvidia.com/a/pipe3/x"}) {
    ASSERT_TRUE(write_file_atomic(m.node.options.root + directory + "/.started", *honest));
  }
  const auto calls = m.node.mode_calls;
  m.manager = m.make_manager();
  m.manager->apply_specs({m.node.make_spec(1, "nvidia.com/a")});
  ASSERT_TRUE(m.healthy("nvidia.com/a"));
  EXPECT_EQ(m.node.mode_calls, calls + 1);
  EXPECT_EQ(m.node.modes()[0], 3u);
  EXPECT_TRUE(m.stop_manager());
}

TEST(MpsManager, AdoptsAndStopsADaemonInANestedDirectory) {
  ManagedNode m;
  const std::string name = "nvidia.com/mig-3g.40gb/MIG-1";
  m.manager->apply_specs({m.node.make_spec(1, name)});
  ASSERT_TRUE(m.healthy(name));
  m.manager = m.make_manager();
  m.manager->apply_specs({});
  ASSERT_TRUE(m.node.wait_until([&] { return m.node.send_command("get_server_list", name) == "gone"; }));
  EXPECT_TRUE(m.stop_manager());
  EXPECT_EQ(m.node.modes()[0], 0u);
}

TEST(MpsManager, EndsTheDaemonOfAClaimWithItsDirectory) {
  ManagedNode m;
  const auto name = claim_daemon_name("uid-1", 0);
  const auto spec = m.node.make_spec(1, name);
  const auto gpu = spec.devices[0].uuid;
  EXPECT_EQ(m.manager->find_holder(gpu), "");
  m.manager->apply_specs({spec});
  EXPECT_EQ(m.manager->find_holder(gpu), name);
  EXPECT_EQ(m.manager->find_holder(DeviceUuid("GPU-other")), "");
  ASSERT_TRUE(m.healthy(name));
  EXPECT_TRUE(std::filesystem::exists(m.node.pipes(name)));

  m.manager->apply_specs({});
  EXPECT_EQ(m.manager->find_holder(gpu), name);  // until it has stopped
  ASSERT_TRUE(m.node.wait_until([&] { return m.manager->find_holder(gpu).empty(); }));
  EXPECT_FALSE(std::filesystem::exists(m.node.options.root + "/" + name));
  EXPECT_EQ(m.node.modes()[0], 0u);
}

TEST(MpsManager, AdoptsOrStopsTheDaemonsOfClaims) {
  const auto kept = claim_daemon_name("uid-1", 0), gone = claim_daemon_name("uid-1", 1);
  ManagedNode m;
  m.manager->apply_specs({m.node.make_spec(1, kept), m.node.make_spec(1, gone, 1)});
  ASSERT_TRUE(m.healthy(kept));
  ASSERT_TRUE(m.healthy(gone));
  const auto pid = m.node.pid(kept);
  m.manager = m.make_manager();
  m.manager->apply_specs({m.node.make_spec(1, kept)});
  ASSERT_TRUE(m.healthy(kept));
  EXPECT_EQ(m.node.pid(kept), pid);
  EXPECT_TRUE(m.node.wait_until([&] { return m.node.modes()[1] == 0; }));
  EXPECT_TRUE(m.stop_manager());
}

TEST(MpsManager, IsReadyWithoutTheDaemonsOfClaims) {
  ManagedNode m;
  m.manager->apply_specs({m.node.make_spec(1, claim_daemon_name("uid-1", 0))});
  EXPECT_TRUE(m.is_ready());
  EXPECT_TRUE(m.stop_manager());
}

TEST(MpsComputeMode, NvidiaSmiSetsIt) {
  TestMpsNode node;
  node.root.install_program("nvidia-smi", GPULET_SIM_SMI);
  const std::string libraries = node.root.driver_root() + "/usr/lib/x86_64-linux-gnu";
  std::filesystem::create_directories(libraries);
  std::filesystem::copy_file(GPULET_SIM_LIBRARY, libraries + "/libnvidia-ml.so.1");
  const auto set = nvidia_smi_compute_mode(node.loop, node.root.driver_root());
  std::vector<Status> done;
  const auto spec = node.make_spec(2);
  set(spec.devices[0].uuid, ComputeMode::kExclusiveProcess, [&](Status status) { done.push_back(status); });
  set(spec.devices[1].uuid, ComputeMode::kExclusiveProcess, [&](Status status) { done.push_back(status); });
  set(DeviceUuid("GPU-x"), ComputeMode::kDefault, [&](Status status) { done.push_back(status); });
  ASSERT_TRUE(node.wait_until([&] { return done.size() == 3; }));
  EXPECT_TRUE(done[0]) << done[0].error().full_message();
  EXPECT_TRUE(done[1]);
  ASSERT_FALSE(done[2]);
  EXPECT_EQ(done[2].error().full_message(), "nvidia-smi: No devices were found (exit code 6)");
  EXPECT_EQ(node.modes(), (std::vector<unsigned>{3, 3, 0, 0}));
}

TEST(MpsShm, UsesHalfOfTheMemory) {
  EXPECT_EQ(shm_mount_options("MemTotal:       65536001 kB\nMemFree: 1 kB\n").value_or(""), "size=32768000k");
  for (const char* text : {"", "MemTotal:", "MemTotal: x kB", "MemTotal: 0 kB", "MemFree: 12 kB\n"}) {
    EXPECT_FALSE(shm_mount_options(text)) << text;
  }
}

// Runs in its own mount namespace; without that right it expects the error.
TEST(MpsShm, ReplacesTheMountOrReportsTheCause) {
  TestMpsNode node;
  const std::string root = node.options.root;
  ASSERT_TRUE(make_directories(root));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool own =
        ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    const auto first = mount_shm(shm_directory(root));
    if (!own) ::_exit(!first && first.error().code() == Code::kPermissionDenied ? 0 : 1);
    if (!first || !shm_is_mounted(shm_directory(root))) ::_exit(2);
    if (!write_file_atomic(root + "/shm/old", "")) ::_exit(3);
    if (!mount_shm(shm_directory(root)) || ::access((root + "/shm/old").c_str(), F_OK) == 0) ::_exit(4);
    struct statfs found{};
    ::statfs((root + "/shm").c_str(), &found);
    if (found.f_type != TMPFS_MAGIC) ::_exit(5);
    ::_exit(unmount_shm(shm_directory(root)) && !shm_is_mounted(shm_directory(root)) &&
                    unmount_shm(shm_directory(root))
                ? 0
                : 6);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << WEXITSTATUS(status);
  EXPECT_FALSE(shm_is_mounted(shm_directory(root)));
}

}  // namespace

namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class LeftoversTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "leftovers.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
    root_ = directory_ + "/mps";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string directory_, root_;
};

TEST_F(LeftoversTest, RemovesOnlyItsOwnFiles) {
  for (const auto& path :
       {pipe_directory(root_, "nvidia.com/gpu") + "/control.pid", shm_directory(root_) + "/memory",
        ready_file(root_), root_ + "/an operator's", directory_ + "/outside/kept"}) {
    ASSERT_TRUE(write_file_atomic(path, ""));
  }
  std::filesystem::create_directory_symlink(directory_ + "/outside",
                                            pipe_directory(root_, "nvidia.com/gpu") + "/link");
  const auto removed = remove_leftovers(root_);
  ASSERT_TRUE(removed) << removed.error().full_message();
  EXPECT_THAT(*removed, ElementsAre(shm_directory(root_), ready_file(root_), root_ + "/nvidia.com"));
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/outside/kept"));
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(root_))
    left.push_back(entry.path().filename());
  EXPECT_THAT(left, ElementsAre("an operator's"));
}

TEST_F(LeftoversTest, RemovesNothingFromAnEmptyRoot) {
  const auto removed = remove_leftovers(root_);
  ASSERT_TRUE(removed) << removed.error().full_message();
  EXPECT_THAT(*removed, IsEmpty());
}

}  // namespace
}  // namespace gpulet::mps

#include "agent/resources/container_access.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/bpf.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;

TEST(ContainerAccess, ReadsTheRulesOfVersion1) {
  struct Case {
    const char* rules;
    bool permits;
  };
  for (const auto& [rules, permits] : std::initializer_list<Case>{
           {"a *:* rwm\n", true},
           {"c 195:3 rw\n", true},
           {"c 1:3 rwm\nc 195:* rwm\n", true},
           {"c *:* rwm", true},
           {"", false},
           {"c 195:4 rwm\n", false},
           {"b 195:3 rwm\n", false},
           {"c 195:3 m\n", false},
           {"c 195:3 r\nc 195:3 w\n", false},  // the kernel joins what it permits of one device in one line
           {"c 195 rwm\n", false},
           {"c 195:3: rwm\n", false},
           {"garbage", false},
       })
    EXPECT_EQ(permits_device(rules, 195, 3), permits) << rules;
}

class AccessCheckTest : public testing::Test {
 protected:
  AccessCheckTest() {
    std::string pattern = testing::TempDir() + "gpulet-container-access-XXXXXX";
    top_ = ::mkdtemp(pattern.data());
  }
  ~AccessCheckTest() override { std::filesystem::remove_all(top_); }

  AccessCheck::Answer check(const DeviceCgroups& cgroups, const std::string& directory,
                            std::vector<std::string> nodes) {
    std::optional<AccessCheck::Answer> found;
    const AccessCheck check(loop_, cgroups, directory, std::move(nodes), [&](auto answer) {
      found = std::move(answer);
      loop_.stop_loop();
    });
    EXPECT_FALSE(found);  // not from inside the call
    loop_.run_loop();
    return *found;
  }

  std::string top_;
  EpollLoop loop_;
};

TEST_F(AccessCheckTest, FindsTheContainersOfBothVersions) {
  const std::string id(64, 'a'), other(64, 'b'),
      pod = "kubepods/burstable/pod0b1d5f4e-0000-4000-8000-000000000001/",
      systemd = "kubepods.slice/kubepods-pod0b1d5f4e_0000_4000_8000_000000000002.slice/cri-containerd-";
  EXPECT_EQ(find_device_cgroups(top_).error().code(), Code::kNotFound);
  // A container's own cgroups are not read.
  std::filesystem::create_directories(top_ + "/sys/fs/cgroup/" + systemd + other + ".scope/" + pod + id);
  std::filesystem::create_directories(top_ + "/sys/fs/cgroup/system.slice/sshd.service");
  auto found = find_device_cgroups(top_);
  ASSERT_TRUE(found) << found.error().full_message();
  EXPECT_TRUE(found->is_unified);
  EXPECT_THAT(found->containers,
              UnorderedElementsAre(Pair(other, top_ + "/sys/fs/cgroup/" + systemd + other + ".scope")));

  std::filesystem::create_directories(top_ + "/sys/fs/cgroup/devices/" + pod + id);
  found = find_device_cgroups(top_);
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->is_unified);
  EXPECT_THAT(found->containers, UnorderedElementsAre(Pair(id, top_ + "/sys/fs/cgroup/devices/" + pod + id)));
}

TEST_F(AccessCheckTest, NamesTheFirstNodeThatVersion1Refuses) {
  const DeviceCgroups cgroups{.directory = top_};
  ASSERT_TRUE(write_file_atomic(top_ + "/devices.list", "c 1:3 rwm\nc 1:5 rwm\n"));
  EXPECT_EQ(check(cgroups, top_, {"/dev/null", "/dev/zero"}).value(), std::nullopt);
  EXPECT_EQ(check(cgroups, top_, {"/dev/null", "/dev/full", "/dev/random"}).value(), "/dev/full");
  EXPECT_EQ(check(cgroups, top_, {"/dev/not-there", top_}).value(), std::nullopt);
  EXPECT_EQ(check(cgroups, top_ + "/gone", {"/dev/null"}).error().code(), Code::kNotFound);
  EXPECT_EQ(check(cgroups, top_, std::vector<std::string>(101, "/dev/null")).error().code(),
            Code::kInvalidArgument);
}

// A cgroup of version 2 that refuses the device 1:7 (/dev/full), as a container engine's program would.
class UnifiedCgroup {
 public:
  UnifiedCgroup() {
    for (const char* mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
      const std::string path = std::string(mount) + "/gpulet-access-test-" + std::to_string(::getpid());
      if (::access((std::string(mount) + "/cgroup.procs").c_str(), W_OK) != 0 ||
          ::mkdir(path.c_str(), 0755) != 0)
        continue;
      directory = path;
      break;
    }
    if (!directory.empty()) is_ready = refuse_full();
  }
  ~UnifiedCgroup() {
    if (!directory.empty()) ::rmdir(directory.c_str());
  }

  std::string directory;
  bool is_ready = false;

 private:
  static int bpf(int command, bpf_attr& attributes) {
    return static_cast<int>(::syscall(SYS_bpf, command, &attributes, sizeof(attributes)));
  }
  bool refuse_full() const {
    // r2 = context->major; r3 = context->minor; r0 = !(r2 == 1 && r3 == 7)
    const bpf_insn program[] = {
        {BPF_LDX | BPF_W | BPF_MEM, 2, 1, offsetof(bpf_cgroup_dev_ctx, major), 0},
        {BPF_LDX | BPF_W | BPF_MEM, 3, 1, offsetof(bpf_cgroup_dev_ctx, minor), 0},
        {BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 1},
        {BPF_JMP | BPF_JNE | BPF_K, 2, 0, 2, 1},
        {BPF_JMP | BPF_JNE | BPF_K, 3, 0, 1, 7},
        {BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 0},
        {BPF_JMP | BPF_EXIT, 0, 0, 0, 0},
    };
    bpf_attr load{};
    load.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE;
    load.insns = reinterpret_cast<std::uintptr_t>(program);
    load.insn_cnt = std::size(program);
    load.license = reinterpret_cast<std::uintptr_t>("GPL");
    const FileDescriptor loaded(bpf(BPF_PROG_LOAD, load));
    const FileDescriptor cgroup(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!loaded.is_open() || !cgroup.is_open()) return false;
    bpf_attr attach{};
    attach.target_fd = static_cast<std::uint32_t>(cgroup.get());
    attach.attach_bpf_fd = static_cast<std::uint32_t>(loaded.get());
    attach.attach_type = BPF_CGROUP_DEVICE;
    return bpf(BPF_PROG_ATTACH, attach) == 0;
  }
};

TEST_F(AccessCheckTest, AsksTheProgramOfVersion2FromInsideTheCgroup) {
  const UnifiedCgroup cgroup;
  if (!cgroup.is_ready) GTEST_SKIP() << "needs root, cgroup v2 and CONFIG_CGROUP_BPF";
  const DeviceCgroups cgroups{.directory = "/sys/fs/cgroup", .is_unified = true};
  EXPECT_EQ(check(cgroups, cgroup.directory, {"/dev/null", "/dev/zero"}).value(), std::nullopt);
  EXPECT_EQ(check(cgroups, cgroup.directory, {"/dev/null", "/dev/full"}).value(), "/dev/full");
  EXPECT_EQ(check(cgroups, cgroup.directory, {"/dev/not-there"}).value(), std::nullopt);
  EXPECT_EQ(check(cgroups, cgroup.directory + "/gone", {"/dev/null"}).error().code(), Code::kNotFound);
  // Nothing of it is left in the cgroup.
  EXPECT_EQ(read_file(cgroup.directory + "/cgroup.procs", 4096).value(), "");
}

TEST_F(AccessCheckTest, AFrozenContainerIsUnknown) {
  const UnifiedCgroup cgroup;
  if (!cgroup.is_ready || !(std::ofstream(cgroup.directory + "/cgroup.freeze") << "1" << std::flush))
    GTEST_SKIP() << "needs root, cgroup v2 and CONFIG_CGROUP_BPF";
  const DeviceCgroups cgroups{.directory = "/sys/fs/cgroup", .is_unified = true};
  const auto answer = check(cgroups, cgroup.directory, {"/dev/full"});
  EXPECT_EQ(answer.error().code(), Code::kDeadlineExceeded);
  EXPECT_THAT(answer.error().message(), HasSubstr("frozen"));
  EXPECT_EQ(read_file(cgroup.directory + "/cgroup.procs", 4096).value(), "");
}

}  // namespace
}  // namespace gpulet::agent

// The hook among mounts: a read-only root, volumes of the Pod, the container's /dev and /proc. In a mount
// namespace of its own.
#include <gmock/gmock.h>

#include "hook/test_image.h"

namespace gpulet::hook {
namespace {

constexpr const char* kParams = "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileUID: 0\n";

bool mount_tmpfs(const std::filesystem::path& place) {
  std::filesystem::create_directories(place);
  return ::mount("tmpfs", place.c_str(), "tmpfs", 0, "mode=0755") == 0;
}
bool bind(const std::filesystem::path& from, const std::filesystem::path& to) {
  return ::mount(from.c_str(), to.c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0;
}
std::size_t mounts_below(const std::filesystem::path& place) {
  const std::string text = TestImage::content_of("/proc/self/mountinfo");
  std::size_t count = 0;
  for (auto at = text.find(place.string()); at != std::string::npos; at = text.find(place.string(), at + 1))
    ++count;
  return count;
}

TEST(HookMounts, AReadOnlyRootIsToleratedWithAWarning) {
  const TestImage image;
  image.folder("usr/lib");
  image.file("usr/local/cuda/compat/libcuda.so.550.54.14");
  EXPECT_EQ(
      with_own_mounts([&]() -> std::string {
        if (!bind(image.root(), image.root())) return "no bind";
        if (::mount(nullptr, image.root().c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) != 0)
          return "no remount";
        const Ran ran = image.run({"create-container", "--disable=update-ldcache", "--link", "a::/usr/lib/b",
                                   "--link", "a::/new/folder/b", "--host-driver-version=535.1"});
        if (ran.status != 0) return "failed: " + ran.told;
        return ran.told.find("warning: create-symlinks: /usr/lib/b") != std::string::npos
                   ? ""
                   : "says " + ran.told;
      }),
      "");
  EXPECT_TRUE(image.outside_is_untouched());
}

TEST(HookMounts, AReadOnlyRootThatLacksNothingIsNotWarnedOf) {
  const TestImage image;
  image.folder("etc/ld.so.conf.d");
  image.link("a", "usr/lib/b");
  EXPECT_EQ(
      with_own_mounts([&]() -> std::string {
        if (!bind(image.root(), image.root())) return "no bind";
        if (::mount(nullptr, image.root().c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) != 0)
          return "no remount";
        const Ran ran =
            image.run({"create-container", "--disable=update-ldcache", "--link", "a::/usr/lib/b"});
        return ran.status == 0 ? ran.told : "failed: " + ran.told;
      }),
      "");
}

TEST(HookMounts, AVolumeOfThePodIsNotWrittenTo) {
  const TestImage image;
  image.link("/volume", "usr/lib");
  image.link("../volume", "etc");
  EXPECT_EQ(with_own_mounts([&]() -> std::string {
              std::filesystem::create_directories(image.root() / "volume");
              if (!bind(image.outside(), image.root() / "volume")) return "no bind";
              const Ran ran =
                  image.run({"create-container", "--disable=update-ldcache", "--link", "a::/usr/lib/b",
                             "--link", "a::/etc/deep/b", "--link", "a::/elsewhere/b"});
              if (ran.status != 0) return "failed: " + ran.told;
              return ran.told.find("another mount") != std::string::npos ? "" : "says " + ran.told;
            }),
            "");
  EXPECT_TRUE(image.outside_is_untouched());
}

// An image's links into the kernel's own file systems are neither read nor written through.
TEST(HookMounts, LinksIntoProcAndSysAreRefused) {
  const TestImage image;
  image.folder("proc");
  image.folder("sys");
  image.link("/proc/sys/kernel", "usr/lib");
  image.link("/sys/fs/cgroup", "lib");
  image.link("/proc/self/root", "root-again");
  image.link("/proc/self/cwd", "cwd-again");
  EXPECT_EQ(with_own_mounts([&]() -> std::string {
              if (!bind("/proc", image.root() / "proc") || !bind("/sys", image.root() / "sys"))
                return "no bind";
              for (const char* path : {"/usr/lib/b", "/lib/gpulet-test/b"}) {
                const Ran ran = image.run({"create-symlinks", "--link", std::string("a::") + path});
                if (ran.status != 0 || ran.told.find("another mount") == std::string::npos)
                  return std::string(path) + ran.told;
              }
              // Magic links are never followed, whatever mount they are on.
              for (const char* way : {"/root-again", "/cwd-again"}) {
                const std::string path = way + (image.outside() / "b").string();
                const Ran ran = image.run({"create-symlinks", "--link", "a::" + path});
                if (ran.status == 0 && ran.told.empty()) return "made " + path;
              }
              return "";
            }),
            "");
  EXPECT_TRUE(image.outside_is_untouched());
}

TEST(HookMounts, DevIsTheContainersOwn) {
  const TestImage image;
  image.folder("dev");
  EXPECT_EQ(with_own_mounts([&]() -> std::string {
              if (!mount_tmpfs(image.root() / "dev")) return "no tmpfs";
              for (const char* node : {"dev/nvidia3", "dev/nvidiactl", "dev/nvidia-uvm"}) {
                image.file(node);
                if (!bind("/dev/null", image.root() / node)) return "no node";
              }
              image.file("dev/nvidia4");             // no device
              image.link("nvidia3", "dev/nvidia5");  // no device either
              const Ran ran = image.run({"create-container", "--disable=update-ldcache", "--link",
                                         "../card1::/dev/dri/by-path/pci-0000:01:00.0-card"});
              if (ran.status != 0 || !ran.told.empty()) return "failed: " + ran.told;
              if (std::filesystem::read_symlink(image.root() / "dev/dri/by-path/pci-0000:01:00.0-card") !=
                  "../card1")
                return "no link in /dev";
              // /dev/null has the minor number 3.
              const std::string profile =
                  image.read("etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf");
              return profile.find("\"EGLVisibleDGPUDevices\",0x8]") != std::string::npos
                         ? ""
                         : "profile: " + profile;
            }),
            "");
}

TEST(HookMounts, TheHostsDevIsNotWrittenTo) {
  const TestImage image;
  image.folder("dev");
  EXPECT_EQ(with_own_mounts([&]() -> std::string {
              if (!mount_tmpfs(image.base() / "devices") || !bind(image.base() / "devices", "/dev"))
                return "no host's /dev";
              if (!bind("/dev", image.root() / "dev")) return "no bind";
              const Ran ran = image.run({"create-symlinks", "--link", "../card1::/dev/dri/by-path/card"});
              if (ran.status != 0) return "failed: " + ran.told;
              return std::filesystem::exists(image.base() / "devices/dri") ? "written" : "";
            }),
            "");
}

struct Params {
  const TestImage& image;
  std::filesystem::path host_proc = image.base() / "host-proc";

  // The host's params, and the container's procfs with a driver's folder in it.
  std::string prepare() const {
    std::filesystem::create_directories(host_proc / "driver/nvidia");
    std::ofstream(host_proc / "driver/nvidia/params") << kParams;
    if (!bind("/proc", image.root() / "proc") || !mount_tmpfs(image.root() / "proc/driver")) return "no proc";
    image.file("proc/driver/nvidia/params", kParams);
    image.file("proc/driver/nvidia/version", "NVRM version: 550");
    return "";
  }
  Ran run() const { return image.run({"disable-device-node-modification", "--host-proc", host_proc}); }
};

TEST(HookMounts, DeviceModificationIsSwitchedOff) {
  const TestImage image;
  image.folder("proc");
  EXPECT_EQ(with_own_mounts([&]() -> std::string {
              const Params params{image};
              if (auto why = params.prepare(); !why.empty()) return why;
              const std::size_t before = mounts_below(image.root());
              const Ran ran = params.run();
              if (ran.status != 0 || !ran.told.empty()) return "failed: " + ran.told;
              if (image.read("proc/driver/nvidia/params") !=
                  "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 0\nDeviceFileUID: 0\n")
                return "params: " + image.read("proc/driver/nvidia/params");
              if (image.read("proc/driver/nvidia/version") != "NVRM version: 550")
                return "the folder is covered";
              if (::open((image.root() / "proc/driver/nvidia/params").c_str(), O_WRONLY) >= 0)
                return "writable";
              if (mounts_below(image.root()) != before + 1) return "mounts are left behind";
              return params.run().status == 0 ? "" : "fails the second time";
            }),
            "");
}

TEST(HookMounts, ParamsOfAnImageAreNeverMountedOver) {
  const TestImage image;
  image.file("proc/driver/nvidia/params", kParams);
  EXPECT_EQ(with_own_mounts([&]() -> std::string {
              std::filesystem::create_directories(image.base() / "host-proc/driver/nvidia");
              std::ofstream(image.base() / "host-proc/driver/nvidia/params") << kParams;
              const std::string before = TestImage::content_of("/proc/self/mountinfo");
              const Ran ran = Params{image}.run();
              if (ran.status != 0) return "failed: " + ran.told;
              return TestImage::content_of("/proc/self/mountinfo") == before ? "" : "mounted";
            }),
            "");
}

TEST(HookMounts, WithoutADriverParamsAreLeftAlone) {
  const TestImage image;
  EXPECT_EQ(image.run({"disable-device-node-modification", "--host-proc", "/nonexistent"}).status, 0);
}

}  // namespace
}  // namespace gpulet::hook

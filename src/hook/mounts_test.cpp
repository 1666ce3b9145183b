// The hook and mounts: a read-only root, volumes of the Pod, the container's /dev and /proc, in a private
// mount namespace.
#include <gmock/gmock.h>

#include "hook/test_image.h"
#include "hook/test_ldcache.h"

namespace gpulet::hook {
namespace {

constexpr const char* kParams = "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileUID: 0\n";

bool mount_tmpfs(const std::filesystem::path& place) {
  std::filesystem::create_directories(place);
  return ::mount("tmpfs", place.c_str(), "tmpfs", 0, "mode=0755") == 0;
}
bool bind_mount(const std::filesystem::path& from, const std::filesystem::path& to) {
  return ::mount(from.c_str(), to.c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0;
}
std::size_t mounts_below(const std::filesystem::path& place) {
  const std::string text = TestImage::file_content("/proc/self/mountinfo");
  std::size_t count = 0;
  for (auto at = text.find(place.string()); at != std::string::npos; at = text.find(place.string(), at + 1))
    ++count;
  return count;
}

TEST(HookMounts, WarnsOfAReadOnlyRoot) {
  const TestImage image;
  image.make_directory("usr/lib");
  image.add_file("usr/local/cuda/compat/libcuda.so.550.54.14");
  EXPECT_EQ(run_with_private_mounts([&]() -> std::string {
              if (!bind_mount(image.root_directory(), image.root_directory())) return "no bind";
              if (::mount(nullptr, image.root_directory().c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY,
                          nullptr) != 0)
                return "no remount";
              const HookRun ran =
                  image.run_hook({"create-container", "--disable=update-ldcache", "--link", "a::/usr/lib/b",
                                  "--link", "a::/new/directory/b", "--host-driver-version=535.1"});
              if (ran.status != 0) return "failed: " + ran.error_output;
              return ran.error_output.find("warning: create-symlinks: /usr/lib/b") != std::string::npos
                         ? ""
                         : "says " + ran.error_output;
            }),
            "");
  EXPECT_TRUE(image.outside_is_untouched());
}

TEST(HookMounts, DoesNotWarnOfACompleteReadOnlyRoot) {
  const TestImage image;
  image.make_directory("etc/ld.so.conf.d");
  image.make_symlink("a", "usr/lib/b");
  EXPECT_EQ(run_with_private_mounts([&]() -> std::string {
              if (!bind_mount(image.root_directory(), image.root_directory())) return "no bind";
              if (::mount(nullptr, image.root_directory().c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY,
                          nullptr) != 0)
                return "no remount";
              const HookRun ran =
                  image.run_hook({"create-container", "--disable=update-ldcache", "--link", "a::/usr/lib/b"});
              return ran.status == 0 ? ran.error_output : "failed: " + ran.error_output;
            }),
            "");
}

TEST(HookMounts, DoesNotWriteToAVolume) {
  const TestImage image;
  image.make_symlink("/volume", "usr/lib");
  image.make_symlink("../volume", "etc");
  EXPECT_EQ(run_with_private_mounts([&]() -> std::string {
              std::filesystem::create_directories(image.root_directory() / "volume");
              if (!bind_mount(image.outside_directory(), image.root_directory() / "volume")) return "no bind";
              const HookRun ran =
                  image.run_hook({"create-container", "--disable=update-ldcache", "--link", "a::/usr/lib/b",
                                  "--link", "a::/etc/deep/b", "--link", "a::/elsewhere/b"});
              if (ran.status != 0) return "failed: " + ran.error_output;
              return ran.error_output.find("another mount") != std::string::npos ? ""
                                                                                 : "says " + ran.error_output;
            }),
            "");
  EXPECT_TRUE(image.outside_is_untouched());
}

// A Pod that mounts a file or a directory (a subPath, an emptyDir) over a name that the hook writes.
TEST(HookMounts, StartsWithMountsOverItsFiles) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  for (const char* covered :
       {"etc/ld.so.cache", "etc/ld.so.conf.d/00-gpulet.conf", "etc/ld.so.conf.d/00-compat-gpulet.conf",
        "etc/ld.so.conf", "usr/lib/libcuda.so", "opt/driver/libcuda.so.1",
        "etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"}) {
    for (const bool directory : {false, true}) {
      SCOPED_TRACE(std::string(covered) + (directory ? ": a directory" : ": a file"));
      const TestImage image;
      EXPECT_EQ(run_with_private_mounts([&]() -> std::string {
                  make_debian(image);
                  add_driver_library(image, "opt/driver");
                  if (!mount_tmpfs(image.root_directory() / "dev")) return "no tmpfs";
                  image.add_file("dev/nvidia0");
                  if (!bind_mount("/dev/null", image.root_directory() / "dev/nvidia0")) return "no node";
                  if (directory) {
                    std::filesystem::remove(image.root_directory() / covered);
                    image.make_directory(covered);
                  } else {
                    image.add_file(covered, "the image's");
                  }
                  const std::string before = image.snapshot();
                  if (!bind_mount(image.outside_directory() / (directory ? "directory" : "secret"),
                                  image.root_directory() / covered))
                    return "no bind";
                  const HookRun ran =
                      image.run_hook({"create-container", "--folder=/opt/driver", "--folder=/usr/lib",
                                      "--link=libcuda.so.1::/usr/lib/libcuda.so"});
                  if (ran.status != 0) return "not started: " + ran.error_output;
                  // A library's own name is left alone, whatever is there, as by ldconfig.
                  const bool kept = std::string_view(covered) == "opt/driver/libcuda.so.1" ||
                                    std::string_view(covered) == "etc/ld.so.conf";
                  const bool reported =
                      ran.error_output.find(std::string("/") + covered + ": ") != std::string::npos &&
                      ran.error_output.find("a mount is in its place") != std::string::npos;
                  if (!kept && !reported) return "says " + ran.error_output;
                  if (!image.leftover_files().empty()) return "left " + image.leftover_files().front();
                  return image.snapshot() == before ? "" : "changed the mounted file";
                }),
                "");
    }
  }
}

// Links of an image into kernel file systems are not followed for reading or writing.
TEST(HookMounts, RefusesLinksIntoProcAndSys) {
  const TestImage image;
  image.make_directory("proc");
  image.make_directory("sys");
  image.make_symlink("/proc/sys/kernel", "usr/lib");
  image.make_symlink("/sys/fs/cgroup", "lib");
  image.make_symlink("/proc/self/root", "root-again");
  image.make_symlink("/proc/self/cwd", "cwd-again");
  EXPECT_EQ(run_with_private_mounts([&]() -> std::string {
              if (!bind_mount("/proc", image.root_directory() / "proc") ||
                  !bind_mount("/sys", image.root_directory() / "sys"))
                return "no bind";
              for (const char* path : {"/usr/lib/b", "/lib/gpulet-test/b"}) {
                const HookRun ran = image.run_hook({"create-symlinks", "--link", std::string("a::") + path});
                if (ran.status != 0 || ran.error_output.find("another mount") == std::string::npos)
                  return std::string(path) + ran.error_output;
              }
              // Magic links are never followed, on any mount.
              for (const char* way : {"/root-again", "/cwd-again"}) {
                const std::string path = way + (image.outside_directory() / "b").string();
                const HookRun ran = image.run_hook({"create-symlinks", "--link", "a::" + path});
                if (ran.status == 0 && ran.error_output.empty()) return "made " + path;
              }
              return "";
            }),
            "");
  EXPECT_TRUE(image.outside_is_untouched());
}

TEST(HookMounts, WritesToTheContainersOwnDev) {
  const TestImage image;
  image.make_directory("dev");
  EXPECT_EQ(run_with_private_mounts([&]() -> std::string {
              if (!mount_tmpfs(image.root_directory() / "dev")) return "no tmpfs";
              for (const char* node : {"dev/nvidia3", "dev/nvidiactl", "dev/nvidia-uvm"}) {
                image.add_file(node);
                if (!bind_mount("/dev/null", image.root_directory() / node)) return "no node";
              }
              image.add_file("dev/nvidia4");                 // not a device
              image.make_symlink("nvidia3", "dev/nvidia5");  // not a device either
              const HookRun ran = image.run_hook({"create-container", "--disable=update-ldcache", "--link",
                                                  "../card1::/dev/dri/by-path/pci-0000:01:00.0-card"});
              if (ran.status != 0 || !ran.error_output.empty()) return "failed: " + ran.error_output;
              if (std::filesystem::read_symlink(image.root_directory() /
                                                "dev/dri/by-path/pci-0000:01:00.0-card") != "../card1")
                return "no link in /dev";
              // /dev/null has the minor number 3.
              const std::string profile =
                  image.read_text("etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf");
              return profile.find("\"EGLVisibleDGPUDevices\",0x8]") != std::string::npos
                         ? ""
                         : "profile: " + profile;
            }),
            "");
}

TEST(HookMounts, DoesNotWriteToTheHostsDev) {
  const TestImage image;
  image.make_directory("dev");
  EXPECT_EQ(run_with_private_mounts([&]() -> std::string {
              if (!mount_tmpfs(image.base_directory() / "devices") ||
                  !bind_mount(image.base_directory() / "devices", "/dev"))
                return "no host's /dev";
              if (!bind_mount("/dev", image.root_directory() / "dev")) return "no bind";
              const HookRun ran =
                  image.run_hook({"create-symlinks", "--link", "../card1::/dev/dri/by-path/card"});
              if (ran.status != 0) return "failed: " + ran.error_output;
              return std::filesystem::exists(image.base_directory() / "devices/dri") ? "written" : "";
            }),
            "");
}

struct ParamsImage {
  const TestImage& image;
  std::filesystem::path host_proc = image.base_directory() / "host-proc";

  // The host's params, and the container's procfs with a driver directory.
  std::string write_params() const {
    std::filesystem::create_directories(host_proc / "driver/nvidia");
    std::ofstream(host_proc / "driver/nvidia/params") << kParams;
    if (!bind_mount("/proc", image.root_directory() / "proc") ||
        !mount_tmpfs(image.root_directory() / "proc/driver"))
      return "no proc";
    image.add_file("proc/driver/nvidia/params", kParams);
    image.add_file("proc/driver/nvidia/version", "NVRM version: 550");
    return "";
  }
  HookRun run_hook() const {
    return image.run_hook({"disable-device-node-modification", "--host-proc", host_proc});
  }
};

TEST(HookMounts, DisablesDeviceModification) {
  const TestImage image;
  image.make_directory("proc");
  EXPECT_EQ(run_with_private_mounts([&]() -> std::string {
              const ParamsImage params{image};
              if (auto why = params.write_params(); !why.empty()) return why;
              const std::size_t before = mounts_below(image.root_directory());
              const HookRun ran = params.run_hook();
              if (ran.status != 0 || !ran.error_output.empty()) return "failed: " + ran.error_output;
              if (image.read_text("proc/driver/nvidia/params") !=
                  "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 0\nDeviceFileUID: 0\n")
                return "params: " + image.read_text("proc/driver/nvidia/params");
              if (image.read_text("proc/driver/nvidia/version") != "NVRM version: 550")
                return "the directory is covered";
              if (::open((image.root_directory() / "proc/driver/nvidia/params").c_str(), O_WRONLY) >= 0)
                return "writable";
              if (mounts_below(image.root_directory()) != before + 1) return "mounts are left behind";
              return params.run_hook().status == 0 ? "" : "fails the second time";
            }),
            "");
}

TEST(HookMounts, NeverMountsOverParamsOfAnImage) {
  const TestImage image;
  image.add_file("proc/driver/nvidia/params", kParams);
  EXPECT_EQ(run_with_private_mounts([&]() -> std::string {
              std::filesystem::create_directories(image.base_directory() / "host-proc/driver/nvidia");
              std::ofstream(image.base_directory() / "host-proc/driver/nvidia/params") << kParams;
              const std::string before = TestImage::file_content("/proc/self/mountinfo");
              const HookRun ran = ParamsImage{image}.run_hook();
              if (ran.status != 0) return "failed: " + ran.error_output;
              return TestImage::file_content("/proc/self/mountinfo") == before ? "" : "mounted";
            }),
            "");
}

TEST(HookMounts, IgnoresParamsWithoutADriver) {
  const TestImage image;
  EXPECT_EQ(image.run_hook({"disable-device-node-modification", "--host-proc", "/nonexistent"}).status, 0);
}

}  // namespace
}  // namespace gpulet::hook

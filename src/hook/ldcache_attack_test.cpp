// Images and Pods that attack the update of the ld cache. Nothing outside the root directory changes, and the
// hook terminates.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/sysmacros.h>

#include <chrono>

#include "hook/test_image.h"
#include "hook/test_ldcache.h"

namespace gpulet::hook {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

TEST(LdcacheAttack, EtcLinksToTheHost) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  image.make_directory("proc");
  add_driver_library(image, "opt/driver");
  const std::string host = image.outside_directory() / "directory";
  image.make_symlink("../../../../../../.." + host, "etc");
  const HookRun ran = run_update_ldcache(image, {"/opt/driver"});
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.error_output, HasSubstr("a dangling link"));
  expect_untouched(image);
  // The link resolves inside the image, and that target is used.
  image.make_directory(host.substr(1));
  EXPECT_EQ(run_update_ldcache(image, {"/opt/driver"}).status, 0);
  EXPECT_TRUE(std::filesystem::exists(image.root_directory() / host.substr(1) / "ld.so.cache"));
  expect_untouched(image);
}

TEST(LdcacheAttack, LinksFifosAndDevicesInPlaceOfOutputFiles) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const auto secret = [](const TestImage& image) { return (image.outside_directory() / "secret").string(); };
  const std::function<void(const TestImage&, const std::string&)> kinds[] = {
      [&](const TestImage& image, const std::string& path) { image.make_symlink(secret(image), path); },
      [&](const TestImage& image, const std::string& path) {
        image.make_symlink("../../../../../../../../.." + secret(image), path);
      },
      [&](const TestImage& image, const std::string& path) {
        image.make_symlink("/proc/1/root" + secret(image), path);
      },
      [&](const TestImage& image, const std::string& path) { image.make_fifo(path); },
      [&](const TestImage& image, const std::string& path) {
        ASSERT_EQ(::mknod((image.root_directory() / path).c_str(), S_IFCHR | 0666, makedev(1, 8)), 0);
      },
  };
  for (const auto& put : kinds) {
    const TestImage image;
    make_debian(image);
    add_driver_library(image, "opt/driver");
    image.add_file("etc/ld.so.conf.d/a.conf");
    for (const char* path :
         {"etc/ld.so.cache", "etc/ld.so.cache~", "etc/ld.so.conf.d/00-gpulet.conf", "etc/ld.so.conf.d/b.conf",
          "opt/driver/libfifo.so.1", "var/cache/ldconfig/aux-cache", "var/cache/ldconfig/aux-cache~"})
      put(image, path);
    const HookRun ran = run_update_ldcache(image, {"/opt/driver"});
    EXPECT_EQ(ran.status, 0) << ran.error_output;
    EXPECT_EQ(cached_path(image, "libcuda.so.1"), "/opt/driver/libcuda.so.1");
    for (const char* path : {"etc/ld.so.cache", "etc/ld.so.conf.d/00-gpulet.conf"})
      EXPECT_TRUE(
          std::filesystem::is_regular_file(std::filesystem::symlink_status(image.root_directory() / path)))
          << path;
    expect_untouched(image);
  }
  // The same for the configuration itself.
  const TestImage image;
  image.make_directory("proc");
  add_driver_library(image, "opt/driver");
  image.make_fifo("etc/ld.so.conf");
  EXPECT_EQ(run_update_ldcache(image, {"/opt/driver"}).status, 0);
  EXPECT_EQ(cached_path(image, "libcuda.so.1"), "/opt/driver/libcuda.so.1");
  expect_untouched(image);
}

TEST(LdcacheAttack, RefusesEndlessConfiguration) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  make_debian(image);
  add_driver_library(image, "opt/driver");
  for (int i = 0; i < 100'000; ++i)
    ASSERT_EQ(::mknod((image.root_directory() / "etc/ld.so.conf.d" / (std::to_string(i) + ".conf")).c_str(),
                      S_IFREG | 0644, 0),
              0);
  const auto begin = std::chrono::steady_clock::now();
  const HookRun ran = run_update_ldcache(image, {"/opt/driver"});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.error_output, HasSubstr("/etc/ld.so.conf.d: holds more than 4096 files"));
  EXPECT_FALSE(std::filesystem::exists(image.root_directory() / "etc/ld.so.cache"));
  expect_untouched(image);
}

// 1,000 include patterns of many stars in a directory of 1,000 names that nearly match each.
TEST(LdcacheAttack, RefusesIncludePatternsThatTakeManySteps) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  make_debian(image);
  add_driver_library(image, "opt/driver");
  image.make_directory("x");
  for (int i = 0; i < 1000; ++i) {
    const std::string name = std::string(240, 'a') + std::to_string(i);
    ASSERT_EQ(::mknod((image.root_directory() / "x" / name).c_str(), S_IFREG | 0644, 0), 0);
  }
  std::string pattern = "/x/";
  for (int i = 0; i < 100; ++i) pattern += "a*";
  std::string config;
  for (int i = 0; i < 1000; ++i) config += "include " + pattern + "b" + std::to_string(i) + "\n";
  image.add_file("etc/ld.so.conf", config);
  const auto begin = std::chrono::steady_clock::now();
  const HookRun ran = run_update_ldcache(image, {"/opt/driver"});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4));
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.error_output, HasSubstr("/etc/ld.so.conf: takes too many steps to read"));
  expect_untouched(image);
}

// A volume whose file system never answers: only a fatal signal ends a process that waits for it. `lead`
// makes the image lead the hook there. The container starts, with all links of the driver's libraries: they
// are made before the hook reads what an image can make large or slow. Returns the error, "" for none.
std::string overrun_at_volume(const std::function<void(const TestImage&)>& lead, const std::string& step) {
  return run_with_private_mounts([&]() -> std::string {
    const TestImage image;
    make_debian(image);
    add_driver_library(image, "opt/driver");
    image.make_directory("volume");
    lead(image);
    const FileDescriptor fuse(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
    const std::string options = "fd=" + std::to_string(fuse.get()) + ",rootmode=40000,user_id=0,group_id=0";
    const std::string volume = image.root_directory() / "volume";
    if (::mount("fuse", volume.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) != 0)
      return "cannot mount";
    const auto begin = std::chrono::steady_clock::now();
    // Links in the order of a generated spec: libcuda's are not the first.
    const HookRun ran = image.run_hook(
        {"create-container", "--folder=/opt/driver", "--link=../libnvidia-allocator.so.1::/volume/gbm/x.so",
         "--link=libcuda.so.1::/opt/driver/libcuda.so",
         "--link=libcuda.so.535.104.5::/opt/driver/libcuda.so.1", "--host-driver-version=535.104.5"});
    const auto took = std::chrono::steady_clock::now() - begin;
    ::umount2(volume.c_str(), MNT_DETACH);
    if (ran.status != 0) return "not started: " + ran.error_output;
    if (took > std::chrono::seconds(4)) return "too late";
    if (ran.error_output.find("warning: " + step + ": ended at the limit of 2s") == std::string::npos)
      return "says " + ran.error_output;
    if (!image.leftover_files().empty()) return "left behind: " + image.leftover_files().front();
    const std::filesystem::path cuda = image.root_directory() / "opt/driver/libcuda.so";
    std::error_code error;
    const auto target = std::filesystem::canonical(cuda, error);
    return target == image.root_directory() / "opt/driver/libcuda.so.535.104.5"
               ? ""
               : "libcuda.so leads to '" + target.string() + "'";
  });
}

TEST(LdcacheAttack, AFileSystemThatNeverAnswers) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "this machine has no /dev/fuse";
  EXPECT_EQ(overrun_at_volume(
                [](const TestImage& image) { image.add_file("etc/ld.so.conf", "include /volume/*.conf\n"); },
                "update-ldcache"),
            "");
  EXPECT_EQ(overrun_at_volume(
                [](const TestImage& image) { image.make_symlink("/volume", "usr/local/cuda/compat"); },
                "enable-cuda-compat"),
            "");
}

TEST(LdcacheAttack, BoundsIncludeLoops) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  make_debian(image);
  add_driver_library(image, "opt/driver");
  image.add_file("etc/ld.so.conf.d/a.conf",
                 "include /etc/ld.so.conf.d/b.conf /etc/ld.so.conf\n/opt/driver\n");
  image.add_file("etc/ld.so.conf.d/b.conf",
                 "include a.conf\ninclude *.conf\ninclude /*/*/*/*.conf\ninclude /dev/zero\n");
  const HookRun ran = run_update_ldcache(image, {"/opt/driver"});
  EXPECT_EQ(ran.status, 0) << ran.error_output;
  EXPECT_EQ(cached_path(image, "libcuda.so.1"), "/opt/driver/libcuda.so.1");
  for (int i = 0; i < 40; ++i)
    image.add_file("etc/deep" + std::to_string(i), "include deep" + std::to_string(i + 1) + "\n");
  image.add_file("etc/ld.so.conf", "include deep0\n");
  const HookRun deep = run_update_ldcache(image, {"/opt/driver"});
  EXPECT_EQ(deep.status, 1);
  EXPECT_THAT(deep.error_output, HasSubstr("deep"));
  expect_untouched(image);
}

TEST(LdcacheAttack, SurvivesInvalidLibraries) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  make_debian(image);
  add_driver_library(image, "opt/driver");
  const std::string good = shared_object("libgood.so.1");
  // Every header byte corrupted in turn, and every length.
  for (std::size_t i = 16; i < good.size(); i += 3) {
    std::string bad = good;
    bad[i] = '\xff';
    image.add_file("opt/driver/libbad" + std::to_string(i) + ".so.1", bad);
    image.add_file("opt/driver/libcut" + std::to_string(i) + ".so.1", good.substr(0, i));
  }
  // Names that escape the directory, and names that are too long.
  image.add_file("opt/driver/libout.so.1",
                 shared_object("../../../../../../../../.." + (image.outside_directory() / "x").string()));
  image.add_file("opt/driver/libline.so.1", shared_object("libx\n/etc: (from x)\n\tlibx -> passwd"));
  image.add_file("opt/driver/liblong.so.1", shared_object("lib" + std::string(5000, 'x') + ".so.1"));
  image.add_file("opt/driver/libsparse.so.1", good);
  std::filesystem::resize_file(image.root_directory() / "opt/driver/libsparse.so.1", 8ull << 30);
  const HookRun ran = run_update_ldcache(image, {"/opt/driver"});
  // ldconfig may crash in the sandbox; the hook reports it in one line.
  EXPECT_LT(ran.status, 2);
  EXPECT_EQ(std::count(ran.error_output.begin(), ran.error_output.end(), '\n'), ran.status)
      << ran.error_output;
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::symlink_status(image.root_directory() / "etc/libx")));
  expect_untouched(image);
}

TEST(LdcacheAttack, ANameThatLooksLikeADirectoryLine) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  make_debian(image);
  add_driver_library(image, "opt/driver");
  image.add_file("opt/driver/libline.so.7", shared_object("libx\n/usr/lib: (from x)\n\tlibevil.so.1"));
  EXPECT_EQ(run_update_ldcache(image, {"/opt/driver"}).status, 0);
  EXPECT_EQ(cached_path(image, "libcuda.so.1"), "/opt/driver/libcuda.so.1");
  // A name that imitates another directory's line creates no link there.
  EXPECT_FALSE(std::filesystem::exists(
      std::filesystem::symlink_status(image.root_directory() / "usr/lib/libevil.so.1")));
  expect_untouched(image);
}

TEST(LdcacheAttack, IgnoresItsEnvironment) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  make_debian(image);
  add_driver_library(image, "opt/driver");
  image.add_file("evil.so", "no library");
  const HookRun ran = run_update_ldcache(
      image, {"/opt/driver"},
      {"LD_LIBRARY_PATH=/opt", "LC_ALL=de_DE.UTF-8", "LOCPATH=/opt/driver", "GCONV_PATH=/opt", "PATH=/opt"});
  EXPECT_EQ(ran.status, 0);
  EXPECT_THAT(ran.error_output, IsEmpty());
  EXPECT_EQ(cached_path(image, "libcuda.so.1"), "/opt/driver/libcuda.so.1");
}

TEST(LdcacheAttack, ProcIsALink) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  add_driver_library(image, "opt/driver");
  image.make_symlink(image.outside_directory() / "directory", "proc");
  const HookRun none = run_update_ldcache(image, {"/opt/driver"});
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.error_output, HasSubstr("no /proc"));
  image.make_directory("sys");
  EXPECT_EQ(run_update_ldcache(image, {"/opt/driver"}).status, 0);
  EXPECT_EQ(cached_path(image, "libcuda.so.1"), "/opt/driver/libcuda.so.1");
  EXPECT_TRUE(std::filesystem::is_empty(image.root_directory() / "sys"));
  expect_untouched(image);
}

// A Pod with the host's /proc, and an image with links through it.
TEST(LdcacheAttack, RemovesAProcfsFromTheSandbox) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  EXPECT_EQ(
      run_with_private_mounts([]() -> std::string {
        const TestImage image;
        make_debian(image);
        add_driver_library(image, "opt/driver");
        image.make_directory("host/proc");
        const std::string host = "/host/proc/" + std::to_string(::getpid()) + "/root";
        std::filesystem::remove(image.root_directory() / "var/cache/ldconfig");
        image.make_symlink(host + (image.outside_directory() / "directory").string(), "var/cache/ldconfig");
        std::ofstream(image.outside_directory() / "directory/libhost.so.1") << shared_object("libhost.so.1");
        const std::string before = image.snapshot();
        image.add_file("etc/ld.so.conf.d/z.conf",
                       host + (image.outside_directory() / "directory").string() + "\n");
        if (::mount("proc", (image.root_directory() / "host/proc").c_str(), "proc", 0, nullptr) != 0 ||
            ::mount("proc", (image.root_directory() / "proc").c_str(), "proc", 0, nullptr) != 0)
          return "cannot mount";
        const HookRun ran = run_update_ldcache(image, {"/opt/driver"});
        const std::string host_library = cached_path(image, "libhost.so.1");
        const std::string driver = cached_path(image, "libcuda.so.1");
        const bool still = std::filesystem::exists(image.root_directory() / "host/proc/self/root");
        ::umount2((image.root_directory() / "host/proc").c_str(), MNT_DETACH);
        ::umount2((image.root_directory() / "proc").c_str(), MNT_DETACH);
        if (ran.status != 0) return "failed: " + ran.error_output;
        if (!host_library.empty() || driver != "/opt/driver/libcuda.so.1") return "wrong cache";
        if (!still) return "the container's own mount is gone";
        return image.snapshot() == before ? "" : "changed the host";
      }),
      "");
}

TEST(LdcacheAttack, ReadsButDoesNotWriteAVolume) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  EXPECT_EQ(run_with_private_mounts([]() -> std::string {
              const TestImage image;
              make_debian(image);
              add_driver_library(image, "opt/driver");
              image.make_directory("volume");
              std::ofstream(image.outside_directory() / "directory/libvolume.so.1.5")
                  << shared_object("libvolume.so.1");
              std::ofstream(image.outside_directory() / "directory/libcuda.so.535.104.5")
                  << shared_object("libcuda.so.1");
              const std::string before = image.snapshot();
              image.add_file("etc/ld.so.conf.d/z.conf", "/volume\n");
              if (::mount((image.outside_directory() / "directory").c_str(),
                          (image.root_directory() / "volume").c_str(), nullptr, MS_BIND, nullptr) != 0)
                return "cannot mount";
              const HookRun plain = run_update_ldcache(image, {"/opt/driver"});
              const std::string found = cached_path(image, "libvolume.so.1");
              const HookRun driver = run_update_ldcache(image, {"/volume"});
              ::umount2((image.root_directory() / "volume").c_str(), MNT_DETACH);
              if (plain.status != 0 || !plain.error_output.empty()) return "plain: " + plain.error_output;
              if (found != "/volume/libvolume.so.1") return "not found: " + found;
              if (driver.status != 0 || driver.error_output.find("another mount") == std::string::npos)
                return "not told: " + driver.error_output;
              return image.snapshot() == before ? "" : "changed the volume";
            }),
            "");
}

TEST(LdcacheAttack, SwappedLinksStayInTheRoot) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  make_debian(image);
  const std::string up = "../../../../../../../../../../../..";
  image.make_directory((image.outside_directory() / "directory").string().substr(1));
  {
    const Swapper configs(image.root_directory() / "etc", image.outside_directory());
    const Swapper directory(image.root_directory() / "opt/driver",
                            up + (image.outside_directory() / "directory").string());
    const Swapper proc(image.root_directory() / "proc", image.outside_directory() / "directory");
    constexpr int kRuns = 60;
    int failed = 0;
    for (int i = 0; i < kRuns; ++i) {
      image.add_file("libcuda.so." + std::to_string(i), shared_object("libcuda.so.1"));
      std::filesystem::rename(image.root_directory() / ("libcuda.so." + std::to_string(i)),
                              image.root_directory() / ("usr/lib/libcuda.so." + std::to_string(i)));
      const HookRun ran = run_update_ldcache(image, {"/opt/driver", "/usr/lib"});
      ASSERT_LT(ran.status, 2) << ran.error_output;
      failed += ran.status;
    }
    EXPECT_LT(failed, kRuns);
    EXPECT_GT(configs.swap_count(), 10u * kRuns);
  }
  EXPECT_TRUE(image.outside_is_untouched());
}

}  // namespace
}  // namespace gpulet::hook

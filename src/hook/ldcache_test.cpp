// The ld cache of ordinary images. The hook runs as a process; what it made is asked of the host's ldconfig.
#include "hook/ldcache.h"

#include <gmock/gmock.h>
#include <sys/prctl.h>

#include "hook/test_ldcache.h"

namespace gpulet::hook {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

void expect_clean(const Ran& ran) {
  EXPECT_EQ(ran.status, 0) << ran.told;
  EXPECT_EQ(ran.told, "");
}

TEST(Ldcache, DebianFindsTheDriver) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  make_debian(image);
  const std::string folder = "/usr/lib/" + kTestTriplet;
  add_driver(image, folder.substr(1));
  const std::string mounts = TestImage::content_of("/proc/self/mountinfo");
  expect_clean(update_ldcache_of(image, {folder}));
  EXPECT_THAT(in_cache(image, "libcuda.so.1"), HasSubstr(kTestTriplet + "/libcuda.so.1"));
  EXPECT_THAT(in_cache(image, "libz.so.1"), HasSubstr(kTestTriplet + "/libz.so.1"));
  EXPECT_EQ(std::filesystem::read_symlink(image.root() / folder.substr(1) / "libcuda.so.1"),
            "libcuda.so.535.104.5");
  // A folder that the loader knows by itself needs no line.
  EXPECT_FALSE(std::filesystem::exists(image.root() / "etc/ld.so.conf.d/00-gpulet.conf"));
  // ldconfig's notes for its next run are not left behind.
  EXPECT_TRUE(std::filesystem::is_empty(image.root() / "var/cache/ldconfig"));
  EXPECT_THAT(image.left_overs(), IsEmpty());
  EXPECT_EQ(TestImage::content_of("/proc/self/mountinfo"), mounts);
  EXPECT_TRUE(image.outside_is_untouched());
}

TEST(Ldcache, AFolderOfItsOwnGetsALineOnce) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  make_debian(image);
  add_driver(image, "opt/driver/lib");
  expect_clean(update_ldcache_of(image, {"/opt/driver/lib", "/usr/local/lib", "/opt/driver/lib"}));
  EXPECT_EQ(in_cache(image, "libcuda.so.1"), "/opt/driver/lib/libcuda.so.1");
  EXPECT_EQ(image.read("etc/ld.so.conf.d/00-gpulet.conf"), "/opt/driver/lib\n");
  // The same root is started again: nothing is written, not even the same bytes.
  const std::string before = tree_of(image);
  expect_clean(update_ldcache_of(image, {"/opt/driver/lib"}));
  EXPECT_EQ(tree_of(image), before);
  // Another driver: the line of the last one goes.
  std::filesystem::rename(image.root() / "opt/driver/lib/libcuda.so.535.104.5",
                          image.root() / "usr/lib" / kTestTriplet / "libcuda.so.535.104.5");
  expect_clean(update_ldcache_of(image, {"/usr/lib/" + kTestTriplet}));
  EXPECT_FALSE(std::filesystem::exists(image.root() / "etc/ld.so.conf.d/00-gpulet.conf"));
  EXPECT_THAT(in_cache(image, "libcuda.so.1"), HasSubstr(kTestTriplet));
}

TEST(Ldcache, ALinkOfAnOlderDriverIsReplacedAndAFileIsNot) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  make_debian(image);
  add_driver(image, "opt/driver");
  image.file("opt/driver/libnvidia-ml.so.535.104.5", shared_object("libnvidia-ml.so.1"));
  image.link("libcuda.so.470.1", "opt/driver/libcuda.so.1");
  image.file("opt/driver/libnvidia-ml.so.1", shared_object("libnvidia-ml.so.1"));
  expect_clean(update_ldcache_of(image, {"/opt/driver"}));
  EXPECT_EQ(std::filesystem::read_symlink(image.root() / "opt/driver/libcuda.so.1"), "libcuda.so.535.104.5");
  EXPECT_TRUE(std::filesystem::is_regular_file(
      std::filesystem::symlink_status(image.root() / "opt/driver/libnvidia-ml.so.1")));
}

// RHEL's folders are none that Debian's ldconfig searches by itself.
TEST(Ldcache, RedHat) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  for (const char* folder : {"usr/lib64", "usr/lib", "proc", "etc/ld.so.conf.d"}) image.folder(folder);
  image.link("usr/lib64", "lib64");
  image.link("usr/lib", "lib");
  image.file("etc/ld.so.conf", "include ld.so.conf.d/*.conf\n");
  image.file("usr/lib/libz.so.1.2.11", shared_object("libz.so.1"));
  add_driver(image, "usr/lib64");
  expect_clean(update_ldcache_of(image, {"/usr/lib64"}));
  EXPECT_EQ(in_cache(image, "libcuda.so.1"), "/lib64/libcuda.so.1");
  EXPECT_EQ(in_cache(image, "libz.so.1"), "/lib/libz.so.1");
  EXPECT_TRUE(std::filesystem::is_empty(image.root() / "etc/ld.so.conf.d"));
  EXPECT_TRUE(std::filesystem::is_symlink(image.root() / "usr/lib64/libcuda.so.1"));
  // The image's own links are its own affair.
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::symlink_status(image.root() / "usr/lib/libz.so.1")));
}

TEST(Ldcache, Distroless) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  image.folder("proc");
  add_driver(image, "usr/lib/nvidia");
  expect_clean(update_ldcache_of(image, {"/usr/lib/nvidia"}));
  EXPECT_EQ(in_cache(image, "libcuda.so.1"), "/usr/lib/nvidia/libcuda.so.1");
  EXPECT_EQ(image.read("etc/ld.so.conf"), "include /etc/ld.so.conf.d/*.conf\n");
  EXPECT_EQ(image.read("etc/ld.so.conf.d/00-gpulet.conf"), "/usr/lib/nvidia\n");
  const std::string before = tree_of(image);
  expect_clean(update_ldcache_of(image, {"/usr/lib/nvidia"}));
  EXPECT_EQ(tree_of(image), before);
}

TEST(Ldcache, AnLdConfigThatIncludesNothingIsLeftAlone) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  image.folder("proc");
  image.file("etc/ld.so.conf", "/usr/local/lib\n");
  add_driver(image, "opt/driver");
  expect_clean(update_ldcache_of(image, {"/opt/driver"}));
  EXPECT_EQ(in_cache(image, "libcuda.so.1"), "/opt/driver/libcuda.so.1");
  EXPECT_EQ(image.read("etc/ld.so.conf"), "/usr/local/lib\n");
}

TEST(Ldcache, AlpineGetsAPathFile) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  image.file("lib/ld-musl-" + kTestMusl + ".so.1");
  image.folder("proc");
  image.folder("etc");
  add_driver(image, "usr/lib64");
  image.file("usr/lib32/libcuda.so.535.104.5", std::string("\177ELF\1\1\1", 7) + std::string(100, '\0'));
  for (int run = 0; run < 2; ++run) {
    expect_clean(update_ldcache_of(image, {"/usr/lib64", "/usr/lib32", "/usr/lib"}));
    EXPECT_EQ(image.read("etc/ld-musl-" + kTestMusl + ".path"), "/usr/lib64:/lib:/usr/local/lib:/usr/lib\n");
  }
  EXPECT_EQ(std::filesystem::read_symlink(image.root() / "usr/lib64/libcuda.so.1"), "libcuda.so.535.104.5");
  // Its loader reads no cache.
  EXPECT_FALSE(std::filesystem::exists(image.root() / "etc/ld.so.cache"));
  EXPECT_FALSE(std::filesystem::exists(image.root() / "etc/ld.so.conf"));
  // With glibc's loader beside it there are both.
  image.file(kTestLoader);
  expect_clean(update_ldcache_of(image, {"/usr/lib64"}));
  EXPECT_EQ(in_cache(image, "libcuda.so.1"), "/usr/lib64/libcuda.so.1");
}

TEST(Ldcache, AReadOnlyRootIsToldAndNoError) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  EXPECT_EQ(with_own_mounts([]() -> std::string {
              const TestImage image;
              make_debian(image);
              add_driver(image, "opt/driver");
              const auto bind = [&](unsigned long flags) {
                return ::mount(image.root().c_str(), image.root().c_str(), nullptr, MS_BIND | flags,
                               nullptr) == 0;
              };
              if (!bind(0) || !bind(MS_REMOUNT | MS_RDONLY)) return "cannot mount";
              const std::string before = tree_of(image);
              const Ran first = update_ldcache_of(image, {"/opt/driver"});
              if (first.status != 0 ||
                  first.told.find("may not find the driver's libraries") == std::string::npos ||
                  first.told.find("Read-only") == std::string::npos)
                return "not told: " + first.told;
              if (tree_of(image) != before) return "changed";
              // Made right before it became read-only: nothing to say.
              if (!bind(MS_REMOUNT) || update_ldcache_of(image, {"/opt/driver"}).status != 0)
                return "not writable";
              if (!bind(MS_REMOUNT | MS_RDONLY)) return "cannot remount";
              const Ran second = update_ldcache_of(image, {"/opt/driver"});
              ::umount2(image.root().c_str(), MNT_DETACH);
              return second.status == 0 && second.told.empty() ? "" : "told without need: " + second.told;
            }),
            "");
}

// ThreadSanitizer has a thread of its own, and a process of two makes no user namespace.
#if !defined(__SANITIZE_THREAD__)
// As a rootless engine: root of a user namespace, and nobody outside it.
TEST(Ldcache, WorksInAUserNamespace) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const std::string answer = with_own_mounts([]() -> std::string {
    const TestImage image;
    make_debian(image);
    add_driver(image, "opt/driver");
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return "no namespace";
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << "0 0 1";
    std::ofstream("/proc/self/gid_map") << "0 0 1";
    const Ran ran = update_ldcache_of(image, {"/opt/driver"});
    if (ran.status != 0 || !ran.told.empty()) return "failed: " + ran.told;
    return in_cache(image, "libcuda.so.1") == "/opt/driver/libcuda.so.1" ? "" : "not in the cache";
  });
  if (answer == "no namespace") GTEST_SKIP() << "no user namespace can be made from here";
  EXPECT_EQ(answer, "");
}
#endif

TEST(Ldcache, WithoutTheRightToMountItSaysSoAndTheContainerStarts) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  EXPECT_EQ(with_own_mounts([]() -> std::string {
              const TestImage image;
              make_debian(image);
              add_driver(image, "opt/driver");
              constexpr int kSysAdmin = 21;
              if (::prctl(PR_CAPBSET_DROP, kSysAdmin, 0, 0, 0) != 0) return "cannot drop";
              const Ran ran = update_ldcache_of(image, {"/opt/driver"});
              const bool told = ran.told.find("cannot clone the container's mounts") != std::string::npos;
              return ran.status == 0 && told ? "" : "not tolerated: " + ran.told;
            }),
            "");
}

TEST(Ldcache, TheHostsLdconfigMustBeAStaticProgram) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  make_debian(image);
  const auto refused = [&](const std::string& path) {
    const Ran ran = image.run({"update-ldcache", "--folder=/opt", "--ldconfig-path=" + path});
    EXPECT_EQ(ran.status, 1);
    return ran.told;
  };
  const std::string script = image.base() / "ldconfig";
  std::ofstream(script) << "#!/bin/sh\nexec \"$0.real\"\n";
  EXPECT_THAT(refused(script), HasSubstr("not a program but a script"));
  EXPECT_THAT(refused("/bin/sh"), HasSubstr("not static"));
  EXPECT_THAT(refused("/nonexistent"), HasSubstr("cannot open"));
  EXPECT_THAT(refused("/dev/zero"), HasSubstr("not a regular file"));
  // Ubuntu's: the program is beside the script.
  std::filesystem::copy_file(std::filesystem::canonical("/sbin/ldconfig"), script + ".real");
  add_driver(image, "opt/driver");
  expect_clean(image.run({"update-ldcache", "--folder=/opt/driver", "--ldconfig-path=@" + script}));
  EXPECT_EQ(in_cache(image, "libcuda.so.1"), "/opt/driver/libcuda.so.1");
}

TEST(Ldcache, FoldersThatNoLineCanName) {
  const TestImage image;
  for (const char* folder : {"relative", "/with blank", "/with\nline", "/with#comment", "/a:b"})
    EXPECT_EQ(update_ldcache_of(image, {folder}).status, 1) << folder;
  EXPECT_FALSE(std::filesystem::exists(image.root() / "etc"));
}

TEST(Ldcache, WhatLdconfigPrintsIsRead) {
  EXPECT_THAT(library_links("/sbin/ldconfig: Path given more than once\n"
                            "/a: (from <cmdline>:0)\n\tlibx.so.1 -> libx.so.1.2\n\tliby.so -> liby.so\n"
                            "/b:\n\tlibz.so.2 -> libz.so.2.1\n\tlib/evil -> x\n\tx -> ../y\n\t.. -> y\n"
                            "\tno arrow\nnoise -> more\n"),
              ElementsAre(LibraryLink{"/a", "libx.so.1", "libx.so.1.2"},
                          LibraryLink{"/b", "libz.so.2", "libz.so.2.1"}));
  EXPECT_THAT(library_links("\tlibx.so.1 -> libx.so.1.2\n"), IsEmpty());
}

}  // namespace
}  // namespace gpulet::hook

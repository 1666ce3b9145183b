#include <sys/prctl.h>

#include <gmock/gmock.h>

#include <algorithm>

#include "hook/ldcache.h"
#include "hook/test_image.h"
#include "hook/test_ldcache.h"

namespace gpulet::hook {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Result<std::vector<LdDirectory>> read_image_config(const TestImage& image) {
  const auto root = Rootfs::open_root(image.root_directory());
  if (!root) return fail(root.error());
  return read_ld_config(*root);
}

std::vector<std::string> configured_directories(const TestImage& image) {
  const auto all = read_image_config(image);
  if (!all) return {all.error().full_message()};
  std::vector<std::string> paths;
  for (const auto& directory : *all) paths.push_back(directory.path);
  return paths;
}

TEST(LdConf, ReadsLinesAsLdconfigDoes) {
  const TestImage image;
  EXPECT_THAT(configured_directories(image), IsEmpty());
  image.add_file("etc/ld.so.conf",
                 "# a comment\n  /a  # another\n\n/b=libc5\nhwcap 0 nosegneg\nrelative\n/a\n/c//d/./\n"
                 "\tinclude\t/etc/more/*.conf   /etc/last\nincluded\n/e with blank");
  image.add_file("etc/more/2.conf", "/two");
  image.add_file("etc/more/1.conf", "/one\r\n/a\r\n");
  image.add_file("etc/more/.hidden.conf", "/hidden");
  image.add_file("etc/more/3.confx", "/three");
  image.add_file("etc/last", "/last\ninclude more/?.confx");
  EXPECT_THAT(configured_directories(image),
              ElementsAre("/a", "/b", "/c/d", "/one", "/two", "/last", "/three", "/e with blank"));
  const auto all = read_image_config(image);
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ((*all)[3], (LdDirectory{"/one", "/etc/more/1.conf"}));
}

TEST(LdConf, ExpandsPatternsOfDirectories) {
  const TestImage image;
  image.add_file("etc/ld.so.conf", "include /opt/*/etc/x*.conf");
  image.add_file("opt/b/etc/x.conf", "/b");
  image.add_file("opt/a/etc/xyz.conf", "/a");
  image.add_file("opt/a/etc/y.conf", "/y");
  image.add_file("opt/file", "no directory");
  EXPECT_THAT(configured_directories(image), ElementsAre("/a", "/b"));
}

TEST(LdConf, SkipsWhatIsNotAFile) {
  const TestImage image;
  image.add_file("etc/ld.so.conf", "include /etc/*.conf /none /etc\n/after");
  image.make_fifo("etc/fifo.conf");
  image.make_symlink(image.outside_directory() / "secret", "etc/out.conf");
  image.make_symlink("loop.conf", "etc/loop.conf");
  image.add_file("etc/nul.conf", std::string("/x\0y\n/z", 7));
  EXPECT_THAT(configured_directories(image), ElementsAre("/z", "/after"));
}

TEST(LdConf, EnforcesLimits) {
  const TestImage many;
  std::string lines;
  for (std::size_t i = 0; i <= kMaxLdDirectories; ++i) lines += "/f" + std::to_string(i) + "\n";
  many.add_file("etc/ld.so.conf", lines);
  EXPECT_THAT(configured_directories(many), ElementsAre(HasSubstr("names more than 1024 directories")));
  const TestImage large;
  large.add_file("etc/ld.so.conf", std::string(kMaxLdConfigBytes + 1, '#'));
  EXPECT_THAT(configured_directories(large), ElementsAre(HasSubstr("larger than the limit")));
  const TestImage files;
  files.add_file("etc/ld.so.conf", "include d/*");
  for (std::size_t i = 0; i <= kMaxLdConfigFiles; ++i) files.add_file("etc/d/f" + std::to_string(i));
  EXPECT_THAT(configured_directories(files), ElementsAre(HasSubstr("includes more than 1024 files")));
  const TestImage wide;
  wide.add_file("etc/ld.so.conf", "include /d/*/*/*/*\n");
  for (int i = 0; i < 40; ++i)
    for (int j = 0; j < 40; ++j) wide.make_directory("d/" + std::to_string(i) + "/" + std::to_string(j));
  EXPECT_THAT(configured_directories(wide), ElementsAre(HasSubstr("too many steps")));
}

TEST(LdConf, MatchesPatternsInLinearTime) {
  EXPECT_TRUE(NamePattern("*.conf").matches("a.conf"));
  EXPECT_TRUE(NamePattern("a*b*c").matches("axxbxxbc"));
  EXPECT_TRUE(NamePattern("*").matches("x"));
  EXPECT_TRUE(NamePattern("??").matches("xy"));
  EXPECT_TRUE(NamePattern(".*").matches(".x"));
  EXPECT_FALSE(NamePattern("*.conf").matches(".conf"));
  EXPECT_FALSE(NamePattern("*.conf").matches("a.conf~"));
  EXPECT_FALSE(NamePattern("?").matches(""));
  EXPECT_FALSE(NamePattern("a").matches("A"));
  std::string pattern;
  for (int i = 0; i < 2000; ++i) pattern += "a*";
  EXPECT_FALSE(NamePattern(pattern + "b").matches(std::string(255, 'a')));
}

}  // namespace

// The ld cache of ordinary images. The hook runs as a process; the host's ldconfig reads the result.

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

void expect_clean(const HookRun& ran) {
  EXPECT_EQ(ran.status, 0) << ran.error_output;
  EXPECT_EQ(ran.error_output, "");
}

TEST(Ldcache, DebianFindsTheDriver) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  make_debian(image);
  const std::string directory = "/usr/lib/" + kTestTriplet;
  add_driver_library(image, directory.substr(1));
  const std::string mounts = TestImage::file_content("/proc/self/mountinfo");
  expect_clean(run_update_ldcache(image, {directory}));
  EXPECT_THAT(cached_path(image, "libcuda.so.1"), HasSubstr(kTestTriplet + "/libcuda.so.1"));
  EXPECT_THAT(cached_path(image, "libz.so.1"), HasSubstr(kTestTriplet + "/libz.so.1"));
  EXPECT_EQ(std::filesystem::read_symlink(image.root_directory() / directory.substr(1) / "libcuda.so.1"),
            "libcuda.so.535.104.5");
  // A built-in directory of the loader needs no line.
  EXPECT_FALSE(std::filesystem::exists(image.root_directory() / "etc/ld.so.conf.d/00-gpulet.conf"));
  // ldconfig's auxiliary cache is not left behind.
  EXPECT_TRUE(std::filesystem::is_empty(image.root_directory() / "var/cache/ldconfig"));
  EXPECT_THAT(image.leftover_files(), IsEmpty());
  EXPECT_EQ(TestImage::file_content("/proc/self/mountinfo"), mounts);
  EXPECT_TRUE(image.outside_is_untouched());
}

TEST(Ldcache, AddsAnotherDirectoryOnce) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  make_debian(image);
  add_driver_library(image, "opt/driver/lib");
  expect_clean(run_update_ldcache(image, {"/opt/driver/lib", "/usr/local/lib", "/opt/driver/lib"}));
  EXPECT_EQ(cached_path(image, "libcuda.so.1"), "/opt/driver/lib/libcuda.so.1");
  EXPECT_EQ(image.read_text("etc/ld.so.conf.d/00-gpulet.conf"), "/opt/driver/lib\n");
  // After a restart of the same root nothing is written, not even the same bytes.
  const std::string before = tree_snapshot(image);
  expect_clean(run_update_ldcache(image, {"/opt/driver/lib"}));
  EXPECT_EQ(tree_snapshot(image), before);
  // With another driver, the previous line is removed.
  std::filesystem::rename(image.root_directory() / "opt/driver/lib/libcuda.so.535.104.5",
                          image.root_directory() / "usr/lib" / kTestTriplet / "libcuda.so.535.104.5");
  expect_clean(run_update_ldcache(image, {"/usr/lib/" + kTestTriplet}));
  EXPECT_FALSE(std::filesystem::exists(image.root_directory() / "etc/ld.so.conf.d/00-gpulet.conf"));
  EXPECT_THAT(cached_path(image, "libcuda.so.1"), HasSubstr(kTestTriplet));
}

TEST(Ldcache, ReplacesAnOlderDriversLinkButNotAFile) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  make_debian(image);
  add_driver_library(image, "opt/driver");
  image.add_file("opt/driver/libnvidia-ml.so.535.104.5", shared_object("libnvidia-ml.so.1"));
  image.make_symlink("libcuda.so.470.1", "opt/driver/libcuda.so.1");
  image.add_file("opt/driver/libnvidia-ml.so.1", shared_object("libnvidia-ml.so.1"));
  expect_clean(run_update_ldcache(image, {"/opt/driver"}));
  EXPECT_EQ(std::filesystem::read_symlink(image.root_directory() / "opt/driver/libcuda.so.1"),
            "libcuda.so.535.104.5");
  EXPECT_TRUE(std::filesystem::is_regular_file(
      std::filesystem::symlink_status(image.root_directory() / "opt/driver/libnvidia-ml.so.1")));
}

// Debian's ldconfig does not search RHEL's directories by default.
TEST(Ldcache, RedHat) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  for (const char* directory : {"usr/lib64", "usr/lib", "proc", "etc/ld.so.conf.d"})
    image.make_directory(directory);
  image.make_symlink("usr/lib64", "lib64");
  image.make_symlink("usr/lib", "lib");
  image.add_file("etc/ld.so.conf", "include ld.so.conf.d/*.conf\n");
  image.add_file("usr/lib/libz.so.1.2.11", shared_object("libz.so.1"));
  add_driver_library(image, "usr/lib64");
  expect_clean(run_update_ldcache(image, {"/usr/lib64"}));
  EXPECT_EQ(cached_path(image, "libcuda.so.1"), "/lib64/libcuda.so.1");
  EXPECT_EQ(cached_path(image, "libz.so.1"), "/lib/libz.so.1");
  EXPECT_TRUE(std::filesystem::is_empty(image.root_directory() / "etc/ld.so.conf.d"));
  EXPECT_TRUE(std::filesystem::is_symlink(image.root_directory() / "usr/lib64/libcuda.so.1"));
  // The image's own links are left alone.
  EXPECT_FALSE(
      std::filesystem::exists(std::filesystem::symlink_status(image.root_directory() / "usr/lib/libz.so.1")));
}

TEST(Ldcache, Distroless) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  image.make_directory("proc");
  add_driver_library(image, "usr/lib/nvidia");
  expect_clean(run_update_ldcache(image, {"/usr/lib/nvidia"}));
  EXPECT_EQ(cached_path(image, "libcuda.so.1"), "/usr/lib/nvidia/libcuda.so.1");
  EXPECT_EQ(image.read_text("etc/ld.so.conf"), "include /etc/ld.so.conf.d/*.conf\n");
  EXPECT_EQ(image.read_text("etc/ld.so.conf.d/00-gpulet.conf"), "/usr/lib/nvidia\n");
  const std::string before = tree_snapshot(image);
  expect_clean(run_update_ldcache(image, {"/usr/lib/nvidia"}));
  EXPECT_EQ(tree_snapshot(image), before);
}

TEST(Ldcache, KeepsAnLdConfigWithoutIncludes) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  image.make_directory("proc");
  image.add_file("etc/ld.so.conf", "/usr/local/lib\n");
  add_driver_library(image, "opt/driver");
  expect_clean(run_update_ldcache(image, {"/opt/driver"}));
  EXPECT_EQ(cached_path(image, "libcuda.so.1"), "/opt/driver/libcuda.so.1");
  EXPECT_EQ(image.read_text("etc/ld.so.conf"), "/usr/local/lib\n");
}

TEST(Ldcache, WritesAPathFileForAlpine) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  image.add_file("lib/ld-musl-" + kTestMusl + ".so.1");
  image.make_directory("proc");
  image.make_directory("etc");
  add_driver_library(image, "usr/lib64");
  image.add_file("usr/lib32/libcuda.so.535.104.5", std::string("\177ELF\1\1\1", 7) + std::string(100, '\0'));
  for (int run = 0; run < 2; ++run) {
    expect_clean(run_update_ldcache(image, {"/usr/lib64", "/usr/lib32", "/usr/lib"}));
    EXPECT_EQ(image.read_text("etc/ld-musl-" + kTestMusl + ".path"),
              "/usr/lib64:/lib:/usr/local/lib:/usr/lib\n");
  }
  EXPECT_EQ(std::filesystem::read_symlink(image.root_directory() / "usr/lib64/libcuda.so.1"),
            "libcuda.so.535.104.5");
  // musl's loader reads no cache.
  EXPECT_FALSE(std::filesystem::exists(image.root_directory() / "etc/ld.so.cache"));
  EXPECT_FALSE(std::filesystem::exists(image.root_directory() / "etc/ld.so.conf"));
  // With glibc's loader as well, both are written.
  image.add_file(kTestLoader);
  expect_clean(run_update_ldcache(image, {"/usr/lib64"}));
  EXPECT_EQ(cached_path(image, "libcuda.so.1"), "/usr/lib64/libcuda.so.1");
}

// Names that no file has: a link from or to them would be another one.
TEST(Ldcache, IgnoresNamesWithANul) {
  const auto links = [](std::string output) {
    std::ranges::replace(output, '@', '\0');
    return library_links(output).size();
  };
  EXPECT_EQ(links("/usr/lib: (from x)\n\tliba.so -> liba.so.1\n"), 1u);
  EXPECT_EQ(links("/usr/lib@/b: (from x)\n\tliba.so -> liba.so.1\n"), 0u);
  EXPECT_EQ(links("/usr/lib: (from x)\n\tliba@.so -> liba.so.1\n"), 0u);
  EXPECT_EQ(links("/usr/lib: (from x)\n\tliba.so -> liba.so@.1\n"), 0u);
}

// musl's loader reads the file up to the first NUL, and has no defaults if there is an empty one.
TEST(Ldcache, AddsMuslDirectoriesThatTheLoaderDoesNotRead) {
  const std::vector<std::string> drivers{"/usr/lib"};
  EXPECT_EQ(with_musl_directories(std::nullopt, drivers), "");
  EXPECT_EQ(with_musl_directories("/lib:/usr/lib\n", drivers), "");
  EXPECT_EQ(with_musl_directories(std::string("/lib\0:/usr/lib", 14), drivers), "/usr/lib:/lib\n");
  EXPECT_EQ(with_musl_directories("", drivers), "/usr/lib\n");
}

TEST(Ldcache, WarnsOfAReadOnlyRoot) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  EXPECT_EQ(run_with_private_mounts([]() -> std::string {
              const TestImage image;
              make_debian(image);
              add_driver_library(image, "opt/driver");
              const auto bind = [&](unsigned long flags) {
                return ::mount(image.root_directory().c_str(), image.root_directory().c_str(), nullptr,
                               MS_BIND | flags, nullptr) == 0;
              };
              if (!bind(0) || !bind(MS_REMOUNT | MS_RDONLY)) return "cannot mount";
              const std::string before = tree_snapshot(image);
              const HookRun first = run_update_ldcache(image, {"/opt/driver"});
              if (first.status != 0 ||
                  first.error_output.find("may not find the driver's libraries") == std::string::npos ||
                  first.error_output.find("Read-only") == std::string::npos)
                return "not told: " + first.error_output;
              if (tree_snapshot(image) != before) return "changed";
              // Correct before it became read-only: no warning.
              if (!bind(MS_REMOUNT) || run_update_ldcache(image, {"/opt/driver"}).status != 0)
                return "not writable";
              if (!bind(MS_REMOUNT | MS_RDONLY)) return "cannot remount";
              const HookRun second = run_update_ldcache(image, {"/opt/driver"});
              ::umount2(image.root_directory().c_str(), MNT_DETACH);
              return second.status == 0 && second.error_output.empty()
                         ? ""
                         : "told without need: " + second.error_output;
            }),
            "");
}

// ThreadSanitizer adds a thread, and a multithreaded process cannot create a user namespace.
#if !defined(__SANITIZE_THREAD__)
// As in a rootless engine: root in a user namespace, unprivileged outside.
TEST(Ldcache, WorksInAUserNamespace) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const std::string answer = run_with_private_mounts([]() -> std::string {
    const TestImage image;
    make_debian(image);
    add_driver_library(image, "opt/driver");
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return "no namespace";
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << "0 0 1";
    std::ofstream("/proc/self/gid_map") << "0 0 1";
    const HookRun ran = run_update_ldcache(image, {"/opt/driver"});
    if (ran.status != 0 || !ran.error_output.empty()) return "failed: " + ran.error_output;
    return cached_path(image, "libcuda.so.1") == "/opt/driver/libcuda.so.1" ? "" : "not in the cache";
  });
  if (answer == "no namespace") GTEST_SKIP() << "cannot create a user namespace here";
  EXPECT_EQ(answer, "");
}
#endif

TEST(Ldcache, WarnsWithoutPermissionToMount) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  EXPECT_EQ(run_with_private_mounts([]() -> std::string {
              const TestImage image;
              make_debian(image);
              add_driver_library(image, "opt/driver");
              constexpr int kSysAdmin = 21;
              if (::prctl(PR_CAPBSET_DROP, kSysAdmin, 0, 0, 0) != 0) return "cannot drop";
              const HookRun ran = run_update_ldcache(image, {"/opt/driver"});
              const bool told =
                  ran.error_output.find("cannot clone the container's mounts") != std::string::npos;
              return ran.status == 0 && told ? "" : "not tolerated: " + ran.error_output;
            }),
            "");
}

TEST(Ldcache, RequiresAStaticHostLdconfig) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  make_debian(image);
  const auto refused = [&](const std::string& path) {
    const HookRun ran = image.run_hook({"update-ldcache", "--folder=/opt", "--ldconfig-path=" + path});
    EXPECT_EQ(ran.status, 1);
    return ran.error_output;
  };
  const std::string script = image.base_directory() / "ldconfig";
  std::ofstream(script) << "#!/bin/sh\nexec \"$0.real\"\n";
  EXPECT_THAT(refused(script), HasSubstr("not an ELF program"));
  EXPECT_THAT(refused("/bin/sh"), HasSubstr("dynamically linked"));
  EXPECT_THAT(refused("/nonexistent"), HasSubstr("cannot open"));
  EXPECT_THAT(refused("/dev/zero"), HasSubstr("not a regular file"));
  // As on Ubuntu: the program is in the script's directory.
  std::filesystem::copy_file(std::filesystem::canonical("/sbin/ldconfig"), script + ".real");
  add_driver_library(image, "opt/driver");
  expect_clean(image.run_hook({"update-ldcache", "--folder=/opt/driver", "--ldconfig-path=@" + script}));
  EXPECT_EQ(cached_path(image, "libcuda.so.1"), "/opt/driver/libcuda.so.1");
}

TEST(Ldcache, RefusesDirectoriesThatLdConfCannotExpress) {
  const TestImage image;
  for (const char* directory : {"relative", "/with blank", "/with\nline", "/with#comment", "/a:b"})
    EXPECT_EQ(run_update_ldcache(image, {directory}).status, 1) << directory;
  EXPECT_FALSE(std::filesystem::exists(image.root_directory() / "etc"));
}

TEST(Ldcache, ParsesLdconfigOutput) {
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

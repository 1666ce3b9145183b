// Images and Pods that attack the making of the ld cache. Nothing outside the root folder changes, and the
// hook comes to its end.
#include <gmock/gmock.h>
#include <sys/sysmacros.h>

#include <chrono>

#include "hook/test_ldcache.h"
#include "hook/test_swapper.h"

namespace gpulet::hook {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

TEST(LdcacheAttack, EtcIsALinkToTheHost) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  image.folder("proc");
  add_driver(image, "opt/driver");
  const std::string host = image.outside() / "folder";
  image.link("../../../../../../.." + host, "etc");
  const Ran ran = update_ldcache_of(image, {"/opt/driver"});
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.told, HasSubstr("a link to nothing"));
  expect_untouched(image);
  // The link means something inside the image: that is what is used.
  image.folder(host.substr(1));
  EXPECT_EQ(update_ldcache_of(image, {"/opt/driver"}).status, 0);
  EXPECT_TRUE(std::filesystem::exists(image.root() / host.substr(1) / "ld.so.cache"));
  expect_untouched(image);
}

TEST(LdcacheAttack, LinksFifosAndDevicesInThePlaceOfWhatIsWritten) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const auto secret = [](const TestImage& image) { return (image.outside() / "secret").string(); };
  const std::function<void(const TestImage&, const std::string&)> kinds[] = {
      [&](const TestImage& image, const std::string& path) { image.link(secret(image), path); },
      [&](const TestImage& image, const std::string& path) {
        image.link("../../../../../../../../.." + secret(image), path);
      },
      [&](const TestImage& image, const std::string& path) {
        image.link("/proc/1/root" + secret(image), path);
      },
      [&](const TestImage& image, const std::string& path) { image.fifo(path); },
      [&](const TestImage& image, const std::string& path) {
        ASSERT_EQ(::mknod((image.root() / path).c_str(), S_IFCHR | 0666, makedev(1, 8)), 0);
      },
  };
  for (const auto& put : kinds) {
    const TestImage image;
    make_debian(image);
    add_driver(image, "opt/driver");
    image.file("etc/ld.so.conf.d/a.conf");
    for (const char* path :
         {"etc/ld.so.cache", "etc/ld.so.cache~", "etc/ld.so.conf.d/00-gpulet.conf", "etc/ld.so.conf.d/b.conf",
          "opt/driver/libfifo.so.1", "var/cache/ldconfig/aux-cache", "var/cache/ldconfig/aux-cache~"})
      put(image, path);
    const Ran ran = update_ldcache_of(image, {"/opt/driver"});
    EXPECT_EQ(ran.status, 0) << ran.told;
    EXPECT_EQ(in_cache(image, "libcuda.so.1"), "/opt/driver/libcuda.so.1");
    for (const char* path : {"etc/ld.so.cache", "etc/ld.so.conf.d/00-gpulet.conf"})
      EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(image.root() / path)))
          << path;
    expect_untouched(image);
  }
  // And of the configuration itself.
  const TestImage image;
  image.folder("proc");
  add_driver(image, "opt/driver");
  image.fifo("etc/ld.so.conf");
  EXPECT_EQ(update_ldcache_of(image, {"/opt/driver"}).status, 0);
  EXPECT_EQ(in_cache(image, "libcuda.so.1"), "/opt/driver/libcuda.so.1");
  expect_untouched(image);
}

TEST(LdcacheAttack, EndlessConfigurationIsRefusedSoon) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  make_debian(image);
  add_driver(image, "opt/driver");
  for (int i = 0; i < 100'000; ++i)
    ASSERT_EQ(::mknod((image.root() / "etc/ld.so.conf.d" / (std::to_string(i) + ".conf")).c_str(),
                      S_IFREG | 0644, 0),
              0);
  const auto begin = std::chrono::steady_clock::now();
  const Ran ran = update_ldcache_of(image, {"/opt/driver"});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.told, HasSubstr("/etc/ld.so.conf.d: holds more than 4096 files"));
  EXPECT_FALSE(std::filesystem::exists(image.root() / "etc/ld.so.cache"));
  expect_untouched(image);
}

TEST(LdcacheAttack, IncludesThatLoopEnd) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  make_debian(image);
  add_driver(image, "opt/driver");
  image.file("etc/ld.so.conf.d/a.conf", "include /etc/ld.so.conf.d/b.conf /etc/ld.so.conf\n/opt/driver\n");
  image.file("etc/ld.so.conf.d/b.conf",
             "include a.conf\ninclude *.conf\ninclude /*/*/*/*.conf\ninclude /dev/zero\n");
  const Ran ran = update_ldcache_of(image, {"/opt/driver"});
  EXPECT_EQ(ran.status, 0) << ran.told;
  EXPECT_EQ(in_cache(image, "libcuda.so.1"), "/opt/driver/libcuda.so.1");
  for (int i = 0; i < 40; ++i)
    image.file("etc/deep" + std::to_string(i), "include deep" + std::to_string(i + 1) + "\n");
  image.file("etc/ld.so.conf", "include deep0\n");
  const Ran deep = update_ldcache_of(image, {"/opt/driver"});
  EXPECT_EQ(deep.status, 1);
  EXPECT_THAT(deep.told, HasSubstr("deep"));
  expect_untouched(image);
}

TEST(LdcacheAttack, LibrariesThatAreNone) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  make_debian(image);
  add_driver(image, "opt/driver");
  const std::string good = shared_object("libgood.so.1");
  // Every byte of the headers wrong in its turn, and every length.
  for (std::size_t i = 16; i < good.size(); i += 3) {
    std::string bad = good;
    bad[i] = '\xff';
    image.file("opt/driver/libbad" + std::to_string(i) + ".so.1", bad);
    image.file("opt/driver/libcut" + std::to_string(i) + ".so.1", good.substr(0, i));
  }
  // Names that lead out, and more than fits.
  image.file("opt/driver/libout.so.1",
             shared_object("../../../../../../../../.." + (image.outside() / "x").string()));
  image.file("opt/driver/libline.so.1", shared_object("libx\n/etc: (from x)\n\tlibx -> passwd"));
  image.file("opt/driver/liblong.so.1", shared_object("lib" + std::string(5000, 'x') + ".so.1"));
  image.file("opt/driver/libsparse.so.1", good);
  std::filesystem::resize_file(image.root() / "opt/driver/libsparse.so.1", 8ull << 30);
  const Ran ran = update_ldcache_of(image, {"/opt/driver"});
  // ldconfig may die of it, in its box; that is told, in one line.
  EXPECT_LT(ran.status, 2);
  EXPECT_EQ(std::count(ran.told.begin(), ran.told.end(), '\n'), ran.status) << ran.told;
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::symlink_status(image.root() / "etc/libx")));
  expect_untouched(image);
}

TEST(LdcacheAttack, ANameThatLooksLikeAnotherFoldersLine) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  make_debian(image);
  add_driver(image, "opt/driver");
  image.file("opt/driver/libline.so.7", shared_object("libx\n/usr/lib: (from x)\n\tlibevil.so.1"));
  EXPECT_EQ(update_ldcache_of(image, {"/opt/driver"}).status, 0);
  EXPECT_EQ(in_cache(image, "libcuda.so.1"), "/opt/driver/libcuda.so.1");
  // A name that pretends to be another folder's line makes no link there.
  EXPECT_FALSE(
      std::filesystem::exists(std::filesystem::symlink_status(image.root() / "usr/lib/libevil.so.1")));
  expect_untouched(image);
}

TEST(LdcacheAttack, NothingOfTheEnvironmentCounts) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  make_debian(image);
  add_driver(image, "opt/driver");
  image.file("evil.so", "no library");
  const Ran ran = update_ldcache_of(
      image, {"/opt/driver"},
      {"LD_LIBRARY_PATH=/opt", "LC_ALL=de_DE.UTF-8", "LOCPATH=/opt/driver", "GCONV_PATH=/opt", "PATH=/opt"});
  EXPECT_EQ(ran.status, 0);
  EXPECT_THAT(ran.told, IsEmpty());
  EXPECT_EQ(in_cache(image, "libcuda.so.1"), "/opt/driver/libcuda.so.1");
}

TEST(LdcacheAttack, ProcIsALink) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  add_driver(image, "opt/driver");
  image.link(image.outside() / "folder", "proc");
  const Ran none = update_ldcache_of(image, {"/opt/driver"});
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.told, HasSubstr("no /proc"));
  image.folder("sys");
  EXPECT_EQ(update_ldcache_of(image, {"/opt/driver"}).status, 0);
  EXPECT_EQ(in_cache(image, "libcuda.so.1"), "/opt/driver/libcuda.so.1");
  EXPECT_TRUE(std::filesystem::is_empty(image.root() / "sys"));
  expect_untouched(image);
}

// A Pod that is given the host's /proc, and an image whose links go through it.
TEST(LdcacheAttack, AProcfsInTheImageLeadsNowhere) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  EXPECT_EQ(with_own_mounts([]() -> std::string {
              const TestImage image;
              make_debian(image);
              add_driver(image, "opt/driver");
              image.folder("host/proc");
              const std::string host = "/host/proc/" + std::to_string(::getpid()) + "/root";
              std::filesystem::remove(image.root() / "var/cache/ldconfig");
              image.link(host + (image.outside() / "folder").string(), "var/cache/ldconfig");
              std::ofstream(image.outside() / "folder/libhost.so.1") << shared_object("libhost.so.1");
              const std::string before = image.snapshot();
              image.file("etc/ld.so.conf.d/z.conf", host + (image.outside() / "folder").string() + "\n");
              if (::mount("proc", (image.root() / "host/proc").c_str(), "proc", 0, nullptr) != 0 ||
                  ::mount("proc", (image.root() / "proc").c_str(), "proc", 0, nullptr) != 0)
                return "cannot mount";
              const Ran ran = update_ldcache_of(image, {"/opt/driver"});
              const std::string host_library = in_cache(image, "libhost.so.1");
              const std::string driver = in_cache(image, "libcuda.so.1");
              const bool still = std::filesystem::exists(image.root() / "host/proc/self/root");
              ::umount2((image.root() / "host/proc").c_str(), MNT_DETACH);
              ::umount2((image.root() / "proc").c_str(), MNT_DETACH);
              if (ran.status != 0) return "failed: " + ran.told;
              if (!host_library.empty() || driver != "/opt/driver/libcuda.so.1") return "wrong cache";
              if (!still) return "the container's own mount is gone";
              return image.snapshot() == before ? "" : "changed the host";
            }),
            "");
}

TEST(LdcacheAttack, AVolumeOfThePodIsReadAndNotWritten) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  EXPECT_EQ(with_own_mounts([]() -> std::string {
              const TestImage image;
              make_debian(image);
              add_driver(image, "opt/driver");
              image.folder("volume");
              std::ofstream(image.outside() / "folder/libvolume.so.1.5") << shared_object("libvolume.so.1");
              std::ofstream(image.outside() / "folder/libcuda.so.535.104.5") << shared_object("libcuda.so.1");
              const std::string before = image.snapshot();
              image.file("etc/ld.so.conf.d/z.conf", "/volume\n");
              if (::mount((image.outside() / "folder").c_str(), (image.root() / "volume").c_str(), nullptr,
                          MS_BIND, nullptr) != 0)
                return "cannot mount";
              const Ran plain = update_ldcache_of(image, {"/opt/driver"});
              const std::string found = in_cache(image, "libvolume.so.1");
              const Ran driver = update_ldcache_of(image, {"/volume"});
              ::umount2((image.root() / "volume").c_str(), MNT_DETACH);
              if (plain.status != 0 || !plain.told.empty()) return "plain: " + plain.told;
              if (found != "/volume/libvolume.so.1") return "not found: " + found;
              if (driver.status != 0 || driver.told.find("another mount") == std::string::npos)
                return "not told: " + driver.told;
              return image.snapshot() == before ? "" : "changed the volume";
            }),
            "");
}

TEST(LdcacheAttack, SwappedLinksNeverLeadOut) {
  SKIP_WITHOUT_LDCACHE_RIGHTS();
  const TestImage image;
  make_debian(image);
  const std::string up = "../../../../../../../../../../../..";
  image.folder((image.outside() / "folder").string().substr(1));
  {
    const Swapper configs(image.root() / "etc", image.outside());
    const Swapper folder(image.root() / "opt/driver", up + (image.outside() / "folder").string());
    const Swapper proc(image.root() / "proc", image.outside() / "folder");
    constexpr int kRuns = 60;
    int failed = 0;
    for (int i = 0; i < kRuns; ++i) {
      image.file("libcuda.so." + std::to_string(i), shared_object("libcuda.so.1"));
      std::filesystem::rename(image.root() / ("libcuda.so." + std::to_string(i)),
                              image.root() / ("usr/lib/libcuda.so." + std::to_string(i)));
      const Ran ran = update_ldcache_of(image, {"/opt/driver", "/usr/lib"});
      ASSERT_LT(ran.status, 2) << ran.told;
      failed += ran.status;
    }
    EXPECT_LT(failed, kRuns);
    EXPECT_GT(configs.swaps(), 10u * kRuns);
  }
  EXPECT_TRUE(image.outside_is_untouched());
}

}  // namespace
}  // namespace gpulet::hook

#include "hook/cuda_compat.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include "hook/test_elf.h"
#include "hook/test_image.h"

namespace gpulet::hook {
namespace {

using testing::ElementsAre;

ReadAt make_string_reader(const std::string& bytes) {
  return [bytes](std::uint64_t offset, std::span<char> out) {
    if (offset > bytes.size() || out.size() > bytes.size() - offset) return false;
    std::memcpy(out.data(), bytes.data() + offset, out.size());
    return true;
  };
}

TEST(CompatNote, ReadsBothAlignmentsAndPadding) {
  for (const std::uint64_t alignment : {1u, 4u, 8u})
    for (const std::uint32_t padding : {0u, 3u, 64u}) {
      TestLibrary library;
      library.alignment = alignment;
      library.padding = padding;
      const auto note = read_compat_note(make_string_reader(library.file_bytes()));
      ASSERT_TRUE(note && *note) << alignment << ' ' << padding;
      EXPECT_EQ((*note)->cuda_version, "13.1");
      EXPECT_THAT((*note)->drivers, ElementsAre(535, 550, 590));
    }
}

TEST(CompatNote, IgnoresForeignNotesAndLibrariesWithoutOne) {
  TestLibrary other;
  other.owner = "GNU";
  TestLibrary section;
  section.section = ".note.gnu.build-id";
  TestLibrary longer;
  longer.section = ".note.cuda.fwd_compatibility2";
  for (const auto& library : {other, section, longer}) {
    const auto note = read_compat_note(make_string_reader(library.file_bytes()));
    ASSERT_TRUE(note);
    EXPECT_FALSE(*note);
  }
  // This program has no such note.
  EXPECT_EQ(read_compat_note(make_string_reader(TestImage::file_content("/proc/self/exe"))).value(),
            std::nullopt);
}

TEST(CompatNote, RejectsDamagedFiles) {
  const std::string good = TestLibrary{}.file_bytes();
  for (std::size_t size = 0; size < good.size(); ++size) {
    const auto note = read_compat_note(make_string_reader(good.substr(0, size)));
    EXPECT_TRUE(!note || !*note) << size;
  }
  for (const char* text : {"", "{", "{\"Driver\":[-1]}", "{\"Driver\":{}}", "[]"}) {
    TestLibrary library;
    library.text = text;
    const auto note = read_compat_note(make_string_reader(library.file_bytes()));
    EXPECT_TRUE(!note || !*note) << text;
  }
}

TEST(CompatNote, SurvivesAnyChangedByte) {
  rc::check([] {
    std::string bytes = TestLibrary{}.file_bytes();
    const auto changes = *rc::gen::container<std::vector<std::pair<std::size_t, char>>>(
        rc::gen::pair(rc::gen::inRange<std::size_t>(0, bytes.size()), rc::gen::arbitrary<char>()));
    for (const auto& [at, byte] : changes) bytes[at] = byte;
    const auto note = read_compat_note(make_string_reader(bytes));
    const bool bounded = !note || !*note || (*note)->drivers.size() <= 1024u;
    RC_ASSERT(bounded);
  });
}

TEST(CompatUsable, RequiresANewerLibraryThatWorksWithTheDriver) {
  const CompatNote cuda131{"13.1", {535, 550, 590}};
  EXPECT_TRUE(is_compat_usable(cuda131, "590.44.01", {"535.161.08", "12.2"}));
  EXPECT_TRUE(is_compat_usable(cuda131, "590.44.01", {"550.54.14", "12.4"}));
  EXPECT_FALSE(is_compat_usable(cuda131, "590.44.01", {"565.57.01", "12.7"})) << "not in its list";
  EXPECT_FALSE(is_compat_usable(cuda131, "590.44.01", {"590.44.01", "13.1"})) << "no newer";
  EXPECT_FALSE(is_compat_usable(cuda131, "590.44.01", {"590.48.01", "13.1"}));
  EXPECT_TRUE(is_compat_usable(cuda131, "590.44.01", {"", "12.2"})) << "by CUDA's version alone";
  EXPECT_TRUE(is_compat_usable(cuda131, "590.44.01", {"550.54.14", ""})) << "by the drivers alone";
  EXPECT_FALSE(is_compat_usable(cuda131, "590.44.01", {"", ""}));
}

TEST(CompatUsable, ComparesMajorVersionsWithoutANote) {
  EXPECT_TRUE(is_compat_usable(std::nullopt, "550.54.14", {"535.161.08", "12.2"}));
  EXPECT_FALSE(is_compat_usable(std::nullopt, "535.200.01", {"535.161.08", "12.2"}));
  EXPECT_TRUE(is_compat_usable(std::nullopt, "1000.1", {"999.1", ""})) << "as numbers, not as text";
  EXPECT_FALSE(is_compat_usable(std::nullopt, "999.1", {"1000.1", ""}));
  EXPECT_FALSE(is_compat_usable(std::nullopt, "550.54.14", {"", "12.2"}));
}

class CompatHook : public testing::Test {
 protected:
  HookRun enable_compat(const std::string& driver = "535.161.08") const {
    return image_.run_hook(
        {"enable-cuda-compat", "--host-driver-version=" + driver, "--host-cuda-version=12.2"});
  }
  std::string compat_config() const { return image_.read_text("etc/ld.so.conf.d/00-compat-gpulet.conf"); }
  TestImage image_;
};

TEST_F(CompatHook, PrefersANewerLibrary) {
  image_.add_file("usr/local/cuda-13.1/compat/libcuda.so.590.44.01", TestLibrary{}.file_bytes());
  image_.make_symlink("libcuda.so.590.44.01", "usr/local/cuda-13.1/compat/libcuda.so.1");
  image_.make_symlink("/etc/alternatives/cuda", "usr/local/cuda");
  image_.make_symlink("/usr/local/cuda-13.1", "etc/alternatives/cuda");
  EXPECT_EQ(enable_compat().status, 0);
  EXPECT_EQ(compat_config(), "/usr/local/cuda/compat\n");
  struct stat status{};
  ASSERT_EQ(::stat((image_.root_directory() / "etc/ld.so.conf.d/00-compat-gpulet.conf").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0644u);
  EXPECT_EQ(enable_compat().status, 0) << "a second time";
  EXPECT_EQ(
      std::distance(std::filesystem::directory_iterator(image_.root_directory() / "etc/ld.so.conf.d"), {}),
      1);
  // The same root after a driver upgrade: the stale file is removed.
  EXPECT_EQ(enable_compat("595.1").status, 0);
  EXPECT_EQ(compat_config(), "");
}

TEST_F(CompatHook, IgnoresMissingAmbiguousOrDamagedLibraries) {
  EXPECT_EQ(enable_compat().status, 0);
  image_.add_file("usr/local/cuda/compat/libcuda.so.590.44.01", std::string(100, '\0'));
  EXPECT_EQ(enable_compat().status, 0);
  EXPECT_EQ(compat_config(), "");
  image_.add_file("usr/local/cuda/compat/libcuda.so.590.44.01", TestLibrary{}.file_bytes());
  image_.add_file("usr/local/cuda/compat/libcuda.so.580.44.01", TestLibrary{}.file_bytes());
  EXPECT_EQ(enable_compat().status, 0);
  EXPECT_EQ(compat_config(), "");
}

TEST_F(CompatHook, AcceptsAnotherDirectory) {
  image_.add_file("usr/local/cuda/compat_orin/libcuda.so.590.44.01", TestLibrary{}.file_bytes());
  const auto run = [&](const std::string& directory) {
    return image_.run_hook(
        {"enable-cuda-compat", "--host-driver-version=535.1", "--cuda-compat-container-root=" + directory});
  };
  EXPECT_EQ(run("/usr/local/cuda/compat_orin").status, 0);
  EXPECT_EQ(compat_config(), "/usr/local/cuda/compat_orin\n");
  for (const char* directory : {"relative", "/a\n/b", "/a b", "/a:b"})
    EXPECT_EQ(run(directory).status, 1) << directory;
}

}  // namespace
}  // namespace gpulet::hook

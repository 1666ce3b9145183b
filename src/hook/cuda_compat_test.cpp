#include "hook/cuda_compat.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include "hook/test_image.h"
#include "hook/test_library.h"

namespace gpulet::hook {
namespace {

using testing::ElementsAre;

ReadAt reader(const std::string& bytes) {
  return [bytes](std::uint64_t offset, std::span<char> out) {
    if (offset > bytes.size() || out.size() > bytes.size() - offset) return false;
    std::memcpy(out.data(), bytes.data() + offset, out.size());
    return true;
  };
}

TEST(CompatNote, IsReadWithEitherAlignmentAndPadding) {
  for (const std::uint64_t alignment : {1u, 4u, 8u})
    for (const std::uint32_t padding : {0u, 3u, 64u}) {
      TestLibrary library;
      library.alignment = alignment;
      library.padding = padding;
      const auto note = read_compat_note(reader(library.bytes()));
      ASSERT_TRUE(note && *note) << alignment << ' ' << padding;
      EXPECT_EQ((*note)->cuda_version, "13.1");
      EXPECT_THAT((*note)->drivers, ElementsAre(535, 550, 590));
    }
}

TEST(CompatNote, OthersNotesAndLibrariesWithoutOneAreNoError) {
  TestLibrary other;
  other.owner = "GNU";
  TestLibrary section;
  section.section = ".note.gnu.build-id";
  TestLibrary longer;
  longer.section = ".note.cuda.fwd_compatibility2";
  for (const auto& library : {other, section, longer}) {
    const auto note = read_compat_note(reader(library.bytes()));
    ASSERT_TRUE(note);
    EXPECT_FALSE(*note);
  }
  // This very program has no such note.
  EXPECT_EQ(read_compat_note(reader(TestImage::content_of("/proc/self/exe"))).value(), std::nullopt);
}

TEST(CompatNote, DamagedFilesAreErrorsAndNothingWorse) {
  const std::string good = TestLibrary{}.bytes();
  for (std::size_t size = 0; size < good.size(); ++size) {
    const auto note = read_compat_note(reader(good.substr(0, size)));
    EXPECT_TRUE(!note || !*note) << size;
  }
  for (const char* text : {"", "{", "{\"Driver\":[-1]}", "{\"Driver\":{}}", "[]"}) {
    TestLibrary library;
    library.text = text;
    const auto note = read_compat_note(reader(library.bytes()));
    EXPECT_TRUE(!note || !*note) << text;
  }
}

TEST(CompatNote, AnyByteChangedIsSurvived) {
  rc::check([] {
    std::string bytes = TestLibrary{}.bytes();
    const auto changes = *rc::gen::container<std::vector<std::pair<std::size_t, char>>>(
        rc::gen::pair(rc::gen::inRange<std::size_t>(0, bytes.size()), rc::gen::arbitrary<char>()));
    for (const auto& [at, byte] : changes) bytes[at] = byte;
    const auto note = read_compat_note(reader(bytes));
    const bool bounded = !note || !*note || (*note)->drivers.size() <= 1024u;
    RC_ASSERT(bounded);
  });
}

TEST(CompatWanted, OnlyWhatIsNewerAndWorksWithTheDriver) {
  const CompatNote cuda131{"13.1", {535, 550, 590}};
  EXPECT_TRUE(compat_wanted(cuda131, "590.44.01", {"535.161.08", "12.2"}));
  EXPECT_TRUE(compat_wanted(cuda131, "590.44.01", {"550.54.14", "12.4"}));
  EXPECT_FALSE(compat_wanted(cuda131, "590.44.01", {"565.57.01", "12.7"})) << "not in its list";
  EXPECT_FALSE(compat_wanted(cuda131, "590.44.01", {"590.44.01", "13.1"})) << "no newer";
  EXPECT_FALSE(compat_wanted(cuda131, "590.44.01", {"590.48.01", "13.1"}));
  EXPECT_TRUE(compat_wanted(cuda131, "590.44.01", {"", "12.2"})) << "by CUDA's version alone";
  EXPECT_TRUE(compat_wanted(cuda131, "590.44.01", {"550.54.14", ""})) << "by the drivers alone";
  EXPECT_FALSE(compat_wanted(cuda131, "590.44.01", {"", ""}));
}

TEST(CompatWanted, WithoutANoteTheMajorVersionsDecide) {
  EXPECT_TRUE(compat_wanted(std::nullopt, "550.54.14", {"535.161.08", "12.2"}));
  EXPECT_FALSE(compat_wanted(std::nullopt, "535.200.01", {"535.161.08", "12.2"}));
  EXPECT_TRUE(compat_wanted(std::nullopt, "1000.1", {"999.1", ""})) << "as numbers, not as text";
  EXPECT_FALSE(compat_wanted(std::nullopt, "999.1", {"1000.1", ""}));
  EXPECT_FALSE(compat_wanted(std::nullopt, "550.54.14", {"", "12.2"}));
}

class CompatHook : public testing::Test {
 protected:
  Ran enable(const std::string& driver = "535.161.08") const {
    return image_.run({"enable-cuda-compat", "--host-driver-version=" + driver, "--host-cuda-version=12.2"});
  }
  std::string config() const { return image_.read("etc/ld.so.conf.d/00-compat-gpulet.conf"); }
  TestImage image_;
};

TEST_F(CompatHook, ANewerLibraryComesFirst) {
  image_.file("usr/local/cuda-13.1/compat/libcuda.so.590.44.01", TestLibrary{}.bytes());
  image_.link("libcuda.so.590.44.01", "usr/local/cuda-13.1/compat/libcuda.so.1");
  image_.link("/etc/alternatives/cuda", "usr/local/cuda");
  image_.link("/usr/local/cuda-13.1", "etc/alternatives/cuda");
  EXPECT_EQ(enable().status, 0);
  EXPECT_EQ(config(), "/usr/local/cuda/compat\n");
  struct stat status{};
  ASSERT_EQ(::stat((image_.root() / "etc/ld.so.conf.d/00-compat-gpulet.conf").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0644u);
  EXPECT_EQ(enable().status, 0) << "a second time";
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(image_.root() / "etc/ld.so.conf.d"), {}), 1);
  // The same root after a driver upgrade: what an earlier start wrote goes.
  EXPECT_EQ(enable("595.1").status, 0);
  EXPECT_EQ(config(), "");
}

TEST_F(CompatHook, ImagesWithoutWithSeveralOrDamagedLibrariesAreLeft) {
  EXPECT_EQ(enable().status, 0);
  image_.file("usr/local/cuda/compat/libcuda.so.590.44.01", std::string(100, '\0'));
  EXPECT_EQ(enable().status, 0);
  EXPECT_EQ(config(), "");
  image_.file("usr/local/cuda/compat/libcuda.so.590.44.01", TestLibrary{}.bytes());
  image_.file("usr/local/cuda/compat/libcuda.so.580.44.01", TestLibrary{}.bytes());
  EXPECT_EQ(enable().status, 0);
  EXPECT_EQ(config(), "");
}

TEST_F(CompatHook, AFolderOfItsOwn) {
  image_.file("usr/local/cuda/compat_orin/libcuda.so.590.44.01", TestLibrary{}.bytes());
  const auto run = [&](const std::string& folder) {
    return image_.run(
        {"enable-cuda-compat", "--host-driver-version=535.1", "--cuda-compat-container-root=" + folder});
  };
  EXPECT_EQ(run("/usr/local/cuda/compat_orin").status, 0);
  EXPECT_EQ(config(), "/usr/local/cuda/compat_orin\n");
  for (const char* folder : {"relative", "/a\n/b", "/a b", "/a:b"})
    EXPECT_EQ(run(folder).status, 1) << folder;
}

}  // namespace
}  // namespace gpulet::hook

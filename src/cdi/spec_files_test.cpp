#include "cdi/spec_files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/file.h"
#include "cdi/test_driver_root.h"
#include "cdi/validate.h"

namespace gpulet::cdi {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Spec spec(const std::string& device_class, std::size_t devices = 1, const std::string& value = "1") {
  Spec spec{"", "vendor.com/" + device_class};
  for (std::size_t i = 0; i < devices; ++i) {
    spec.devices.push_back({"d" + std::to_string(i), {}, {.env = {"A=" + value}}});
  }
  put_in_order(spec);
  return spec;
}

class SpecFolderTest : public testing::Test {
 protected:
  OnDisk write(const std::vector<Spec>& specs) {
    const auto done = writer.write(specs);
    EXPECT_TRUE(done) << done.error().text();
    return done ? *done : OnDisk{};
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      names.push_back(entry.path().filename().string());
    }
    std::ranges::sort(names);
    return names;
  }
  ino_t inode(const std::string& name) const {
    struct stat status{};
    EXPECT_EQ(::stat((folder + "/" + name).c_str(), &status), 0) << name;
    return status.st_ino;
  }

  TestTree tree;
  std::string folder = tree.path() + "/run/cdi";
  SpecFolder writer{folder};
};

TEST_F(SpecFolderTest, WritesWhatIsAskedAndSaysSo) {
  const auto done = write({spec("gpu", 2), spec("gds")});
  EXPECT_THAT(done.devices, ElementsAre("vendor.com/gds=d0", "vendor.com/gpu=d0", "vendor.com/gpu=d1"));
  EXPECT_TRUE(done.has("vendor.com/gpu=d1"));
  EXPECT_FALSE(done.has("vendor.com/gpu=d2"));
  EXPECT_THAT(done.written, ElementsAre("vendor.com-gds.json", "vendor.com-gpu.json"));
  EXPECT_EQ(*read_file(folder + "/vendor.com-gpu.json"), to_json(spec("gpu", 2)));
  struct stat status{};
  ASSERT_EQ(::stat((folder + "/vendor.com-gpu.json").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0644u);
  EXPECT_THAT(files(), ElementsAre(".gpulet-specs", "vendor.com-gds.json", "vendor.com-gpu.json"));
}

TEST_F(SpecFolderTest, TouchesNothingThatIsAlreadySo) {
  write({spec("gpu"), spec("gds")});
  const auto before = std::pair(inode("vendor.com-gpu.json"), inode(".gpulet-specs"));
  EXPECT_THAT(write({spec("gpu"), spec("gds")}).written, IsEmpty());
  EXPECT_EQ(std::pair(inode("vendor.com-gpu.json"), inode(".gpulet-specs")), before);
  SpecFolder another(folder);  // after a restart
  const auto done = another.write({spec("gpu"), spec("gds")});
  ASSERT_TRUE(done);
  EXPECT_THAT(done->written, IsEmpty());
  EXPECT_EQ(done->devices.size(), 2u);
  EXPECT_EQ(std::pair(inode("vendor.com-gpu.json"), inode(".gpulet-specs")), before);
}

TEST_F(SpecFolderTest, PutsBackWhatIsMissingOrChanged) {
  write({spec("gpu"), spec("gds")});
  tree.file("/run/cdi/vendor.com-gpu.json", "{}");
  std::filesystem::remove(folder + "/vendor.com-gds.json");
  EXPECT_THAT(write({spec("gpu"), spec("gds")}).written,
              ElementsAre("vendor.com-gds.json", "vendor.com-gpu.json"));
  EXPECT_EQ(*read_file(folder + "/vendor.com-gpu.json"), to_json(spec("gpu")));
}

TEST_F(SpecFolderTest, RemovesItsOwnStaleFilesAndNoOthers) {
  tree.file("/run/cdi/nvidia.yaml", "other");
  tree.file("/run/cdi/vendor.com-mofed.json", "looks like ours");
  tree.file("/run/cdi/.hidden.tmp", "other");
  write({spec("gpu"), spec("gds"), spec("imex-channel")});
  tree.file("/run/cdi/vendor.com-imex-channel.json", "somebody's now");
  SpecFolder another(folder);
  const auto done = another.write({spec("gpu")});
  ASSERT_TRUE(done);
  EXPECT_THAT(done->removed, ElementsAre("vendor.com-gds.json"));
  EXPECT_THAT(done->devices, ElementsAre("vendor.com/gpu=d0"));
  EXPECT_THAT(files(), ElementsAre(".gpulet-specs", ".hidden.tmp", "nvidia.yaml", "vendor.com-gpu.json",
                                   "vendor.com-imex-channel.json", "vendor.com-mofed.json"));
  EXPECT_EQ(*read_file(folder + "/vendor.com-mofed.json"), "looks like ours");
  ASSERT_TRUE(another.write({}));
  EXPECT_THAT(files(), ElementsAre(".hidden.tmp", "nvidia.yaml", "vendor.com-imex-channel.json",
                                   "vendor.com-mofed.json"));
}

TEST_F(SpecFolderTest, ALinkOfOurNameIsReplacedAndNotFollowed) {
  tree.file("/victim", "untouched");
  tree.link("/run/cdi/vendor.com-gpu.json", tree.path() + "/victim");
  tree.link("/run/cdi/.gpulet-vendor.com-gpu.json.tmp", tree.path() + "/victim");
  write({spec("gpu")});
  EXPECT_EQ(*read_file(tree.path() + "/victim"), "untouched");
  EXPECT_FALSE(std::filesystem::is_symlink(folder + "/vendor.com-gpu.json"));
}

TEST_F(SpecFolderTest, AFileThatCannotBeWrittenHoldsNoOtherUp) {
  write({spec("gpu", 1), spec("gds", 1)});
  std::filesystem::remove(folder + "/vendor.com-gds.json");
  tree.folder("/run/cdi/vendor.com-gds.json/full");  // a folder cannot be replaced by a file
  const auto done = write({spec("gpu", 2), spec("gds", 2)});
  EXPECT_EQ(done.errors.size(), 1u);
  EXPECT_THAT(done.devices, ElementsAre("vendor.com/gpu=d0", "vendor.com/gpu=d1"));
  EXPECT_THAT(files(), ElementsAre(".gpulet-specs", "vendor.com-gds.json", "vendor.com-gpu.json"));
}

TEST_F(SpecFolderTest, AnotherWriterIsWaitedOutByItsCaller) {
  write({spec("gpu")});
  const FileDescriptor held(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(held.get(), LOCK_EX), 0);
  const auto refused = writer.write({spec("gpu", 2)});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kUnavailable);
  ASSERT_EQ(::flock(held.get(), LOCK_UN), 0);
  EXPECT_EQ(write({spec("gpu", 2)}).devices.size(), 2u);
}

// Killed at any moment: what has a spec's name is whole, nothing hidden stays, and what was there goes when
// it is stale.
TEST_F(SpecFolderTest, KilledWriterLeavesNothingHalf) {
  for (int round = 0; round < 30; ++round) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      SpecFolder folder_of_child(folder);
      for (unsigned i = 0;; ++i) {
        const bool done =
            folder_of_child.write({spec("gpu", 200, std::to_string(i)), spec("gds", i % 2 + 1)}).has_value();
        if (!done || (i == 0 && ::write(ready[1], "x", 1) != 1)) ::_exit(1);
      }
    }
    char byte = 0;
    ::close(ready[1]);
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    for (int spin = 0; spin < round * 20; ++spin) inode("vendor.com-gpu.json");  // another moment each time
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    for (const char* name : {"vendor.com-gpu.json", "vendor.com-gds.json"}) {
      const auto text = read_file(folder + "/" + name);
      ASSERT_TRUE(text);
      EXPECT_TRUE(read_spec(*text, name).spec) << name;
    }
    SpecFolder next(folder);
    ASSERT_TRUE(next.write({spec("gpu")}));
    EXPECT_THAT(files(), ElementsAre(".gpulet-specs", "vendor.com-gpu.json"));
    ASSERT_TRUE(next.write({}));
    EXPECT_THAT(files(), IsEmpty());
  }
}

TEST_F(SpecFolderTest, AReaderNeverSeesAHalfFile) {
  write({spec("gpu", 100, "0")});
  std::atomic<bool> done = false;
  std::atomic<unsigned> reads = 0, wrong = 0;
  std::thread reader([&] {
    while (!done) {
      const auto text = read_file(folder + "/vendor.com-gpu.json");
      if (!text || text->back() != '\n' || !text->starts_with("{\"cdiVersion\"") || !text->ends_with("}}\n"))
        ++wrong;
      ++reads;
    }
  });
  for (unsigned i = 1; i < 200 || reads < 200; ++i) write({spec("gpu", 100 + i % 50, std::to_string(i))});
  done = true;
  reader.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace gpulet::cdi

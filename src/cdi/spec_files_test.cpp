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
#include "cdi/spec.h"
#include "cdi/test_driver_root.h"

namespace gpulet::cdi {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Spec one_device_spec(const std::string& device_class, std::size_t devices = 1,
                     const std::string& value = "1") {
  Spec spec{"", "vendor.com/" + device_class};
  for (std::size_t i = 0; i < devices; ++i) {
    spec.devices.push_back({"d" + std::to_string(i), {}, {.env = {"A=" + value}}});
  }
  canonicalize_spec(spec);
  return spec;
}

class SpecDirectoryTest : public testing::Test {
 protected:
  WrittenSpecs write_and_read(const std::vector<Spec>& specs) {
    const auto done = writer.write_specs(specs);
    EXPECT_TRUE(done) << done.error().full_message();
    return done ? *done : WrittenSpecs{};
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      names.push_back(entry.path().filename().string());
    }
    std::ranges::sort(names);
    return names;
  }
  ino_t inode(const std::string& name) const {
    struct stat status{};
    EXPECT_EQ(::stat((directory + "/" + name).c_str(), &status), 0) << name;
    return status.st_ino;
  }

  TestTree tree;
  std::string directory = tree.tree_path() + "/run/cdi";
  SpecDirectory writer{directory};
};

TEST_F(SpecDirectoryTest, WritesAndReportsFiles) {
  const auto done = write_and_read({one_device_spec("gpu", 2), one_device_spec("gds")});
  EXPECT_THAT(done.devices, ElementsAre("vendor.com/gds=d0", "vendor.com/gpu=d0", "vendor.com/gpu=d1"));
  EXPECT_TRUE(done.has_device("vendor.com/gpu=d1"));
  EXPECT_FALSE(done.has_device("vendor.com/gpu=d2"));
  EXPECT_THAT(done.written, ElementsAre("vendor.com-gds.json", "vendor.com-gpu.json"));
  EXPECT_EQ(*read_file(directory + "/vendor.com-gpu.json"), to_json(one_device_spec("gpu", 2)));
  struct stat status{};
  ASSERT_EQ(::stat((directory + "/vendor.com-gpu.json").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0644u);
  EXPECT_THAT(files(), ElementsAre(".gpulet-specs", "vendor.com-gds.json", "vendor.com-gpu.json"));
}

TEST_F(SpecDirectoryTest, WritesNoUnchangedFile) {
  write_and_read({one_device_spec("gpu"), one_device_spec("gds")});
  const auto before = std::pair(inode("vendor.com-gpu.json"), inode(".gpulet-specs"));
  EXPECT_THAT(write_and_read({one_device_spec("gpu"), one_device_spec("gds")}).written, IsEmpty());
  EXPECT_EQ(std::pair(inode("vendor.com-gpu.json"), inode(".gpulet-specs")), before);
  SpecDirectory another(directory);  // after a restart
  const auto done = another.write_specs({one_device_spec("gpu"), one_device_spec("gds")});
  ASSERT_TRUE(done);
  EXPECT_THAT(done->written, IsEmpty());
  EXPECT_EQ(done->devices.size(), 2u);
  EXPECT_EQ(std::pair(inode("vendor.com-gpu.json"), inode(".gpulet-specs")), before);
}

TEST_F(SpecDirectoryTest, RestoresMissingOrChangedFiles) {
  write_and_read({one_device_spec("gpu"), one_device_spec("gds")});
  tree.make_file("/run/cdi/vendor.com-gpu.json", "{}");
  std::filesystem::remove(directory + "/vendor.com-gds.json");
  EXPECT_THAT(write_and_read({one_device_spec("gpu"), one_device_spec("gds")}).written,
              ElementsAre("vendor.com-gds.json", "vendor.com-gpu.json"));
  EXPECT_EQ(*read_file(directory + "/vendor.com-gpu.json"), to_json(one_device_spec("gpu")));
}

TEST_F(SpecDirectoryTest, RemovesOnlyItsOwnStaleFiles) {
  tree.make_file("/run/cdi/nvidia.yaml", "other");
  tree.make_file("/run/cdi/vendor.com-mofed.json", "looks like ours");
  tree.make_file("/run/cdi/.hidden.tmp", "other");
  write_and_read({one_device_spec("gpu"), one_device_spec("gds"), one_device_spec("imex-channel")});
  tree.make_file("/run/cdi/vendor.com-imex-channel.json", "somebody's now");
  SpecDirectory another(directory);
  const auto done = another.write_specs({one_device_spec("gpu")});
  ASSERT_TRUE(done);
  EXPECT_THAT(done->removed, ElementsAre("vendor.com-gds.json"));
  EXPECT_THAT(done->devices, ElementsAre("vendor.com/gpu=d0"));
  EXPECT_THAT(files(), ElementsAre(".gpulet-specs", ".hidden.tmp", "nvidia.yaml", "vendor.com-gpu.json",
                                   "vendor.com-imex-channel.json", "vendor.com-mofed.json"));
  EXPECT_EQ(*read_file(directory + "/vendor.com-mofed.json"), "looks like ours");
  ASSERT_TRUE(another.write_specs({}));
  EXPECT_THAT(files(), ElementsAre(".hidden.tmp", "nvidia.yaml", "vendor.com-imex-channel.json",
                                   "vendor.com-mofed.json"));
}

TEST_F(SpecDirectoryTest, ReplacesALinkWithoutFollowingIt) {
  tree.make_file("/victim", "untouched");
  tree.make_link("/run/cdi/vendor.com-gpu.json", tree.tree_path() + "/victim");
  tree.make_link("/run/cdi/.gpulet-vendor.com-gpu.json.tmp", tree.tree_path() + "/victim");
  write_and_read({one_device_spec("gpu")});
  EXPECT_EQ(*read_file(tree.tree_path() + "/victim"), "untouched");
  EXPECT_FALSE(std::filesystem::is_symlink(directory + "/vendor.com-gpu.json"));
}

TEST_F(SpecDirectoryTest, WritesOtherFilesAfterAFailure) {
  write_and_read({one_device_spec("gpu", 1), one_device_spec("gds", 1)});
  std::filesystem::remove(directory + "/vendor.com-gds.json");
  tree.make_directory("/run/cdi/vendor.com-gds.json/full");  // a directory cannot be replaced by a file
  const auto done = write_and_read({one_device_spec("gpu", 2), one_device_spec("gds", 2)});
  EXPECT_EQ(done.errors.size(), 1u);
  EXPECT_THAT(done.devices, ElementsAre("vendor.com/gpu=d0", "vendor.com/gpu=d1"));
  EXPECT_THAT(files(), ElementsAre(".gpulet-specs", "vendor.com-gds.json", "vendor.com-gpu.json"));
}

TEST_F(SpecDirectoryTest, ReportsAnotherWriter) {
  write_and_read({one_device_spec("gpu")});
  const FileDescriptor held(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(held.get(), LOCK_EX), 0);
  const auto refused = writer.write_specs({one_device_spec("gpu", 2)});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kUnavailable);
  ASSERT_EQ(::flock(held.get(), LOCK_UN), 0);
  EXPECT_EQ(write_and_read({one_device_spec("gpu", 2)}).devices.size(), 2u);
}

// Killed at any moment: every file with a spec's name is complete, no hidden file stays, and stale
// files are removed.
TEST_F(SpecDirectoryTest, LeavesNoPartialFileWhenKilled) {
  for (int round = 0; round < 30; ++round) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      SpecDirectory directory_of_child(directory);
      for (unsigned i = 0;; ++i) {
        const bool done = directory_of_child
                              .write_specs({one_device_spec("gpu", 200, std::to_string(i)),
                                            one_device_spec("gds", i % 2 + 1)})
                              .has_value();
        if (!done || (i == 0 && ::write(ready[1], "x", 1) != 1)) ::_exit(1);
      }
    }
    char byte = 0;
    ::close(ready[1]);
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    for (int spin = 0; spin < round * 20; ++spin)
      inode("vendor.com-gpu.json");  // a different moment each time
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    for (const char* name : {"vendor.com-gpu.json", "vendor.com-gds.json"}) {
      const auto text = read_file(directory + "/" + name);
      ASSERT_TRUE(text);
      EXPECT_TRUE(read_spec(*text, name).spec) << name;
    }
    SpecDirectory next(directory);
    ASSERT_TRUE(next.write_specs({one_device_spec("gpu")}));
    EXPECT_THAT(files(), ElementsAre(".gpulet-specs", "vendor.com-gpu.json"));
    ASSERT_TRUE(next.write_specs({}));
    EXPECT_THAT(files(), IsEmpty());
  }
}

TEST_F(SpecDirectoryTest, WritesFilesAtomically) {
  write_and_read({one_device_spec("gpu", 100, "0")});
  std::atomic<bool> done = false;
  std::atomic<unsigned> reads = 0, wrong = 0;
  std::thread reader([&] {
    while (!done) {
      const auto text = read_file(directory + "/vendor.com-gpu.json");
      if (!text || text->back() != '\n' || !text->starts_with("{\"cdiVersion\"") || !text->ends_with("}}\n"))
        ++wrong;
      ++reads;
    }
  });
  for (unsigned i = 1; i < 200 || reads < 200; ++i)
    write_and_read({one_device_spec("gpu", 100 + i % 50, std::to_string(i))});
  done = true;
  reader.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace gpulet::cdi

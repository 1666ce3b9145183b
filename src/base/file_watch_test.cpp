#include "base/file_watch.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

namespace gpulet {
namespace {

namespace fs = std::filesystem;

class FileWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "gpulet-watch-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  void TearDown() override {
    loop_.stop();
    if (runner_.joinable()) runner_.join();
    watch_.reset();
    fs::remove_all(folder_);
  }

  static void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }
  void watch(const fs::path& path) {
    auto started = FileWatch::start(loop_, path, [this] {
      const std::lock_guard lock(mutex_);
      ++told_;
      changed_.notify_all();
    });
    ASSERT_TRUE(started) << started.error().text();
    watch_ = std::move(*started);
    runner_ = std::thread([this] { loop_.run(); });
  }
  // Waits until the file was told of more often than expect_told has counted.
  bool told_within(Duration limit) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [this] { return told_ > counted_; });
  }
  // Told of what was done before. A second time would be for a change that came while the first was told.
  void expect_told() {
    EXPECT_TRUE(told_within(std::chrono::seconds(10)));
    while (told_within(kWatchDebounce * 3)) {
      const std::lock_guard lock(mutex_);
      counted_ = told_;
    }
  }

  EpollLoop loop_;
  fs::path folder_;
  std::unique_ptr<FileWatch> watch_;
  std::thread runner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int told_ = 0, counted_ = 0;
};

TEST_F(FileWatchTest, WrittenInPlace) {
  write(folder_ / "c.yaml", "a");
  watch(folder_ / "c.yaml");
  write(folder_ / "c.yaml", "b");
  expect_told();
}

TEST_F(FileWatchTest, ABurstIsToldOnce) {
  write(folder_ / "c.yaml", "a");
  watch(folder_ / "c.yaml");
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 50; ++i) write(folder_ / "c.yaml", std::to_string(i));
  expect_told();
  // At most once each time that the debounce passed meanwhile.
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_LE(counted_, took / kWatchDebounce + 1);
}

TEST_F(FileWatchTest, RenamedOver) {
  write(folder_ / "c.yaml", "a");
  watch(folder_ / "c.yaml");
  for (int i = 0; i < 3; ++i) {
    write(folder_ / "next", "b");
    fs::rename(folder_ / "next", folder_ / "c.yaml");
    expect_told();
  }
}

TEST_F(FileWatchTest, DeletedAndBack) {
  write(folder_ / "c.yaml", "a");
  watch(folder_ / "c.yaml");
  fs::remove(folder_ / "c.yaml");
  expect_told();
  write(folder_ / "c.yaml", "b");
  expect_told();
}

TEST_F(FileWatchTest, FolderDeletedAndBack) {
  fs::create_directories(folder_ / "a/b");
  write(folder_ / "a/b/c.yaml", "a");
  watch(folder_ / "a/b/c.yaml");
  fs::remove_all(folder_ / "a");
  expect_told();
  fs::create_directories(folder_ / "a/b");
  write(folder_ / "a/b/c.yaml", "b");
  expect_told();
  write(folder_ / "a/b/c.yaml", "c");
  expect_told();
}

TEST_F(FileWatchTest, NotThereYet) {
  watch(folder_ / "x/y/c.yaml");
  fs::create_directories(folder_ / "x/y");
  expect_told();
  write(folder_ / "x/y/c.yaml", "a");
  expect_told();
}

// As the kubelet swaps a ConfigMap: c.yaml → ..data/c.yaml, ..data → a folder of its own, replaced by a
// rename.
TEST_F(FileWatchTest, ConfigMapSwapped) {
  fs::create_directory(folder_ / "..1");
  write(folder_ / "..1/c.yaml", "a");
  fs::create_symlink("..1", folder_ / "..data");
  fs::create_symlink("..data/c.yaml", folder_ / "c.yaml");
  watch(folder_ / "c.yaml");
  for (int i = 2; i < 5; ++i) {
    const auto version = folder_ / (".." + std::to_string(i));
    fs::create_directory(version);
    write(version / "c.yaml", "b");
    fs::create_symlink(version.filename(), folder_ / "..data_tmp");
    fs::rename(folder_ / "..data_tmp", folder_ / "..data");
    fs::remove_all(folder_ / (".." + std::to_string(i - 1)));
    expect_told();
  }
}

// As NVIDIA's config-manager does: a link elsewhere, that is itself part of a ConfigMap.
TEST_F(FileWatchTest, LinkToAnotherFolderSwappedAndItsTargetWritten) {
  fs::create_directories(folder_ / "available");
  fs::create_directories(folder_ / "config");
  write(folder_ / "available/one", "a");
  write(folder_ / "available/two", "b");
  fs::create_symlink(folder_ / "available/one", folder_ / "config/config.yaml");
  watch(folder_ / "config/config.yaml");
  write(folder_ / "available/one", "c");
  expect_told();
  fs::remove(folder_ / "config/config.yaml");
  fs::create_symlink(folder_ / "available/two", folder_ / "config/config.yaml");
  expect_told();
  write(folder_ / "available/one", "d");
  EXPECT_FALSE(told_within(kWatchDebounce * 3));
  write(folder_ / "available/two", "e");
  expect_told();
}

TEST_F(FileWatchTest, OtherFilesAndLinksInACircleAreNothing) {
  fs::create_symlink("b", folder_ / "a");
  fs::create_symlink("a", folder_ / "b");
  watch(folder_ / "a");
  write(folder_ / "other.yaml", "x");
  EXPECT_FALSE(told_within(kWatchDebounce * 3));
  fs::remove(folder_ / "a");
  write(folder_ / "a", "x");
  expect_told();
}

}  // namespace
}  // namespace gpulet

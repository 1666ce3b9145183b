#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/file_watch.h"

namespace gpulet {
namespace {

using namespace std::chrono_literals;

class Inotify : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "inotify.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void touch(const std::string& name) { ASSERT_TRUE(write_file_atomic(directory_ + "/" + name, "x")); }
  // Runs until a callback calls `stop`; fails the test after a limit.
  void run() {
    auto late = loop_.after(10s, [&] {
      ADD_FAILURE() << "no event came";
      loop_.stop_loop();
    });
    loop_.run_loop();
  }

  EpollLoop loop_;
  std::string directory_;
};

TEST_F(Inotify, ReportsTheNameAndOnlyRequestedEvents) {
  std::vector<std::string> created, removed;
  auto first = watch_events(loop_, directory_, IN_MOVED_TO, [&](const std::string& name, std::uint32_t mask) {
    EXPECT_EQ(mask & IN_MOVED_TO, IN_MOVED_TO);
    created.push_back(name);
  });
  auto second = watch_events(loop_, directory_, IN_DELETE, [&](const std::string& name, std::uint32_t) {
    removed.push_back(name);
    loop_.stop_loop();
  });
  ASSERT_TRUE(first && second);
  touch("a");
  touch("b");
  ::unlink((directory_ + "/a").c_str());
  run();
  EXPECT_EQ(created, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(removed, (std::vector<std::string>{"a"}));
}

TEST_F(Inotify, CallbackMayRemoveItsOwnAndOtherWatches) {
  int calls = 0;
  Subscription one, two;
  auto end_both = [&](const std::string&, std::uint32_t) {
    ++calls;
    one.reset();
    two.reset();
    loop_.post([&] { loop_.stop_loop(); });
  };
  one = std::move(*watch_events(loop_, directory_, IN_MOVED_TO, end_both));
  two = std::move(*watch_events(loop_, directory_, IN_MOVED_TO, end_both));
  touch("a");
  touch("b");
  run();
  EXPECT_EQ(calls, 1);
}

TEST_F(Inotify, RemovedDirectoryEndsItsWatchAndANewWatchWorks) {
  const std::string inner = directory_ + "/inner";
  ASSERT_EQ(::mkdir(inner.c_str(), 0755), 0);
  std::uint32_t seen = 0;
  auto watch = watch_events(loop_, inner, IN_DELETE_SELF, [&](const std::string& name, std::uint32_t mask) {
    EXPECT_TRUE(name.empty());
    seen |= mask;
    if ((mask & IN_IGNORED) != 0) loop_.stop_loop();
  });
  ASSERT_TRUE(watch);
  ::rmdir(inner.c_str());
  run();
  EXPECT_EQ(seen, static_cast<std::uint32_t>(IN_DELETE_SELF | IN_IGNORED));
  const auto missing = watch_events(loop_, inner, IN_CREATE, [](const std::string&, std::uint32_t) {});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), Code::kNotFound);
}

// Closing one takes the kernel many milliseconds, during which the loop would stand.
TEST_F(Inotify, WatchesOfALoopShareOneDescriptorThatStaysUntilTheLoopEnds) {
  const auto open_descriptors = [] {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code closed;
      if (std::filesystem::read_symlink(entry, closed) == "anon_inode:inotify") ++count;
    }
    return count;
  };
  const auto ignore = [](const std::string&, std::uint32_t) {};
  const std::size_t before = open_descriptors();
  {
    EpollLoop loop;
    for (int i = 0; i < 3; ++i) {
      const auto one = watch_events(loop, directory_, IN_CREATE, ignore);
      const auto two = watch_events(loop, "/", IN_CREATE, ignore);
      EXPECT_TRUE(one && two);
      EXPECT_EQ(open_descriptors(), before + 1);
    }
    EXPECT_EQ(open_descriptors(), before + 1);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(Inotify, OverflowIsReportedToEveryWatchOnce) {
  const auto limit = read_file("/proc/sys/fs/inotify/max_queued_events");
  ASSERT_TRUE(limit);
  const int events = std::stoi(*limit) + 100;
  ASSERT_LT(events, 2'000'000);
  const std::string inner = directory_ + "/inner";
  ASSERT_EQ(::mkdir(inner.c_str(), 0755), 0);
  touch("a");
  int overflows = 0, elsewhere = 0;
  auto busy = watch_events(loop_, directory_, IN_ATTRIB, [&](const std::string&, std::uint32_t mask) {
    if ((mask & IN_Q_OVERFLOW) != 0) ++overflows;
  });
  auto quiet = watch_events(loop_, inner, IN_CREATE, [&](const std::string& name, std::uint32_t mask) {
    EXPECT_TRUE(name.empty());
    EXPECT_EQ(mask, static_cast<std::uint32_t>(IN_Q_OVERFLOW));
    ++elsewhere;
    loop_.stop_loop();
  });
  // Alternating, because the kernel merges equal consecutive events.
  const std::string file = directory_ + "/a";
  for (int i = 0; i < events; ++i) ::chmod((i % 2 == 0 ? file : inner).c_str(), 0700);
  run();
  EXPECT_EQ(overflows, 1);
  EXPECT_EQ(elsewhere, 1);
}

}  // namespace

namespace {

namespace fs = std::filesystem;

class FileWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "gpulet-watch-XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  void TearDown() override {
    loop_.stop_loop();
    if (runner_.joinable()) runner_.join();
    watch_.reset();
    fs::remove_all(directory_);
  }

  static void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }
  void watch(const fs::path& path) {
    auto started = FileWatcher::watch_path(loop_, path, [this] {
      const std::lock_guard lock(mutex_);
      ++changes_seen_;
      changed_.notify_all();
    });
    ASSERT_TRUE(started) << started.error().full_message();
    watch_ = std::move(*started);
    runner_ = std::thread([this] { loop_.run_loop(); });
  }
  // Waits for one more report than expect_told has counted.
  bool changed_within(Duration limit) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [this] { return changes_seen_ > counted_; });
  }
  // Reports the change before. A second report is possible only for a change during the first.
  void expect_told() {
    EXPECT_TRUE(changed_within(std::chrono::seconds(10)));
    while (changed_within(kWatchDebounce * 3)) {
      const std::lock_guard lock(mutex_);
      counted_ = changes_seen_;
    }
  }

  EpollLoop loop_;
  fs::path directory_;
  std::unique_ptr<FileWatcher> watch_;
  std::thread runner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int changes_seen_ = 0, counted_ = 0;
};

TEST_F(FileWatchTest, WrittenInPlace) {
  write(directory_ / "c.yaml", "a");
  watch(directory_ / "c.yaml");
  write(directory_ / "c.yaml", "b");
  expect_told();
}

TEST_F(FileWatchTest, BurstIsReportedOnce) {
  write(directory_ / "c.yaml", "a");
  watch(directory_ / "c.yaml");
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 50; ++i) write(directory_ / "c.yaml", std::to_string(i));
  expect_told();
  // At most one report per debounce interval.
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_LE(counted_, took / kWatchDebounce + 1);
}

TEST_F(FileWatchTest, RenamedOver) {
  write(directory_ / "c.yaml", "a");
  watch(directory_ / "c.yaml");
  for (int i = 0; i < 3; ++i) {
    write(directory_ / "next", "b");
    fs::rename(directory_ / "next", directory_ / "c.yaml");
    expect_told();
  }
}

TEST_F(FileWatchTest, DeletedAndRecreated) {
  write(directory_ / "c.yaml", "a");
  watch(directory_ / "c.yaml");
  fs::remove(directory_ / "c.yaml");
  expect_told();
  write(directory_ / "c.yaml", "b");
  expect_told();
}

TEST_F(FileWatchTest, DirectoryDeletedAndRecreated) {
  fs::create_directories(directory_ / "a/b");
  write(directory_ / "a/b/c.yaml", "a");
  watch(directory_ / "a/b/c.yaml");
  fs::remove_all(directory_ / "a");
  expect_told();
  fs::create_directories(directory_ / "a/b");
  write(directory_ / "a/b/c.yaml", "b");
  expect_told();
  write(directory_ / "a/b/c.yaml", "c");
  expect_told();
}

TEST_F(FileWatchTest, FileCreatedLater) {
  watch(directory_ / "x/y/c.yaml");
  fs::create_directories(directory_ / "x/y");
  expect_told();
  write(directory_ / "x/y/c.yaml", "a");
  expect_told();
}

// As the kubelet swaps a ConfigMap: c.yaml → ..data/c.yaml, ..data → a directory of its own, replaced by a
// rename.
TEST_F(FileWatchTest, ConfigMapSwapped) {
  fs::create_directory(directory_ / "..1");
  write(directory_ / "..1/c.yaml", "a");
  fs::create_symlink("..1", directory_ / "..data");
  fs::create_symlink("..data/c.yaml", directory_ / "c.yaml");
  watch(directory_ / "c.yaml");
  for (int i = 2; i < 5; ++i) {
    const auto version = directory_ / (".." + std::to_string(i));
    fs::create_directory(version);
    write(version / "c.yaml", "b");
    fs::create_symlink(version.filename(), directory_ / "..data_tmp");
    fs::rename(directory_ / "..data_tmp", directory_ / "..data");
    fs::remove_all(directory_ / (".." + std::to_string(i - 1)));
    expect_told();
  }
}

// As with NVIDIA's config-manager: a link to a file in a mounted ConfigMap.
TEST_F(FileWatchTest, LinkSwappedToAnotherDirectoryAndItsTargetWritten) {
  fs::create_directories(directory_ / "available");
  fs::create_directories(directory_ / "config");
  write(directory_ / "available/one", "a");
  write(directory_ / "available/two", "b");
  fs::create_symlink(directory_ / "available/one", directory_ / "config/config.yaml");
  watch(directory_ / "config/config.yaml");
  write(directory_ / "available/one", "c");
  expect_told();
  fs::remove(directory_ / "config/config.yaml");
  fs::create_symlink(directory_ / "available/two", directory_ / "config/config.yaml");
  expect_told();
  write(directory_ / "available/one", "d");
  EXPECT_FALSE(changed_within(kWatchDebounce * 3));
  write(directory_ / "available/two", "e");
  expect_told();
}

TEST_F(FileWatchTest, OtherFilesAndLinkLoopsAreIgnored) {
  fs::create_symlink("b", directory_ / "a");
  fs::create_symlink("a", directory_ / "b");
  watch(directory_ / "a");
  write(directory_ / "other.yaml", "x");
  EXPECT_FALSE(changed_within(kWatchDebounce * 3));
  fs::remove(directory_ / "a");
  write(directory_ / "a", "x");
  expect_told();
}

}  // namespace
}  // namespace gpulet

#include "base/inotify.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

namespace gpulet {
namespace {

using namespace std::chrono_literals;

class Inotify : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "inotify.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    folder_ = path;
    auto opened = InotifyWatch::open(loop_);
    ASSERT_TRUE(opened) << opened.error().text();
    watch_ = std::move(*opened);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void touch(const std::string& name) {
    ASSERT_TRUE(write_file_atomic(folder_ + "/" + name, "x"));
  }
  // Until `stop` is called by a callback; fails the test instead of waiting for ever.
  void run() {
    auto late = loop_.after(10s, [&] {
      ADD_FAILURE() << "no event came";
      loop_.stop();
    });
    loop_.run();
  }

  EpollLoop loop_;
  std::string folder_;
  std::unique_ptr<InotifyWatch> watch_;
};

TEST_F(Inotify, TellsTheNameAndOnlyWhatWasAskedFor) {
  std::vector<std::string> created, removed;
  auto first = watch_->add(folder_, IN_MOVED_TO, [&](const std::string& name, std::uint32_t mask) {
    EXPECT_EQ(mask & IN_MOVED_TO, IN_MOVED_TO);
    created.push_back(name);
  });
  auto second = watch_->add(folder_, IN_DELETE, [&](const std::string& name, std::uint32_t) {
    removed.push_back(name);
    loop_.stop();
  });
  ASSERT_TRUE(first && second);
  touch("a");
  touch("b");
  ::unlink((folder_ + "/a").c_str());
  run();
  EXPECT_EQ(created, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(removed, (std::vector<std::string>{"a"}));
}

TEST_F(Inotify, AWatchMayEndItselfAndItsNeighbourInsideACallback) {
  int calls = 0;
  Subscription one, two;
  auto end_both = [&](const std::string&, std::uint32_t) {
    ++calls;
    one.reset();
    two.reset();
    loop_.post([&] { loop_.stop(); });
  };
  one = std::move(*watch_->add(folder_, IN_MOVED_TO, end_both));
  two = std::move(*watch_->add(folder_, IN_MOVED_TO, end_both));
  touch("a");
  touch("b");
  run();
  EXPECT_EQ(calls, 1);
}

TEST_F(Inotify, AFolderThatGoesEndsItsWatchAndANewOneWorks) {
  const std::string inner = folder_ + "/inner";
  ASSERT_EQ(::mkdir(inner.c_str(), 0755), 0);
  std::uint32_t seen = 0;
  auto watch = watch_->add(inner, IN_DELETE_SELF, [&](const std::string& name, std::uint32_t mask) {
    EXPECT_TRUE(name.empty());
    seen |= mask;
    if ((mask & IN_IGNORED) != 0) loop_.stop();
  });
  ASSERT_TRUE(watch);
  ::rmdir(inner.c_str());
  run();
  EXPECT_EQ(seen, static_cast<std::uint32_t>(IN_DELETE_SELF | IN_IGNORED));
  const auto missing = watch_->add(inner, IN_CREATE, [](const std::string&, std::uint32_t) {});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), Code::kNotFound);
}

TEST_F(Inotify, AnOverflowIsToldToEveryWatchOnce) {
  const auto limit = read_file("/proc/sys/fs/inotify/max_queued_events");
  ASSERT_TRUE(limit);
  const int events = std::stoi(*limit) + 100;
  ASSERT_LT(events, 2'000'000);
  const std::string inner = folder_ + "/inner";
  ASSERT_EQ(::mkdir(inner.c_str(), 0755), 0);
  touch("a");
  int overflows = 0, elsewhere = 0;
  auto busy = watch_->add(folder_, IN_ATTRIB, [&](const std::string&, std::uint32_t mask) {
    if ((mask & IN_Q_OVERFLOW) != 0) ++overflows;
  });
  auto quiet = watch_->add(inner, IN_CREATE, [&](const std::string& name, std::uint32_t mask) {
    EXPECT_TRUE(name.empty());
    EXPECT_EQ(mask, static_cast<std::uint32_t>(IN_Q_OVERFLOW));
    ++elsewhere;
    loop_.stop();
  });
  // Alternating, since the kernel merges equal neighbours.
  const std::string file = folder_ + "/a";
  for (int i = 0; i < events; ++i) ::chmod((i % 2 == 0 ? file : inner).c_str(), 0700);
  run();
  EXPECT_EQ(overflows, 1);
  EXPECT_EQ(elsewhere, 1);
}

}  // namespace
}  // namespace gpulet

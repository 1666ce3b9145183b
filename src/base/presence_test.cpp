#include "base/presence.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "base/file_watch.h"

namespace gpulet {
namespace {

class PresenceTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "presence.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    folder_ = path;
    path_ = folder_ + "/deep/agent.lock";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  bool held() const {
    const auto held = Presence::held(path_);
    EXPECT_TRUE(held) << held.error().text();
    return held.value_or(false);
  }

  std::string folder_, path_;
};

TEST_F(PresenceTest, IsHeldAsLongAsItsObjectLives) {
  EXPECT_FALSE(held()) << "there is no such file";
  {
    auto first = Presence::hold(path_);
    ASSERT_TRUE(first) << first.error().text();
    EXPECT_TRUE(held());
    EXPECT_TRUE(held()) << "asking takes nothing away";
    const auto second = Presence::hold(path_);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code(), Code::kFailedPrecondition);
    const Presence moved = std::move(*first);
    EXPECT_TRUE(held());
  }
  EXPECT_FALSE(held());
  EXPECT_TRUE(Presence::hold(path_)) << "what is left behind is in nobody's way";
}

TEST_F(PresenceTest, EndsWithAProcessThatIsKilledAndAWatchIsTold) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto presence = Presence::hold(path_);
    const char answer = presence ? 'y' : 'n';
    if (::write(ready[1], &answer, 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char answer = 0;
  ASSERT_EQ(::read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  EXPECT_TRUE(held());

  EpollLoop loop;
  bool told = false;
  const auto watch = FileWatch::start(loop, path_, [&] {
    told = true;
    loop.stop();
  });
  ASSERT_TRUE(watch) << watch.error().text();
  const auto late = loop.after(std::chrono::seconds(20), [&] { loop.stop(); });
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  loop.run();
  EXPECT_TRUE(told);
  EXPECT_FALSE(held());
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(PresenceTest, FollowsNoLinkAndSaysWhatIsWrong) {
  std::filesystem::create_directories(folder_ + "/deep");
  std::filesystem::create_symlink("/etc/passwd", path_);
  const auto presence = Presence::hold(path_);
  ASSERT_FALSE(presence);
  EXPECT_EQ(presence.error().about(), path_);
  EXPECT_FALSE(Presence::hold("/proc/none/agent.lock"));
}

}  // namespace
}  // namespace gpulet

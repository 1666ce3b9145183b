#include "web/local_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/unix_socket.h"

namespace gpulet::web {
namespace {

namespace fs = std::filesystem;

class LocalSocketTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "local_socket_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name = "run/agent.sock") const { return folder_ + "/" + name; }
  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(path("run")), {}));
  }
  static mode_t mode_of(const std::string& path) {
    struct stat found{};
    return ::lstat(path.c_str(), &found) == 0 ? found.st_mode & 07777 : 0;
  }
  static std::string error_of(const std::string& path) {
    const auto made = LocalSocket::listen(path, 0660);
    return made ? "" : made.error().text();
  }

  std::string folder_;
};

TEST_F(LocalSocketTest, ListensWithItsModeAndIsTakenAway) {
  const mode_t before = ::umask(0077);
  auto made = LocalSocket::listen(path(), 0664);
  ::umask(before);
  ASSERT_TRUE(made) << made.error().text();
  EXPECT_EQ(mode_of(path()), 0664u);
  EXPECT_TRUE(connect_unix(path()));
  EXPECT_EQ(entries(), 1u);
  made->reset();
  EXPECT_EQ(entries(), 0u);
}

TEST_F(LocalSocketTest, TakesThePlaceOfOneThatWasLeft) {
  fs::create_directory(path("run"));
  ASSERT_TRUE(bind_unix(path()));  // nobody listens there any more
  auto made = LocalSocket::listen(path(), 0600);
  ASSERT_TRUE(made) << made.error().text();
  EXPECT_TRUE(connect_unix(path()));
  EXPECT_EQ(mode_of(path()), 0600u);
  // One that goes on running does not take another's away.
  auto other = LocalSocket::listen(path(), 0660);
  ASSERT_TRUE(other);
  made->reset();
  EXPECT_TRUE(connect_unix(path()));
}

TEST_F(LocalSocketTest, NothingElseIsTouchedAndNoLinkFollowed) {
  fs::create_directory(path("run"));
  std::ofstream(path()) << "precious";
  EXPECT_EQ(error_of(path()), path() + ": something else than a socket is there");
  fs::remove(path());
  std::ofstream(path("target")) << "precious";
  fs::create_symlink(path("target"), path());
  EXPECT_EQ(error_of(path()), path() + ": something else than a socket is there");
  EXPECT_TRUE(fs::is_symlink(path()));
  EXPECT_EQ(fs::file_size(path("target")), 8u);
  fs::create_directory_symlink(path("run"), path("link"));
  EXPECT_EQ(error_of(path("link/agent.sock")), path("link") + ": not a folder, and a link is not followed");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(LocalSocketTest, AFolderInWhichOthersWriteIsRefused) {
  fs::create_directory(path("run"));
  for (const mode_t mode : {0775u, 0757u, 01777u}) {
    ASSERT_EQ(::chmod(path("run").c_str(), mode), 0);
    EXPECT_NE(error_of(path()).find("others may write in this folder"), std::string::npos) << mode;
  }
  ASSERT_EQ(::chmod(path("run").c_str(), 0755), 0);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(path("run").c_str(), 1234, 0), 0);
    EXPECT_NE(error_of(path()).find("it must be root's"), std::string::npos);
    ASSERT_EQ(::chown(path("run").c_str(), 0, 0), 0);
  }
  EXPECT_EQ(error_of(path()), "");
  EXPECT_EQ(entries(), 0u);
}

TEST_F(LocalSocketTest, PathsThatCannotBe) {
  for (const std::string bad : {"", "agent.sock", "/run/", "/"}) {
    const auto made = LocalSocket::listen(bad, 0660);
    ASSERT_FALSE(made) << bad;
    EXPECT_EQ(made.error().code(), Code::kInvalidArgument) << bad;
  }
  EXPECT_NE(error_of(path("run/" + std::string(kMaxSocketPath, 'x'))).find("at most 107 bytes"),
            std::string::npos);
  // As long as a client can reach is long enough for us.
  const std::string longest = path("run/");
  EXPECT_EQ(error_of(longest + std::string(kMaxSocketPath - longest.size(), 'x')), "");
}

}  // namespace
}  // namespace gpulet::web

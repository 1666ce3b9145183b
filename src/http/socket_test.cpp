#include "http/socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/file.h"

namespace gpulet::http {
namespace {

namespace fs = std::filesystem;

class LocalSocketTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "local_socket_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { fs::remove_all(directory_); }
  std::string socket_path(const std::string& name = "run/agent.sock") const {
    return directory_ + "/" + name;
  }
  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(socket_path("run")), {}));
  }
  static mode_t mode_of(const std::string& path) {
    struct stat found{};
    return ::lstat(path.c_str(), &found) == 0 ? found.st_mode & 07777 : 0;
  }
  static std::string listen_error(const std::string& path) {
    const auto made = LocalSocket::listen_unix(path, 0660);
    return made ? "" : made.error().full_message();
  }

  std::string directory_;
};

TEST_F(LocalSocketTest, ListensWithItsModeAndIsRemoved) {
  const mode_t before = ::umask(0077);
  auto made = LocalSocket::listen_unix(socket_path(), 0664);
  ::umask(before);
  ASSERT_TRUE(made) << made.error().full_message();
  EXPECT_EQ(mode_of(socket_path()), 0664u);
  EXPECT_TRUE(connect_unix_socket(socket_path()));
  EXPECT_EQ(entries(), 1u);
  made->reset();
  EXPECT_EQ(entries(), 0u);
}

TEST_F(LocalSocketTest, ReplacesAStaleSocket) {
  fs::create_directory(socket_path("run"));
  ASSERT_TRUE(bind_unix_socket(socket_path()));  // nothing listens there any more
  auto made = LocalSocket::listen_unix(socket_path(), 0600);
  ASSERT_TRUE(made) << made.error().full_message();
  EXPECT_TRUE(connect_unix_socket(socket_path()));
  EXPECT_EQ(mode_of(socket_path()), 0600u);
  // An older listener does not remove the socket of a newer one.
  auto other = LocalSocket::listen_unix(socket_path(), 0660);
  ASSERT_TRUE(other);
  made->reset();
  EXPECT_TRUE(connect_unix_socket(socket_path()));
}

TEST_F(LocalSocketTest, TouchesNoOtherFileAndFollowsNoLink) {
  fs::create_directory(socket_path("run"));
  std::ofstream(socket_path()) << "precious";
  EXPECT_EQ(listen_error(socket_path()), socket_path() + ": exists and is not a socket");
  fs::remove(socket_path());
  std::ofstream(socket_path("target")) << "precious";
  fs::create_symlink(socket_path("target"), socket_path());
  EXPECT_EQ(listen_error(socket_path()), socket_path() + ": exists and is not a socket");
  EXPECT_TRUE(fs::is_symlink(socket_path()));
  EXPECT_EQ(fs::file_size(socket_path("target")), 8u);
  fs::create_directory_symlink(socket_path("run"), socket_path("link"));
  EXPECT_EQ(listen_error(socket_path("link/agent.sock")),
            socket_path("link") + ": not a directory; links are not followed");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(LocalSocketTest, DirectoryWritableByOthersIsRefused) {
  fs::create_directory(socket_path("run"));
  for (const mode_t mode : {0775u, 0757u, 01777u}) {
    ASSERT_EQ(::chmod(socket_path("run").c_str(), mode), 0);
    EXPECT_NE(listen_error(socket_path()).find("others may write in this directory"), std::string::npos)
        << mode;
  }
  ASSERT_EQ(::chmod(socket_path("run").c_str(), 0755), 0);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(socket_path("run").c_str(), 1234, 0), 0);
    EXPECT_NE(listen_error(socket_path()).find("it must belong to root"), std::string::npos);
    ASSERT_EQ(::chown(socket_path("run").c_str(), 0, 0), 0);
  }
  EXPECT_EQ(listen_error(socket_path()), "");
  EXPECT_EQ(entries(), 0u);
}

TEST_F(LocalSocketTest, InvalidPathsAreRefused) {
  for (const std::string bad : {"", "agent.sock", "/run/", "/"}) {
    const auto made = LocalSocket::listen_unix(bad, 0660);
    ASSERT_FALSE(made) << bad;
    EXPECT_EQ(made.error().code(), Code::kInvalidArgument) << bad;
  }
  EXPECT_NE(listen_error(socket_path("run/" + std::string(kMaxSocketPath, 'x'))).find("at most 107 bytes"),
            std::string::npos);
  // The longest path that a client can use is accepted.
  const std::string longest = socket_path("run/");
  EXPECT_EQ(listen_error(longest + std::string(kMaxSocketPath - longest.size(), 'x')), "");
}

}  // namespace
}  // namespace gpulet::http

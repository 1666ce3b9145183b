#include "base/dead_socket.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/file.h"

namespace gpulet {
namespace {

TEST(DeadSocket, IsOneThatNobodyListensAt) {
  std::string directory = (std::filesystem::temp_directory_path() / "dead_socket.XXXXXX").string();
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  const std::string path = directory + "/agent.sock";
  EXPECT_FALSE(is_dead_socket(path)) << "there is none";
  {
    auto socket = bind_unix_socket(path);
    ASSERT_TRUE(socket) << socket.error().full_message();
    ASSERT_TRUE(start_listening(*socket, path));
    EXPECT_FALSE(is_dead_socket(path));
    // Until its backlog is full.
    std::vector<FileDescriptor> waiting;
    for (auto one = connect_unix_socket(path); one; one = connect_unix_socket(path))
      waiting.push_back(std::move(*one));
    EXPECT_FALSE(is_dead_socket(path));
  }
  EXPECT_TRUE(is_dead_socket(path));
  ASSERT_TRUE(write_file_atomic(directory + "/file.sock", ""));
  EXPECT_FALSE(is_dead_socket(directory + "/file.sock"));
  EXPECT_FALSE(is_dead_socket(directory + "/" + std::string(200, 'a')));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace gpulet

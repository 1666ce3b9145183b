#include "web/fetch.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <thread>

#include "base/manual_loop.h"
#include "web/local_socket.h"

namespace gpulet::web {
namespace {

using namespace std::chrono_literals;

// A server that answers one connection with these bytes, whatever is asked, and closes it.
class FetchTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "fetch_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ + "/s"; }

  struct Outcome {
    bool begun = false;
    std::string body;
    std::optional<Status> status;
    std::string error() const { return status && !*status ? status->error().text() : ""; }
  };
  // Sends `answer` in pieces of that size.
  Outcome fetch(const std::string& answer, std::size_t piece = 1'000'000) {
    auto listening = LocalSocket::listen(path(), 0600);
    EXPECT_TRUE(listening);
    EpollLoop loop;
    request_.clear();
    std::thread server([&] {
      pollfd waits{(*listening)->fd(), POLLIN, 0};
      ::poll(&waits, 1, -1);
      const int fd = ::accept4((*listening)->fd(), nullptr, nullptr, SOCK_CLOEXEC);
      char byte = 0;
      while (request_.find("\r\n\r\n") == std::string::npos && ::read(fd, &byte, 1) == 1) request_ += byte;
      for (std::size_t at = 0; at < answer.size(); at += piece)
        static_cast<void>(::send(fd, answer.data() + at, std::min(piece, answer.size() - at), MSG_NOSIGNAL));
      ::close(fd);
    });
    Outcome outcome;
    auto started = Fetch::start(loop, *endpoint_of(path()), "localhost", "/api/x",
                                {.begun = [&] { outcome.begun = true; },
                                 .piece = [&](std::string_view some) -> Status {
                                   outcome.body += some;
                                   if (outcome.body.ends_with("STOP")) return fail(Code::kIo, "enough");
                                   return {};
                                 },
                                 .ended =
                                     [&](Status status) {
                                       EXPECT_FALSE(outcome.status);
                                       outcome.status = std::move(status);
                                       loop.stop();
                                     }});
    EXPECT_TRUE(started);
    if (started) loop.run();
    started = fail(Code::kInternal, "over");  // a server that still sends must not wait for us
    server.join();
    return outcome;
  }

  std::string folder_, request_;
};

TEST_F(FetchTest, BodiesOfEachFramingInWhateverPieces) {
  const std::string chunked =
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n7;x=y\r\n, world\r\n0\r\n\r\n";
  const std::string counted = "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nhello, world";
  const std::string closed = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nhello, world";
  for (const auto& answer : {chunked, counted, closed}) {
    for (const std::size_t piece : {1u, 2u, 7u, 1000u}) {
      const auto outcome = fetch(answer, piece);
      EXPECT_TRUE(outcome.begun);
      EXPECT_EQ(outcome.body, "hello, world") << piece;
      ASSERT_TRUE(outcome.status);
      EXPECT_TRUE(*outcome.status) << outcome.error();
    }
  }
  EXPECT_TRUE(request_.starts_with("GET /api/x HTTP/1.1\r\nHost: localhost\r\n")) << request_;
}

TEST_F(FetchTest, WhatIsRefusedSaysWhy) {
  const auto refused = fetch("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 8\r\n\r\ntoo \x1bmany");
  EXPECT_FALSE(refused.begun);
  EXPECT_EQ(refused.body, "");
  EXPECT_EQ(refused.error(), "too ?man");
  EXPECT_EQ(fetch("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").error(), "the answer is 404");
  EXPECT_EQ(fetch("HTTP/1.1 404 Not Found\r\n\r\n" + std::string(3u << 20, 'x')).error().size(), kMaxRefusal);
}

TEST_F(FetchTest, WhatBreaksOffSaysSo) {
  EXPECT_EQ(fetch("").error(), "the connection was closed");
  EXPECT_EQ(fetch("HTTP/1.1 200 OK\r\nContent-").error(), "the connection was closed");
  const auto half = fetch("HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nhello");
  EXPECT_EQ(half.body, "hello");
  EXPECT_EQ(half.error(), "the connection was closed");
  EXPECT_NE(fetch("SSH-2.0-OpenSSH_9.2\r\n").error().find("not an HTTP answer"), std::string::npos);
  EXPECT_EQ(fetch("HTTP/1.1 200 OK\r\n\r\nSTOP").error(), "enough");
}

TEST_F(FetchTest, ASocketThatTakesNobody) {
  EpollLoop loop;
  const auto code_of = [&](const std::string& at) {
    const auto started =
        Fetch::start(loop, *endpoint_of(at), "localhost", "/", {.piece = {}, .ended = [](Status) {}});
    return started ? Code::kInternal : started.error().code();
  };
  EXPECT_EQ(code_of(path()), Code::kNotFound);
  {
    const auto listening = LocalSocket::listen(path(), 0600);
  }
  EXPECT_EQ(code_of(path()), Code::kNotFound);
  EXPECT_FALSE(endpoint_of(std::string(200, 'x')));
  EXPECT_FALSE(endpoint_of(""));
}

TEST_F(FetchTest, SilenceHasALimit) {
  const auto listening = LocalSocket::listen(path(), 0600);
  ASSERT_TRUE(listening);
  ManualLoop loop;
  std::string error;
  const auto started = Fetch::start(
      loop, *endpoint_of(path()), "localhost", "/",
      {.piece = {}, .ended = [&](Status status) { error = status ? "" : status.error().text(); }});
  ASSERT_TRUE(started);
  loop.advance(kFetchLimit - 1ms);
  EXPECT_EQ(error, "");
  loop.advance(1ms);
  EXPECT_EQ(error, "no answer for 10 s");
}

}  // namespace
}  // namespace gpulet::web

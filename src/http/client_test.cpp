#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <deque>
#include <filesystem>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/loop.h"
#include "http/client.h"
#include "http/socket.h"

namespace gpulet::http {
namespace {

// Reads one piece of a response for each byte that arrives at the socket, and requests the next piece with
// a byte.
class PieceTransport final : public Transport {
 public:
  PieceTransport(int socket, std::deque<std::string> pieces) : socket_(socket), pieces_(std::move(pieces)) {}
  IoResult read_some(char* into, std::size_t size) override {
    char byte = 0;
    if (::recv(socket_, &byte, 1, MSG_DONTWAIT) != 1 || pieces_.empty()) return {Outcome::kWantsRead};
    const std::string piece = std::move(pieces_.front());
    pieces_.pop_front();
    EXPECT_LE(piece.size(), size);
    piece.copy(into, piece.size());
    request_piece();
    return {Outcome::kTransferred, piece.size()};
  }
  IoResult write_some(const iovec* parts, std::size_t) override {
    request_piece();
    return {Outcome::kTransferred, parts[0].iov_len};
  }
  void shut_down_writing() override {}
  Status end_reason() const override { return {}; }

 private:
  void request_piece() const { EXPECT_EQ(::send(socket_, "?", 1, MSG_NOSIGNAL), 1); }

  int socket_;
  std::deque<std::string> pieces_;
};

struct Heard {
  Result<ClientResponse> response = fail(Code::kInternal, "nothing was answered");
  std::string streamed;
};

Heard hear(const std::string& text, std::size_t cut, bool streams) {
  const FileDescriptor listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketAddress address;
  auto& ipv4 = reinterpret_cast<sockaddr_in&>(address.storage);
  ipv4.sin_family = AF_INET;
  ipv4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.size = sizeof ipv4;
  EXPECT_EQ(::bind(listening.get(), reinterpret_cast<sockaddr*>(&ipv4), address.size), 0);
  EXPECT_EQ(::listen(listening.get(), 1), 0);
  EXPECT_EQ(::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&ipv4), &address.size), 0);
  std::thread server([&] {
    const FileDescriptor client(::accept(listening.get(), nullptr, nullptr));
    char byte = 0;
    while (::read(client.get(), &byte, 1) == 1 && ::write(client.get(), "!", 1) == 1) {
    }
  });
  EpollLoop loop;
  Heard heard;
  const auto transport = [&](int socket) -> Result<std::unique_ptr<Transport>> {
    return std::make_unique<PieceTransport>(socket,
                                            std::deque<std::string>{text.substr(0, cut), text.substr(cut)});
  };
  auto connection = ClientConnection::open_connection(loop, transport, address, "the server",
                                                      [&](Result<ClientResponse> response) {
                                                        heard.response = std::move(response);
                                                        loop.stop_loop();
                                                      });
  EXPECT_TRUE(connection);
  BodyReceiver listener;
  if (streams) {
    listener.on_piece = [&](std::string_view piece) -> Status {
      heard.streamed += piece;
      return {};
    };
  }
  (*connection)->start_request({.path = "/", .host = "server"}, std::move(listener));
  loop.run_loop();
  connection->reset();
  server.join();
  return heard;
}

TEST(Connection, ResponseMayBeSplitAnywhere) {
  for (const int status : {200, 401}) {
    const std::string body = "0123456789";
    const std::string text =
        "HTTP/1.1 " + std::to_string(status) + " Is\r\nContent-Length: 10\r\n\r\n" + body;
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      for (const bool streams : {false, true}) {
        const auto heard = hear(text, cut, streams);
        const auto about =
            std::to_string(status) + " cut at " + std::to_string(cut) + (streams ? ", streamed" : "");
        ASSERT_TRUE(heard.response) << about << ": " << heard.response.error().full_message();
        EXPECT_EQ(heard.response->status, status) << about;
        EXPECT_EQ(streams && status == 200 ? heard.streamed : heard.response->body, body) << about;
      }
    }
  }
}

}  // namespace
}  // namespace gpulet::http

namespace gpulet::http {
namespace {

using namespace std::chrono_literals;

// A server that sends these bytes on one connection, whatever the request, and closes it.
class HttpGetTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "fetch_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string socket_path() const { return directory_ + "/s"; }

  struct Outcome {
    bool begun = false;
    std::string body;
    std::optional<Status> status;
    std::string error_text() const { return status && !*status ? status->error().full_message() : ""; }
  };
  // Sends `answer` in pieces of that size.
  Outcome fetch(const std::string& answer, std::size_t piece = 1'000'000) {
    auto listening = LocalSocket::listen_unix(socket_path(), 0600);
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
    auto started = HttpGet::start_get(loop, *unix_address(socket_path()), "localhost", "/api/x",
                                      {.on_head = [&] { outcome.begun = true; },
                                       .on_piece = [&](std::string_view some) -> Status {
                                         outcome.body += some;
                                         if (outcome.body.ends_with("STOP")) return fail(Code::kIo, "enough");
                                         return {};
                                       },
                                       .on_end =
                                           [&](Status status) {
                                             EXPECT_FALSE(outcome.status);
                                             outcome.status = std::move(status);
                                             loop.stop_loop();
                                           }});
    EXPECT_TRUE(started);
    if (started) loop.run_loop();
    started = fail(Code::kInternal, "over");  // a server that is still sending must not block
    server.join();
    return outcome;
  }

  std::string directory_, request_;
};

TEST_F(HttpGetTest, ReadsBodiesOfEveryFramingInAnyPieces) {
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
      EXPECT_TRUE(*outcome.status) << outcome.error_text();
    }
  }
  EXPECT_TRUE(request_.starts_with("GET /api/x HTTP/1.1\r\nHost: localhost\r\n")) << request_;
}

TEST_F(HttpGetTest, RefusalHasTheReason) {
  const auto refused = fetch("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 8\r\n\r\ntoo \x1bmany");
  EXPECT_FALSE(refused.begun);
  EXPECT_EQ(refused.body, "");
  EXPECT_EQ(refused.error_text(), "too ?man");
  EXPECT_EQ(fetch("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").error_text(),
            "the agent answered 404");
  EXPECT_EQ(fetch("HTTP/1.1 404 Not Found\r\n\r\n" + std::string(3u << 20, 'x')).error_text().size(),
            kMaxErrorBodyBytes);
}

TEST_F(HttpGetTest, BrokenResponseIsAnError) {
  EXPECT_EQ(fetch("").error_text(), "the agent closed the connection");
  EXPECT_EQ(fetch("HTTP/1.1 200 OK\r\nContent-").error_text(), "the agent closed the connection");
  const auto half = fetch("HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nhello");
  EXPECT_EQ(half.body, "hello");
  EXPECT_EQ(half.error_text(), "the agent closed the connection within its response");
  EXPECT_NE(fetch("SSH-2.0-OpenSSH_9.2\r\n").error_text().find("not an HTTP response"), std::string::npos);
  EXPECT_EQ(fetch("HTTP/1.1 200 OK\r\n\r\nSTOP").error_text(), "enough");
}

TEST_F(HttpGetTest, SocketThatRefusesConnectionsIsAnError) {
  EpollLoop loop;
  const auto code_of = [&](const std::string& at) {
    const auto started = HttpGet::start_get(loop, *unix_address(at), "localhost", "/",
                                            {.on_piece = {}, .on_end = [](Status) {}});
    return started ? Code::kInternal : started.error().code();
  };
  EXPECT_EQ(code_of(socket_path()), Code::kNotFound);
  {
    const auto listening = LocalSocket::listen_unix(socket_path(), 0600);
  }
  EXPECT_EQ(code_of(socket_path()), Code::kNotFound);
  EXPECT_FALSE(unix_address(std::string(200, 'x')));
  EXPECT_FALSE(unix_address(""));
}

TEST_F(HttpGetTest, SilentServerTimesOut) {
  const auto listening = LocalSocket::listen_unix(socket_path(), 0600);
  ASSERT_TRUE(listening);
  ManualLoop loop;
  std::string error;
  const auto started = HttpGet::start_get(loop, *unix_address(socket_path()), "localhost", "/",
                                          {.on_piece = {}, .on_end = [&](Status status) {
                                             error = status ? "" : status.error().full_message();
                                           }});
  ASSERT_TRUE(started);
  loop.advance(kGetHeadLimit - 1ms);
  EXPECT_EQ(error, "");
  loop.advance(1ms);
  EXPECT_EQ(error, "no response for 10 s");
}

}  // namespace

namespace {

std::vector<ServerSentEvent> all_of(std::string_view text) {
  EventStreamParser parser;
  auto events = parser.parse_bytes(text);
  EXPECT_TRUE(events);
  return events ? *events : std::vector<ServerSentEvent>{};
}

TEST(EventParser, ParsesTheListenersEvents) {
  EXPECT_EQ(
      all_of("retry: 2000\n\nevent: node\nid: 7\ndata: {\"a\":1}\n\n:\n\nevent: now\nid: 8\ndata: {}\n\n"),
      (std::vector<ServerSentEvent>{{"node", "{\"a\":1}"}, {"now", "{}"}}));
}

TEST(EventParser, ParsesEveryFormOfTheStandard) {
  EXPECT_EQ(all_of("data: a\ndata:b\ndata:  c\n\n"), (std::vector<ServerSentEvent>{{"message", "a\nb\n c"}}));
  EXPECT_EQ(all_of("data\n\ndata\ndata\n\ndata:"),
            (std::vector<ServerSentEvent>{{"message", ""}, {"message", "\n"}}));
  EXPECT_EQ(all_of("\xEF\xBB\xBF"
                   "data: x\r\n\r\n"),
            (std::vector<ServerSentEvent>{{"message", "x"}}));
  EXPECT_EQ(all_of("data: x\r\rdata: y\n\r\n"),
            (std::vector<ServerSentEvent>{{"message", "x"}, {"message", "y"}}));
  EXPECT_EQ(all_of("event: a\n\ndata: x\n\n"), (std::vector<ServerSentEvent>{{"message", "x"}}));
  EXPECT_EQ(all_of("event: a\nevent: b\nother: c\n: comment\ndata: x\n\n"),
            (std::vector<ServerSentEvent>{{"b", "x"}}));
  EXPECT_TRUE(all_of("data: not ended yet\n").empty());
  EXPECT_TRUE(all_of("").empty());
}

TEST(EventParser, AcceptsAnyPieces) {
  const std::string text =
      "\xEF\xBB\xBFretry: 2000\r\n\r\nevent: node\r\nid: 1\r\ndata: {\"x\":\r\ndata: 2}\r\n\r\n:\n\n"
      "event: now\rdata: {}\r\rdata: last\n\n";
  const auto whole = all_of(text);
  ASSERT_EQ(whole,
            (std::vector<ServerSentEvent>{{"node", "{\"x\":\n2}"}, {"now", "{}"}, {"message", "last"}}));
  const auto cut_at = [&](std::size_t first, std::size_t second) {
    EventStreamParser parser;
    std::vector<ServerSentEvent> events;
    for (const auto& [from, to] :
         {std::pair{std::size_t{0}, first}, {first, second}, {second, text.size()}}) {
      const auto some = parser.parse_bytes(std::string_view(text).substr(from, to - from));
      EXPECT_TRUE(some);
      if (some) events.insert(events.end(), some->begin(), some->end());
    }
    return events;
  };
  for (std::size_t first = 0; first <= text.size(); ++first) {
    for (std::size_t second = first; second <= text.size(); ++second)
      ASSERT_EQ(cut_at(first, second), whole) << first << " " << second;
  }
  EventStreamParser byte_by_byte;
  std::vector<ServerSentEvent> events;
  for (const char byte : text) {
    const auto some = byte_by_byte.parse_bytes({&byte, 1});
    ASSERT_TRUE(some);
    events.insert(events.end(), some->begin(), some->end());
  }
  EXPECT_EQ(events, whole);
}

TEST(EventParser, EndlessEventIsAnError) {
  const std::string piece(1u << 20, 'x');
  for (const std::string head : {"data: ", ": "}) {
    EventStreamParser parser;
    ASSERT_TRUE(parser.parse_bytes(head));
    std::size_t taken = 0;
    while (taken <= 2 * kMaxEventBytes && parser.parse_bytes(piece)) taken += piece.size();
    EXPECT_LE(taken, kMaxEventBytes);
  }
  EventStreamParser lines;
  std::size_t taken = 0;
  while (taken <= 2 * kMaxEventBytes && lines.parse_bytes("data: " + piece + "\n")) taken += piece.size();
  EXPECT_LE(taken, kMaxEventBytes);
}

}  // namespace
}  // namespace gpulet::http

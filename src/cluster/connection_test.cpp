#include "cluster/connection.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <deque>
#include <thread>

#include "base/file.h"

namespace gpulet::cluster {
namespace {

// Says one piece of a response for each byte that comes over the socket, and asks for the next by a byte.
class Pieces final : public Channel {
 public:
  explicit Pieces(std::deque<std::string> pieces) : pieces_(std::move(pieces)) {}
  Result<bool> handshake() override { return true; }
  void received(std::string_view bytes) override { due_ += bytes.size(); }
  std::string to_send() override { return std::exchange(ask_, {}); }
  Status write(std::string_view) override {
    ask_ += '?';
    return {};
  }
  Result<std::string> read(bool& ended) override {
    ended = false;
    if (due_ == 0 || pieces_.empty()) return std::string();
    --due_;
    std::string piece = std::move(pieces_.front());
    pieces_.pop_front();
    ask_ += '?';
    return piece;
  }

 private:
  std::deque<std::string> pieces_;
  std::size_t due_ = 0;
  std::string ask_;
};

struct Heard {
  Result<ApiResponse> response = fail(Code::kInternal, "nothing was answered");
  std::string streamed;
};

Heard hear(const std::string& text, std::size_t cut, bool streams) {
  const FileDescriptor listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Address address;
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
  auto channel = std::make_unique<Pieces>(std::deque<std::string>{text.substr(0, cut), text.substr(cut)});
  auto connection =
      Connection::open(loop, std::move(channel), address, "the server", [&](Result<ApiResponse> response) {
        heard.response = std::move(response);
        loop.stop();
      });
  EXPECT_TRUE(connection);
  StreamListener listener;
  if (streams) {
    listener.piece = [&](std::string_view piece) -> Status {
      heard.streamed += piece;
      return {};
    };
  }
  (*connection)->start("a request", std::move(listener));
  loop.run();
  connection->reset();
  server.join();
  return heard;
}

TEST(Connection, AResponseMayBeCutAnywhere) {
  for (const int status : {200, 401}) {
    const std::string body = "0123456789";
    const std::string text =
        "HTTP/1.1 " + std::to_string(status) + " Is\r\nContent-Length: 10\r\n\r\n" + body;
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      for (const bool streams : {false, true}) {
        const auto heard = hear(text, cut, streams);
        const auto about =
            std::to_string(status) + " cut at " + std::to_string(cut) + (streams ? ", streamed" : "");
        ASSERT_TRUE(heard.response) << about << ": " << heard.response.error().text();
        EXPECT_EQ(heard.response->status, status) << about;
        EXPECT_EQ(streams && status == 200 ? heard.streamed : heard.response->body, body) << about;
      }
    }
  }
}

}  // namespace
}  // namespace gpulet::cluster

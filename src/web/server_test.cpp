#include "web/server.h"

#include <gtest/gtest.h>

#include <future>
#include <random>
#include <thread>

#include "web/test_client.h"

namespace gpulet::web {
namespace {

using namespace std::chrono_literals;

// A server on a loop in a thread of its own; clients block in the test's.
class ServerTest : public testing::Test {
 protected:
  void start(Duration limit = kConnectionLimit, std::string metrics = "m 1\n") {
    listening_ = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ASSERT_EQ(::bind(listening_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    ASSERT_EQ(::listen(listening_.get(), 512), 0);
    ASSERT_EQ(::getsockname(listening_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    site_.publish({{true, "", true, "", std::move(metrics)}, 1h}, loop_.now());
    server_ = std::make_unique<Server>(loop_, listening_.get(), site_, limit);
    thread_ = std::thread([this] { loop_.run(); });
  }
  void TearDown() override {
    loop_.stop();
    if (thread_.joinable()) thread_.join();
    server_.reset();
  }
  std::size_t connections() {
    std::promise<std::size_t> count;
    loop_.post([&] { count.set_value(server_->connections()); });
    return count.get_future().get();
  }

  EpollLoop loop_;
  FileDescriptor listening_;
  Site site_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
  std::uint16_t port_ = 0;
};

TEST_F(ServerTest, OneConnectionServesManyRequestsAlsoPipelined) {
  start();
  Client client(port_);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"));
    EXPECT_EQ(body_of(client.answer()), "ok\n");
  }
  ASSERT_TRUE(
      client.send("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
                  "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
                  "GET /nope HTTP/1.1\r\n\r\n"));
  EXPECT_EQ(body_of(client.answer()), "m 1\n");
  const auto head = client.answer(false);
  EXPECT_EQ(status_of(head), 200);
  EXPECT_NE(head.find("Content-Length: 4\r\n"), std::string::npos);
  EXPECT_EQ(status_of(client.answer()), 404);
}

TEST_F(ServerTest, ARequestMayComeByteByByte) {
  start();
  Client client(port_);
  for (const char c : std::string("GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: some more\r\n\r\n")) {
    ASSERT_TRUE(client.send({&c, 1}));
  }
  EXPECT_EQ(status_of(client.answer()), 200);
}

TEST_F(ServerTest, OldClientsAndThoseThatSaySoAreClosed) {
  start();
  for (const char* request : {"GET /healthz HTTP/1.0\r\n\r\n", "GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n"}) {
    Client client(port_);
    ASSERT_TRUE(client.send(request));
    EXPECT_EQ(status_of(client.answer()), 200);
    EXPECT_TRUE(client.closed());
  }
}

TEST_F(ServerTest, RefusesWhatItDoesNotServe) {
  start();
  const std::vector<std::pair<std::string, int>> cases = {
      {"junk\r\n\r\n", 400},
      {std::string("\0\x16\x03\x01\x02", 5) + "\r\n\r\n", 400},
      {"GET /healthz HTTP/9.9\r\n\r\n", 400},
      {"GET /healthz HTTP/1.1\r\nbad field\r\n\r\n", 400},
      {"GET /healthz HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400},
      {"GET /healthz HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 413},
      {"POST /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 413},
      {"GET / HTTP/1.1\r\nX: " + std::string(kMaxHeadBytes, 'x') + "\r\n\r\n", 431},
      {"GET /" + std::string(100'000, 'x') + " HTTP/1.1\r\n\r\n", 431},
      {"DELETE /healthz HTTP/1.1\r\nConnection: close\r\n\r\n", 405},
  };
  for (const auto& [request, status] : cases) {
    Client client(port_);
    ASSERT_TRUE(client.send(request)) << request.substr(0, 60);
    EXPECT_EQ(status_of(client.answer()), status) << request.substr(0, 60);
    EXPECT_TRUE(client.closed()) << request.substr(0, 60);
  }
  EXPECT_EQ(status_of(get(port_, "/healthz")), 200);
}

TEST_F(ServerTest, NoBytesWhateverHarmIt) {
  start();
  std::mt19937_64 random(7);
  const std::string model = "GET /metrics HTTP/1.1\r\nHost: example\r\nAccept: */*\r\nConnection: keep-alive\r\n\r\n";
  for (int round = 0; round < 300; ++round) {
    std::string bytes = model + model;
    for (int flips = 0; flips < 1 + round % 20; ++flips) bytes[random() % bytes.size()] = static_cast<char>(random());
    Client client(port_);
    client.send(bytes.substr(0, random() % bytes.size()));
    ::shutdown(client.fd(), SHUT_WR);
    EXPECT_TRUE(client.closed());
  }
  EXPECT_EQ(status_of(get(port_, "/healthz")), 200);
}

TEST_F(ServerTest, ClientsThatAreSlowToAskOrIdleAreClosed) {
  start(50ms);
  Client silent(port_), partial(port_), idle(port_);
  ASSERT_TRUE(partial.send("GET /healthz HT"));
  ASSERT_TRUE(idle.send("GET /healthz HTTP/1.1\r\n\r\n"));
  EXPECT_EQ(status_of(idle.answer()), 200);
  EXPECT_TRUE(silent.closed());
  EXPECT_TRUE(partial.closed());
  EXPECT_TRUE(idle.closed());
  EXPECT_EQ(connections(), 0u);
}

TEST_F(ServerTest, AClientThatDoesNotTakeItsAnswerIsClosedAndOthersAreServed) {
  start(2s, std::string(32u << 20, 'x'));
  Client slow(port_);
  ASSERT_TRUE(slow.send("GET /metrics HTTP/1.1\r\n\r\n"));
  EXPECT_EQ(status_of(get(port_, "/healthz")), 200);
  EXPECT_EQ(body_of(get(port_, "/metrics")).size(), 32u << 20);  // one that reads gets it whole
  while (connections() > 0) std::this_thread::yield();           // bounded by the test's own time limit
  EXPECT_EQ(slow.answer(), "");
}

TEST_F(ServerTest, AThousandSlowConnectionsDoNotKeepARequestFromItsAnswer) {
  start();
  std::vector<std::unique_ptr<Client>> slow;
  for (int i = 0; i < 1000; ++i) {
    slow.push_back(std::make_unique<Client>(port_));
    ASSERT_TRUE(slow.back()->connected()) << i;
    slow.back()->send("GET /heal");
    if (i % 50 == 0) {
      const auto before = std::chrono::steady_clock::now();
      EXPECT_EQ(status_of(get(port_, "/healthz")), 200);
      EXPECT_LT(std::chrono::steady_clock::now() - before, 5s);
    }
  }
  EXPECT_LE(connections(), kMaxConnections);
  EXPECT_EQ(status_of(get(port_, "/healthz")), 200);
}

}  // namespace
}  // namespace gpulet::web

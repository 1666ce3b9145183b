#include "web/server.h"

#include <gtest/gtest.h>

#include <signal.h>

#include <future>
#include <random>
#include <thread>

#include "web/site.h"
#include "web/test_client.h"

namespace gpulet::web {
namespace {

using namespace std::chrono_literals;

// A server on a loop in a thread of its own; clients block in the test's.
class ServerTest : public testing::Test {
 protected:
  void start(Duration limit = 10s, std::string metrics = "m 1\n", const Access& access = {}) {
    ::signal(SIGPIPE, SIG_IGN);
    const auto set = door_.set(access);
    ASSERT_TRUE(set) << set.error().text();
    listening_ = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ASSERT_EQ(::bind(listening_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    ASSERT_EQ(::listen(listening_.get(), 512), 0);
    ASSERT_EQ(::getsockname(listening_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    pages_ = {.ready = true, .metrics = std::move(metrics), .node = "{\"node\":1}", .now = "{\"now\":0}"};
    site_.publish(frame_of(pages_, 1h), loop_.now());
    server_ = std::make_unique<Server>(loop_, listening_.get(), site_, door_,
                                       ServerLimits{.exchange = limit, .idle = limit});
    thread_ = std::thread([this] { loop_.run(); });
  }
  void TearDown() override {
    loop_.stop();
    if (thread_.joinable()) thread_.join();
    server_.reset();
  }
  // Runs `task` on the loop and waits for its result.
  template <class Task>
  auto on_loop(Task task) {
    std::promise<decltype(task())> result;
    loop_.post([&] { result.set_value(task()); });
    return result.get_future().get();
  }
  std::size_t connections() {
    return on_loop([this] { return server_->connections(); });
  }
  std::size_t watchers() {
    return on_loop([this] { return site_.watchers().count(); });
  }
  void publish_now(const std::string& now) {
    on_loop([&] {
      Frame frame{.healthy = true, .ready = true, .fresh = 1h, .texts = {}};
      frame[Text::kNow] = now;
      site_.publish(std::move(frame), loop_.now());
      return true;
    });
  }

  EpollLoop loop_;
  FileDescriptor listening_;
  Pages pages_;
  Site site_;
  Door door_;
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
  for (const char* request :
       {"GET /healthz HTTP/1.0\r\n\r\n", "GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n"}) {
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
      {"GET / HTTP/1.1\r\nX: " + std::string(ServerLimits{}.head_bytes, 'x') + "\r\n\r\n", 431},
      {"GET /" + std::string(100'000, 'x') + " HTTP/1.1\r\n\r\n", 431},
      {"DELETE /healthz HTTP/1.1\r\nConnection: close\r\n\r\n", 405},
      {"POST /api/node HTTP/1.1\r\nConnection: close\r\n\r\n", 405},
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
  const std::string model =
      "GET /metrics HTTP/1.1\r\nHost: example\r\nAccept: */*\r\nConnection: keep-alive\r\n\r\n";
  for (int round = 0; round < 300; ++round) {
    std::string bytes = model + model;
    for (int flips = 0; flips < 1 + round % 20; ++flips)
      bytes[random() % bytes.size()] = static_cast<char>(random());
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

TEST_F(ServerTest, TenMegabytesOfHeaderAreRefusedAndNotKept) {
  start();
  Client client(port_);
  ASSERT_TRUE(client.send("GET / HTTP/1.1\r\nX: "));
  const std::string piece(65536, 'x');
  std::size_t sent = 0;
  while (sent < 10u << 20 && client.send(piece)) sent += piece.size();
  EXPECT_LT(sent, 10u << 20);  // it is cut off long before
  EXPECT_TRUE(client.closed());
  EXPECT_EQ(status_of(get(port_, "/healthz")), 200);
}

TEST_F(ServerTest, AHundredScrapersAtOnce) {
  start(10s, std::string(1u << 20, 'x'));
  std::vector<std::unique_ptr<Client>> scrapers;
  for (int i = 0; i < 100; ++i) {
    scrapers.push_back(std::make_unique<Client>(port_));
    ASSERT_TRUE(scrapers.back()->send("GET /metrics HTTP/1.1\r\n\r\n"));
  }
  for (int round = 0; round < 2; ++round) {  // and again on the same connections
    for (auto& scraper : scrapers) {
      EXPECT_EQ(body_of(scraper->answer()).size(), 1u << 20);
      ASSERT_TRUE(scraper->send("GET /metrics HTTP/1.1\r\n\r\n"));
    }
  }
}

constexpr const char* kWatch = "GET /api/events HTTP/1.1\r\nHost: x\r\n\r\n";

TEST_F(ServerTest, WhoWatchesIsToldOfEachChange) {
  start();
  Client client(port_);
  ASSERT_TRUE(client.send(kWatch));
  const auto first = client.until("\"now\":0}\n\n");
  EXPECT_NE(first.find("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"), std::string::npos) << first;
  EXPECT_NE(first.find("retry: 2000\n\nevent: node\nid: 2\ndata: {\"node\":1}\n\n"), std::string::npos)
      << first;
  for (int i = 1; i < 20; ++i) {
    const std::string document = "{\"now\":" + std::to_string(i) + "}";
    publish_now(document);
    EXPECT_EQ(client.until("}\n\n"),
              "event: now\nid: " + std::to_string(i + 2) + "\ndata: " + document + "\n\n");
  }
  EXPECT_EQ(watchers(), 1u);
  ::shutdown(client.fd(), SHUT_RDWR);
  while (watchers() > 0) std::this_thread::yield();
  Client head(port_);
  ASSERT_TRUE(head.send("HEAD /api/events HTTP/1.1\r\n\r\n"));
  EXPECT_TRUE(head.closed());
  EXPECT_EQ(watchers(), 0u);
}

TEST_F(ServerTest, SixteenMayWatchAndNobodyTakesTheirPlace) {
  start();
  std::vector<std::unique_ptr<Client>> watching;
  for (std::size_t i = 0; i < kMaxWatchers; ++i) {
    watching.push_back(std::make_unique<Client>(port_));
    ASSERT_TRUE(watching.back()->send(kWatch));
    ASSERT_FALSE(watching.back()->until("\"now\":0}\n\n").empty());
  }
  const auto refused = get(port_, "/api/events");
  EXPECT_EQ(status_of(refused), 503);
  EXPECT_EQ(body_of(refused), "as many watch already as may: 16\n");
  std::vector<std::unique_ptr<Client>> idle;
  for (int i = 0; i < 300; ++i) idle.push_back(std::make_unique<Client>(port_));
  EXPECT_EQ(status_of(get(port_, "/healthz")), 200);
  EXPECT_EQ(watchers(), kMaxWatchers);
  publish_now("{\"now\":7}");
  for (auto& client : watching) EXPECT_FALSE(client->until("\"now\":7}\n\n").empty());
}

TEST_F(ServerTest, AWatcherThatDoesNotReadIsDroppedAndTheOthersAreTold) {
  start(2s);
  Client slow(port_), quick(port_);
  for (auto* client : {&slow, &quick}) {
    ASSERT_TRUE(client->send(kWatch));
    ASSERT_FALSE(client->until("\"now\":0}\n\n").empty());
  }
  const std::string large(1u << 20, ' ');
  for (int i = 1; watchers() > 1; ++i) {
    publish_now("{\"now\":" + std::to_string(i) + large + "}");
    ASSERT_FALSE(quick.until("}\n\n").empty()) << i;
  }
  EXPECT_TRUE(slow.closed());
  publish_now("{\"now\":-1}");
  EXPECT_FALSE(quick.until("\"now\":-1}\n\n").empty());
}

Access encrypted(const Certificate& certificate) {
  Access access;
  access.tls.emplace();
  access.tls->certificate = certificate.pem();
  access.tls->key = certificate.key_pem();
  access.tls->certificate_about = "/tls/tls.crt";
  access.tls->key_about = "/tls/tls.key";
  return access;
}

TEST_F(ServerTest, ThroughTlsAllIsAsWithoutIt) {
  const auto certificate = Certificate::make("one", nullptr, "127.0.0.1");
  start(10s, std::string(8u << 20, 'x'), encrypted(certificate));
  Client client(port_);
  ASSERT_TRUE(client.encrypt());
  EXPECT_EQ(client.server_name(), "one");
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(client.send("GET /metrics HTTP/1.1\r\n\r\n"));
    EXPECT_EQ(body_of(client.answer()).size(), 8u << 20);
  }
  ASSERT_TRUE(client.send(kWatch));
  ASSERT_FALSE(client.until("\"now\":0}\n\n").empty());
  publish_now("{\"now\":1}");
  EXPECT_FALSE(client.until("\"now\":1}\n\n").empty());

  const auto plain = get(port_, "/healthz");
  EXPECT_EQ(status_of(plain), 400);
  EXPECT_EQ(body_of(plain), "this port speaks HTTPS\n");
  Client old(port_), half(port_);
  EXPECT_FALSE(old.encrypt(nullptr, TLS1_1_VERSION));
  ASSERT_TRUE(half.send("\x16\x03\x01\xff\xff junk"));
  ::shutdown(half.fd(), SHUT_WR);
  EXPECT_TRUE(half.closed());
}

TEST_F(ServerTest, AnotherCertificateTakesItsPlaceWhileItServes) {
  start(10s, "m 1\n", encrypted(Certificate::make("one", nullptr, "127.0.0.1")));
  Client before(port_);
  ASSERT_TRUE(before.encrypt());
  const auto other = encrypted(Certificate::make("two", nullptr, "127.0.0.1"));
  EXPECT_TRUE(on_loop([&] { return door_.set(other).has_value(); }));
  Client after(port_);
  ASSERT_TRUE(after.encrypt());
  EXPECT_EQ(after.server_name(), "two");
  ASSERT_TRUE(before.send("GET /healthz HTTP/1.1\r\n\r\n"));
  EXPECT_NE(before.answer().find("Connection: close\r\n"), std::string::npos);  // served, and then let go

  Access bad = other;
  bad.tls->key = Certificate::make("three", nullptr, "127.0.0.1").key_pem();
  EXPECT_EQ(on_loop([&] { return door_.set(bad).error().text(); }),
            "/tls/tls.key: not the key of the certificate in /tls/tls.crt");
  Client still(port_);
  ASSERT_TRUE(still.encrypt());
  EXPECT_EQ(still.server_name(), "two");
}

TEST_F(ServerTest, OnlyClientsWithTheRightCertificate) {
  const auto authority = Certificate::make("authority", nullptr, "");
  const auto scraper = Certificate::make("scraper", &authority, "prometheus.monitoring.svc");
  const auto other = Certificate::make("other", &authority, "other.svc");
  const auto stranger = Certificate::make("stranger", nullptr, "prometheus.monitoring.svc");
  Access access = encrypted(Certificate::make("one", nullptr, "127.0.0.1"));
  access.tls->clients = ClientCertificates::kRequireAndVerify;
  access.tls->client_authorities = authority.pem();
  access.tls->client_names = {"prometheus.monitoring.svc"};
  start(10s, "m 1\n", access);
  auto served = [&](const Certificate* certificate) {
    Client client(port_);
    // With TLS 1.3 a client learns only by reading that it is refused.
    return client.encrypt(certificate) && client.send("GET /metrics HTTP/1.1\r\n\r\n") &&
           status_of(client.answer()) == 200;
  };
  EXPECT_TRUE(served(&scraper));
  EXPECT_FALSE(served(&other));
  EXPECT_FALSE(served(&stranger));
  EXPECT_FALSE(served(nullptr));
}

TEST_F(ServerTest, UsersNeedTheirPasswords) {
  Access access;
  access.users = {{"alice", secret_hash()}};
  access.headers = {{"X-Frame-Options", "SAMEORIGIN"}};
  start(10s, "m 1\n", access);
  for (const char* path : {"/metrics", "/", "/api/events", "/nothing"}) {
    const auto refused = get(port_, path);
    EXPECT_EQ(status_of(refused), 401) << path;
    EXPECT_NE(refused.find("\r\nWWW-Authenticate: Basic realm=\"gpulet\""), std::string::npos);
    EXPECT_EQ(refused.find("m 1"), std::string::npos);
  }
  const auto answered = get(port_, "/metrics", "Authorization: Basic YWxpY2U6c2VjcmV0\r\n");
  EXPECT_EQ(body_of(answered), "m 1\n");
  EXPECT_NE(answered.find("\r\nX-Frame-Options: SAMEORIGIN\r\n"), std::string::npos);
  EXPECT_EQ(status_of(get(port_, "/metrics", "Authorization: Basic YWxpY2U6d3Jvbmc=\r\n")), 401);
}

}  // namespace
}  // namespace gpulet::web

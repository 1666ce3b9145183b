#include "http/server.h"

#include <gtest/gtest.h>

#include <signal.h>

#include <future>
#include <random>
#include <thread>

#include "http/test_client.h"
#include "web/router.h"

namespace gpulet::web {
namespace {

using namespace std::chrono_literals;

// A server on a loop in its own thread; clients block in the test's thread.
class RouterServerTest : public testing::Test {
 protected:
  void start_on_loop(Duration limit = 10s, std::string metrics = "m 1\n",
                     const http::AccessRules& access = {}) {
    ::signal(SIGPIPE, SIG_IGN);
    const auto set = gate_.set_rules(access);
    ASSERT_TRUE(set) << set.error().full_message();
    listening_ = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ASSERT_EQ(::bind(listening_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    ASSERT_EQ(::listen(listening_.get(), 512), 0);
    ASSERT_EQ(::getsockname(listening_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    pages_ = {.ready = true,
              .metrics = std::move(metrics),
              .node = "{\"node\":\"for others\"}",
              .now = "{\"now\":0}",
              .public_node = "{\"node\":1}"};
    router_.publish_message(make_pages_message(pages_, 1h), loop_.now());
    server_ = std::make_unique<http::Server>(loop_, listening_.get(), router_, gate_,
                                             http::ServerLimits{.exchange = limit, .idle = limit});
    thread_ = std::thread([this] { loop_.run_loop(); });
  }
  void TearDown() override {
    loop_.stop_loop();
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
    return on_loop([this] { return server_->connection_count(); });
  }
  std::size_t watchers() {
    return on_loop([this] { return router_.subscribers().subscriber_count(); });
  }
  void publish_now(const std::string& now) {
    on_loop([&] {
      PagesMessage frame{.healthy = true, .ready = true, .valid_for = 1h, .texts = {}};
      frame[PageText::kNow] = now;
      router_.publish_message(std::move(frame), loop_.now());
      return true;
    });
  }

  EpollLoop loop_;
  FileDescriptor listening_;
  Pages pages_;
  Router router_;
  http::AccessGate gate_;
  std::unique_ptr<http::Server> server_;
  std::thread thread_;
  std::uint16_t port_ = 0;
};

TEST_F(RouterServerTest, OneConnectionServesManyRequestsAlsoPipelined) {
  start_on_loop();
  http::TestClient client(port_);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.send_bytes("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"));
    EXPECT_EQ(http::response_body(client.read_response()), "ok\n");
  }
  ASSERT_TRUE(
      client.send_bytes("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
                        "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
                        "GET /nope HTTP/1.1\r\n\r\n"));
  EXPECT_EQ(http::response_body(client.read_response()), "m 1\n");
  const auto head = client.read_response(false);
  EXPECT_EQ(http::status_code(head), 200);
  EXPECT_NE(head.find("Content-Length: 4\r\n"), std::string::npos);
  EXPECT_EQ(http::status_code(client.read_response()), 404);
}

TEST_F(RouterServerTest, RequestMayArriveByteByByte) {
  start_on_loop();
  http::TestClient client(port_);
  for (const char c : std::string("GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: some more\r\n\r\n")) {
    ASSERT_TRUE(client.send_bytes({&c, 1}));
  }
  EXPECT_EQ(http::status_code(client.read_response()), 200);
}

TEST_F(RouterServerTest, Http10AndConnectionCloseAreClosed) {
  start_on_loop();
  for (const char* request :
       {"GET /healthz HTTP/1.0\r\n\r\n", "GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n"}) {
    http::TestClient client(port_);
    ASSERT_TRUE(client.send_bytes(request));
    EXPECT_EQ(http::status_code(client.read_response()), 200);
    EXPECT_TRUE(client.wait_closed());
  }
}

TEST_F(RouterServerTest, RefusesUnsupportedRequests) {
  start_on_loop();
  const std::vector<std::pair<std::string, int>> cases = {
      {"junk\r\n\r\n", 400},
      {std::string("\0\x16\x03\x01\x02", 5) + "\r\n\r\n", 400},
      {"GET /healthz HTTP/9.9\r\n\r\n", 400},
      {"GET /healthz HTTP/1.1\r\nbad field\r\n\r\n", 400},
      {"GET /healthz HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400},
      {"GET /healthz HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 413},
      {"POST /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 413},
      {"GET / HTTP/1.1\r\nX: " + std::string(http::ServerLimits{}.head_bytes, 'x') + "\r\n\r\n", 431},
      {"GET /" + std::string(100'000, 'x') + " HTTP/1.1\r\n\r\n", 431},
      {"DELETE /healthz HTTP/1.1\r\nConnection: close\r\n\r\n", 405},
      {"POST /api/node HTTP/1.1\r\nConnection: close\r\n\r\n", 405},
  };
  for (const auto& [request, status] : cases) {
    http::TestClient client(port_);
    ASSERT_TRUE(client.send_bytes(request)) << request.substr(0, 60);
    EXPECT_EQ(http::status_code(client.read_response()), status) << request.substr(0, 60);
    EXPECT_TRUE(client.wait_closed()) << request.substr(0, 60);
  }
  EXPECT_EQ(http::status_code(http::get(port_, "/healthz")), 200);
}

TEST_F(RouterServerTest, ArbitraryBytesAreHarmless) {
  start_on_loop();
  std::mt19937_64 random(7);
  const std::string model =
      "GET /metrics HTTP/1.1\r\nHost: example\r\nAccept: */*\r\nConnection: keep-alive\r\n\r\n";
  for (int round = 0; round < 300; ++round) {
    std::string bytes = model + model;
    for (int flips = 0; flips < 1 + round % 20; ++flips)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    http::TestClient client(port_);
    client.send_bytes(bytes.substr(0, random() % bytes.size()));
    ::shutdown(client.fd(), SHUT_WR);
    EXPECT_TRUE(client.wait_closed());
  }
  EXPECT_EQ(http::status_code(http::get(port_, "/healthz")), 200);
}

TEST_F(RouterServerTest, SlowAndIdleClientsAreClosed) {
  start_on_loop(50ms);
  http::TestClient silent(port_), partial(port_), idle(port_);
  ASSERT_TRUE(partial.send_bytes("GET /healthz HT"));
  ASSERT_TRUE(idle.send_bytes("GET /healthz HTTP/1.1\r\n\r\n"));
  EXPECT_EQ(http::status_code(idle.read_response()), 200);
  EXPECT_TRUE(silent.wait_closed());
  EXPECT_TRUE(partial.wait_closed());
  EXPECT_TRUE(idle.wait_closed());
  EXPECT_EQ(connections(), 0u);
}

TEST_F(RouterServerTest, ClientThatDoesNotReadIsClosedAndOthersAreServed) {
  start_on_loop(2s, std::string(32u << 20, 'x'));
  http::TestClient slow(port_);
  ASSERT_TRUE(slow.send_bytes("GET /metrics HTTP/1.1\r\n\r\n"));
  EXPECT_EQ(http::status_code(http::get(port_, "/healthz")), 200);
  EXPECT_EQ(http::response_body(http::get(port_, "/metrics")).size(),
            32u << 20);                                 // a client that reads gets all of it
  while (connections() > 0) std::this_thread::yield();  // bounded by the test's own time limit
  EXPECT_EQ(slow.read_response(), "");
}

TEST_F(RouterServerTest, ThousandSlowConnectionsDoNotBlockARequest) {
  start_on_loop();
  std::vector<std::unique_ptr<http::TestClient>> slow;
  for (int i = 0; i < 1000; ++i) {
    slow.push_back(std::make_unique<http::TestClient>(port_));
    ASSERT_TRUE(slow.back()->connected()) << i;
    slow.back()->send_bytes("GET /heal");
    if (i % 50 == 0) {
      const auto before = std::chrono::steady_clock::now();
      EXPECT_EQ(http::status_code(http::get(port_, "/healthz")), 200);
      EXPECT_LT(std::chrono::steady_clock::now() - before, 5s);
    }
  }
  EXPECT_LE(connections(), http::kMaxConnections);
  EXPECT_EQ(http::status_code(http::get(port_, "/healthz")), 200);
}

TEST_F(RouterServerTest, OversizedHeaderIsRefusedAndNotBuffered) {
  start_on_loop();
  http::TestClient client(port_);
  ASSERT_TRUE(client.send_bytes("GET / HTTP/1.1\r\nX: "));
  const std::string piece(65536, 'x');
  std::size_t sent = 0;
  while (sent < 10u << 20 && client.send_bytes(piece)) sent += piece.size();
  EXPECT_LT(sent, 10u << 20);  // the server closes it long before
  EXPECT_TRUE(client.wait_closed());
  EXPECT_EQ(http::status_code(http::get(port_, "/healthz")), 200);
}

TEST_F(RouterServerTest, ServesAHundredConcurrentScrapers) {
  start_on_loop(10s, std::string(1u << 20, 'x'));
  std::vector<std::unique_ptr<http::TestClient>> scrapers;
  for (int i = 0; i < 100; ++i) {
    scrapers.push_back(std::make_unique<http::TestClient>(port_));
    ASSERT_TRUE(scrapers.back()->send_bytes("GET /metrics HTTP/1.1\r\n\r\n"));
  }
  for (int round = 0; round < 2; ++round) {  // and once more on the same connections
    for (auto& scraper : scrapers) {
      EXPECT_EQ(http::response_body(scraper->read_response()).size(), 1u << 20);
      ASSERT_TRUE(scraper->send_bytes("GET /metrics HTTP/1.1\r\n\r\n"));
    }
  }
}

constexpr const char* kWatch = "GET /api/events HTTP/1.1\r\nHost: x\r\n\r\n";

TEST_F(RouterServerTest, SubscribersGetEachChange) {
  start_on_loop();
  http::TestClient client(port_);
  ASSERT_TRUE(client.send_bytes(kWatch));
  const auto first = client.read_until("\"now\":0}\n\n");
  EXPECT_NE(first.find("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"), std::string::npos) << first;
  EXPECT_NE(first.find("retry: 2000\n\nevent: node\nid: 2\ndata: {\"node\":1}\n\n"), std::string::npos)
      << first;
  for (int i = 1; i < 20; ++i) {
    const std::string document = "{\"now\":" + std::to_string(i) + "}";
    publish_now(document);
    EXPECT_EQ(client.read_until("}\n\n"),
              "event: now\nid: " + std::to_string(i + 2) + "\ndata: " + document + "\n\n");
  }
  EXPECT_EQ(watchers(), 1u);
  ::shutdown(client.fd(), SHUT_RDWR);
  while (watchers() > 0) std::this_thread::yield();
  http::TestClient head(port_);
  ASSERT_TRUE(head.send_bytes("HEAD /api/events HTTP/1.1\r\n\r\n"));
  EXPECT_TRUE(head.wait_closed());
  EXPECT_EQ(watchers(), 0u);
}

TEST_F(RouterServerTest, SixteenSubscribersKeepTheirConnections) {
  start_on_loop();
  std::vector<std::unique_ptr<http::TestClient>> watching;
  for (std::size_t i = 0; i < http::kMaxSubscribers; ++i) {
    watching.push_back(std::make_unique<http::TestClient>(port_));
    ASSERT_TRUE(watching.back()->send_bytes(kWatch));
    ASSERT_FALSE(watching.back()->read_until("\"now\":0}\n\n").empty());
  }
  const auto refused = http::get(port_, "/api/events");
  EXPECT_EQ(http::status_code(refused), 503);
  EXPECT_EQ(http::response_body(refused), "the maximum number of subscribers is connected: 16\n");
  std::vector<std::unique_ptr<http::TestClient>> idle;
  for (int i = 0; i < 300; ++i) idle.push_back(std::make_unique<http::TestClient>(port_));
  EXPECT_EQ(http::status_code(http::get(port_, "/healthz")), 200);
  EXPECT_EQ(watchers(), http::kMaxSubscribers);
  publish_now("{\"now\":7}");
  for (auto& client : watching) EXPECT_FALSE(client->read_until("\"now\":7}\n\n").empty());
}

TEST_F(RouterServerTest, SlowSubscriberIsDroppedAndOthersGetEvents) {
  start_on_loop(2s);
  http::TestClient slow(port_), quick(port_);
  for (auto* client : {&slow, &quick}) {
    ASSERT_TRUE(client->send_bytes(kWatch));
    ASSERT_FALSE(client->read_until("\"now\":0}\n\n").empty());
  }
  const std::string large(1u << 20, ' ');
  for (int i = 1; watchers() > 1; ++i) {
    publish_now("{\"now\":" + std::to_string(i) + large + "}");
    ASSERT_FALSE(quick.read_until("}\n\n").empty()) << i;
  }
  EXPECT_TRUE(slow.wait_closed());
  publish_now("{\"now\":-1}");
  EXPECT_FALSE(quick.read_until("\"now\":-1}\n\n").empty());
}

http::AccessRules encrypted(const Certificate& certificate) {
  http::AccessRules access;
  access.tls.emplace();
  access.tls->certificate = certificate.pem();
  access.tls->key = certificate.key_pem();
  access.tls->certificate_source = "/tls/tls.crt";
  access.tls->key_source = "/tls/tls.key";
  return access;
}

TEST_F(RouterServerTest, TlsServesTheSame) {
  const auto certificate = Certificate::make_certificate("one", nullptr, "127.0.0.1");
  start_on_loop(10s, std::string(8u << 20, 'x'), encrypted(certificate));
  http::TestClient client(port_);
  ASSERT_TRUE(client.encrypt());
  EXPECT_EQ(client.server_name(), "one");
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(client.send_bytes("GET /metrics HTTP/1.1\r\n\r\n"));
    EXPECT_EQ(http::response_body(client.read_response()).size(), 8u << 20);
  }
  ASSERT_TRUE(client.send_bytes(kWatch));
  ASSERT_FALSE(client.read_until("\"now\":0}\n\n").empty());
  publish_now("{\"now\":1}");
  EXPECT_FALSE(client.read_until("\"now\":1}\n\n").empty());

  const auto plain = http::get(port_, "/healthz");
  EXPECT_EQ(http::status_code(plain), 400);
  EXPECT_EQ(http::response_body(plain), "this port speaks HTTPS\n");
  http::TestClient old(port_), half(port_);
  EXPECT_FALSE(old.encrypt(nullptr, TLS1_1_VERSION));
  ASSERT_TRUE(half.send_bytes("\x16\x03\x01\xff\xff junk"));
  ::shutdown(half.fd(), SHUT_WR);
  EXPECT_TRUE(half.wait_closed());
}

TEST_F(RouterServerTest, CertificateCanBeReplacedWhileServing) {
  start_on_loop(10s, "m 1\n", encrypted(Certificate::make_certificate("one", nullptr, "127.0.0.1")));
  http::TestClient before(port_);
  ASSERT_TRUE(before.encrypt());
  const auto other = encrypted(Certificate::make_certificate("two", nullptr, "127.0.0.1"));
  EXPECT_TRUE(on_loop([&] { return gate_.set_rules(other).has_value(); }));
  http::TestClient after(port_);
  ASSERT_TRUE(after.encrypt());
  EXPECT_EQ(after.server_name(), "two");
  ASSERT_TRUE(before.send_bytes("GET /healthz HTTP/1.1\r\n\r\n"));
  EXPECT_NE(before.read_response().find("Connection: close\r\n"),
            std::string::npos);  // served, then closed

  http::AccessRules bad = other;
  bad.tls->key = Certificate::make_certificate("three", nullptr, "127.0.0.1").key_pem();
  EXPECT_EQ(on_loop([&] { return gate_.set_rules(bad).error().full_message(); }),
            "/tls/tls.key: not the key of the certificate in /tls/tls.crt");
  http::TestClient still(port_);
  ASSERT_TRUE(still.encrypt());
  EXPECT_EQ(still.server_name(), "two");
}

TEST_F(RouterServerTest, RequiresATrustedClientCertificate) {
  const auto authority = Certificate::make_certificate("authority", nullptr, "");
  const auto scraper = Certificate::make_certificate("scraper", &authority, "prometheus.monitoring.svc");
  const auto other = Certificate::make_certificate("other", &authority, "other.svc");
  const auto stranger = Certificate::make_certificate("stranger", nullptr, "prometheus.monitoring.svc");
  http::AccessRules access = encrypted(Certificate::make_certificate("one", nullptr, "127.0.0.1"));
  access.tls->clients = http::ClientAuthType::kRequireAndVerify;
  access.tls->client_authorities = authority.pem();
  access.tls->client_names = {"prometheus.monitoring.svc"};
  start_on_loop(10s, "m 1\n", access);
  auto served = [&](const Certificate* certificate) {
    http::TestClient client(port_);
    // With TLS 1.3 a client detects the refusal only when it reads.
    return client.encrypt(certificate) && client.send_bytes("GET /metrics HTTP/1.1\r\n\r\n") &&
           http::status_code(client.read_response()) == 200;
  };
  EXPECT_TRUE(served(&scraper));
  EXPECT_FALSE(served(&other));
  EXPECT_FALSE(served(&stranger));
  EXPECT_FALSE(served(nullptr));
}

TEST_F(RouterServerTest, RequiresPasswords) {
  http::AccessRules access;
  access.users = {{"alice", http::secret_hash()}};
  access.headers = {{"X-Frame-Options", "SAMEORIGIN"}};
  start_on_loop(10s, "m 1\n", access);
  for (const char* path : {"/metrics", "/", "/api/events", "/nothing"}) {
    const auto refused = http::get(port_, path);
    EXPECT_EQ(http::status_code(refused), 401) << path;
    EXPECT_NE(refused.find("\r\nWWW-Authenticate: Basic realm=\"gpulet\""), std::string::npos);
    EXPECT_EQ(refused.find("m 1"), std::string::npos);
  }
  const auto answered = http::get(port_, "/metrics", "Authorization: Basic YWxpY2U6c2VjcmV0\r\n");
  EXPECT_EQ(http::response_body(answered), "m 1\n");
  EXPECT_NE(answered.find("\r\nX-Frame-Options: SAMEORIGIN\r\n"), std::string::npos);
  EXPECT_EQ(http::status_code(http::get(port_, "/metrics", "Authorization: Basic YWxpY2U6d3Jvbmc=\r\n")),
            401);
}

}  // namespace
}  // namespace gpulet::web

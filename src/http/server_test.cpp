#include "http/message.h"

#include <gtest/gtest.h>

#include <signal.h>

#include <deque>
#include <thread>

#include "base/test_loop.h"
#include "http/server.h"
#include "http/socket.h"
#include "http/test_client.h"

namespace gpulet::http {
namespace {

using namespace std::chrono_literals;

// Responds when the test triggers it.
class SlowHandler final : public RequestHandler {
 public:
  void handle_request(const Request& request, Time, const ResponseCallback& reply) override {
    std::lock_guard lock(mutex_);
    std::string what(request.target);
    for (const auto& [name, value] : request.fields)
      what += " " + std::string(name) + "=" + std::string(value);
    if (!request.body.empty()) what += " with " + std::to_string(request.body.size()) + request.body.back();
    asked_.push_back({what + " by " + std::string(request.client), reply});
    some_.notify_all();
  }
  // Waits for the next request.
  std::pair<std::string, ResponseCallback> next_request() {
    std::unique_lock lock(mutex_);
    if (!some_.wait_for(lock, 20s, [this] { return !asked_.empty(); })) return {"nothing", [](Response) {}};
    auto first = std::move(asked_.front());
    asked_.pop_front();
    return first;
  }
  std::size_t waiting() {
    std::lock_guard lock(mutex_);
    return asked_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable some_;
  std::deque<std::pair<std::string, ResponseCallback>> asked_;
};

// Holds the checks of passwords until the test runs them.
class HeldPasswordChecks final : public CheckRunner {
 public:
  void run_check(std::function<bool()> check, std::function<void(Outcome)> done) override {
    std::lock_guard lock(mutex_);
    held_ = [check = std::move(check), done = std::move(done)] { done({check(), 1ms}); };
    some_.notify_all();
  }
  // Waits for the next one. Run it on the loop.
  std::function<void()> next_check() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(some_.wait_for(lock, 20s, [this] { return held_ != nullptr; }));
    return std::exchange(held_, nullptr);
  }

 private:
  std::mutex mutex_;
  std::condition_variable some_;
  std::function<void()> held_;
};

Response text_response(const std::string& body) {
  return {.body = std::make_shared<const std::string>(body)};
}

class ServerTest : public testing::Test {
 protected:
  void start_on_loop(const ServerLimits& limits, const AccessRules& access = {}) {
    ::signal(SIGPIPE, SIG_IGN);
    const auto set = gate_.set_rules(access);
    ASSERT_TRUE(set) << set.error().full_message();
    auto listening = listen_tcp("127.0.0.1:0");
    ASSERT_TRUE(listening) << listening.error().full_message();
    listening_ = std::move(*listening);
    port_ = socket_port(listening_.get());
    server_ = std::make_unique<Server>(loop_, listening_.get(), service_, gate_, limits);
    thread_ = std::thread([this] { loop_.run_loop(); });
  }
  void TearDown() override {
    loop_.stop_loop();
    if (thread_.joinable()) thread_.join();
    server_.reset();
  }
  void on_loop(const std::function<void()>& task) { test::call_on_loop(loop_, task); }
  void answer_next(const std::string& wanted, const std::string& body) {
    const auto [asked, reply] = service_.next_request();
    EXPECT_EQ(asked, wanted);
    on_loop([&reply = reply, &body] { reply(text_response(body)); });
  }
  std::size_t connections() {
    std::size_t count = 0;
    on_loop([&] { count = server_->connection_count(); });
    return count;
  }

  EpollLoop loop_;
  SlowHandler service_;
  HeldPasswordChecks checks_;
  AccessGate gate_{&checks_};
  FileDescriptor listening_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
  std::uint16_t port_ = 0;
};

TEST_F(ServerTest, LateResponsesKeepTheirOrder) {
  start_on_loop({});
  TestClient client(port_);
  ASSERT_TRUE(client.send_bytes("GET /1 HTTP/1.1\r\nA: b\r\nA: c\r\n\r\nGET /2 HTTP/1.1\r\n\r\n"));
  ASSERT_TRUE(client.send_bytes("HEAD /3 HTTP/1.1\r\n\r\n"));
  answer_next("/1 A=b A=c by ", "first");
  EXPECT_EQ(response_body(client.read_response()), "first");
  answer_next("/2 by ", "second");
  EXPECT_EQ(response_body(client.read_response()), "second");
  answer_next("/3 by ", "third");
  EXPECT_EQ(status_code(client.read_response(false)), 200);
}

TEST_F(ServerTest, RequestsOfAConnectionAreHandledOneByOne) {
  start_on_loop({});
  TestClient client(port_), other(port_);
  ASSERT_TRUE(client.send_bytes("GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n"));
  const auto [asked, reply] = service_.next_request();
  EXPECT_EQ(asked, "/1 by ");
  // A request of another connection is handled meanwhile, the second of this one is not.
  ASSERT_TRUE(other.send_bytes("GET /other HTTP/1.1\r\n\r\n"));
  answer_next("/other by ", "x");
  EXPECT_EQ(service_.waiting(), 0u);
  on_loop([&reply = reply] { reply(text_response("first")); });
  answer_next("/2 by ", "second");
  EXPECT_EQ(response_body(client.read_response()), "first");
  EXPECT_EQ(response_body(client.read_response()), "second");
}

// Whatever a check of a password takes, requests of others are answered.
TEST_F(ServerTest, ChecksOfPasswordsDelayNobodyElse) {
  start_on_loop({}, {.users = {{"alice", secret_hash()}}});
  TestClient user(port_), guesser(port_), gone(port_);
  const std::string right = "Authorization: Basic YWxpY2U6c2VjcmV0\r\n\r\n";
  ASSERT_TRUE(user.send_bytes("GET /1 HTTP/1.1\r\n" + right));
  on_loop(checks_.next_check());
  answer_next("/1 Authorization=Basic YWxpY2U6c2VjcmV0 by ", "first");
  EXPECT_EQ(response_body(user.read_response()), "first");

  ASSERT_TRUE(
      guesser.send_bytes("GET /2 HTTP/1.1\r\nAuthorization: Basic YWxpY2U6Z3Vlc3M=\r\n\r\n"
                         "GET /3 HTTP/1.1\r\n" +
                         right));
  const auto check = checks_.next_check();
  ASSERT_TRUE(user.send_bytes("GET /4 HTTP/1.1\r\n" + right));
  answer_next("/4 Authorization=Basic YWxpY2U6c2VjcmV0 by ", "second");
  EXPECT_EQ(response_body(user.read_response()), "second");
  EXPECT_EQ(service_.waiting(), 0u) << "requests behind the check wait for it";
  on_loop(check);
  EXPECT_EQ(status_code(guesser.read_response()), 401);
  answer_next("/3 Authorization=Basic YWxpY2U6c2VjcmV0 by ", "third");
  EXPECT_EQ(response_body(guesser.read_response()), "third");

  // A connection that closes before its verdict, and one whose rules end.
  ASSERT_TRUE(gone.send_bytes("GET /5 HTTP/1.1\r\nAuthorization: Basic YWxpY2U6b3RoZXI=\r\n\r\n"));
  const auto late = checks_.next_check();
  ASSERT_TRUE(guesser.send_bytes("GET /6 HTTP/1.1\r\nAuthorization: Basic Ym9iOm90aGVy\r\n\r\n"));
  on_loop([this] { ASSERT_TRUE(gate_.set_rules({})); });
  EXPECT_EQ(status_code(gone.read_response()), 429);
  EXPECT_TRUE(gone.wait_closed());
  on_loop([this] { server_.reset(); });
  const auto before = service_.waiting();  // /6 too, if it came after the end of the rules
  on_loop(late);
  EXPECT_EQ(service_.waiting(), before);
}

TEST_F(ServerTest, ResponseToADisconnectedClientIsNoError) {
  start_on_loop({});
  {
    TestClient client(port_);
    ASSERT_TRUE(client.send_bytes("GET /1 HTTP/1.1\r\n\r\n"));
    const auto [asked, reply] = service_.next_request();
    on_loop([this] { server_.reset(); });  // closes its connections
    on_loop([&reply = reply] { reply(text_response("late")); });
    EXPECT_TRUE(client.wait_closed());
  }
}

TEST_F(ServerTest, UnansweredRequestIsClosedAtTheLimit) {
  start_on_loop({.exchange = 50ms, .idle = 1h});
  TestClient client(port_);
  ASSERT_TRUE(client.send_bytes("GET /1 HTTP/1.1\r\n\r\n"));
  const auto [asked, reply] = service_.next_request();
  EXPECT_TRUE(client.wait_closed());
  on_loop([&reply = reply] { reply(text_response("late")); });
  EXPECT_EQ(connections(), 0u);
}

TEST_F(ServerTest, IdleConnectionHasItsOwnLimit) {
  start_on_loop({.exchange = 1h, .idle = 50ms});
  TestClient client(port_);
  ASSERT_TRUE(client.send_bytes("GET /1 HTTP/1.1\r\n\r\n"));
  answer_next("/1 by ", "first");
  EXPECT_EQ(response_body(client.read_response()), "first");
  EXPECT_TRUE(client.wait_closed());
}

TEST_F(ServerTest, HeaderHasAConfigurableLimit) {
  start_on_loop({.head_bytes = 64u << 10});
  TestClient client(port_);
  const std::string big(60'000, 'x');
  ASSERT_TRUE(client.send_bytes("GET /1 HTTP/1.1\r\nA: " + big + "\r\n\r\n"));
  answer_next("/1 A=" + big + " by ", "taken");
  EXPECT_EQ(response_body(client.read_response()), "taken");
  ASSERT_TRUE(client.send_bytes("GET /1 HTTP/1.1\r\nA: " + big + big + "\r\n\r\n"));
  const std::string refused = client.read_response();
  EXPECT_EQ(status_code(refused), 431);
  EXPECT_EQ(response_body(refused), "the request's head is larger than 65536 bytes\n");
}

TEST_F(ServerTest, BodyIsReadUpToItsLimit) {
  start_on_loop({.body_bytes = 1u << 20});
  TestClient client(port_);
  const std::string big((1u << 20) - 1, 'x');
  ASSERT_TRUE(client.send_bytes("POST /1 HTTP/1.1\r\nContent-Length: " + std::to_string(big.size() + 1) +
                                "\r\n\r\n" + big));
  ASSERT_TRUE(client.send_bytes("yGET /2 HTTP/1.1\r\n\r\n"));
  answer_next("/1 Content-Length=1048576 with 1048576y by ", "first");
  EXPECT_EQ(response_body(client.read_response()), "first");
  answer_next("/2 by ", "second");
  EXPECT_EQ(response_body(client.read_response()), "second");
  ASSERT_TRUE(client.send_bytes("POST /3 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel"));
  ASSERT_TRUE(client.send_bytes("lo\r\n1\r\n!\r\n0\r\n\r\n"));
  answer_next("/3 Transfer-Encoding=chunked with 6! by ", "third");
  EXPECT_EQ(response_body(client.read_response()), "third");
  ASSERT_TRUE(client.send_bytes("POST /4 HTTP/1.1\r\nContent-Length: 0\r\n\r\n"));
  answer_next("/4 Content-Length=0 by ", "fourth");
  EXPECT_EQ(response_body(client.read_response()), "fourth");
}

// Also the last chunk, of which less than its five bytes may arrive at once.
TEST_F(ServerTest, BodyMayArriveByteByByte) {
  start_on_loop({.body_bytes = 1000});
  TestClient client(port_);
  const auto send = [&](const std::string& chunks) {
    for (const char byte : "POST /1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + "0\r\n\r\n") {
      ASSERT_TRUE(client.send_bytes(std::string(1, byte)));
      on_loop([] {});  // the server reads it meanwhile
    }
  };
  send("1\r\n!\r\n");
  answer_next("/1 Transfer-Encoding=chunked with 1! by ", "first");
  EXPECT_EQ(response_body(client.read_response()), "first");
  send("");
  answer_next("/1 Transfer-Encoding=chunked by ", "second");
  EXPECT_EQ(response_body(client.read_response()), "second");
}

TEST_F(ServerTest, OversizedBodyIsRefused) {
  start_on_loop({.body_bytes = 1000});
  const std::string heads[] = {
      "POST /1 HTTP/1.1\r\nContent-Length: 1001\r\n\r\n",
      "POST /1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + std::string(2000, 'x'),
      "POST /1 HTTP/1.1\r\nContent-Length: 99999999999999\r\n\r\n"};
  for (const auto& head : heads) {
    TestClient client(port_);
    ASSERT_TRUE(client.send_bytes(head));
    const std::string refused = client.read_response();
    EXPECT_EQ(status_code(refused), 413) << head.substr(0, 60);
    EXPECT_EQ(response_body(refused), "the request's body is larger than 1000 bytes\n");
    EXPECT_TRUE(client.wait_closed());
  }
  EXPECT_EQ(service_.waiting(), 0u);
}

TEST_F(ServerTest, ReportsTheClientCertificatesSubject) {
  const auto ours = Certificate::make_certificate("server", nullptr, "127.0.0.1");
  const auto authority = Certificate::make_certificate("authority", nullptr, "");
  const auto client = Certificate::make_certificate("front-proxy-client", &authority, "");
  const auto stranger = Certificate::make_certificate("front-proxy-client", nullptr, "");
  start_on_loop({}, {.tls = TlsServerConfig{.certificate = ours.pem(),
                                            .key = ours.key_pem(),
                                            .client_authorities = authority.pem(),
                                            .clients = ClientAuthType::kVerifyIfGiven}});
  TestClient known(port_), nobody(port_), other(port_);
  ASSERT_TRUE(known.encrypt(&client));
  ASSERT_TRUE(known.send_bytes("GET /1 HTTP/1.1\r\n\r\n"));
  answer_next("/1 by front-proxy-client", "x");
  ASSERT_TRUE(nobody.encrypt());
  ASSERT_TRUE(nobody.send_bytes("GET /1 HTTP/1.1\r\n\r\n"));
  answer_next("/1 by ", "x");
  // TLS 1.3 reports it after the handshake.
  if (other.encrypt(&stranger)) {
    other.send_bytes("GET /1 HTTP/1.1\r\n\r\n");
    EXPECT_TRUE(other.wait_closed());
  }
  EXPECT_EQ(service_.waiting(), 0u);
}

TEST_F(ServerTest, UnverifiedCertificateReportsNoSubject) {
  const auto ours = Certificate::make_certificate("server", nullptr, "127.0.0.1");
  const auto stranger = Certificate::make_certificate("front-proxy-client", nullptr, "");
  start_on_loop(
      {}, {.tls = TlsServerConfig{
               .certificate = ours.pem(), .key = ours.key_pem(), .clients = ClientAuthType::kRequireAny}});
  TestClient client(port_);
  ASSERT_TRUE(client.encrypt(&stranger));
  ASSERT_TRUE(client.send_bytes("GET /1 HTTP/1.1\r\n\r\n"));
  answer_next("/1 by ", "x");
}

}  // namespace
}  // namespace gpulet::http

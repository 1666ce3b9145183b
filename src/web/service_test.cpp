#include "web/service.h"

#include <gtest/gtest.h>

#include <signal.h>

#include <deque>
#include <future>
#include <thread>

#include "web/listening.h"
#include "web/server.h"
#include "web/test_client.h"

namespace gpulet::web {
namespace {

using namespace std::chrono_literals;

// Answers when the test says so.
class Slow final : public Service {
 public:
  void serve(const Request& request, Time, const Reply& reply) override {
    std::lock_guard lock(mutex_);
    std::string what(request.target);
    for (const auto& [name, value] : request.fields)
      what += " " + std::string(name) + "=" + std::string(value);
    if (!request.body.empty()) what += " with " + std::to_string(request.body.size()) + request.body.back();
    asked_.push_back({what + " by " + std::string(request.client), reply});
    some_.notify_all();
  }
  // The next that was asked, once there is one.
  std::pair<std::string, Reply> next() {
    std::unique_lock lock(mutex_);
    if (!some_.wait_for(lock, 20s, [this] { return !asked_.empty(); })) return {"nothing", [](Answer) {}};
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
  std::deque<std::pair<std::string, Reply>> asked_;
};

Answer text(const std::string& body) { return {.body = std::make_shared<const std::string>(body)}; }

class ServiceTest : public testing::Test {
 protected:
  void start(const ServerLimits& limits, const Access& access = {}) {
    ::signal(SIGPIPE, SIG_IGN);
    const auto set = door_.set(access);
    ASSERT_TRUE(set) << set.error().text();
    auto listening = listen_on("127.0.0.1:0");
    ASSERT_TRUE(listening) << listening.error().text();
    listening_ = std::move(*listening);
    port_ = port_of(listening_.get());
    server_ = std::make_unique<Server>(loop_, listening_.get(), service_, door_, limits);
    thread_ = std::thread([this] { loop_.run(); });
  }
  void TearDown() override {
    loop_.stop();
    if (thread_.joinable()) thread_.join();
    server_.reset();
  }
  void on_loop(const std::function<void()>& task) {
    std::promise<void> done;
    loop_.post([&] {
      task();
      done.set_value();
    });
    done.get_future().wait();
  }
  void answer_next(const std::string& wanted, const std::string& body) {
    const auto [asked, reply] = service_.next();
    EXPECT_EQ(asked, wanted);
    on_loop([&reply = reply, &body] { reply(text(body)); });
  }
  std::size_t connections() {
    std::size_t count = 0;
    on_loop([&] { count = server_->connections(); });
    return count;
  }

  EpollLoop loop_;
  Slow service_;
  Door door_;
  FileDescriptor listening_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
  std::uint16_t port_ = 0;
};

TEST_F(ServiceTest, AnswersThatComeLaterKeepTheirOrder) {
  start({});
  Client client(port_);
  ASSERT_TRUE(client.send("GET /1 HTTP/1.1\r\nA: b\r\nA: c\r\n\r\nGET /2 HTTP/1.1\r\n\r\n"));
  ASSERT_TRUE(client.send("HEAD /3 HTTP/1.1\r\n\r\n"));
  answer_next("/1 A=b A=c by ", "first");
  EXPECT_EQ(body_of(client.answer()), "first");
  answer_next("/2 by ", "second");
  EXPECT_EQ(body_of(client.answer()), "second");
  answer_next("/3 by ", "third");
  EXPECT_EQ(status_of(client.answer(false)), 200);
}

TEST_F(ServiceTest, OneIsAskedAfterTheOther) {
  start({});
  Client client(port_), other(port_);
  ASSERT_TRUE(client.send("GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n"));
  const auto [asked, reply] = service_.next();
  EXPECT_EQ(asked, "/1 by ");
  // Another's is asked meanwhile, and the second of this one is not.
  ASSERT_TRUE(other.send("GET /other HTTP/1.1\r\n\r\n"));
  answer_next("/other by ", "x");
  EXPECT_EQ(service_.waiting(), 0u);
  on_loop([&reply = reply] { reply(text("first")); });
  answer_next("/2 by ", "second");
  EXPECT_EQ(body_of(client.answer()), "first");
  EXPECT_EQ(body_of(client.answer()), "second");
}

TEST_F(ServiceTest, AnAnswerToAClientThatHasGoneIsNoError) {
  start({});
  {
    Client client(port_);
    ASSERT_TRUE(client.send("GET /1 HTTP/1.1\r\n\r\n"));
    const auto [asked, reply] = service_.next();
    on_loop([this] { server_.reset(); });  // its connections with it
    on_loop([&reply = reply] { reply(text("late")); });
    EXPECT_TRUE(client.closed());
  }
}

TEST_F(ServiceTest, WhatIsNotAnsweredInTimeIsClosed) {
  start({.exchange = 50ms, .idle = 1h});
  Client client(port_);
  ASSERT_TRUE(client.send("GET /1 HTTP/1.1\r\n\r\n"));
  const auto [asked, reply] = service_.next();
  EXPECT_TRUE(client.closed());
  on_loop([&reply = reply] { reply(text("late")); });
  EXPECT_EQ(connections(), 0u);
}

TEST_F(ServiceTest, AnIdleConnectionHasALimitOfItsOwn) {
  start({.exchange = 1h, .idle = 50ms});
  Client client(port_);
  ASSERT_TRUE(client.send("GET /1 HTTP/1.1\r\n\r\n"));
  answer_next("/1 by ", "first");
  EXPECT_EQ(body_of(client.answer()), "first");
  EXPECT_TRUE(client.closed());
}

TEST_F(ServiceTest, AHeadHasTheLimitThatItIsGiven) {
  start({.head_bytes = 64u << 10});
  Client client(port_);
  const std::string big(60'000, 'x');
  ASSERT_TRUE(client.send("GET /1 HTTP/1.1\r\nA: " + big + "\r\n\r\n"));
  answer_next("/1 A=" + big + " by ", "taken");
  EXPECT_EQ(body_of(client.answer()), "taken");
  ASSERT_TRUE(client.send("GET /1 HTTP/1.1\r\nA: " + big + big + "\r\n\r\n"));
  const std::string refused = client.answer();
  EXPECT_EQ(status_of(refused), 431);
  EXPECT_EQ(body_of(refused), "the request's head is larger than 65536 bytes\n");
}

TEST_F(ServiceTest, ABodyIsReadWholeUpToItsLimit) {
  start({.body_bytes = 1u << 20});
  Client client(port_);
  const std::string big((1u << 20) - 1, 'x');
  ASSERT_TRUE(client.send("POST /1 HTTP/1.1\r\nContent-Length: " + std::to_string(big.size() + 1) +
                          "\r\n\r\n" + big));
  ASSERT_TRUE(client.send("yGET /2 HTTP/1.1\r\n\r\n"));
  answer_next("/1 Content-Length=1048576 with 1048576y by ", "first");
  EXPECT_EQ(body_of(client.answer()), "first");
  answer_next("/2 by ", "second");
  EXPECT_EQ(body_of(client.answer()), "second");
  ASSERT_TRUE(client.send("POST /3 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel"));
  ASSERT_TRUE(client.send("lo\r\n1\r\n!\r\n0\r\n\r\n"));
  answer_next("/3 Transfer-Encoding=chunked with 6! by ", "third");
  EXPECT_EQ(body_of(client.answer()), "third");
  ASSERT_TRUE(client.send("POST /4 HTTP/1.1\r\nContent-Length: 0\r\n\r\n"));
  answer_next("/4 Content-Length=0 by ", "fourth");
  EXPECT_EQ(body_of(client.answer()), "fourth");
}

TEST_F(ServiceTest, ABodyAboveTheLimitIsRefused) {
  start({.body_bytes = 1000});
  const std::string heads[] = {
      "POST /1 HTTP/1.1\r\nContent-Length: 1001\r\n\r\n",
      "POST /1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + std::string(2000, 'x'),
      "POST /1 HTTP/1.1\r\nContent-Length: 99999999999999\r\n\r\n"};
  for (const auto& head : heads) {
    Client client(port_);
    ASSERT_TRUE(client.send(head));
    const std::string refused = client.answer();
    EXPECT_EQ(status_of(refused), 413) << head.substr(0, 60);
    EXPECT_EQ(body_of(refused), "the request's body is larger than 1000 bytes\n");
    EXPECT_TRUE(client.closed());
  }
  EXPECT_EQ(service_.waiting(), 0u);
}

TEST_F(ServiceTest, SaysWhoseCertificateWasShown) {
  const auto ours = Certificate::make("server", nullptr, "127.0.0.1");
  const auto authority = Certificate::make("authority", nullptr, "");
  const auto client = Certificate::make("front-proxy-client", &authority, "");
  const auto stranger = Certificate::make("front-proxy-client", nullptr, "");
  start({}, {.tls = Tls{.certificate = ours.pem(),
                        .key = ours.key_pem(),
                        .client_authorities = authority.pem(),
                        .clients = ClientCertificates::kVerifyIfGiven}});
  Client known(port_), nobody(port_), other(port_);
  ASSERT_TRUE(known.encrypt(&client));
  ASSERT_TRUE(known.send("GET /1 HTTP/1.1\r\n\r\n"));
  answer_next("/1 by front-proxy-client", "x");
  ASSERT_TRUE(nobody.encrypt());
  ASSERT_TRUE(nobody.send("GET /1 HTTP/1.1\r\n\r\n"));
  answer_next("/1 by ", "x");
  // TLS 1.3 tells it after the handshake.
  if (other.encrypt(&stranger)) {
    other.send("GET /1 HTTP/1.1\r\n\r\n");
    EXPECT_TRUE(other.closed());
  }
  EXPECT_EQ(service_.waiting(), 0u);
}

TEST_F(ServiceTest, ACertificateThatIsOnlyAskedForSaysNothing) {
  const auto ours = Certificate::make("server", nullptr, "127.0.0.1");
  const auto stranger = Certificate::make("front-proxy-client", nullptr, "");
  start({},
        {.tls = Tls{
             .certificate = ours.pem(), .key = ours.key_pem(), .clients = ClientCertificates::kRequireAny}});
  Client client(port_);
  ASSERT_TRUE(client.encrypt(&stranger));
  ASSERT_TRUE(client.send("GET /1 HTTP/1.1\r\n\r\n"));
  answer_next("/1 by ", "x");
}

}  // namespace
}  // namespace gpulet::web

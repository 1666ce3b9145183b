#include "cluster/events.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <map>
#include <nlohmann/json.hpp>

#include "cluster/api_client.h"
#include "cluster/test_api_server.h"

namespace gpulet::cluster {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using Act = TestApiServer::Act;
using Reply = TestApiServer::Reply;

// The agent's side on a loop in a thread of its own; the server in another.
class ClusterTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "cluster.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    folder_ = path;
    authority_ = Certificate::make("kubernetes", nullptr, "");
    certificate_ = Certificate::make("apiserver", &authority_, "127.0.0.1");
    ASSERT_TRUE(write_file_atomic(folder_ + "/ca.crt", authority_.pem()));
    ASSERT_TRUE(write_file_atomic(folder_ + "/token", "first\n"));
    thread_ = std::thread([this] { loop_.run(); });
  }
  void TearDown() override {
    call([this] {
      sender_.reset();
      client_.reset();
    });
    loop_.stop();
    thread_.join();
    server_.reset();
    std::filesystem::remove_all(folder_);
  }
  void call(const std::function<void()>& task) {
    std::promise<void> done;
    loop_.post([&] {
      task();
      done.set_value();
    });
    done.get_future().wait();
  }
  template <class Condition>
  bool eventually(Condition condition) {
    const auto deadline = std::chrono::steady_clock::now() + 30s;
    while (std::chrono::steady_clock::now() < deadline) {
      if (condition()) return true;
      ::poll(nullptr, 0, 2);
    }
    return false;
  }

  Access access() const {
    return {.host = "127.0.0.1",
            .port = server_ ? server_->port() : port_,
            .ca_file = folder_ + "/ca.crt",
            .token_file = folder_ + "/token",
            .node_name = "node-1"};
  }
  void serve(TestApiServer::Handler handler) {
    server_ = std::make_unique<TestApiServer>(certificate_, std::move(handler));
  }
  void start(EventTiming timing = {.repeat_window = 10min,
                                   .repeat_delay = 20ms,
                                   .backoff = {10ms, 50ms},
                                   .request_limit = 5s}) {
    call([&] { sender_ = EventSender::start(loop_, access(), timing); });
  }
  void send(const std::string& reason, const std::string& message, bool warning = true) {
    call([&] { sender_->send({warning, reason, message}); });
  }
  std::uint64_t sent() {
    std::uint64_t count = 0;
    call([&] { count = sender_->sent(); });
    return count;
  }
  Result<ApiResponse> request(Duration limit = 5s) {
    std::promise<Result<ApiResponse>> answer;
    loop_.post([&] {
      if (!client_) client_ = std::make_unique<ApiClient>(loop_, access(), limit);
      client_->request({"POST", "/x", "text/plain", "hello"},
                       [&](Result<ApiResponse> got) { answer.set_value(std::move(got)); });
    });
    return answer.get_future().get();
  }

  EpollLoop loop_;
  std::string folder_;
  Certificate authority_, certificate_;
  std::uint16_t port_ = 0;
  std::unique_ptr<TestApiServer> server_;
  std::unique_ptr<EventSender> sender_;
  std::unique_ptr<ApiClient> client_;
  std::thread thread_;
};

TEST_F(ClusterTest, AnEventIsWhatKubectlDescribeNodeLooksFor) {
  serve([](const Received&) { return Reply{}; });
  start();
  send("GPUUnhealthy", "GPU 3 is withdrawn: \"XID 79\"\n\xff");
  ASSERT_TRUE(eventually([&] { return sent() == 1; }));
  const Received got = server_->received().at(0);
  EXPECT_EQ(got.head.substr(0, got.head.find("\r\n")), "POST /api/v1/namespaces/default/events HTTP/1.1");
  EXPECT_NE(got.head.find("\r\nAuthorization: Bearer first\r\n"), std::string::npos);
  EXPECT_NE(got.head.find("\r\nHost: 127.0.0.1:" + std::to_string(server_->port()) + "\r\n"), std::string::npos);
  const json event = json::parse(got.body);
  EXPECT_EQ(event["kind"], "Event");
  EXPECT_EQ(event["apiVersion"], "v1");
  EXPECT_EQ(event["metadata"]["namespace"], "default");
  EXPECT_EQ(event["metadata"]["name"].get<std::string>().substr(0, 7), "node-1.");
  const json node = {{"apiVersion", "v1"}, {"kind", "Node"}, {"name", "node-1"}, {"uid", "node-1"}};
  EXPECT_EQ(event["involvedObject"], node);
  EXPECT_EQ(event["type"], "Warning");
  EXPECT_EQ(event["reason"], "GPUUnhealthy");
  EXPECT_EQ(event["message"], "GPU 3 is withdrawn: \"XID 79\"\n\xEF\xBF\xBD");
  EXPECT_EQ(event["count"], 1);
  EXPECT_EQ(event["source"]["component"], "gpulet");
  EXPECT_EQ(event["firstTimestamp"], event["lastTimestamp"]);
  EXPECT_EQ(event["firstTimestamp"].get<std::string>().size(), std::string("2026-01-01T00:00:00Z").size());
}

TEST_F(ClusterTest, AnEventAboutAPodIsInItsNamespace) {
  serve([](const Received&) { return Reply{}; });
  start();
  const std::string pod = std::string(230, 'p') + ".worker-0";
  call([&] {
    for (const char* uid : {"u-1", "u-2", "u-1"}) {
      sender_->send({true, "GPUFault", "XID 79", PodRef{"team-a", pod, uid}});
    }
    sender_->send({true, "GPUFault", "XID 79"});
  });
  ASSERT_TRUE(eventually([&] { return sent() == 4; }));
  const auto got = server_->received();
  const auto line = [&](std::size_t i) { return got[i].head.substr(0, got[i].head.find(" HTTP")); };
  ASSERT_EQ(got.size(), 4u);  // another Pod of the same name is another event; the third is a repeat
  EXPECT_EQ(line(0), "POST /api/v1/namespaces/team-a/events");
  EXPECT_EQ(line(1), "POST /api/v1/namespaces/team-a/events");
  EXPECT_EQ(line(2), "POST /api/v1/namespaces/default/events");
  const json event = json::parse(got[0].body);
  EXPECT_EQ(event["metadata"]["namespace"], "team-a");
  EXPECT_EQ(event["involvedObject"],
            json::parse(R"({"apiVersion": "v1", "kind": "Pod", "namespace": "team-a", "uid": "u-1",
                            "name": ")" + pod + R"("})"));
  const std::string name = event["metadata"]["name"];
  EXPECT_LE(name.size(), 253u);
  EXPECT_EQ(name.substr(0, 231), std::string(230, 'p') + ".");
  EXPECT_EQ(line(3), "PATCH /api/v1/namespaces/team-a/events/" + name);
  EXPECT_EQ(json::parse(got[3].body)["count"], 2);
}

TEST_F(ClusterTest, ANamespaceThatIsTakenAwayHoldsNoOthersEventsBack) {
  const std::string ending = R"({"message": "forbidden", "details": {"causes": [
      {"reason": "NamespaceTerminating", "message": "namespace team-a is being terminated"}]}})";
  serve([&](const Received& request) {
    return request.head.find("/team-a/") != std::string::npos ? Reply{403, ending} : Reply{};
  });
  start();
  call([&] {
    sender_->send({true, "GPUFault", "1", PodRef{"team-a", "train", "u-1"}});
    sender_->send({true, "GPUFault", "2", PodRef{"team-a/../x", "train", "u-1"}});
    sender_->send({true, "GPUFault", "3"});
  });
  ASSERT_TRUE(eventually([&] { return sent() == 1; }));
  call([&] {
    EXPECT_EQ(sender_->dropped(), 2u);
    EXPECT_EQ(sender_->waiting(), 0u);
  });
  EXPECT_EQ(server_->received().size(), 2u);
}

TEST_F(ClusterTest, EqualEventsBecomeOneWithACount) {
  serve([](const Received&) { return Reply{}; });
  start();
  for (int i = 0; i < 50; ++i) send("GPUUnhealthy", "same");
  send("GPUUnhealthy", "other");
  send("GPUUnhealthy", "same", false);
  std::vector<Received> got;
  std::vector<json> posts;
  std::string patch;
  ASSERT_TRUE(eventually([&] {
    got = server_->received();
    posts.clear();
    patch.clear();
    for (const auto& request : got) {
      const json body = json::parse(request.body);
      if (request.head.starts_with("POST ")) posts.push_back(body);
      if (request.head.starts_with("PATCH ") && body["count"] == 50) patch = request.head;
    }
    return posts.size() >= 3 && !patch.empty();
  }));
  EXPECT_EQ(posts.size(), 3u);
  EXPECT_LE(got.size(), 3u + 5u);  // a burst is not one request each
  EXPECT_EQ(patch.substr(0, patch.find(" HTTP")),
            "PATCH /api/v1/namespaces/default/events/" + posts.at(0)["metadata"]["name"].get<std::string>());
  EXPECT_NE(patch.find("\r\nContent-Type: application/merge-patch+json\r\n"), std::string::npos);
}

TEST_F(ClusterTest, ARepeatOfWhatTheServerHasForgottenIsANewEvent) {
  serve([](const Received& request) { return Reply{request.head.rfind("PATCH", 0) == 0 ? 404 : 201}; });
  start();
  send("A", "same");
  ASSERT_TRUE(eventually([&] { return sent() == 1; }));
  send("A", "same");
  ASSERT_TRUE(eventually([&] { return sent() == 2; }));
  const auto got = server_->received();
  ASSERT_EQ(got.size(), 3u);
  const json first = json::parse(got[0].body), second = json::parse(got[2].body);
  EXPECT_NE(first["metadata"]["name"], second["metadata"]["name"]);
  EXPECT_EQ(second["count"], 2);
}

TEST_F(ClusterTest, OfManyEventsOnlyTheLastAreRemembered) {
  serve([](const Received&) { return Reply{}; });
  start();
  for (std::size_t i = 0; i < kMaxRemembered; ++i) send("A", std::to_string(i));
  ASSERT_TRUE(eventually([&] { return sent() == kMaxRemembered; }));
  send("A", "0");  // newer than 1 now
  send("A", "one more");
  ASSERT_TRUE(eventually([&] { return sent() == kMaxRemembered + 2; }));
  call([&] { EXPECT_EQ(sender_->remembered(), kMaxRemembered); });
  send("A", "0");
  send("A", "1");
  ASSERT_TRUE(eventually([&] { return sent() == kMaxRemembered + 4; }));
  std::map<std::string, int> posts, patches;
  for (const auto& request : server_->received()) {
    const auto body = json::parse(request.body);
    if (request.head.starts_with("POST ")) ++posts[body["message"]];
    if (request.head.starts_with("PATCH ")) ++patches[std::to_string(body["count"].get<int>())];
  }
  EXPECT_EQ(posts["0"], 1);
  EXPECT_EQ(posts["1"], 2);
  EXPECT_EQ(patches, (std::map<std::string, int>{{"2", 1}, {"3", 1}}));
}

TEST_F(ClusterTest, WhatNothingRepeatsIsForgottenWithoutAnotherEvent) {
  serve([](const Received&) { return Reply{}; });
  start({.repeat_window = 30ms, .repeat_delay = 1ms, .backoff = {10ms, 50ms}, .request_limit = 5s});
  for (int i = 0; i < 10; ++i) send("A", std::to_string(i));
  EXPECT_TRUE(eventually([&] {
    std::size_t left = 0;
    call([&] { left = sender_->remembered(); });
    return left == 0 && sent() >= 10;
  }));
  EXPECT_EQ(server_->received().size(), 10u);  // none was lost
}

TEST_F(ClusterTest, AnOldTokenIsReadAnew) {
  std::atomic<int> refused = 0;
  serve([&](const Received& request) {
    if (request.head.find("Bearer second\r\n") != std::string::npos) return Reply{};
    // The kubelet writes the new one just now.
    EXPECT_TRUE(write_file_atomic(folder_ + "/token", "second"));
    ++refused;
    return Reply{401};
  });
  start();
  send("A", "message");
  ASSERT_TRUE(eventually([&] { return sent() == 1; }));
  EXPECT_EQ(refused, 1);
}

TEST_F(ClusterTest, TriesAgainWhileTheServerIsInTroubleAndKeepsTheOrder) {
  std::atomic<int> requests = 0;
  serve([&](const Received&) {
    switch (requests++) {
      case 0: return Reply{500, "{\"message\":\"etcd\"}"};
      case 1: return Reply{.act = Act::kClose};
      case 2: return Reply{429};
      case 3: return Reply{403};
      default: return Reply{};
    }
  });
  start();
  send("First", "1");
  send("Second", "2");
  ASSERT_TRUE(eventually([&] { return sent() == 2; }));
  const auto got = server_->received();
  ASSERT_EQ(got.size(), 6u);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(json::parse(got[i].body)["reason"], "First") << i;
  EXPECT_EQ(json::parse(got[5].body)["reason"], "Second");
}

TEST_F(ClusterTest, WhatTheServerWillNeverTakeIsDroppedAndCounted) {
  serve([](const Received& request) { return Reply{json::parse(request.body)["reason"] == "Bad" ? 422 : 201}; });
  start();
  send("Bad", "1");
  send("Good", "2");
  ASSERT_TRUE(eventually([&] { return sent() == 1; }));
  call([&] {
    EXPECT_EQ(sender_->dropped(), 1u);
    EXPECT_EQ(sender_->waiting(), 0u);
  });
}

TEST_F(ClusterTest, AnAnswerThatWasLostDoesNotMakeASecondEvent) {
  std::atomic<int> requests = 0;
  serve([&](const Received&) { return requests++ == 0 ? Reply{.act = Act::kClose} : Reply{409}; });
  start();
  send("A", "message");
  ASSERT_TRUE(eventually([&] { return sent() == 1; }));
  const auto got = server_->received();
  EXPECT_EQ(json::parse(got[0].body)["metadata"]["name"], json::parse(got[1].body)["metadata"]["name"]);
}

TEST_F(ClusterTest, AServerThatIsNotThereCostsABoundedQueueAndNoBlocking) {
  port_ = 1;
  start();
  const auto before = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000; ++i) send("A", std::to_string(i));
  EXPECT_LT(std::chrono::steady_clock::now() - before, 5s);
  call([&] {
    EXPECT_LE(sender_->waiting(), kMaxQueued + 1);
    EXPECT_EQ(sender_->waiting() + sender_->dropped(), 1000u);
    EXPECT_EQ(sender_->sent(), 0u);
  });
}

TEST_F(ClusterTest, ALongMessageIsCutBetweenCharacters) {
  serve([](const Received&) { return Reply{}; });
  start();
  std::string message(kMaxMessageBytes - 1, 'x');
  send("A", message + "é and more");
  ASSERT_TRUE(eventually([&] { return sent() == 1; }));
  EXPECT_EQ(json::parse(server_->received().at(0).body)["message"], message);
}

TEST_F(ClusterTest, ABurstUsesOneConnection) {
  serve([](const Received&) { return Reply{}; });
  start();
  call([&] {
    for (int i = 0; i < 20; ++i) sender_->send({false, "A", std::to_string(i)});
  });
  ASSERT_TRUE(eventually([&] { return sent() == 20; }));
  EXPECT_EQ(server_->connections(), 1);
}

TEST_F(ClusterTest, AServerWithAnotherAuthorityOrNameIsRefused) {
  const Certificate stranger = Certificate::make("stranger", nullptr, "");
  for (const Certificate& wrong :
       {Certificate::make("apiserver", &stranger, "127.0.0.1"),
        Certificate::make("apiserver", &authority_, "127.0.0.2")}) {
    server_ = std::make_unique<TestApiServer>(wrong, [](const Received&) { return Reply{}; });
    const auto answer = request();
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code(), Code::kPermissionDenied) << answer.error().text();
    EXPECT_TRUE(server_->received().empty());  // neither token nor event were told
    call([&] { client_.reset(); });
  }
}

TEST_F(ClusterTest, AServerThatNeverAnswersCostsNoMoreThanTheLimit) {
  serve([](const Received&) { return Reply{.act = Act::kHang}; });
  const auto answer = request(50ms);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), Code::kDeadlineExceeded);
}

TEST_F(ClusterTest, AnAnswerMayEndWithTheConnectionAndMayBeLarge) {
  serve([](const Received& request) {
    EXPECT_EQ(request.body, "hello");
    return Reply{200, std::string(300'000, 'y'), Act::kNoLength};
  });
  for (int i = 0; i < 2; ++i) {
    const auto answer = request();
    ASSERT_TRUE(answer) << answer.error().text();
    EXPECT_EQ(answer->status, 200);
    EXPECT_EQ(answer->body, std::string(300'000, 'y'));
  }
}

TEST_F(ClusterTest, AnAnswerBeyondTheLimitIsAnError) {
  serve([](const Received&) { return Reply{200, std::string(kMaxResponseBytes + 1, 'y')}; });
  const auto answer = request();
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), Code::kIo);
}

TEST_F(ClusterTest, MissingTokenAndAuthorityAreErrors) {
  serve([](const Received&) { return Reply{}; });
  std::filesystem::remove(folder_ + "/token");
  EXPECT_EQ(request().error().code(), Code::kNotFound);
  ASSERT_TRUE(write_file_atomic(folder_ + "/token", "x"));
  ASSERT_TRUE(write_file_atomic(folder_ + "/ca.crt", "no certificate"));
  EXPECT_EQ(request().error().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace gpulet::cluster

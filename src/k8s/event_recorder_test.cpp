#include "k8s/event_recorder.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <map>
#include <nlohmann/json.hpp>

#include "base/test_loop.h"
#include "k8s/api_client.h"
#include "k8s/test_api_server.h"

namespace gpulet::k8s {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using Act = TestApiServer::Act;
using Reply = TestApiServer::Reply;

// The agent's side runs on a loop in its own thread, the server in another.
class EventRecorderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "cluster.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
    authority_ = Certificate::make_certificate("kubernetes", nullptr, "");
    certificate_ = Certificate::make_certificate("apiserver", &authority_, "127.0.0.1");
    ASSERT_TRUE(write_file_atomic(directory_ + "/ca.crt", authority_.pem()));
    ASSERT_TRUE(write_file_atomic(directory_ + "/token", "first\n"));
    thread_ = std::thread([this] { loop_.run_loop(); });
  }
  void TearDown() override {
    call_on_loop([this] {
      sender_.reset();
      client_.reset();
    });
    loop_.stop_loop();
    thread_.join();
    server_.reset();
    std::filesystem::remove_all(directory_);
  }
  void call_on_loop(const std::function<void()>& task) { test::call_on_loop(loop_, task); }
  template <class Condition>
  bool wait_for_sent(Condition condition) {
    return test::becomes_true(std::move(condition));
  }

  ClientConfig client_config() const {
    return {.host = "127.0.0.1",
            .port = server_ ? server_->port() : port_,
            .ca_file = directory_ + "/ca.crt",
            .token_file = directory_ + "/token",
            .node_name = "node-1"};
  }
  void start_server(TestApiServer::Handler handler) {
    server_ = std::make_unique<TestApiServer>(certificate_, std::move(handler));
  }
  void start_recorder(EventTiming timing = {.repeat_window = 10min,
                                            .repeat_delay = 20ms,
                                            .backoff = {10ms, 50ms},
                                            .request_limit = 5s}) {
    call_on_loop([&] { sender_ = EventRecorder::start_recorder(loop_, client_config(), timing); });
  }
  void record_event(const std::string& reason, const std::string& message, bool warning = true) {
    call_on_loop([&] { sender_->record_event({warning, reason, message}); });
  }
  std::uint64_t sent() {
    std::uint64_t count = 0;
    call_on_loop([&] { count = sender_->sent(); });
    return count;
  }
  Result<http::ClientResponse> received_request(Duration limit = 5s) {
    std::promise<Result<http::ClientResponse>> answer;
    loop_.post([&] {
      if (!client_) client_ = std::make_unique<ApiClient>(loop_, client_config(), limit);
      client_->send_request({"POST", "/x", "text/plain", "hello"},
                            [&](Result<http::ClientResponse> got) { answer.set_value(std::move(got)); });
    });
    return answer.get_future().get();
  }

  EpollLoop loop_;
  std::string directory_;
  Certificate authority_, certificate_;
  std::uint16_t port_ = 0;
  std::unique_ptr<TestApiServer> server_;
  std::unique_ptr<EventRecorder> sender_;
  std::unique_ptr<ApiClient> client_;
  std::thread thread_;
};

TEST_F(EventRecorderTest, NodeEventIsFoundByKubectlDescribe) {
  start_server([](const Received&) { return Reply{}; });
  start_recorder();
  record_event("GPUUnhealthy", "GPU 3 is withdrawn: \"XID 79\"\n\xff");
  ASSERT_TRUE(wait_for_sent([&] { return sent() == 1; }));
  const Received got = server_->received_requests().at(0);
  EXPECT_EQ(got.head.substr(0, got.head.find("\r\n")), "POST /api/v1/namespaces/default/events HTTP/1.1");
  EXPECT_NE(got.head.find("\r\nAuthorization: Bearer first\r\n"), std::string::npos);
  EXPECT_NE(got.head.find("\r\nHost: 127.0.0.1:" + std::to_string(server_->port()) + "\r\n"),
            std::string::npos);
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

TEST_F(EventRecorderTest, PodEventIsInThePodsNamespace) {
  start_server([](const Received&) { return Reply{}; });
  start_recorder();
  const std::string pod = std::string(230, 'p') + ".worker-0";
  call_on_loop([&] {
    for (const char* uid : {"u-1", "u-2", "u-1"}) {
      sender_->record_event({true, "GPUFault", "XID 79", PodRef{"team-a", pod, uid}});
    }
    sender_->record_event({true, "GPUFault", "XID 79"});
  });
  ASSERT_TRUE(wait_for_sent([&] { return sent() == 4; }));
  const auto got = server_->received_requests();
  const auto line = [&](std::size_t i) { return got[i].head.substr(0, got[i].head.find(" HTTP")); };
  ASSERT_EQ(got.size(), 4u);  // another Pod of the same name is another event; the third is a repeat
  EXPECT_EQ(line(0), "POST /api/v1/namespaces/team-a/events");
  EXPECT_EQ(line(1), "POST /api/v1/namespaces/team-a/events");
  EXPECT_EQ(line(2), "POST /api/v1/namespaces/default/events");
  const json event = json::parse(got[0].body);
  EXPECT_EQ(event["metadata"]["namespace"], "team-a");
  EXPECT_EQ(event["involvedObject"],
            json::parse(R"({"apiVersion": "v1", "kind": "Pod", "namespace": "team-a", "uid": "u-1",
                            "name": ")" +
                        pod + R"("})"));
  const std::string name = event["metadata"]["name"];
  EXPECT_LE(name.size(), 253u);
  EXPECT_EQ(name.substr(0, 231), std::string(230, 'p') + ".");
  EXPECT_EQ(line(3), "PATCH /api/v1/namespaces/team-a/events/" + name);
  EXPECT_EQ(json::parse(got[3].body)["count"], 2);
}

TEST_F(EventRecorderTest, TerminatingNamespaceDoesNotDelayOtherEvents) {
  const std::string ending = R"({"message": "forbidden", "details": {"causes": [
      {"reason": "NamespaceTerminating", "message": "namespace team-a is being terminated"}]}})";
  start_server([&](const Received& request) {
    return request.head.find("/team-a/") != std::string::npos ? Reply{403, ending} : Reply{};
  });
  start_recorder();
  call_on_loop([&] {
    sender_->record_event({true, "GPUFault", "1", PodRef{"team-a", "train", "u-1"}});
    sender_->record_event({true, "GPUFault", "2", PodRef{"team-a/../x", "train", "u-1"}});
    sender_->record_event({true, "GPUFault", "3"});
  });
  ASSERT_TRUE(wait_for_sent([&] { return sent() == 1; }));
  call_on_loop([&] {
    EXPECT_EQ(sender_->dropped(), 2u);
    EXPECT_EQ(sender_->queued(), 0u);
  });
  EXPECT_EQ(server_->received_requests().size(), 2u);
}

TEST_F(EventRecorderTest, EqualEventsBecomeOneWithACount) {
  start_server([](const Received&) { return Reply{}; });
  start_recorder();
  for (int i = 0; i < 50; ++i) record_event("GPUUnhealthy", "same");
  record_event("GPUUnhealthy", "other");
  record_event("GPUUnhealthy", "same", false);
  std::vector<Received> got;
  std::vector<json> posts;
  std::string patch;
  ASSERT_TRUE(wait_for_sent([&] {
    got = server_->received_requests();
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

TEST_F(EventRecorderTest, RepeatOfAnExpiredEventIsANewEvent) {
  start_server(
      [](const Received& request) { return Reply{request.head.rfind("PATCH", 0) == 0 ? 404 : 201}; });
  start_recorder();
  record_event("A", "same");
  ASSERT_TRUE(wait_for_sent([&] { return sent() == 1; }));
  record_event("A", "same");
  ASSERT_TRUE(wait_for_sent([&] { return sent() == 2; }));
  const auto got = server_->received_requests();
  ASSERT_EQ(got.size(), 3u);
  const json first = json::parse(got[0].body), second = json::parse(got[2].body);
  EXPECT_NE(first["metadata"]["name"], second["metadata"]["name"]);
  EXPECT_EQ(second["count"], 2);
}

TEST_F(EventRecorderTest, OnlyTheNewestEventsAreKeptForRepeats) {
  start_server([](const Received&) { return Reply{}; });
  start_recorder();
  for (std::size_t i = 0; i < kMaxRemembered; ++i) record_event("A", std::to_string(i));
  ASSERT_TRUE(wait_for_sent([&] { return sent() == kMaxRemembered; }));
  record_event("A", "0");  // more recent than 1 now
  record_event("A", "one more");
  ASSERT_TRUE(wait_for_sent([&] { return sent() == kMaxRemembered + 2; }));
  call_on_loop([&] { EXPECT_EQ(sender_->remembered_count(), kMaxRemembered); });
  record_event("A", "0");
  record_event("A", "1");
  ASSERT_TRUE(wait_for_sent([&] { return sent() == kMaxRemembered + 4; }));
  std::map<std::string, int> posts, patches;
  for (const auto& request : server_->received_requests()) {
    const auto body = json::parse(request.body);
    if (request.head.starts_with("POST ")) ++posts[body["message"]];
    if (request.head.starts_with("PATCH ")) ++patches[std::to_string(body["count"].get<int>())];
  }
  EXPECT_EQ(posts["0"], 1);
  EXPECT_EQ(posts["1"], 2);
  EXPECT_EQ(patches, (std::map<std::string, int>{{"2", 1}, {"3", 1}}));
}

TEST_F(EventRecorderTest, RecordsExpireWithoutAnotherEvent) {
  start_server([](const Received&) { return Reply{}; });
  start_recorder({.repeat_window = 30ms, .repeat_delay = 1ms, .backoff = {10ms, 50ms}, .request_limit = 5s});
  for (int i = 0; i < 10; ++i) record_event("A", std::to_string(i));
  EXPECT_TRUE(wait_for_sent([&] {
    std::size_t left = 0;
    call_on_loop([&] { left = sender_->remembered_count(); });
    return left == 0 && sent() >= 10;
  }));
  EXPECT_EQ(server_->received_requests().size(), 10u);  // none was lost
}

TEST_F(EventRecorderTest, ExpiredTokenIsReadAgain) {
  std::atomic<int> refused = 0;
  start_server([&](const Received& request) {
    if (request.head.find("Bearer second\r\n") != std::string::npos) return Reply{};
    // The kubelet is writing the new token at this moment.
    EXPECT_TRUE(write_file_atomic(directory_ + "/token", "second"));
    ++refused;
    return Reply{401};
  });
  start_recorder();
  record_event("A", "message");
  ASSERT_TRUE(wait_for_sent([&] { return sent() == 1; }));
  EXPECT_EQ(refused, 1);
}

TEST_F(EventRecorderTest, RetriesOnServerErrorsAndKeepsTheOrder) {
  std::atomic<int> requests = 0;
  start_server([&](const Received&) {
    switch (requests++) {
      case 0:
        return Reply{500, "{\"message\":\"etcd\"}"};
      case 1:
        return Reply{.act = Act::kClose};
      case 2:
        return Reply{429};
      case 3:
        return Reply{403};
      default:
        return Reply{};
    }
  });
  start_recorder();
  record_event("First", "1");
  record_event("Second", "2");
  ASSERT_TRUE(wait_for_sent([&] { return sent() == 2; }));
  const auto got = server_->received_requests();
  ASSERT_EQ(got.size(), 6u);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(json::parse(got[i].body)["reason"], "First") << i;
  EXPECT_EQ(json::parse(got[5].body)["reason"], "Second");
}

TEST_F(EventRecorderTest, RejectedEventsAreDroppedAndCounted) {
  start_server([](const Received& request) {
    return Reply{json::parse(request.body)["reason"] == "Bad" ? 422 : 201};
  });
  start_recorder();
  record_event("Bad", "1");
  record_event("Good", "2");
  ASSERT_TRUE(wait_for_sent([&] { return sent() == 1; }));
  call_on_loop([&] {
    EXPECT_EQ(sender_->dropped(), 1u);
    EXPECT_EQ(sender_->queued(), 0u);
  });
}

TEST_F(EventRecorderTest, LostResponseCausesNoDuplicateEvent) {
  std::atomic<int> requests = 0;
  start_server([&](const Received&) { return requests++ == 0 ? Reply{.act = Act::kClose} : Reply{409}; });
  start_recorder();
  record_event("A", "message");
  ASSERT_TRUE(wait_for_sent([&] { return sent() == 1; }));
  const auto got = server_->received_requests();
  EXPECT_EQ(json::parse(got[0].body)["metadata"]["name"], json::parse(got[1].body)["metadata"]["name"]);
}

TEST_F(EventRecorderTest, UnreachableServerBoundsTheQueueAndNeverBlocks) {
  port_ = 1;
  start_recorder();
  const auto before = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000; ++i) record_event("A", std::to_string(i));
  EXPECT_LT(std::chrono::steady_clock::now() - before, 5s);
  call_on_loop([&] {
    EXPECT_LE(sender_->queued(), kMaxQueued + 1);
    EXPECT_EQ(sender_->queued() + sender_->dropped(), 1000u);
    EXPECT_EQ(sender_->sent(), 0u);
  });
}

TEST_F(EventRecorderTest, LongMessageIsTruncatedBetweenCharacters) {
  start_server([](const Received&) { return Reply{}; });
  start_recorder();
  std::string message(kMaxMessageBytes - 1, 'x');
  record_event("A", message + "é and more");
  ASSERT_TRUE(wait_for_sent([&] { return sent() == 1; }));
  EXPECT_EQ(json::parse(server_->received_requests().at(0).body)["message"], message);
}

TEST_F(EventRecorderTest, BurstUsesOneConnection) {
  start_server([](const Received&) { return Reply{}; });
  start_recorder();
  call_on_loop([&] {
    for (int i = 0; i < 20; ++i) sender_->record_event({false, "A", std::to_string(i)});
  });
  ASSERT_TRUE(wait_for_sent([&] { return sent() == 20; }));
  EXPECT_EQ(server_->connections(), 1);
}

TEST_F(EventRecorderTest, ServerWithAnotherCaOrNameIsRejected) {
  const Certificate stranger = Certificate::make_certificate("stranger", nullptr, "");
  for (const Certificate& wrong : {Certificate::make_certificate("apiserver", &stranger, "127.0.0.1"),
                                   Certificate::make_certificate("apiserver", &authority_, "127.0.0.2")}) {
    server_ = std::make_unique<TestApiServer>(wrong, [](const Received&) { return Reply{}; });
    const auto answer = received_request();
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code(), Code::kPermissionDenied) << answer.error().full_message();
    EXPECT_TRUE(server_->received_requests().empty());  // neither token nor event was sent
    call_on_loop([&] { client_.reset(); });
  }
}

TEST_F(EventRecorderTest, UnresponsiveServerTimesOut) {
  start_server([](const Received&) { return Reply{.act = Act::kHang}; });
  const auto answer = received_request(50ms);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), Code::kDeadlineExceeded);
}

TEST_F(EventRecorderTest, ResponseMayEndWithTheConnectionAndBeLarge) {
  start_server([](const Received& request) {
    EXPECT_EQ(request.body, "hello");
    return Reply{200, std::string(300'000, 'y'), Act::kNoLength};
  });
  for (int i = 0; i < 2; ++i) {
    const auto answer = received_request();
    ASSERT_TRUE(answer) << answer.error().full_message();
    EXPECT_EQ(answer->status, 200);
    EXPECT_EQ(answer->body, std::string(300'000, 'y'));
  }
}

TEST_F(EventRecorderTest, OversizedResponseIsAnError) {
  start_server([](const Received&) { return Reply{200, std::string(http::kMaxResponseBytes + 1, 'y')}; });
  const auto answer = received_request();
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), Code::kIo);
}

TEST_F(EventRecorderTest, MissingTokenAndCaAreErrors) {
  start_server([](const Received&) { return Reply{}; });
  std::filesystem::remove(directory_ + "/token");
  EXPECT_EQ(received_request().error().code(), Code::kNotFound);
  ASSERT_TRUE(write_file_atomic(directory_ + "/token", "x"));
  ASSERT_TRUE(write_file_atomic(directory_ + "/ca.crt", "no certificate"));
  EXPECT_EQ(received_request().error().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace gpulet::k8s

#include "k8s/node_status.h"

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>

#include "k8s/test_api.h"

namespace gpulet::k8s {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr const char* kPatchStatus = "PATCH /api/v1/nodes/node-1/status";
constexpr const char* kReadNode = "GET /api/v1/nodes/node-1";

class ShutdownAnnouncerTest : public ApiTest {
 protected:
  void release_source() override { leaving_.reset(); }
  void begin(TestApiServer::Handler handler, ShutdownTiming timing = {.limit = 10s,
                                                                      .overwrite_wait = 1ms,
                                                                      .settle_time = 1ms,
                                                                      .settle_after_overwrite = 1ms,
                                                                      .settle_after_close = 1ms}) {
    start_server(std::move(handler));
    call_on_loop([&] {
      leaving_ = ShutdownAnnouncer::announce_shutdown(
          loop_, client_config(), {"nvidia.com/gpu", "nvidia.com/mig-1g.10gb"},
          [this] { closed_after_ = request_count(kPatchStatus) + request_count(kReadNode); },
          [this] { ++done_; }, timing);
    });
  }
  bool is_finished() {
    return eventually([&] { return done_ > 0; });
  }
  static Reply node_json(const char* gpus) {
    return {200, json{{"status", {{"allocatable", {{"cpu", "8"}, {"nvidia.com/gpu", gpus}}}}}}.dump()};
  }

  std::atomic<int> done_ = 0;
  std::atomic<std::ptrdiff_t> closed_after_ = 0;  // patches and reads of the Node
  std::unique_ptr<ShutdownAnnouncer> leaving_;
};

TEST_F(ShutdownAnnouncerTest, WritesZeroAllocatableAndVerifiesIt) {
  begin([](const Received& request) { return request.line() == kReadNode ? node_json("0") : Reply{200}; });
  ASSERT_TRUE(is_finished());
  EXPECT_EQ(closed_after_, 2) << "what was bound before is served until then";
  EXPECT_EQ(request_count(kPatchStatus), 2) << "once more, as the kubelet may have been writing";
  EXPECT_EQ(request_count(kReadNode), 2);
  const auto requests = server_->received_requests();  // the watch's may be the first
  const auto patch =
      std::ranges::find_if(requests, [](const Received& request) { return request.line() == kPatchStatus; });
  ASSERT_NE(patch, requests.end());
  EXPECT_EQ(
      json::parse(patch->body),
      (json{{"status", {{"allocatable", {{"nvidia.com/gpu", "0"}, {"nvidia.com/mig-1g.10gb", "0"}}}}}}));
}

TEST_F(ShutdownAnnouncerTest, WritesAgainAfterAKubeletOverwrite) {
  std::atomic<int> looks = 0;
  begin([&](const Received& request) {
    if (request.line() == kPatchStatus) return Reply{200};
    if (request.line() != kReadNode) return Reply{403};  // the watch
    return node_json(looks++ == 0 ? "8" : "0");
  });
  ASSERT_TRUE(is_finished());
  EXPECT_EQ(request_count(kPatchStatus), 3);
  EXPECT_EQ(closed_after_, 4);
  EXPECT_EQ(done_, 1);
}

class OverwrittenNodeTest : public ShutdownAnnouncerTest {
 protected:
  // The kubelet overwrites the first patches, and the watch reports it.
  void begin_overwritten(int overwrites, ShutdownTiming timing) {
    const auto node = [](const char* version, const char* gpus) {
      return json{{"metadata", {{"name", "node-1"}, {"resourceVersion", version}}},
                  {"status", {{"allocatable", {{"nvidia.com/gpu", gpus}}}}}};
    };
    begin(
        [this, node, overwrites](const Received& request) {
          if (request.line() == kPatchStatus) return Reply{200};
          if (request.line() == kReadNode) return node_json("0");
          if (request.line().find("watch=true") == std::string::npos)
            return Reply{
                200, json{{"metadata", {{"resourceVersion", "10"}}}, {"items", json::array({node("9", "0")})}}
                         .dump()};
          return Reply{
              200, "", {}, [this, node, overwrites](Stream& stream) {
                for (int i = 1; i <= overwrites; ++i) {
                  if (!eventually([&] { return request_count(kPatchStatus) == i; })) return false;
                  const auto version = std::to_string(10 + i);
                  stream.chunk(json{{"type", "MODIFIED"}, {"object", node(version.c_str(), "8")}}.dump() +
                               "\n");
                }
                stream.wait_open(60'000);
                return false;
              }};
        },
        timing);
  }
};

// Pods that are bound in between would fail once the plugin has closed.
TEST_F(OverwrittenNodeTest, CorrectsAKubeletOverwriteBeforeTheSettleTime) {
  begin_overwritten(1, {.limit = 1h, .settle_time = 1h, .settle_after_overwrite = 0ms});
  EXPECT_TRUE(eventually([&] { return request_count(kPatchStatus) == 2; }));
  EXPECT_EQ(request_count(kReadNode), 0);
  EXPECT_EQ(closed_after_, 0) << "the settle time begins again";
}

// The kubelet's next write is a period away.
TEST_F(OverwrittenNodeTest, ClosesTheSettleTimeAfterAnOverwrite) {
  begin_overwritten(1, {.limit = 1h,
                        .overwrite_wait = 1h,
                        .settle_time = 1ms,
                        .settle_after_overwrite = 1h,
                        .settle_after_close = 1h});
  EXPECT_TRUE(eventually([&] { return closed_after_ == 3; })) << "two patches and a read";
  EXPECT_EQ(done_, 0) << "after it, the time for a write in progress";
}

// The kubelet's next write comes before the settle time is over: the plugin closes before it.
TEST_F(OverwrittenNodeTest, ClosesSoonWhereTheKubeletOverwritesOften) {
  begin_overwritten(
      2, {.limit = 1h, .settle_time = 1h, .settle_after_overwrite = 0ms, .settle_after_close = 1h});
  EXPECT_TRUE(eventually([&] { return closed_after_ == 4; })) << "three patches and a read";
  EXPECT_EQ(done_, 0) << "after it, the time for a write in progress";
}

TEST_F(ShutdownAnnouncerTest, RefusalOrOutageDoesNotDelayTheExit) {
  begin([](const Received&) { return Reply{403}; },
        {.limit = 1h, .settle_time = 1h, .settle_after_overwrite = 1h});
  ASSERT_TRUE(is_finished());
  EXPECT_EQ(closed_after_, 1);
  EXPECT_EQ(request_count(kPatchStatus), 1);
}

TEST_F(ShutdownAnnouncerTest, HangingServerDelaysTheExitOnlyByTheLimit) {
  begin([](const Received&) { return Reply{.act = Act::kHang}; }, {.limit = 20ms, .settle_time = 1ms});
  ASSERT_TRUE(is_finished());
}

}  // namespace
}  // namespace gpulet::k8s

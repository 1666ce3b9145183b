#include "cluster/node_leaving.h"

#include <atomic>
#include <nlohmann/json.hpp>

#include "cluster/test_api.h"

namespace gpulet::cluster {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr const char* kSay = "PATCH /api/v1/nodes/node-1/status";
constexpr const char* kLook = "GET /api/v1/nodes/node-1";

class NodeLeavingTest : public ApiTest {
 protected:
  void let_go() override { leaving_.reset(); }
  void begin(TestApiServer::Handler handler, LeavingTiming timing = {.limit = 10s, .quiet = 1ms}) {
    serve(std::move(handler));
    call([&] {
      leaving_ = NodeLeaving::start(
          loop_, access(), {"nvidia.com/gpu", "nvidia.com/mig-1g.10gb"},
          [this] { closed_after_ = server_->received().size(); }, [this] { ++done_; }, timing);
    });
  }
  bool done() {
    return eventually([&] { return done_ > 0; });
  }
  static Reply node(const char* gpus) {
    return {200, json{{"status", {{"allocatable", {{"cpu", "8"}, {"nvidia.com/gpu", gpus}}}}}}.dump()};
  }

  std::atomic<int> done_ = 0;
  std::atomic<std::size_t> closed_after_ = 0;  // requests
  std::unique_ptr<NodeLeaving> leaving_;
};

TEST_F(NodeLeavingTest, SaysThatThereIsNothingAndLooksWhetherItIsSo) {
  begin([](const Received& request) { return request.line() == kLook ? node("0") : Reply{200}; });
  ASSERT_TRUE(done());
  EXPECT_EQ(closed_after_, 2u) << "what was bound before is served until then";
  EXPECT_EQ(asked(kSay), 2) << "once more, as the kubelet may have been writing";
  EXPECT_EQ(asked(kLook), 2);
  EXPECT_EQ(
      json::parse(server_->received()[0].body),
      (json{{"status", {{"allocatable", {{"nvidia.com/gpu", "0"}, {"nvidia.com/mig-1g.10gb", "0"}}}}}}));
}

TEST_F(NodeLeavingTest, TheKubeletsOwnWordInBetweenIsAnsweredOnceMore) {
  std::atomic<int> looks = 0;
  begin([&](const Received& request) {
    if (request.line() == kSay) return Reply{200};
    return node(looks++ == 0 ? "8" : "0");
  });
  ASSERT_TRUE(done());
  EXPECT_EQ(asked(kSay), 3);
  EXPECT_EQ(closed_after_, 4u);
  EXPECT_EQ(done_, 1);
}

TEST_F(NodeLeavingTest, ARefusalOrAServerThatIsAwayKeepsNobody) {
  begin([](const Received&) { return Reply{403}; }, {.limit = 1h, .quiet = 1h});
  ASSERT_TRUE(done());
  EXPECT_EQ(closed_after_, 1u);
  EXPECT_EQ(asked(kSay), 1);
}

TEST_F(NodeLeavingTest, AServerThatHangsKeepsNobodyBeyondTheLimit) {
  begin([](const Received&) { return Reply{.act = Act::kHang}; }, {.limit = 20ms, .quiet = 1ms});
  ASSERT_TRUE(done());
}

}  // namespace
}  // namespace gpulet::cluster

#include "cluster/node_labels.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "cluster/test_api.h"

namespace gpulet::cluster {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr const char* kReadLabels = "GET /api/v1/nodes/node-1";
constexpr const char* kWriteLabels = "PATCH /api/v1/nodes/node-1?fieldManager=gpulet-labels&force=true";

// An API server that keeps a Node's labels, and which of them are whose, as server-side apply does.
class NodeLabelsTest : public ApiTest {
 protected:
  using Labels = std::map<std::string, std::string>;

  void let_go() override { labels_.reset(); }
  void begin(std::function<std::optional<Reply>(const Received&)> first = {}) {
    serve([this, first = std::move(first)](const Received& request) {
      std::lock_guard lock(mutex_);
      if (auto reply = first ? first(request) : std::nullopt) return *reply;
      if (request.line() == kReadLabels) {
        if (uid_.empty()) return Reply{404};
        EXPECT_NE(request.head.find("PartialObjectMetadata"), std::string::npos);
        return Reply{200, json{{"metadata", {{"uid", uid_}, {"labels", there_}}}}.dump()};
      }
      EXPECT_EQ(request.line(), kWriteLabels);
      EXPECT_NE(request.head.find("Content-Type: application/apply-patch+yaml\r\n"), std::string::npos);
      return apply(json::parse(request.body));
    });
    call([&] {
      labels_ = NodeLabels::start(loop_, access(), [this] { ++settled_; },
                                  {.request_limit = 10s, .backoff = {1ms, 5ms}});
    });
  }
  Reply apply(const json& set) {
    EXPECT_EQ(set["kind"], "Node");
    EXPECT_EQ(set["metadata"]["name"], "node-1");
    EXPECT_EQ(set["metadata"].size(), 3u) << set << ": nothing but labels is ours";
    if (set["metadata"]["uid"] != uid_) return Reply{409};
    const Labels wanted = set["metadata"]["labels"];
    for (const auto& key : ours_) {
      if (!wanted.contains(key)) there_.erase(key);
    }
    ours_.clear();
    for (const auto& [key, value] : wanted) {
      there_[key] = value;
      ours_.insert(key);
    }
    return Reply{200};
  }
  void set(Labels labels) {
    call([&] { labels_->set(std::move(labels)); });
  }
  Delivery delivery() {
    Delivery delivery;
    call([&] { delivery = labels_->delivery(); });
    return delivery;
  }
  bool settled() {
    return eventually([&] { return !delivery().waiting; });
  }
  Labels there() {
    std::lock_guard lock(mutex_);
    return there_;
  }

  std::mutex mutex_;
  std::string uid_ = "uid-1";
  Labels there_ = {{"kubernetes.io/hostname", "node-1"}, {"nvidia.com/gpu.present", "true"}};
  const Labels others_ = there_;
  std::set<std::string> ours_;
  std::atomic<int> settled_ = 0;
  std::unique_ptr<NodeLabels> labels_;
};

TEST_F(NodeLabelsTest, OursComeAndGoAmongTheOthers) {
  begin();
  set({{"nvidia.com/gpu.count", "8"}, {"nvidia.com/gpu.family", "hopper"}});
  ASSERT_TRUE(settled());
  auto wanted = others_;
  wanted["nvidia.com/gpu.count"] = "8";
  wanted["nvidia.com/gpu.family"] = "hopper";
  EXPECT_EQ(there(), wanted);
  set({{"nvidia.com/gpu.count", "7"}});
  ASSERT_TRUE(settled());
  wanted.erase("nvidia.com/gpu.family");
  wanted["nvidia.com/gpu.count"] = "7";
  EXPECT_EQ(there(), wanted);
  set({});
  ASSERT_TRUE(settled());
  EXPECT_EQ(there(), others_);
  EXPECT_TRUE(eventually([&] { return settled_ == 3; }));
}

TEST_F(NodeLabelsTest, OfARunBeforeThisOnlyWhatIsWantedStays) {
  there_["nvidia.com/mig-1g.10gb.count"] = "7";
  ours_ = {"nvidia.com/mig-1g.10gb.count"};
  begin();
  set({{"nvidia.com/gpu.count", "8"}});
  ASSERT_TRUE(settled());
  auto wanted = others_;
  wanted["nvidia.com/gpu.count"] = "8";
  EXPECT_EQ(there(), wanted);
}

TEST_F(NodeLabelsTest, NothingIsTouchedBeforeTheFirstCallNorTwice) {
  begin();
  EXPECT_FALSE(delivery().waiting);
  EXPECT_TRUE(server_->received().empty());
  for (int i = 0; i < 10; ++i) set({{"a", "1"}});
  ASSERT_TRUE(settled());
  for (int i = 0; i < 10; ++i) set({{"a", "1"}});
  EXPECT_FALSE(delivery().waiting);
  EXPECT_EQ(asked(kWriteLabels), 1);
}

TEST_F(NodeLabelsTest, ANodeThatIsNotThereIsNotMade) {
  uid_.clear();
  begin();
  set({{"a", "1"}});
  ASSERT_TRUE(eventually([&] { return asked(kReadLabels) >= 3; }));
  EXPECT_EQ(asked(kWriteLabels), 0);
  EXPECT_TRUE(delivery().waiting);
  EXPECT_EQ(delivery().told, 1u);
  {
    std::lock_guard lock(mutex_);
    uid_ = "uid-2";
  }
  ASSERT_TRUE(settled());
  EXPECT_EQ(there().at("a"), "1");
}

TEST_F(NodeLabelsTest, ANodeThatWasMadeAnewIsLabelledAgain) {
  begin();
  set({{"a", "1"}});
  ASSERT_TRUE(settled());
  call([&] { labels_->look_again(); });
  ASSERT_TRUE(settled());
  EXPECT_EQ(asked(kWriteLabels), 1) << "it is still there";
  {
    std::lock_guard lock(mutex_);
    uid_ = "uid-2";
    there_ = others_;
    ours_.clear();
  }
  call([&] { labels_->look_again(); });
  ASSERT_TRUE(settled());
  EXPECT_EQ(there().at("a"), "1");
  EXPECT_EQ(asked(kWriteLabels), 2);
}

TEST_F(NodeLabelsTest, AnotherNodeInBetweenIsReadAnew) {
  std::atomic<int> races = 2;
  begin([&](const Received& request) -> std::optional<Reply> {
    if (request.line() == kWriteLabels && races-- > 0) uid_ += "x";  // since it was read
    return std::nullopt;
  });
  set({{"a", "1"}});
  ASSERT_TRUE(settled());
  EXPECT_EQ(there().at("a"), "1");
  EXPECT_EQ(delivery().told, 0u) << "no trouble";
}

TEST_F(NodeLabelsTest, AServerThatIsAwayOrRefusesIsSaidOnce) {
  std::atomic<int> failures = 4;
  begin([&](const Received&) -> std::optional<Reply> {
    const int left = failures--;
    if (left <= 0) return std::nullopt;
    return left % 2 == 0 ? Reply{403, R"({"message": "nodes \"node-1\" is forbidden"})"}
                         : Reply{.act = Act::kClose};
  });
  set({{"a", "1"}});
  ASSERT_TRUE(settled());
  EXPECT_EQ(delivery().trouble, "");
  EXPECT_LE(delivery().told, 2u) << "one line for each kind of trouble";
}

TEST_F(NodeLabelsTest, TheNewestWins) {
  begin();
  call([&] {
    for (int i = 0; i < 100; ++i) labels_->set({{"a", std::to_string(i)}});
  });
  ASSERT_TRUE(settled());
  EXPECT_EQ(there().at("a"), "99");
  EXPECT_EQ(asked(kWriteLabels), 1);
}

}  // namespace
}  // namespace gpulet::cluster

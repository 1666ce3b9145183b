#include "cluster/collection_watch.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <nlohmann/json.hpp>

#include "cluster/json_members.h"
#include "cluster/test_api.h"

namespace gpulet::cluster {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

std::string pod(const std::string& name, const std::string& version) {
  return json{{"metadata", {{"name", name}, {"resourceVersion", version}}}}.dump();
}

class CollectionWatchTest : public ApiTest {
 protected:
  void let_go() override { watch_.reset(); }

  void begin(CollectionTiming timing = {.backoff = {1ms, 5ms}}) {
    serve([this](const Received& request) {
      std::lock_guard lock(mutex_);
      asked_.push_back(request.line());
      return answer(request.line());
    });
    call([&] {
      watch_ = CollectionWatch::start(
          loop_, access(),
          {.path = "/api/v1/pods", .query = "fieldSelector=x", .right = "list and watch on pods"}, timing,
          {.listing = [this] { note("listing"); },
           .found = [this](auto object) { note("+" + metadata_text(object, "name")); },
           .gone = [this](auto object) { note("-" + metadata_text(object, "name")); },
           .listed = [this] { note("listed"); }});
    });
  }
  // Overridden by what a test puts there.
  Reply answer(const std::string& line) {
    if (line.find("watch=true") != std::string::npos) {
      const auto script = watches_.empty() ? hang() : watches_.front();
      if (!watches_.empty()) watches_.erase(watches_.begin());
      return {.status = 200, .script = script};
    }
    const auto page = pages_.empty() ? Reply{500, "{}"} : pages_.front();
    if (!pages_.empty()) pages_.erase(pages_.begin());
    return page;
  }
  static TestApiServer::Script hang() {
    return [](Stream& stream) { return stream.wait(60'000) || true; };
  }
  static TestApiServer::Script lines(std::vector<std::string> lines, bool stay = true) {
    return [lines, stay](Stream& stream) {
      for (const auto& line : lines) {
        // In pieces, as a slow network has it.
        stream.chunk(line.substr(0, line.size() / 2));
        stream.chunk(line.substr(line.size() / 2) + "\n");
      }
      if (stay) stream.wait(60'000);
      return true;
    };
  }
  static std::string list(const std::vector<std::string>& items, const std::string& version,
                          const std::string& more = "") {
    std::string text = R"({"metadata":{"resourceVersion":")" + version + "\"";
    if (!more.empty()) text += R"(,"continue":")" + more + "\"";
    text += "},\"items\":[";
    for (std::size_t i = 0; i < items.size(); ++i) text += (i == 0 ? "" : ",") + items[i];
    return text + "]}";
  }
  void note(const std::string& what) {
    std::lock_guard lock(mutex_);
    notes_.push_back(what);
  }
  bool sees(std::vector<std::string> expected) {
    const bool right = eventually([&] {
      std::lock_guard lock(mutex_);
      return notes_ == expected;
    });
    if (!right) {
      std::lock_guard lock(mutex_);
      for (const auto& one : notes_) ADD_FAILURE() << one;
    }
    return right;
  }

  std::mutex mutex_;
  std::vector<Reply> pages_;
  std::vector<TestApiServer::Script> watches_;
  std::vector<std::string> asked_, notes_;
  std::unique_ptr<CollectionWatch> watch_;
};

TEST_F(CollectionWatchTest, AListInPagesThenWhatChanges) {
  pages_ = {{200, list({pod("a", "1"), pod("b", "2")}, "7", "more/")}, {200, list({pod("c", "3")}, "7")}};
  watches_ = {lines({R"({"type":"ADDED","object":)" + pod("d", "8") + "}",
                     R"({"type":"BOOKMARK","object":)" + pod("", "9") + "}",
                     R"({"type":"MODIFIED","object":)" + pod("a", "10") + "}",
                     R"({"type":"DELETED","object":)" + pod("b", "11") + "}"})};
  begin({.backoff = {1ms, 5ms}, .page = 2});
  EXPECT_TRUE(sees({"listing", "+a", "+b", "+c", "listed", "+d", "+a", "-b"}));
  std::lock_guard lock(mutex_);
  EXPECT_EQ(asked_[0], "GET /api/v1/pods?fieldSelector=x&limit=2");
  EXPECT_EQ(asked_[1], "GET /api/v1/pods?fieldSelector=x&limit=2&continue=more%2F");
  EXPECT_EQ(asked_[2],
            "GET "
            "/api/v1/"
            "pods?fieldSelector=x&watch=true&allowWatchBookmarks=true&timeoutSeconds=300&resourceVersion=7");
}

TEST_F(CollectionWatchTest, AWatchThatEndsGoesOnFromWhereItWas) {
  pages_ = {{200, list({}, "7")}};
  watches_ = {lines({R"({"type":"BOOKMARK","object":)" + pod("", "9") + "}"}, false),
              lines({R"({"type":"ADDED","object":)" + pod("a", "10") + "}"})};
  begin();
  EXPECT_TRUE(sees({"listing", "listed", "+a"}));
  std::lock_guard lock(mutex_);
  EXPECT_NE(asked_[2].find("resourceVersion=9"), std::string::npos) << asked_[2];
}

TEST_F(CollectionWatchTest, AVersionThatIsTooOldIsAListAgain) {
  pages_ = {{200, list({pod("a", "1")}, "7")}, {200, list({pod("b", "2")}, "20")}};
  watches_ = {lines({R"({"type":"ERROR","object":{"code":410,"message":"too old resource version"}})"}),
              lines({R"({"type":"ADDED","object":)" + pod("c", "21") + "}"})};
  begin();
  EXPECT_TRUE(sees({"listing", "+a", "listed", "listing", "+b", "listed", "+c"}));
}

TEST_F(CollectionWatchTest, APageThatComesTooLateBeginsTheListAnew) {
  pages_ = {{200, list({pod("a", "1")}, "7", "more")}, {410, "{}"}, {200, list({pod("b", "2")}, "8")}};
  begin();
  EXPECT_TRUE(sees({"listing", "+a", "listing", "+b", "listed"}));
}

TEST_F(CollectionWatchTest, AListThatBreaksOffIsNotWhole) {
  const auto text = list({pod("a", "1"), pod("b", "2")}, "7");
  pages_ = {{.status = 200,
             .script =
                 [text](Stream& stream) {
                   stream.chunk(text.substr(0, text.size() - 10));
                   return false;
                 }},
            {200, list({pod("b", "2")}, "8")}};
  begin();
  EXPECT_TRUE(sees({"listing", "+a", "listing", "+b", "listed"}));
}

TEST_F(CollectionWatchTest, ARightThatIsMissingIsSaidAndTriedAgain) {
  pages_ = {{403, R"({"message":"pods is forbidden"})"}, {404, "{}"}, {200, list({}, "7")}};
  begin();
  EXPECT_TRUE(sees({"listing", "listing", "listing", "listed"}));
  call([&] {
    EXPECT_EQ(watch_->lists(), 1U);
    EXPECT_EQ(watch_->trouble(), "");
  });
}

TEST_F(CollectionWatchTest, TroubleNamesTheRight) {
  pages_ = {{403, R"({"message":"pods is forbidden"})"}};
  begin({.backoff = {1h, 1h}});
  EXPECT_TRUE(eventually([&] {
    std::string trouble;
    call([&] { trouble = watch_->trouble(); });
    return trouble == "the API server answered 403: pods is forbidden (needed: list and watch on pods)";
  }));
}

}  // namespace
}  // namespace gpulet::cluster

#include <algorithm>
#include <atomic>
#include <condition_variable>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "k8s/node_labels.h"
#include "k8s/objects.h"
#include "k8s/test_api.h"
#include "k8s/watcher.h"

namespace gpulet::k8s {
namespace {

using namespace std::chrono_literals;

std::string config_map(const std::string& version, const std::string& value) {
  return R"({"metadata":{"name":"settings","resourceVersion":")" + version + R"("},"data":{"key":")" + value +
         R"("}})";
}
std::string list_of(const std::string& items) {
  return R"({"metadata":{"resourceVersion":"10"},"items":[)" + items + "]}";
}

class ObjectWatcherTest : public ApiTest {
 protected:
  void release_source() override { watch_.reset(); }
  void begin_watch() {
    call_on_loop([this] {
      watch_ = ObjectWatcher::watch_object(
          loop_, client_config(),
          {.collection = "/api/v1/namespaces/kube-system/configmaps",
           .name = "settings",
           .description = "the settings",
           .resource = "configmaps"},
          {.backoff = {5ms, 20ms}}, [this](const nlohmann::json& object) {
            const std::lock_guard lock(mutex_);
            changes_.push_back(object.is_null() ? "null" : json_text(object["data"]["key"]));
          });
    });
  }
  std::vector<std::string> received_objects() {
    const std::lock_guard lock(mutex_);
    return changes_;
  }

  std::mutex mutex_;
  std::vector<std::string> changes_;
  std::unique_ptr<ObjectWatcher> watch_;
};

TEST_F(ObjectWatcherTest, ReportsEachChangeAndNotItsOwnEnd) {
  start_server([](const Received& request) {
    if (request.line().find("watch=true") == std::string::npos)
      return Reply{200, list_of(config_map("9", "one")), {}, {}};
    return Reply{200, "", {}, [](Stream& stream) {
                   stream.chunk(R"({"type":"MODIFIED","object":)" + config_map("11", "two") + "}\n");
                   stream.wait_open(60'000);
                   return false;
                 }};
  });
  begin_watch();
  EXPECT_TRUE(eventually([this] { return received_objects().size() == 2; }));
  EXPECT_EQ(received_objects(), (std::vector<std::string>{"one", "two"}));
  const auto asked = server_->received_requests();
  EXPECT_EQ(asked[0].line(),
            "GET /api/v1/namespaces/kube-system/configmaps?fieldSelector=metadata.name%3Dsettings");
}

TEST_F(ObjectWatcherTest, MissingObjectIsNull) {
  start_server([](const Received& request) {
    if (request.line().find("watch=true") == std::string::npos) return Reply{200, list_of(""), {}, {}};
    return Reply{200, "", {}, [](Stream& stream) {
                   stream.chunk(R"({"type":"ADDED","object":)" + config_map("11", "made") + "}\n");
                   stream.chunk(R"({"type":"DELETED","object":)" + config_map("12", "made") + "}\n");
                   stream.wait_open(60'000);
                   return false;
                 }};
  });
  begin_watch();
  EXPECT_TRUE(eventually([this] { return received_objects().size() == 2; }));
  EXPECT_EQ(received_objects(), (std::vector<std::string>{"null", "made"}));
}

}  // namespace

namespace {

using namespace std::chrono_literals;

constexpr const char* kLayout = "nvidia.com/mig.config";

std::string labelled_node_json(const std::string& version, const std::string& layout) {
  return R"({"metadata":{"name":"node-1","resourceVersion":")" + version + R"(","labels":{")" + kLayout +
         R"(":")" + layout + R"("}}})";
}
std::string node_list_json(const std::string& version, const std::string& layout) {
  return R"({"kind":"NodeList","metadata":{"resourceVersion":")" + version + R"("},"items":[)" +
         labelled_node_json(version, layout) + "]}";
}
std::string event(const std::string& type, const std::string& object) {
  return R"({"type":")" + type + R"(","object":)" + object + "}\n";
}

class NodeLabelWatcherTest : public ApiTest {
 protected:
  void release_source() override {
    watch_.reset();
    patch_.reset();
  }
  void begin_watch() {
    call_on_loop([this] {
      watch_ = NodeLabelWatcher::watch_node_labels(
          loop_, client_config(), {.backoff = {5ms, 20ms}}, [this](const Labels& labels) {
            const std::lock_guard lock(mutex_);
            changes_.push_back(labels.contains(kLayout) ? labels.at(kLayout) : "none");
          });
    });
  }
  std::vector<std::string> received_labels() {
    const std::lock_guard lock(mutex_);
    return changes_;
  }
  std::string requests_so_far(std::size_t index) {
    const std::lock_guard lock(mutex_);
    return index < requests_.size() ? requests_[index] : "";
  }
  // Lists return "one"; the n-th watch streams `scripts[n]`, later ones stay silent.
  void serve_watches(std::vector<std::function<void(Stream&)>> scripts) {
    start_server([this, scripts = std::move(scripts),
                  next = std::make_shared<std::size_t>(0)](const auto& request) {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request.head);
      if (request.line().find("watch=true") == std::string::npos)
        return Reply{200, node_list_json("10", "one"), {}, {}};
      const std::size_t index = (*next)++;
      return Reply{200, "", {}, [script = index < scripts.size() ? scripts[index] : nullptr](Stream& stream) {
                     if (script) {
                       script(stream);
                       return false;
                     }
                     return stream.wait_open(60'000);
                   }};
    });
  }

  std::unique_ptr<NodeLabelWatcher> watch_;
  std::unique_ptr<NodeLabelPatcher> patch_;
  std::mutex mutex_;
  std::vector<std::string> changes_, requests_;
};

TEST_F(NodeLabelWatcherTest, ReportsTheListThenEachChange) {
  serve_watches({[](Stream& stream) {
    stream.chunk(
        event("MODIFIED", labelled_node_json("11", "one")));  // another label or the status: no report
    stream.chunk(event("BOOKMARK", labelled_node_json("12", "")) +
                 event("MODIFIED", labelled_node_json("13", "two")));
    stream.wait_open(60'000);
  }});
  begin_watch();
  EXPECT_TRUE(eventually([&] { return received_labels() == std::vector<std::string>{"one", "two"}; }));
  EXPECT_NE(requests_so_far(0).find("fieldSelector=metadata.name%3Dnode-1"), std::string::npos);
  EXPECT_NE(requests_so_far(1).find("resourceVersion=10"), std::string::npos);
  EXPECT_NE(requests_so_far(0).find("as=PartialObjectMetadataList"), std::string::npos) << "no status";
  EXPECT_NE(requests_so_far(1).find("as=PartialObjectMetadata;"), std::string::npos);
}

TEST_F(NodeLabelWatcherTest, ChunksMayEndAnywhere) {
  const std::string text = event("MODIFIED", labelled_node_json("11", "two")) +
                           event("MODIFIED", labelled_node_json("12", "three"));
  serve_watches({[text](Stream& stream) {
    for (const char c : text) stream.chunk(std::string(1, c));
    stream.wait_open(60'000);
  }});
  begin_watch();
  EXPECT_TRUE(eventually([&] { return !received_labels().empty() && received_labels().back() == "three"; }));
}

TEST_F(NodeLabelWatcherTest, ContinuesFromTheLastVersion) {
  serve_watches({[](Stream& stream) { stream.chunk(event("MODIFIED", labelled_node_json("17", "two"))); },
                 [](Stream& stream) { stream.raw("cut"); },
                 [](Stream& stream) {
                   stream.chunk(event("MODIFIED", labelled_node_json("18", "three")));
                   stream.wait_open(60'000);
                 }});
  begin_watch();
  EXPECT_TRUE(
      eventually([&] { return received_labels() == std::vector<std::string>{"one", "two", "three"}; }));
  EXPECT_NE(requests_so_far(2).find("resourceVersion=17"), std::string::npos);
}

TEST_F(NodeLabelWatcherTest, ExpiredVersionCausesANewList) {
  serve_watches({[](Stream& stream) {
    stream.chunk(event("ERROR", R"({"kind":"Status","code":410,"message":"too old resource version"})"));
    stream.wait_open(60'000);
  }});
  begin_watch();
  EXPECT_TRUE(eventually([&] { return !requests_so_far(3).empty(); }));
  EXPECT_EQ(requests_so_far(2).find("watch=true"), std::string::npos) << requests_so_far(2);
  EXPECT_EQ(received_labels(), std::vector<std::string>{"one"});
}

TEST_F(NodeLabelWatcherTest, InvalidDataIsAnErrorAndTheWatchContinues) {
  serve_watches({[](Stream& stream) { stream.chunk("[1, 2\n"); }, [](Stream& stream) { stream.chunk("7\n"); },
                 [](Stream& stream) {
                   stream.chunk(R"({"type":7,"object":[]})"
                                "\n");
                 },
                 [](Stream& stream) { stream.chunk(std::string(kMaxObjectBytes + 2, 'x')); },
                 [](Stream& stream) {
                   stream.chunk(event("MODIFIED", labelled_node_json("11", "two")));
                   stream.wait_open(60'000);
                 }});
  begin_watch();
  EXPECT_TRUE(eventually([&] { return received_labels() == std::vector<std::string>{"one", "two"}; }));
}

TEST_F(NodeLabelWatcherTest, RefusalIsRetried) {
  start_server([this](const auto& request) {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request.line());
    if (requests_.size() < 3) return Reply{403, R"({"message":"nodes is forbidden"})", {}, {}};
    if (request.line().find("watch=true") == std::string::npos)
      return Reply{200, node_list_json("10", "one"), {}, {}};
    return Reply{200, "", {}, [](Stream& stream) { return stream.wait_open(60'000); }};
  });
  begin_watch();
  EXPECT_TRUE(eventually([&] { return received_labels() == std::vector<std::string>{"one"}; }));
}

TEST_F(NodeLabelWatcherTest, LabelPatchIsSentOnceAndRetriedUntilAccepted) {
  std::vector<std::string> bodies;
  start_server([&](const auto& request) {
    const std::lock_guard lock(mutex_);
    bodies.push_back(request.line() + " " + request.body);
    return Reply{bodies.size() == 1 ? 500 : 200, "{}", {}, {}};
  });
  call_on_loop([&] {
    patch_ = NodeLabelPatcher::start_label_patcher(loop_, client_config(), {.backoff = {5ms, 20ms}});
    patch_->set_label("a", "old");
    patch_->set_label("a", "1");
    patch_->set_label("b", std::nullopt);
  });
  const auto count = [&] {
    const std::lock_guard lock(mutex_);
    return bodies.size();
  };
  ASSERT_TRUE(eventually([&] { return count() == 2; }));
  call_on_loop([&] {
    patch_->set_label("a", "1");
    patch_->set_label("c", "3");
  });
  ASSERT_TRUE(eventually([&] { return count() == 3; }));
  const std::lock_guard lock(mutex_);
  EXPECT_EQ(bodies[1], R"(PATCH /api/v1/nodes/node-1 {"metadata":{"labels":{"a":"1","b":null}}})");
  EXPECT_EQ(bodies[2], R"(PATCH /api/v1/nodes/node-1 {"metadata":{"labels":{"c":"3"}}})");
}

}  // namespace

namespace {

using namespace std::chrono_literals;
using nlohmann::json;

std::string pod_json(const std::string& name, const std::string& version) {
  return json{{"metadata", {{"name", name}, {"resourceVersion", version}}}}.dump();
}

class CollectionWatcherTest : public ApiTest {
 protected:
  void release_source() override { watch_.reset(); }

  void begin(CollectionTiming timing = {.backoff = {1ms, 5ms}}) {
    start_server([this](const Received& request) {
      std::lock_guard lock(mutex_);
      requests_.push_back(request.line());
      return respond(request.line());
    });
    call_on_loop([&] {
      watch_ = CollectionWatcher::watch_collection(
          loop_, client_config(),
          {.path = "/api/v1/pods", .query = "fieldSelector=x", .permission = "list and watch on pods"},
          timing,
          {.on_list_begin = [this] { append_note("listing"); },
           .on_object = [this](auto object) { append_note("+" + metadata_string(object, "name")); },
           .on_deleted = [this](auto object) { append_note("-" + metadata_string(object, "name")); },
           .on_list_end = [this] { append_note("listed"); }});
    });
  }
  // Responses that a test sets override these.
  Reply respond(const std::string& line) {
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
    return [](Stream& stream) { return stream.wait_open(60'000) || true; };
  }
  static TestApiServer::Script event_lines(std::vector<std::string> lines, bool stay = true) {
    return [lines, stay](Stream& stream) {
      for (const auto& line : lines) {
        // In pieces, as over a slow network.
        stream.chunk(line.substr(0, line.size() / 2));
        stream.chunk(line.substr(line.size() / 2) + "\n");
      }
      if (stay) stream.wait_open(60'000);
      return true;
    };
  }
  static std::string list_page(const std::vector<std::string>& items, const std::string& version,
                               const std::string& more = "") {
    std::string text = R"({"metadata":{"resourceVersion":")" + version + "\"";
    if (!more.empty()) text += R"(,"continue":")" + more + "\"";
    text += "},\"items\":[";
    for (std::size_t i = 0; i < items.size(); ++i) text += (i == 0 ? "" : ",") + items[i];
    return text + "]}";
  }
  void append_note(const std::string& what) {
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
  std::vector<std::string> requests_, notes_;
  std::unique_ptr<CollectionWatcher> watch_;
};

TEST_F(CollectionWatcherTest, ListsInPagesThenReportsChanges) {
  pages_ = {{200, list_page({pod_json("a", "1"), pod_json("b", "2")}, "7", "more/")},
            {200, list_page({pod_json("c", "3")}, "7")}};
  watches_ = {event_lines({R"({"type":"ADDED","object":)" + pod_json("d", "8") + "}",
                           R"({"type":"BOOKMARK","object":)" + pod_json("", "9") + "}",
                           R"({"type":"MODIFIED","object":)" + pod_json("a", "10") + "}",
                           R"({"type":"DELETED","object":)" + pod_json("b", "11") + "}"})};
  begin({.backoff = {1ms, 5ms}, .page = 2});
  EXPECT_TRUE(sees({"listing", "+a", "+b", "+c", "listed", "+d", "+a", "-b"}));
  std::lock_guard lock(mutex_);
  EXPECT_EQ(requests_[0], "GET /api/v1/pods?fieldSelector=x&limit=2");
  EXPECT_EQ(requests_[1], "GET /api/v1/pods?fieldSelector=x&limit=2&continue=more%2F");
  EXPECT_EQ(requests_[2],
            "GET "
            "/api/v1/"
            "pods?fieldSelector=x&watch=true&allowWatchBookmarks=true&timeoutSeconds=300&resourceVersion=7");
}

TEST_F(CollectionWatcherTest, EndedWatchContinuesFromTheLastVersion) {
  pages_ = {{200, list_page({}, "7")}};
  watches_ = {event_lines({R"({"type":"BOOKMARK","object":)" + pod_json("", "9") + "}"}, false),
              event_lines({R"({"type":"ADDED","object":)" + pod_json("a", "10") + "}"})};
  begin();
  EXPECT_TRUE(sees({"listing", "listed", "+a"}));
  std::lock_guard lock(mutex_);
  EXPECT_NE(requests_[2].find("resourceVersion=9"), std::string::npos) << requests_[2];
}

TEST_F(CollectionWatcherTest, ExpiredVersionCausesANewList) {
  pages_ = {{200, list_page({pod_json("a", "1")}, "7")}, {200, list_page({pod_json("b", "2")}, "20")}};
  watches_ = {event_lines({R"({"type":"ERROR","object":{"code":410,"message":"too old resource version"}})"}),
              event_lines({R"({"type":"ADDED","object":)" + pod_json("c", "21") + "}"})};
  begin();
  EXPECT_TRUE(sees({"listing", "+a", "listed", "listing", "+b", "listed", "+c"}));
}

TEST_F(CollectionWatcherTest, ExpiredPageRestartsTheList) {
  pages_ = {{200, list_page({pod_json("a", "1")}, "7", "more")},
            {410, "{}"},
            {200, list_page({pod_json("b", "2")}, "8")}};
  begin();
  EXPECT_TRUE(sees({"listing", "+a", "listing", "+b", "listed"}));
}

TEST_F(CollectionWatcherTest, BrokenListIsIncomplete) {
  const auto text = list_page({pod_json("a", "1"), pod_json("b", "2")}, "7");
  pages_ = {{.status = 200,
             .script =
                 [text](Stream& stream) {
                   stream.chunk(text.substr(0, text.size() - 10));
                   return false;
                 }},
            {200, list_page({pod_json("b", "2")}, "8")}};
  begin();
  EXPECT_TRUE(sees({"listing", "+a", "listing", "+b", "listed"}));
}

TEST_F(CollectionWatcherTest, MissingPermissionIsLoggedAndRetried) {
  pages_ = {{403, R"({"message":"pods is forbidden"})"}, {404, "{}"}, {200, list_page({}, "7")}};
  begin();
  EXPECT_TRUE(sees({"listing", "listing", "listing", "listed"}));
  call_on_loop([&] {
    EXPECT_EQ(watch_->completed_lists(), 1U);
    EXPECT_EQ(watch_->current_error(), "");
  });
}

TEST_F(CollectionWatcherTest, ErrorNamesThePermission) {
  pages_ = {{403, R"({"message":"pods is forbidden"})"}};
  begin({.backoff = {1h, 1h}});
  EXPECT_TRUE(eventually([&] {
    std::string trouble;
    call_on_loop([&] { trouble = watch_->current_error(); });
    return trouble == "the API server answered 403: pods is forbidden (needed: list and watch on pods)";
  }));
}

}  // namespace
}  // namespace gpulet::k8s

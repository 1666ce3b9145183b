#include "cluster/node_watch.h"

#include "cluster/node_patch.h"
#include "cluster/test_api.h"

namespace gpulet::cluster {
namespace {

using namespace std::chrono_literals;

constexpr const char* kLayout = "nvidia.com/mig.config";

std::string node(const std::string& version, const std::string& layout) {
  return R"({"metadata":{"name":"node-1","resourceVersion":")" + version + R"(","labels":{")" + kLayout +
         R"(":")" + layout + R"("}}})";
}
std::string list(const std::string& version, const std::string& layout) {
  return R"({"kind":"NodeList","metadata":{"resourceVersion":")" + version + R"("},"items":[)" +
         node(version, layout) + "]}";
}
std::string event(const std::string& type, const std::string& object) {
  return R"({"type":")" + type + R"(","object":)" + object + "}\n";
}

class NodeWatchTest : public ApiTest {
 protected:
  void let_go() override {
    watch_.reset();
    patch_.reset();
  }
  void follow() {
    call([this] {
      watch_ = NodeWatch::start(loop_, access(), {.backoff = {5ms, 20ms}}, [this](const Labels& labels) {
        const std::lock_guard lock(mutex_);
        told_.push_back(labels.contains(kLayout) ? labels.at(kLayout) : "none");
      });
    });
  }
  std::vector<std::string> told() {
    const std::lock_guard lock(mutex_);
    return told_;
  }
  std::string asked(std::size_t index) {
    const std::lock_guard lock(mutex_);
    return index < asked_.size() ? asked_[index] : "";
  }
  // Lists answer with "one"; the n-th watch streams `scripts[n]`, later ones stay silent.
  void serve_watches(std::vector<std::function<void(Stream&)>> scripts) {
    serve([this, scripts = std::move(scripts), next = std::make_shared<std::size_t>(0)](const auto& request) {
      const std::lock_guard lock(mutex_);
      asked_.push_back(request.line());
      if (request.line().find("watch=true") == std::string::npos)
        return Reply{200, list("10", "one"), {}, {}};
      const std::size_t index = (*next)++;
      return Reply{200, "", {}, [script = index < scripts.size() ? scripts[index] : nullptr](Stream& stream) {
                     if (script) {
                       script(stream);
                       return false;
                     }
                     return stream.wait(60'000);
                   }};
    });
  }

  std::unique_ptr<NodeWatch> watch_;
  std::unique_ptr<NodePatch> patch_;
  std::mutex mutex_;
  std::vector<std::string> told_, asked_;
};

TEST_F(NodeWatchTest, TellsTheListThenEachChange) {
  serve_watches({[](Stream& stream) {
    stream.chunk(event("MODIFIED", node("11", "one")));  // another label or the status: no difference
    stream.chunk(event("BOOKMARK", node("12", "")) + event("MODIFIED", node("13", "two")));
    stream.wait(60'000);
  }});
  follow();
  EXPECT_TRUE(eventually([&] { return told() == std::vector<std::string>{"one", "two"}; }));
  EXPECT_NE(asked(0).find("fieldSelector=metadata.name%3Dnode-1"), std::string::npos);
  EXPECT_NE(asked(1).find("resourceVersion=10"), std::string::npos);
}

TEST_F(NodeWatchTest, ChunksMayEndAnywhere) {
  const std::string text = event("MODIFIED", node("11", "two")) + event("MODIFIED", node("12", "three"));
  serve_watches({[text](Stream& stream) {
    for (const char c : text) stream.chunk(std::string(1, c));
    stream.wait(60'000);
  }});
  follow();
  EXPECT_TRUE(eventually([&] { return !told().empty() && told().back() == "three"; }));
}

TEST_F(NodeWatchTest, GoesOnFromWhereItWas) {
  serve_watches({[](Stream& stream) { stream.chunk(event("MODIFIED", node("17", "two"))); },
                 [](Stream& stream) { stream.raw("cut"); },
                 [](Stream& stream) {
                   stream.chunk(event("MODIFIED", node("18", "three")));
                   stream.wait(60'000);
                 }});
  follow();
  EXPECT_TRUE(eventually([&] { return told() == std::vector<std::string>{"one", "two", "three"}; }));
  EXPECT_NE(asked(2).find("resourceVersion=17"), std::string::npos);
}

TEST_F(NodeWatchTest, AVersionThatIsGoneIsListedAnew) {
  serve_watches({[](Stream& stream) {
    stream.chunk(event("ERROR", R"({"kind":"Status","code":410,"message":"too old resource version"})"));
    stream.wait(60'000);
  }});
  follow();
  EXPECT_TRUE(eventually([&] { return !asked(3).empty(); }));
  EXPECT_EQ(asked(2).find("watch=true"), std::string::npos) << asked(2);
  EXPECT_EQ(told(), std::vector<std::string>{"one"});
}

TEST_F(NodeWatchTest, NonsenseIsAnErrorAndNoEnd) {
  serve_watches({[](Stream& stream) { stream.chunk("[1, 2\n"); }, [](Stream& stream) { stream.chunk("7\n"); },
                 [](Stream& stream) {
                   stream.chunk(R"({"type":7,"object":[]})"
                                "\n");
                 },
                 [](Stream& stream) { stream.chunk(std::string(kMaxObjectBytes + 2, 'x')); },
                 [](Stream& stream) {
                   stream.chunk(event("MODIFIED", node("11", "two")));
                   stream.wait(60'000);
                 }});
  follow();
  EXPECT_TRUE(eventually([&] { return told() == std::vector<std::string>{"one", "two"}; }));
}

TEST_F(NodeWatchTest, ARefusalIsTriedAgain) {
  serve([this](const auto& request) {
    const std::lock_guard lock(mutex_);
    asked_.push_back(request.line());
    if (asked_.size() < 3) return Reply{403, R"({"message":"nodes is forbidden"})", {}, {}};
    if (request.line().find("watch=true") == std::string::npos) return Reply{200, list("10", "one"), {}, {}};
    return Reply{200, "", {}, [](Stream& stream) { return stream.wait(60'000); }};
  });
  follow();
  EXPECT_TRUE(eventually([&] { return told() == std::vector<std::string>{"one"}; }));
}

TEST_F(NodeWatchTest, LabelsAreSentTogetherOnceAndUntilTaken) {
  std::vector<std::string> bodies;
  serve([&](const auto& request) {
    const std::lock_guard lock(mutex_);
    bodies.push_back(request.line() + " " + request.body);
    return Reply{bodies.size() == 1 ? 500 : 200, "{}", {}, {}};
  });
  call([&] {
    patch_ = NodePatch::start(loop_, access(), {.backoff = {5ms, 20ms}});
    patch_->set_label("a", "old");
    patch_->set_label("a", "1");
    patch_->set_label("b", std::nullopt);
  });
  const auto count = [&] {
    const std::lock_guard lock(mutex_);
    return bodies.size();
  };
  ASSERT_TRUE(eventually([&] { return count() == 2; }));
  call([&] {
    patch_->set_label("a", "1");
    patch_->set_label("c", "3");
  });
  ASSERT_TRUE(eventually([&] { return count() == 3; }));
  const std::lock_guard lock(mutex_);
  EXPECT_EQ(bodies[1], R"(PATCH /api/v1/nodes/node-1 {"metadata":{"labels":{"a":"1","b":null}}})");
  EXPECT_EQ(bodies[2], R"(PATCH /api/v1/nodes/node-1 {"metadata":{"labels":{"c":"3"}}})");
}

}  // namespace
}  // namespace gpulet::cluster

#include "cluster/object_watch.h"

#include <nlohmann/json.hpp>

#include "cluster/objects.h"
#include "cluster/test_api.h"

namespace gpulet::cluster {
namespace {

using namespace std::chrono_literals;

std::string config_map(const std::string& version, const std::string& value) {
  return R"({"metadata":{"name":"settings","resourceVersion":")" + version + R"("},"data":{"key":")" + value +
         R"("}})";
}
std::string list_of(const std::string& items) {
  return R"({"metadata":{"resourceVersion":"10"},"items":[)" + items + "]}";
}

class ObjectWatchTest : public ApiTest {
 protected:
  void let_go() override { watch_.reset(); }
  void follow() {
    call([this] {
      watch_ =
          ObjectWatch::start(loop_, access(),
                             {.collection = "/api/v1/namespaces/kube-system/configmaps",
                              .name = "settings",
                              .about = "the settings",
                              .right = "configmaps"},
                             {.backoff = {5ms, 20ms}}, [this](const nlohmann::json& object) {
                               const std::lock_guard lock(mutex_);
                               told_.push_back(object.is_null() ? "null" : text_of(object["data"]["key"]));
                             });
    });
  }
  std::vector<std::string> told() {
    const std::lock_guard lock(mutex_);
    return told_;
  }

  std::mutex mutex_;
  std::vector<std::string> told_;
  std::unique_ptr<ObjectWatch> watch_;
};

TEST_F(ObjectWatchTest, TellsOfEachChangeAndNotOfItsEnd) {
  serve([](const Received& request) {
    if (request.line().find("watch=true") == std::string::npos)
      return Reply{200, list_of(config_map("9", "one")), {}, {}};
    return Reply{200, "", {}, [](Stream& stream) {
                   stream.chunk(R"({"type":"MODIFIED","object":)" + config_map("11", "two") + "}\n");
                   stream.wait(60'000);
                   return false;
                 }};
  });
  follow();
  EXPECT_TRUE(eventually([this] { return told().size() == 2; }));
  EXPECT_EQ(told(), (std::vector<std::string>{"one", "two"}));
  const auto asked = server_->received();
  EXPECT_EQ(asked[0].line(),
            "GET /api/v1/namespaces/kube-system/configmaps?fieldSelector=metadata.name%3Dsettings");
}

TEST_F(ObjectWatchTest, OneThatIsNotThereYetIsNull) {
  serve([](const Received& request) {
    if (request.line().find("watch=true") == std::string::npos) return Reply{200, list_of(""), {}, {}};
    return Reply{200, "", {}, [](Stream& stream) {
                   stream.chunk(R"({"type":"ADDED","object":)" + config_map("11", "made") + "}\n");
                   stream.chunk(R"({"type":"DELETED","object":)" + config_map("12", "made") + "}\n");
                   stream.wait(60'000);
                   return false;
                 }};
  });
  follow();
  EXPECT_TRUE(eventually([this] { return told().size() == 2; }));
  EXPECT_EQ(told(), (std::vector<std::string>{"null", "made"}));
}

}  // namespace
}  // namespace gpulet::cluster

#include "k8s/blocking_reader.h"

#include <map>
#include <string>
#include <vector>

#include "k8s/test_api.h"

namespace gpulet::k8s {
namespace {

using namespace std::chrono_literals;

class BlockingReaderTest : public ApiTest {};

TEST_F(BlockingReaderTest, ListsACollectionInPages) {
  start_server([](const Received& request) -> Reply {
    const std::map<std::string, std::string> pages = {
        {"GET /things?limit=250", R"({"metadata":{"continue":"a b"},"items":[{"n":1},{"n":2}]})"},
        {"GET /things?limit=250&continue=a%20b", R"({"items":[{"n":3}],"metadata":{}})"},
        {"GET /things?labelSelector=x&limit=250", R"({"metadata":{},"items":[]})"},
        {"GET /text?limit=250", "hello"}};
    const auto found = pages.find(request.line());
    return found == pages.end() ? Reply{404, R"({"kind":"Status"})"} : Reply{200, found->second};
  });
  BlockingReader reader(client_config(), 10s);
  std::vector<std::string> items;
  const auto list = [&](const std::string& path) {
    return reader.list_objects(path, "list on things",
                               [&](std::string_view item) { items.emplace_back(item); });
  };
  EXPECT_EQ(list("/things"), true);
  EXPECT_EQ(items, (std::vector<std::string>{R"({"n":1})", R"({"n":2})", R"({"n":3})"}));
  EXPECT_EQ(list("/things?labelSelector=x"), true);
  EXPECT_EQ(list("/others"), false);
  EXPECT_EQ(items.size(), 3U);
  EXPECT_EQ(list("/text").error().code(), Code::kIo);
}

TEST_F(BlockingReaderTest, SaysWhyAnObjectCannotBeRead) {
  start_server([](const Received& request) -> Reply {
    const std::map<std::string, int> statuses = {
        {"GET /missing", 404}, {"GET /refused", 403}, {"GET /down", 503}};
    const auto found = statuses.find(request.line());
    return found == statuses.end() ? Reply{200, "{\"a\":1}"} : Reply{found->second, "{}"};
  });
  BlockingReader reader(client_config(), 10s);
  EXPECT_EQ(*reader.get_object("/there", "get on things"), "{\"a\":1}");
  EXPECT_EQ(*reader.get_object("/missing", "get on things"), std::nullopt);
  const auto refused = reader.get_object("/refused", "get on things");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kPermissionDenied);
  EXPECT_NE(refused.error().message().find("missing permission: get on things"), std::string::npos);
  EXPECT_EQ(reader.get_object("/down", "get on things").error().code(), Code::kUnavailable);
  EXPECT_EQ(reader.get_response("/down", "*/*")->status, 503);
}

TEST_F(BlockingReaderTest, HasLimits) {
  start_server([](const Received& request) -> Reply {
    if (request.line() == "GET /large") return {200, std::string(kMaxReadBytes + 1, ' ')};
    return {.act = Act::kHang};
  });
  BlockingReader reader(client_config(), 2s);
  EXPECT_EQ(reader.get_object("/large", "").error().code(), Code::kIo);
  EXPECT_EQ(reader.get_object("/slow", "").error().code(), Code::kDeadlineExceeded);
}

}  // namespace
}  // namespace gpulet::k8s

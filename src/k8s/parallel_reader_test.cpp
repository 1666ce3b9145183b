#include "k8s/parallel_reader.h"

#include <future>
#include <map>
#include <string>
#include <vector>

#include "k8s/test_api.h"

namespace gpulet::k8s {
namespace {

using namespace std::chrono_literals;
using ReadResult = Result<std::optional<std::string>>;

class ParallelReaderTest : public ApiTest {
 protected:
  void release_source() override { reader_.reset(); }
  void begin(TestApiServer::Handler handler, ParallelTiming timing = {}) {
    start_server(std::move(handler));
    call_on_loop([&] { reader_ = ParallelReader::start_reader(loop_, client_config(), timing); });
  }
  std::future<ReadResult> read(const std::string& path) {
    auto answer = std::make_shared<std::promise<ReadResult>>();
    call_on_loop([&] {
      reader_->read_object(path, "get on things",
                           [answer](ReadResult value) { answer->set_value(std::move(value)); });
    });
    return answer->get_future();
  }

  std::unique_ptr<ParallelReader> reader_;
};

TEST_F(ParallelReaderTest, ReadsObjects) {
  begin([](const Received& request) {
    const std::map<std::string, int> statuses = {{"GET /missing", 404},
                                                 {"GET /refused", 403},
                                                 {"GET /busy", 429},
                                                 {"GET /down", 503},
                                                 {"GET /odd", 418}};
    const auto found = statuses.find(request.line());
    return found == statuses.end() ? Reply{200, "{\"a\":1}"} : Reply{found->second, "{}"};
  });
  EXPECT_EQ(*read("/there").get(), "{\"a\":1}");
  EXPECT_EQ(*read("/missing").get(), std::nullopt);
  const auto refused = read("/refused").get();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kPermissionDenied);
  EXPECT_EQ(refused.error().subject(), "get on things");
  EXPECT_EQ(read("/busy").get().error().code(), Code::kUnavailable);
  EXPECT_EQ(read("/down").get().error().code(), Code::kUnavailable);
  EXPECT_EQ(read("/odd").get().error().code(), Code::kInternal);
}

TEST_F(ParallelReaderTest, MoreReadsThanConnectionsAllEnd) {
  begin([](const Received& request) { return Reply{200, request.line()}; }, {.connections = 3});
  std::vector<std::future<ReadResult>> reads;
  for (int i = 0; i < 50; ++i) reads.push_back(read("/object-" + std::to_string(i)));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(*reads[i].get(), "GET /object-" + std::to_string(i));
}

TEST_F(ParallelReaderTest, ASlowReadDelaysNoOther) {
  begin([](const Received& request) {
    return Reply{.status = 200, .act = request.line() == "GET /slow" ? Act::kHang : Act::kRespond};
  });
  auto slow = read("/slow");
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(read("/fast").get());
  EXPECT_EQ(slow.wait_for(0s), std::future_status::timeout);
}

TEST_F(ParallelReaderTest, HasALimitForEachRequest) {
  begin([](const Received&) { return Reply{.act = Act::kHang}; }, {.request_limit = 100ms});
  EXPECT_EQ(read("/x").get().error().code(), Code::kDeadlineExceeded);
}

}  // namespace
}  // namespace gpulet::k8s

#include "dra/health_streams.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "base/test_loop.h"
#include "device_plugin/pod_resources.h"
#include "device_plugin/rpc_core.h"
#include "dra/served_socket.h"
#include "proto/dra_health_v1.grpc.pb.h"
#include "proto/dra_health_v1alpha1.grpc.pb.h"

namespace gpulet::dra {
namespace {

using gpulet::test::becomes_true;
using gpulet::test::call_on_loop;

class OnlyHealth final : public device_plugin::AddedServices {
 public:
  std::vector<grpc::Service*> services() override { return streams.services(); }
  void start_serving(grpc::ServerCompletionQueue& queue) override { streams.start_serving(queue); }
  void stop_serving() override { streams.stop_serving(); }

  HealthStreams streams;
};

// A kubelet's side of one stream.
template <class Api>
class Watch {
 public:
  explicit Watch(const std::string& path)
      : stub_(Api::NewStub(grpc::CreateChannel("unix:" + path, grpc::InsecureChannelCredentials()))) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    reader_ = stub_->NodeWatchResources(&context_, {});
  }
  ~Watch() {
    context_.TryCancel();
    if (reader_) reader_->Finish();
  }
  Watch(const Watch&) = delete;

  // "gpu-0=1 gpu-1=2"; "end" for the end of the stream.
  std::string next_report() {
    if (!reader_->Read(&newest_)) return "end";
    std::string text;
    for (const auto& device : newest_.devices()) {
      text +=
          (text.empty() ? "" : " ") + device.device().device_name() + "=" + std::to_string(device.health());
    }
    return text;
  }
  const v1::NodeWatchResourcesResponse& newest() const { return newest_; }
  grpc::Status finish() {
    const auto status = reader_->Finish();
    reader_.reset();
    return status;
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<typename Api::Stub> stub_;
  std::unique_ptr<grpc::ClientReader<v1::NodeWatchResourcesResponse>> reader_;
  v1::NodeWatchResourcesResponse newest_;
};

class HealthStreamsTest : public ::testing::Test {
 protected:
  HealthStreamsTest() {
    std::string name = (std::filesystem::temp_directory_path() / "health_streams.XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
    thread_ = std::thread([this] { loop_.run_loop(); });
    rpc_ = device_plugin::start_grpc_thread(services_);
    path_ = service_socket_path(directory_, "gpu.nvidia.com");
    call_on_loop(loop_, [this] {
      auto socket = ServedSocket::open_socket(loop_, rpc_, path_);
      ASSERT_TRUE(socket) << socket.error().full_message();
      socket_ = std::move(*socket);
    });
    streams().open_streams();
  }
  ~HealthStreamsTest() override {
    call_on_loop(loop_, [this] { socket_.reset(); });
    rpc_.reset();
    loop_.stop_loop();
    thread_.join();
    std::filesystem::remove_all(directory_);
  }

  HealthStreams& streams() { return services_->streams; }
  void send(DeviceCondition first, DeviceCondition second, const std::string& message = "") {
    streams().send_report({"node-1", 1'700'000'000, {{"gpu-0", first}, {"gpu-1", second, message}}});
  }

  EpollLoop loop_;
  std::thread thread_;
  std::shared_ptr<OnlyHealth> services_ = std::make_shared<OnlyHealth>();
  std::shared_ptr<device_plugin::GrpcThread> rpc_;
  std::string directory_, path_;
  std::unique_ptr<ServedSocket> socket_;
};

constexpr auto kHealthy = DeviceCondition::kHealthy;
constexpr auto kUnhealthy = DeviceCondition::kUnhealthy;
constexpr auto kUnknown = DeviceCondition::kUnknown;

TEST_F(HealthStreamsTest, SendsEveryFieldInBothVersions) {
  send(kHealthy, kUnhealthy, "XID 79");
  Watch<v1::DRAResourceHealth> newer(path_);
  EXPECT_EQ(newer.next_report(), "gpu-0=1 gpu-1=2");
  const auto& device = newer.newest().devices(1);
  EXPECT_EQ(device.device().pool_name(), "node-1");
  EXPECT_EQ(device.last_updated_time(), 1'700'000'000);
  EXPECT_EQ(device.health_check_timeout_seconds(), 30);
  EXPECT_EQ(device.message(), "XID 79");
  EXPECT_EQ(newer.newest().devices(0).message(), "");
  Watch<v1alpha1::DRAResourceHealth> older(path_);
  EXPECT_EQ(older.next_report(), "gpu-0=1 gpu-1=2");
}

TEST_F(HealthStreamsTest, SendsAgainWhatIsTheSame) {
  Watch<v1alpha1::DRAResourceHealth> watch(path_);
  send(kUnknown, kHealthy);
  EXPECT_EQ(watch.next_report(), "gpu-0=0 gpu-1=1");
  send(kUnknown, kHealthy);
  EXPECT_EQ(watch.next_report(), "gpu-0=0 gpu-1=1");
  send(kUnhealthy, kHealthy);
  EXPECT_EQ(watch.next_report(), "gpu-0=2 gpu-1=1");
}

TEST_F(HealthStreamsTest, AClientThatDoesNotReadGetsTheNewest) {
  Watch<v1alpha1::DRAResourceHealth> slow(path_), fast(path_);
  const std::string large(kMaxHealthMessageBytes, 'x');
  send(kUnknown, kUnknown);
  EXPECT_EQ(fast.next_report(), "gpu-0=0 gpu-1=0");
  EXPECT_EQ(slow.next_report(), "gpu-0=0 gpu-1=0");
  constexpr int kReports = 2000;  // more than the window of a stream
  for (int i = 0; i < kReports; ++i) send(kHealthy, kHealthy, large);
  send(kUnhealthy, kHealthy);
  int reports = 1;
  while (slow.next_report() != "gpu-0=2 gpu-1=1") ++reports;
  EXPECT_LT(reports, kReports);
  while (fast.next_report() != "gpu-0=2 gpu-1=1") {
  }
}

TEST_F(HealthStreamsTest, EndsWithTheServices) {
  Watch<v1alpha1::DRAResourceHealth> waiting(path_);
  Watch<v1::DRAResourceHealth> watch(path_);
  send(kHealthy, kHealthy);
  EXPECT_EQ(waiting.next_report(), "gpu-0=1 gpu-1=1");
  EXPECT_EQ(watch.next_report(), "gpu-0=1 gpu-1=1");
  streams().close_streams();
  EXPECT_EQ(watch.next_report(), "end");
  EXPECT_FALSE(watch.finish().ok());  // cancelled if the server does not know yet that it was read
  EXPECT_EQ(waiting.next_report(), "end");
  // Later ones have no report, also not an old one.
  Watch<v1::DRAResourceHealth> late(path_);
  EXPECT_EQ(late.next_report(), "end");
  EXPECT_EQ(late.finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  streams().open_streams();
  Watch<v1::DRAResourceHealth> again(path_);
  send(kUnknown, kUnknown);
  EXPECT_EQ(again.next_report(), "gpu-0=0 gpu-1=0");
}

TEST_F(HealthStreamsTest, EndsWithTheThread) {
  Watch<v1alpha1::DRAResourceHealth> watch(path_);
  send(kHealthy, kHealthy);
  EXPECT_EQ(watch.next_report(), "gpu-0=1 gpu-1=1");
  call_on_loop(loop_, [this] { socket_.reset(); });
  rpc_.reset();
  EXPECT_EQ(watch.next_report(), "end");
  send(kUnhealthy, kHealthy);
  streams().close_streams();
}

TEST_F(HealthStreamsTest, LimitsTheNumberOfStreams) {
  send(kHealthy, kHealthy);
  std::vector<std::unique_ptr<Watch<v1::DRAResourceHealth>>> watches;
  for (std::size_t i = 0; i < kMaxHealthStreams; ++i) {
    watches.push_back(std::make_unique<Watch<v1::DRAResourceHealth>>(path_));
    EXPECT_EQ(watches.back()->next_report(), "gpu-0=1 gpu-1=1");
  }
  Watch<v1::DRAResourceHealth> surplus(path_);
  EXPECT_EQ(surplus.next_report(), "end");
  EXPECT_EQ(surplus.finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  watches.pop_back();
  EXPECT_TRUE(becomes_true([&] {
    Watch<v1::DRAResourceHealth> next(path_);
    return next.next_report() != "end";
  }));
}

}  // namespace
}  // namespace gpulet::dra

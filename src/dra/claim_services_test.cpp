#include "dra/claim_services.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "base/file.h"
#include "base/test_loop.h"
#include "device_plugin/pod_resources.h"
#include "dra/served_socket.h"
#include "proto/dra_v1.grpc.pb.h"
#include "proto/dra_v1beta1.grpc.pb.h"
#include "proto/pluginregistration_v1.grpc.pb.h"

namespace gpulet::dra {
namespace {

namespace api = ::k8s::io::kubelet::pkg::apis::dra::v1;
namespace beta = ::k8s::io::kubelet::pkg::apis::dra::v1beta1;
using gpulet::test::becomes_true;
using gpulet::test::call_on_loop;

constexpr const char* kDriver = "gpu.nvidia.com";

// A driver's two sockets, and the kubelet's side of them.
class ClaimServicesTest : public ::testing::Test {
 protected:
  ClaimServicesTest() {
    std::string name = (std::filesystem::temp_directory_path() / "claim_services.XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
    thread_ = std::thread([this] { loop_.run_loop(); });
    rpc_ = device_plugin::start_grpc_thread(services_->added_services());
    service_path_ = service_socket_path(directory_ + "/plugins", kDriver);
    registration_path_ = registration_socket_path(directory_ + "/plugins_registry", kDriver);
    call_on_loop(loop_, [this] {
      for (const auto& path : {service_path_, registration_path_}) {
        auto socket = ServedSocket::open_socket(loop_, rpc_, path);
        ASSERT_TRUE(socket) << socket.error().full_message();
        sockets_.push_back(std::move(*socket));
      }
    });
  }
  ~ClaimServicesTest() override {
    call_on_loop(loop_, [this] {
      services_->close_services();
      sockets_.clear();
    });
    rpc_.reset();
    loop_.stop_loop();
    thread_.join();
    std::filesystem::remove_all(directory_);
  }

  void announce() {
    call_on_loop(loop_, [this] {
      services_->announce_services(loop_, {kDriver, service_path_}, [this](const Status& status) {
        ASSERT_TRUE(status);
        ++announced_;
      });
    });
  }

  void register_driver() {
    auto stub = pluginregistration::Registration::NewStub(channel(registration_path_));
    grpc::ClientContext first, second;
    set_deadline(first);
    set_deadline(second);
    pluginregistration::PluginInfo info;
    ASSERT_TRUE(stub->GetInfo(&first, {}, &info).ok());
    EXPECT_EQ(info.endpoint(), service_path_);
    pluginregistration::RegistrationStatus status;
    status.set_plugin_registered(true);
    pluginregistration::RegistrationStatusResponse response;
    ASSERT_TRUE(stub->NotifyRegistrationStatus(&second, status, &response).ok());
  }

  void open() {
    call_on_loop(loop_, [this] {
      services_->open_services(
          loop_, {kDriver, service_path_},
          {.prepare =
               [this](const std::vector<ClaimName>& claims,
                      std::function<void(ClaimHandlers::Prepared)> done) {
                 prepares_.emplace_back(claims, std::move(done));
                 ++prepare_count_;
               },
           .unprepare =
               [](const std::vector<ClaimName>& claims) {
                 std::map<std::string, Status> results;
                 for (const auto& claim : claims) {
                   results[claim.uid] =
                       claim.name == "stuck" ? Status(fail(Code::kIo, "no space")) : Status();
                 }
                 return results;
               },
           .registered = [this](const Status& status) { registered_ = status ? 1 : 2; }});
    });
  }

  std::shared_ptr<grpc::Channel> channel(const std::string& path) const {
    return grpc::CreateChannel("unix:" + path, grpc::InsecureChannelCredentials());
  }
  static void set_deadline(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  }

  template <class Api>
  std::pair<grpc::Status, api::NodePrepareResourcesResponse> prepare(const std::vector<std::string>& names) {
    auto stub = Api::NewStub(channel(service_path_));
    api::NodePrepareResourcesRequest request;
    for (const auto& name : names) {
      auto& claim = *request.add_claims();
      claim.set_namespace_("team");
      claim.set_name(name);
      claim.set_uid("uid-" + name);
    }
    grpc::ClientContext context;
    set_deadline(context);
    api::NodePrepareResourcesResponse response;
    const auto status = stub->NodePrepareResources(&context, request, &response);
    return {status, response};
  }

  // Answers the oldest open prepare, on the loop.
  void answer_prepare(ClaimHandlers::Prepared results) {
    ASSERT_TRUE(becomes_true([this] { return prepare_count_ > 0; }));
    call_on_loop(loop_, [&] {
      auto [claims, done] = std::move(prepares_.front());
      prepares_.erase(prepares_.begin());
      --prepare_count_;
      asked_ = claims;
      done(std::move(results));
    });
  }

  EpollLoop loop_;
  std::thread thread_;
  std::shared_ptr<ClaimServices> services_ = ClaimServices::make_services();
  std::shared_ptr<device_plugin::GrpcThread> rpc_;
  std::string directory_, service_path_, registration_path_;
  std::vector<std::unique_ptr<ServedSocket>> sockets_;
  std::vector<std::pair<std::vector<ClaimName>, std::function<void(ClaimHandlers::Prepared)>>> prepares_;
  std::vector<ClaimName> asked_;
  std::atomic<int> prepare_count_{0}, registered_{0}, announced_{0};
};

TEST_F(ClaimServicesTest, TellsTheKubeletWhereItIs) {
  open();
  auto stub = pluginregistration::Registration::NewStub(channel(registration_path_));
  grpc::ClientContext context;
  set_deadline(context);
  pluginregistration::PluginInfo info;
  ASSERT_TRUE(stub->GetInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.type(), "DRAPlugin");
  EXPECT_EQ(info.name(), kDriver);
  EXPECT_EQ(info.endpoint(), service_path_);
  ASSERT_EQ(info.supported_versions_size(), 4);
  EXPECT_EQ(info.supported_versions(0), "v1.DRAPlugin");
  EXPECT_EQ(info.supported_versions(1), "v1beta1.DRAPlugin");
  EXPECT_EQ(info.supported_versions(2), "v1.DRAResourceHealth");
  EXPECT_EQ(info.supported_versions(3), "v1alpha1.DRAResourceHealth");
  for (const bool accepted : {true, false}) {
    grpc::ClientContext next;
    set_deadline(next);
    pluginregistration::RegistrationStatus status;
    status.set_plugin_registered(accepted);
    pluginregistration::RegistrationStatusResponse response;
    // Also a refusal: an error would deregister the driver again.
    EXPECT_TRUE(stub->NotifyRegistrationStatus(&next, status, &response).ok());
    EXPECT_TRUE(becomes_true([&] { return registered_ == (accepted ? 1 : 2); }));
  }
}

TEST_F(ClaimServicesTest, GetInfoDoesNotWaitForTheLoop) {
  open();
  std::atomic<bool> blocked{false}, release{false};
  loop_.post([&] {
    blocked = true;
    becomes_true([&] { return release.load(); });
  });
  ASSERT_TRUE(becomes_true([&] { return blocked.load(); }));
  // The connection was made before: accepting one is the loop's.
  auto stub = pluginregistration::Registration::NewStub(channel(registration_path_));
  release = true;
  call_on_loop(loop_, [] {});
  grpc::ClientContext first;
  set_deadline(first);
  pluginregistration::PluginInfo info;
  ASSERT_TRUE(stub->GetInfo(&first, {}, &info).ok());
  blocked = release = false;
  loop_.post([&] {
    blocked = true;
    becomes_true([&] { return release.load(); });
  });
  ASSERT_TRUE(becomes_true([&] { return blocked.load(); }));
  grpc::ClientContext second;
  set_deadline(second);
  EXPECT_TRUE(stub->GetInfo(&second, {}, &info).ok());
  release = true;
  call_on_loop(loop_, [] {});
}

TEST_F(ClaimServicesTest, EveryClaimHasItsOwnAnswer) {
  open();
  std::pair<grpc::Status, api::NodePrepareResourcesResponse> answer;
  std::thread kubelet([&] { answer = prepare<api::DRAPlugin>({"a", "b"}); });
  ClaimHandlers::Prepared results;
  results.emplace("uid-a", PreparedClaim{{"gpus", "node-1", "gpu-0", "kind=a-gpu-0", "share"},
                                         {"gpus", "node-1", "gpu-1", "kind=a-gpu-1"}});
  results.emplace("uid-b", fail(Code::kDeviceLost, "the GPU is lost", "claim team/b"));
  answer_prepare(std::move(results));
  kubelet.join();
  ASSERT_TRUE(answer.first.ok()) << answer.first.error_message();
  ASSERT_EQ(asked_.size(), 2u);
  EXPECT_EQ(asked_[0].name_space + "/" + asked_[0].name + "/" + asked_[0].uid, "team/a/uid-a");
  const auto& claims = answer.second.claims();
  ASSERT_EQ(claims.size(), 2u);
  EXPECT_EQ(claims.at("uid-b").error(), "claim team/b: the GPU is lost");
  EXPECT_EQ(claims.at("uid-b").devices_size(), 0);
  EXPECT_EQ(claims.at("uid-a").error(), "");
  ASSERT_EQ(claims.at("uid-a").devices_size(), 2);
  const auto& device = claims.at("uid-a").devices(0);
  EXPECT_EQ(device.request_names(0), "gpus");
  EXPECT_EQ(device.pool_name(), "node-1");
  EXPECT_EQ(device.device_name(), "gpu-0");
  EXPECT_EQ(device.cdi_device_ids(0), "kind=a-gpu-0");
  EXPECT_EQ(device.share_id(), "share");
  EXPECT_FALSE(claims.at("uid-a").devices(1).has_share_id());
}

TEST_F(ClaimServicesTest, AnOldKubeletGetsTheSameWithoutShares) {
  open();
  std::pair<grpc::Status, api::NodePrepareResourcesResponse> answer;
  std::thread kubelet([&] { answer = prepare<beta::DRAPlugin>({"a"}); });
  ClaimHandlers::Prepared results;
  results.emplace("uid-a", PreparedClaim{{"gpus", "node-1", "gpu-0", "kind=a-gpu-0", "share"}});
  answer_prepare(std::move(results));
  kubelet.join();
  ASSERT_TRUE(answer.first.ok());
  EXPECT_FALSE(answer.second.claims().at("uid-a").devices(0).has_share_id());
}

TEST_F(ClaimServicesTest, ASlowClaimDelaysNoOther) {
  open();
  std::pair<grpc::Status, api::NodePrepareResourcesResponse> slow, fast;
  std::thread first([&] { slow = prepare<api::DRAPlugin>({"slow"}); });
  ASSERT_TRUE(becomes_true([this] { return prepare_count_ == 1; }));
  std::thread second([&] { fast = prepare<api::DRAPlugin>({"fast"}); });
  ASSERT_TRUE(becomes_true([this] { return prepare_count_ == 2; }));
  call_on_loop(loop_, [this] {
    ClaimHandlers::Prepared results;
    results.emplace("uid-fast", PreparedClaim{});
    prepares_[1].second(std::move(results));
    prepares_.pop_back();
    --prepare_count_;
  });
  second.join();
  EXPECT_TRUE(fast.second.claims().contains("uid-fast"));
  answer_prepare({});
  first.join();
  EXPECT_TRUE(slow.first.ok());
}

TEST_F(ClaimServicesTest, Unprepares) {
  open();
  auto stub = api::DRAPlugin::NewStub(channel(service_path_));
  api::NodeUnprepareResourcesRequest request;
  for (const char* const name : {"a", "stuck"}) {
    request.add_claims()->set_name(name);
    request.mutable_claims(request.claims_size() - 1)->set_uid(name);
  }
  grpc::ClientContext context;
  set_deadline(context);
  api::NodeUnprepareResourcesResponse response;
  ASSERT_TRUE(stub->NodeUnprepareResources(&context, request, &response).ok());
  ASSERT_EQ(response.claims_size(), 2u);
  EXPECT_EQ(response.claims().at("a").error(), "");
  EXPECT_EQ(response.claims().at("stuck").error(), "no space");
}

TEST_F(ClaimServicesTest, IsUnavailableWhileNobodyServes) {
  const auto before = prepare<api::DRAPlugin>({"a"}).first;
  EXPECT_EQ(before.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(before.error_message(), "this node serves no claims");
  open();
  call_on_loop(loop_, [this] { services_->close_services(); });
  EXPECT_EQ(prepare<api::DRAPlugin>({"a"}).first.error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ClaimServicesTest, EndsWithOpenCalls) {
  open();
  grpc::Status status;
  std::thread kubelet([&] { status = prepare<api::DRAPlugin>({"a"}).first; });
  ASSERT_TRUE(becomes_true([this] { return prepare_count_ == 1; }));
  call_on_loop(loop_, [this] {
    services_->close_services();
    sockets_.clear();
  });
  rpc_.reset();
  kubelet.join();
  EXPECT_FALSE(status.ok());
  // An answer that comes too late is dropped.
  call_on_loop(loop_, [this] { prepares_.front().second({}); });
  EXPECT_FALSE(std::filesystem::exists(service_path_));
  EXPECT_FALSE(std::filesystem::exists(registration_path_));
}

TEST_F(ClaimServicesTest, CallsWaitBetweenTheAnnouncementAndTheClaims) {
  announce();
  register_driver();
  EXPECT_TRUE(becomes_true([this] { return announced_ == 1; }));
  std::pair<grpc::Status, api::NodePrepareResourcesResponse> prepared;
  std::thread kubelet([&] { prepared = prepare<api::DRAPlugin>({"a"}); });
  grpc::Status unprepared;
  std::thread other([&] {
    auto stub = api::DRAPlugin::NewStub(channel(service_path_));
    grpc::ClientContext context;
    set_deadline(context);
    api::NodeUnprepareResourcesRequest request;
    request.add_claims()->set_uid("uid-b");
    api::NodeUnprepareResourcesResponse response;
    unprepared = stub->NodeUnprepareResources(&context, request, &response);
  });
  register_driver();  // answered while the other calls wait
  EXPECT_TRUE(becomes_true([this] { return announced_ == 2; }));
  EXPECT_EQ(prepare_count_, 0);
  open();
  ClaimHandlers::Prepared results;
  results.emplace("uid-a", PreparedClaim{});
  answer_prepare(std::move(results));
  kubelet.join();
  other.join();
  EXPECT_TRUE(prepared.first.ok()) << prepared.first.error_message();
  EXPECT_TRUE(unprepared.ok()) << unprepared.error_message();
  EXPECT_TRUE(becomes_true([this] { return registered_ == 1; })) << "it was registered before";
}

TEST_F(ClaimServicesTest, AnAnnouncementThatEndsAnswersWhatWaits) {
  announce();
  std::pair<grpc::Status, api::NodePrepareResourcesResponse> prepared;
  std::thread kubelet([&] { prepared = prepare<api::DRAPlugin>({"a"}); });
  register_driver();
  call_on_loop(loop_, [this] { services_->close_services(); });
  kubelet.join();
  EXPECT_FALSE(prepared.first.ok());
}

// The call is on its way to the loop when the services close.
TEST_F(ClaimServicesTest, ClosingAnswersWhatTheLoopHasNotSeen) {
  auto stub = api::DRAPlugin::NewStub(channel(service_path_));
  grpc::ClientContext connecting, pending, refused;
  api::NodePrepareResourcesResponse response, late;
  EXPECT_FALSE(stub->NodePrepareResources(&connecting, {}, &response).ok()) << "nothing is served yet";
  announce();
  std::atomic<bool> is_blocked{false}, go_on{false};
  loop_.post([&] {
    is_blocked = true;
    becomes_true([&] { return go_on.load(); });
    services_->close_services();
  });
  ASSERT_TRUE(becomes_true([&] { return is_blocked.load(); }));
  grpc::CompletionQueue queue;
  const auto call = stub->AsyncNodePrepareResources(&pending, {}, &queue);
  grpc::Status status;
  call->Finish(&late, &status, &status);
  // The next call of a connection is taken after the first one was posted to the loop.
  api::NodePrepareResourcesRequest too_many;
  for (std::size_t i = 0; i <= kMaxClaimsPerCall; ++i) too_many.add_claims();
  EXPECT_EQ(stub->NodePrepareResources(&refused, too_many, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  go_on = true;
  void* tag = nullptr;
  bool ok = false;
  const auto limit = std::chrono::system_clock::now() + std::chrono::seconds(30);
  ASSERT_EQ(queue.AsyncNext(&tag, &ok, limit), grpc::CompletionQueue::GOT_EVENT);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ClaimServicesTest, MakesARemovedSocketAgain) {
  open();
  std::filesystem::remove(registration_path_);
  EXPECT_TRUE(becomes_true([this] { return std::filesystem::exists(registration_path_); }));
  auto stub = pluginregistration::Registration::NewStub(channel(registration_path_));
  EXPECT_TRUE(becomes_true([&] {
    grpc::ClientContext context;
    set_deadline(context);
    pluginregistration::PluginInfo info;
    return stub->GetInfo(&context, {}, &info).ok();
  }));
}

TEST(ServedSocket, EveryInstanceHasPathsOfItsOwn) {
  const std::string uid = "1a2b3c4d-0000-4000-8000-000000000000";
  EXPECT_EQ(service_socket_path("/p", kDriver), "/p/gpu.nvidia.com/dra.sock");
  EXPECT_EQ(service_socket_path("/p", kDriver, uid), "/p/gpu.nvidia.com/dra-1a2b3c4d.sock");
  EXPECT_EQ(registration_socket_path("/r", kDriver), "/r/gpu.nvidia.com-reg.sock");
  EXPECT_EQ(registration_socket_path("/r", kDriver, uid), "/r/gpu.nvidia.com-1a2b3c4d-reg.sock");
}

TEST_F(ClaimServicesTest, OnlySocketsOfDeadInstancesAreRemoved) {
  const auto dead = service_socket_path(directory_ + "/plugins", kDriver, "dead");
  const auto registration = registration_socket_path(directory_ + "/plugins_registry", kDriver, "dead");
  const auto of_other = directory_ + "/plugins_registry/gpu.example.com-reg.sock";
  const auto file = directory_ + "/plugins/gpu.nvidia.com/dra-file.sock";
  for (const auto& path : {dead, registration, of_other}) ASSERT_TRUE(bind_unix_socket(path));
  ASSERT_TRUE(write_file_atomic(file, "x"));
  remove_dead_sockets(directory_ + "/plugins", directory_ + "/plugins_registry", kDriver);
  EXPECT_FALSE(std::filesystem::exists(dead));
  EXPECT_FALSE(std::filesystem::exists(registration));
  for (const auto& path : {of_other, file, service_path_, registration_path_})
    EXPECT_TRUE(std::filesystem::exists(path)) << path;
}

TEST(ServedSocket, SaysWhatIsWrongWithThePath) {
  ManualLoop loop;
  const auto socket = ServedSocket::open_socket(loop, device_plugin::start_grpc_thread(),
                                                "/tmp/" + std::string(120, 'x') + "/dra.sock");
  ASSERT_FALSE(socket);
  EXPECT_EQ(socket.error().code(), Code::kInvalidArgument);
  std::filesystem::remove("/tmp/" + std::string(120, 'x'));
}

}  // namespace
}  // namespace gpulet::dra

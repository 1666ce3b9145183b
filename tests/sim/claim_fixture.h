// A simulated node that serves claims: the agent as a process, a kubelet that lists the claims which gRPC
// calls of this fixture have prepared, and an API server with the node's ResourceSlices and any
// ResourceClaim.
#pragma once

#include <cstddef>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>  // tidy: heavy-header because the API server answers with JSON

#include "dra/served_socket.h"
#include "dra/test_slice_store.h"
#include "proto/dra_v1.grpc.pb.h"
#include "proto/pluginregistration_v1.grpc.pb.h"
#include "tests/sim/node_api.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {

namespace dra_api = ::k8s::io::kubelet::pkg::apis::dra::v1;

inline constexpr const char* kClaimDriver = "gpu.nvidia.com";
inline constexpr const char* kClaimNamespace = "team";
inline constexpr const char* kClaimPod = "aaaaaaaa-0000-4000-8000-000000000000";  // of the agent

// The claim DEVICE-NAME of kClaimNamespace has the device DEVICE.
inline std::string test_claim_json(const std::string& name) {
  nlohmann::json claim = {
      {"apiVersion", "resource.k8s.io/v1"},
      {"kind", "ResourceClaim"},
      {"metadata", {{"namespace", kClaimNamespace}, {"name", name}, {"uid", "uid-" + name}}}};
  claim["spec"]["devices"]["requests"].push_back({{"name", "gpus"}});
  claim["status"]["allocation"]["devices"]["results"].push_back(
      {{"request", "gpus"},
       {"driver", kClaimDriver},
       {"pool", "node-1"},
       {"device", name.substr(0, name.rfind('-'))}});
  return claim.dump();
}

class ClaimNodeTest : public NodeTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(bring_up_node());
    api_ = std::make_unique<NodeApi>(sim_node().directory(),
                                     [this](const k8s::Received& request) { return reply_to(request); });
  }

  std::optional<k8s::TestApiServer::Reply> reply_to(const k8s::Received& request) {
    const std::string line = request.line();
    const std::string path = line.substr(line.find(' ') + 1);
    if (path.find("/resourceslices") != std::string::npos) return slices_.handle(request);
    // No resource of the device plugin: its GPUs are free for claims.
    if (line == "GET /api/v1/nodes/node-1")
      return k8s::TestApiServer::Reply{
          200, R"({"metadata":{"name":"node-1","uid":"node-uid"},"status":{"allocatable":{"cpu":"8"}}})"};
    constexpr std::string_view kClaims = "/resourceclaims/";
    const auto claims = path.find(kClaims);
    if (claims == std::string::npos) return std::nullopt;
    return k8s::TestApiServer::Reply{
        200, test_claim_json(
                 path.substr(claims + kClaims.size(), path.find(' ', claims) - claims - kClaims.size()))};
  }

  // Of an agent in the Pod with that UID.
  sim::AgentOptions claim_options(const char* pod) {
    return {.arguments = {"--dra"},
            .environment = {"NODE_NAME=node-1", "KUBECONFIG=" + api_->kubeconfig(),
                            std::string("POD_UID=") + pod, "GPULET_DRA_RECORD_DIR=" + record_dir()}};
  }

  std::string sim_directory() const { return const_cast<ClaimNodeTest*>(this)->sim_node().directory(); }
  std::string kubelet_dir() const { return sim_directory() + "/kubelet"; }
  std::string record_dir() const { return sim_directory() + "/claims"; }
  std::string service(const char* pod) const {
    return dra::service_socket_path(kubelet_dir() + "/plugins", kClaimDriver, pod);
  }
  std::string registration(const char* pod) const {
    return dra::registration_socket_path(kubelet_dir() + "/plugins_registry", kClaimDriver, pod);
  }

  // What the kubelet does as soon as it sees the socket.
  void register_driver(const char* pod) {
    ASSERT_TRUE(becomes_true([&] { return std::filesystem::exists(registration(pod)); }));
    grpc::ChannelArguments impatient;  // the agent may not listen yet
    impatient.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
    auto stub = pluginregistration::Registration::NewStub(grpc::CreateCustomChannel(
        "unix:" + registration(pod), grpc::InsecureChannelCredentials(), impatient));
    grpc::ClientContext first, second;
    first.set_wait_for_ready(true);
    pluginregistration::PluginInfo info;
    ASSERT_TRUE(stub->GetInfo(&first, {}, &info).ok());
    EXPECT_EQ(info.endpoint(), service(pod));
    pluginregistration::RegistrationStatus registered;
    registered.set_plugin_registered(true);
    pluginregistration::RegistrationStatusResponse response;
    ASSERT_TRUE(stub->NotifyRegistrationStatus(&second, registered, &response).ok());
  }

  // The error of the call or of the claim; empty if it worked: the kubelet lists the claim from then on.
  std::string prepare(const char* pod, const std::string& name) {
    dra_api::NodePrepareResourcesRequest request;
    add_claim(request, name);
    const auto context = call_context();
    dra_api::NodePrepareResourcesResponse response;
    const auto status = plugin(pod)->NodePrepareResources(context.get(), request, &response);
    if (!status.ok()) return status.error_message();
    const auto found = response.claims().find("uid-" + name);
    if (found == response.claims().end()) return "no answer";
    if (!found->second.error().empty()) return found->second.error();
    if (found->second.devices_size() != 1) return "no device";
    sim_kubelet().add_prepared_claim(prepared_claim(name, found->second));
    return "";
  }
  std::string unprepare(const char* pod, const std::string& name) {
    dra_api::NodeUnprepareResourcesRequest request;
    add_claim(request, name);
    const auto context = call_context();
    dra_api::NodeUnprepareResourcesResponse response;
    const auto status = plugin(pod)->NodeUnprepareResources(context.get(), request, &response);
    if (!status.ok()) return status.error_message();
    const auto found = response.claims().find("uid-" + name);
    if (found == response.claims().end()) return "no answer";
    if (found->second.error().empty()) sim_kubelet().remove_prepared_claim(kClaimNamespace, name);
    return found->second.error();
  }

  std::ptrdiff_t record_count() const {
    if (!std::filesystem::exists(record_dir())) return 0;
    return std::distance(std::filesystem::directory_iterator(record_dir()),
                         std::filesystem::directory_iterator());
  }

  dra::test::SliceStore slices_;
  std::unique_ptr<NodeApi> api_;

 private:
  static void add_claim(auto& request, const std::string& name) {
    auto& claim = *request.add_claims();
    claim.set_namespace_(kClaimNamespace);
    claim.set_name(name);
    claim.set_uid("uid-" + name);
  }
  static sim::PreparedClaim prepared_claim(const std::string& name,
                                           const dra_api::NodePrepareResourceResponse& answer) {
    sim::PreparedClaim claim{kClaimNamespace, name, {}};
    for (const auto& device : answer.devices()) {
      auto& prepared = claim.devices.emplace_back(
          sim::PreparedDevice{kClaimDriver, device.pool_name(), device.device_name()});
      if (device.has_share_id()) prepared.share_id = device.share_id();
      prepared.cdi_devices.assign(device.cdi_device_ids().begin(), device.cdi_device_ids().end());
    }
    return claim;
  }
  std::unique_ptr<dra_api::DRAPlugin::Stub> plugin(const char* pod) const {
    return dra_api::DRAPlugin::NewStub(
        grpc::CreateChannel("unix:" + service(pod), grpc::InsecureChannelCredentials()));
  }
  static std::unique_ptr<grpc::ClientContext> call_context() {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + kTestTimeout);
    return context;
  }
};

}  // namespace gpulet::tests

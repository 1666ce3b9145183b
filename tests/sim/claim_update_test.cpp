// An update that starts the new agent before the old one ends, on a node that serves claims: two processes
// with one state directory, a kubelet of gRPC calls, and an API server.
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "agent/health/operator_interface.h"
#include "base/file.h"
#include "base/text.h"
#include "dra/served_socket.h"
#include "dra/test_slice_store.h"
#include "proto/dra_v1.grpc.pb.h"
#include "proto/pluginregistration_v1.grpc.pb.h"
#include "tests/sim/node_api.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

namespace dra_api = ::k8s::io::kubelet::pkg::apis::dra::v1;
namespace fs = std::filesystem;

constexpr const char* kDriver = "gpu.nvidia.com";
constexpr const char* kOld = "aaaaaaaa-0000-4000-8000-000000000000";
constexpr const char* kNew = "bbbbbbbb-0000-4000-8000-000000000000";
constexpr unsigned kClaimGpus = 8;

// Claim "gpu-N-…" of the namespace "team" has the device gpu-N.
std::string update_claim_json(const std::string& name) {
  nlohmann::json claim = {{"apiVersion", "resource.k8s.io/v1"},
                          {"kind", "ResourceClaim"},
                          {"metadata", {{"namespace", "team"}, {"name", name}, {"uid", "uid-" + name}}}};
  claim["spec"]["devices"]["requests"].push_back({{"name", "gpus"}});
  claim["status"]["allocation"]["devices"]["results"].push_back(
      {{"request", "gpus"}, {"driver", kDriver}, {"pool", "node-1"}, {"device", name.substr(0, 5)}});
  return claim.dump();
}

class SimClaimUpdate : public NodeTest {
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
        200, update_claim_json(
                 path.substr(claims + kClaims.size(), path.find(' ', claims) - claims - kClaims.size()))};
  }

  sim::AgentOptions options(const char* pod) {
    return {
        .arguments = {"--dra"},
        .environment = {"NODE_NAME=node-1", "KUBECONFIG=" + api_->kubeconfig(), std::string("POD_UID=") + pod,
                        "GPULET_DRA_RECORD_DIR=" + sim_node().directory() + "/claims"}};
  }
  void start_old() {
    ASSERT_NO_FATAL_FAILURE(start_agent(options(kOld)));
    ASSERT_NO_FATAL_FAILURE(register_driver(kOld));
    ASSERT_TRUE(becomes_true([this] { return slice_devices() == kClaimGpus; }));
  }
  void start_standby() {
    ASSERT_NO_FATAL_FAILURE(start_next_agent(options(kNew)));
    ASSERT_TRUE(becomes_true([this] { return is_standby_ready(); }));
  }
  // The other agent may log that it listens, too.
  bool is_standby_ready() const {
    const std::string log = agent_log();
    const auto standby = log.find("on standby");
    if (standby == std::string::npos) return false;
    const auto listening = log.find("\"listening\"", standby);
    const auto port = listening == std::string::npos ? listening : log.find("\"port\":", listening);
    if (port == std::string::npos) return false;
    const auto digits = log.find_first_of("0123456789", port);
    const auto end = log.find_first_not_of("0123456789", digits);
    const auto number = text::parse_unsigned(log.substr(digits, end - digits));
    return number && http_get(static_cast<int>(*number), "/readyz").status == 200;
  }
  std::size_t slice_devices() {
    const std::string shown = slices_.devices();
    std::size_t devices = 0;
    for (std::size_t at = 0; (at = shown.find("gpu-", at)) != std::string::npos; ++at) ++devices;
    return devices;
  }

  std::string kubelet() const { return sim_directory() + "/kubelet"; }
  std::string sim_directory() const { return const_cast<SimClaimUpdate*>(this)->sim_node().directory(); }
  std::string service(const char* pod) const {
    return dra::service_socket_path(kubelet() + "/plugins", kDriver, pod);
  }
  std::string registration(const char* pod) const {
    return dra::registration_socket_path(kubelet() + "/plugins_registry", kDriver, pod);
  }

  // What the kubelet does as soon as it sees the socket.
  void register_driver(const char* pod) {
    ASSERT_TRUE(becomes_true([&] { return fs::exists(registration(pod)); }));
    auto stub = pluginregistration::Registration::NewStub(
        grpc::CreateChannel("unix:" + registration(pod), grpc::InsecureChannelCredentials()));
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

  // The error of the call or of the claim; empty if it worked.
  std::string prepare(const char* pod, const std::string& name) const {
    auto stub = dra_api::DRAPlugin::NewStub(
        grpc::CreateChannel("unix:" + service(pod), grpc::InsecureChannelCredentials()));
    dra_api::NodePrepareResourcesRequest request;
    auto& claim = *request.add_claims();
    claim.set_namespace_("team");
    claim.set_name(name);
    claim.set_uid("uid-" + name);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kTestTimeout);
    dra_api::NodePrepareResourcesResponse response;
    const auto status = stub->NodePrepareResources(&context, request, &response);
    if (!status.ok()) return status.error_message();
    const auto found = response.claims().find("uid-" + name);
    if (found == response.claims().end()) return "no answer";
    if (found->second.error().empty() && found->second.devices_size() != 1) return "no device";
    return found->second.error();
  }

  std::ptrdiff_t record_count() const {
    return std::distance(fs::directory_iterator(sim_directory() + "/claims"), fs::directory_iterator());
  }

  // The files that an agent writes, with their content and their times.
  std::map<std::string, std::string> written_files() const {
    std::map<std::string, std::string> files;
    for (const char* part : {"/cdi", "/claims", "/kubelet", "/state", "/health.json", "/agent.sock"}) {
      const std::string root = sim_directory() + part;
      if (!fs::exists(root)) continue;
      if (!fs::is_directory(root)) {
        files[part] = stamp(root);
        continue;
      }
      for (const auto& entry : fs::recursive_directory_iterator(root)) {
        const auto path = entry.path().string();
        if (path.ends_with(".lock") || entry.is_directory()) continue;
        files[path.substr(sim_directory().size())] = stamp(path);
      }
    }
    return files;
  }
  static std::string stamp(const std::string& path) {
    std::error_code error;
    const auto time = fs::last_write_time(path, error).time_since_epoch().count();
    return fs::is_regular_file(path) ? read_file(path).value_or("") + "@" + std::to_string(time)
                                     : std::to_string(time);
  }

  dra::test::SliceStore slices_;
  std::unique_ptr<NodeApi> api_;
};

TEST_F(SimClaimUpdate, AStandbyWritesNothing) {
  ASSERT_NO_FATAL_FAILURE(start_old());
  ASSERT_EQ(prepare(kOld, "gpu-0-first"), "");
  sim_node().signal_agent(SIGSTOP);  // whatever is written from here on, the standby writes
  const auto before = written_files();
  const auto count_writes = [this] {
    return api_->request_bodies("PATCH").size() + api_->request_bodies("POST").size() +
           api_->request_bodies("PUT").size() + api_->request_bodies("DELETE").size();
  };
  const auto writes = count_writes();
  ASSERT_NO_FATAL_FAILURE(start_standby());
  EXPECT_EQ(written_files(), before);
  EXPECT_EQ(count_writes(), writes);
  EXPECT_FALSE(fs::exists(registration(kNew)));
  ASSERT_TRUE(sim_node().stop_agent());
  EXPECT_EQ(written_files(), before);
  EXPECT_EQ(count_writes(), writes);
  sim_node().previous_agent().send_signal(SIGCONT);
  EXPECT_EQ(prepare(kOld, "gpu-1-second"), "") << "the end of a standby changes nothing";
  allow_agent_exit();
}

TEST_F(SimClaimUpdate, TheNextAgentTakesOverWithoutAGap) {
  ASSERT_NO_FATAL_FAILURE(start_old());
  ASSERT_EQ(prepare(kOld, "gpu-0-first"), "");
  ASSERT_NO_FATAL_FAILURE(start_standby());
  const auto writes = slices_.writes();
  sim_node().previous_agent().send_signal(SIGTERM);
  ASSERT_TRUE(becomes_true([this] { return fs::exists(registration(kNew)); }));
  EXPECT_EQ(prepare(kOld, "gpu-1-late"), "") << "the old agent serves until the new one is registered";
  // A call that reaches the new agent before it owns the records waits.
  std::string early = "not answered";
  std::thread kubelet([&] { early = prepare(kNew, "gpu-2-early"); });
  register_driver(kNew);
  const auto ended = sim_node().previous_agent().wait_for_exit(kTestTimeout);
  kubelet.join();
  ASSERT_TRUE(ended);
  EXPECT_TRUE(ended->succeeded()) << ended->exit_text();
  EXPECT_EQ(early, "");
  EXPECT_FALSE(fs::exists(service(kOld)));
  EXPECT_FALSE(fs::exists(registration(kOld)));
  EXPECT_TRUE(fs::exists(registration(kNew)));
  EXPECT_EQ(prepare(kNew, "gpu-0-first"), "") << "the records of the old agent are known";
  EXPECT_EQ(record_count(), 3);
  EXPECT_EQ(slices_.writes(), writes);
  EXPECT_TRUE(becomes_true([this] {
    return ProcessLock::is_locked(agent::presence_path(sim_node().state_dir())).value_or(false);
  }));
}

TEST_F(SimClaimUpdate, AKilledAgentIsReplacedAtOnce) {
  ASSERT_NO_FATAL_FAILURE(start_old());
  ASSERT_EQ(prepare(kOld, "gpu-0-first"), "");
  ASSERT_NO_FATAL_FAILURE(start_standby());
  const auto writes = slices_.writes();
  sim_node().kill_previous_agent();
  ASSERT_NO_FATAL_FAILURE(register_driver(kNew));
  EXPECT_EQ(prepare(kNew, "gpu-0-first"), "");
  EXPECT_EQ(record_count(), 1);
  EXPECT_FALSE(fs::exists(registration(kOld))) << "the socket of the dead agent is removed";
  EXPECT_EQ(slices_.writes(), writes);
}

TEST_F(SimClaimUpdate, UpdatesUnderLoadFailNoPrepare) {
  ASSERT_NO_FATAL_FAILURE(start_old());
  std::atomic<bool> ended{false};
  std::atomic<const char*> newest{kOld};
  std::vector<std::string> errors;
  int prepares = 0;
  std::thread kubelet([&] {
    for (; !ended; ++prepares) {
      const std::string name = "gpu-" + std::to_string(prepares % kClaimGpus) + "-same";
      const auto error = prepare(newest, name);
      if (!error.empty()) errors.push_back(name + ": " + error);
    }
  });
  const auto writes = slices_.writes();
  constexpr int kUpdates = 6;
  for (int update = 0; update < kUpdates; ++update) {
    const char* next = update % 2 == 0 ? kNew : kOld;
    start_next_agent(options(next));
    EXPECT_TRUE(becomes_true([this] { return is_standby_ready(); }));
    sim_node().previous_agent().send_signal(SIGTERM);
    register_driver(next);
    newest = next;
    const auto exit = sim_node().previous_agent().wait_for_exit(kTestTimeout);
    EXPECT_TRUE(exit && exit->succeeded());
  }
  ended = true;
  kubelet.join();
  EXPECT_EQ(errors, std::vector<std::string>());
  EXPECT_GT(prepares, kUpdates);
  EXPECT_EQ(slices_.writes(), writes);
  RecordProperty("prepares", prepares);
}

}  // namespace
}  // namespace gpulet::tests

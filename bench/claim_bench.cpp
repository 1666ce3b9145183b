// `make bench`: the agent as a process on the simulated driver, with claims (Dynamic Resource Allocation): a
// kubelet of gRPC calls on its sockets, and an API server on this machine. Prints one table; bench/README.md
// explains each row and its limit.
//
//   claim_bench BIN SLICES    BIN: the directory of gpulet and gpulet-sim, as built by `make build`
//                             SLICES: the file to write the ResourceSlices to, for allocator_bench.py
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/test_certificate.h"
#include "base/test_loop.h"
#include "dra/served_socket.h"
#include "dra/test_slice_store.h"
#include "k8s/test_api_server.h"
#include "measure.h"
#include "proto/dra_v1.grpc.pb.h"
#include "proto/pluginregistration_v1.grpc.pb.h"
#include "sim/demo/demo.h"

namespace gpulet::bench {
namespace {

using namespace std::chrono_literals;
namespace api = ::k8s::io::kubelet::pkg::apis::dra::v1;
using gpulet::k8s::Received;
using gpulet::k8s::TestApiServer;

constexpr const char* kDriver = "gpu.nvidia.com";
constexpr const char* kNode = "node-1";
constexpr const char* kSlices = "/apis/resource.k8s.io/v1/resourceslices";
constexpr const char* kClaims = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/";
constexpr unsigned kGpus = 8;
constexpr int kStarts = 20;
constexpr int kPrepares = 500;
constexpr int kParallel = 100;
constexpr int kSlowReadMs = 1000;
constexpr auto kPatience = 30s;

template <class Condition>
void wait_until(const char* what, Condition condition) {
  must(test::becomes_true(std::move(condition)), what);
}

// Claim "gpu-N-…" has the device gpu-N; with "admin" in its name an administrator's access to it, so that
// any number of claims have one GPU; with "slow" the API server takes a second.
std::string claim_json(const std::string& name) {
  nlohmann::json result = {
      {"request", "gpus"}, {"driver", kDriver}, {"pool", kNode}, {"device", name.substr(0, 5)}};
  if (name.find("admin") != std::string::npos) result["adminAccess"] = true;
  nlohmann::json claim = {{"apiVersion", "resource.k8s.io/v1"},
                          {"kind", "ResourceClaim"},
                          {"metadata", {{"namespace", "team"}, {"name", name}, {"uid", "uid-" + name}}}};
  claim["spec"]["devices"]["requests"].push_back({{"name", "gpus"}});
  claim["status"]["allocation"]["devices"]["results"].push_back(std::move(result));
  return claim.dump();
}

class ApiServer {
 public:
  explicit ApiServer(const std::string& directory) : kubeconfig_(directory + "/kubeconfig") {
    must(write_file_atomic(directory + "/ca.crt", authority_.pem()));
    must(write_file_atomic(kubeconfig_,
                           "apiVersion: v1\nkind: Config\ncurrent-context: main\n"
                           "clusters: [{name: main, cluster: {server: \"https://127.0.0.1:" +
                               std::to_string(server_.port()) + "\", certificate-authority: " + directory +
                               "/ca.crt}}]\nusers: [{name: main, user: {token: t}}]\n"
                               "contexts: [{name: main, context: {cluster: main, user: main}}]\n"));
  }

  const std::string& kubeconfig() const { return kubeconfig_; }
  dra::test::SliceStore& slices() { return slices_; }
  int slow_reads() const { return slow_reads_; }

 private:
  TestApiServer::Reply handle(const Received& request) {
    const std::string line = request.line();
    const std::string path = line.substr(line.find(' ') + 1);
    if (path.starts_with(kSlices)) return slices_.handle(request);
    if (line == std::string("GET /api/v1/nodes/") + kNode) {
      // No resource of the device plugin: its GPUs are free for claims.
      return {200, R"({"metadata":{"name":"node-1","uid":"node-uid"},"status":{"allocatable":{"cpu":"8"}}})"};
    }
    if (!path.starts_with(kClaims)) return {404, R"({"kind":"Status","code":404})"};
    const std::string name = path.substr(std::string(kClaims).size());
    if (name.find("slow") == std::string::npos) return {200, claim_json(name)};
    ++slow_reads_;
    return {.status = 200, .body = "", .script = [name](TestApiServer::Stream& stream) {
              return stream.wait_open(kSlowReadMs) && stream.chunk(claim_json(name));
            }};
  }

  Certificate authority_ = Certificate::make_certificate("kubernetes", nullptr, "");
  Certificate certificate_ = Certificate::make_certificate("apiserver", &authority_, "127.0.0.1");
  dra::test::SliceStore slices_;
  std::atomic<int> slow_reads_{0};
  TestApiServer server_{certificate_, [this](const Received& request) { return handle(request); }};
  std::string kubeconfig_;
};

class Bench {
 public:
  explicit Bench(const std::string& bin)
      : node_(must(sim::SimulatedNode::start_node("hgx-h100", bin))), server_(node_->directory()) {}

  void run(const std::string& slices_file) {
    std::printf("%-58s %6s %11s %11s %11s   %s\n", "claims", "count", "min", "p50", "p99", "bar");
    without_claims();
    starts();
    prepares();
    slow_claim();
    deletions();
    faults();
    must(write_file_atomic(slices_file, server_.slices().list_json()));
  }

 private:
  bool are_all_shown() {
    const std::string shown = server_.slices().devices();
    return shown.find('!') == std::string::npos &&
           std::ranges::count(shown, ' ') + 1 == static_cast<std::ptrdiff_t>(kGpus);
  }
  std::string kubelet_directory() const { return node_->directory() + "/kubelet"; }

  void start_agent(bool claims) {
    sim::AgentOptions options{
        .arguments = {"--health-recovery-hold=0s", "--health-recovery-action-delay=0s"},
        .environment = {"NODE_NAME=" + std::string(kNode), "KUBECONFIG=" + server_.kubeconfig(),
                        "GPULET_DRA_RECORD_DIR=" + node_->directory() + "/claims"}};
    if (claims) options.arguments.emplace_back("--dra");
    must(node_->start_agent(options));
  }

  // What the kubelet does as soon as it sees the socket.
  void register_driver() {
    const std::string path =
        dra::registration_socket_path(kubelet_directory() + "/plugins_registry", kDriver);
    auto stub = pluginregistration::Registration::NewStub(
        grpc::CreateChannel("unix:" + path, grpc::InsecureChannelCredentials()));
    wait_until("the registration socket", [&] { return std::filesystem::exists(path); });
    const auto call = [&](auto method, const auto& request, auto& response) {
      grpc::ClientContext context;
      context.set_wait_for_ready(true);
      context.set_deadline(std::chrono::system_clock::now() + kPatience);
      const auto status = (stub.get()->*method)(&context, request, &response);
      must(status.ok(), "a call of the registration");
    };
    pluginregistration::PluginInfo info;
    call(&pluginregistration::Registration::Stub::GetInfo, pluginregistration::InfoRequest(), info);
    pluginregistration::RegistrationStatus registered;
    registered.set_plugin_registered(true);
    pluginregistration::RegistrationStatusResponse response;
    call(&pluginregistration::Registration::Stub::NotifyRegistrationStatus, registered, response);
  }

  void without_claims() {
    start_agent(false);
    must(node_->kubelet().wait_for_allocatable("nvidia.com/gpu", kGpus, kPatience), "every GPU allocatable");
    without_mb_ = memory_mb(node_->agent_id()).first;
    must(node_->stop_agent());
  }

  void starts() {
    Times times;
    int writes = 0;
    for (int i = 0; i < kStarts; ++i) {
      for (const auto& name : server_.slices().names()) server_.slices().remove(name);
      const auto start = Clock::now();
      start_agent(true);
      register_driver();
      wait_until("the slice", [&] { return are_all_shown(); });
      times.push_back(Clock::now() - start);
      must(node_->stop_agent());
      // Again, with the slices that there are.
      const int before = server_.slices().writes();
      start_agent(true);
      register_driver();
      prepare_and_end("gpu-0-restart-" + std::to_string(i));
      writes += server_.slices().writes() - before;
      if (i + 1 < kStarts) must(node_->stop_agent());
    }
    row("start → ResourceSlice (8 GPUs)", times, "≤ 100 ms");
    figure("writes of slices by 20 restarts", std::to_string(writes), "0");
    const double with_mb = memory_mb(node_->agent_id()).first;
    figure("resident memory of claims", number(with_mb - without_mb_, "MB"), "≤ 3 MB");
  }

  std::unique_ptr<api::DRAPlugin::Stub> driver_stub() const {
    const std::string path = dra::service_socket_path(kubelet_directory() + "/plugins", kDriver);
    return api::DRAPlugin::NewStub(grpc::CreateChannel("unix:" + path, grpc::InsecureChannelCredentials()));
  }
  template <class Request, class Response, class Call>
  static std::chrono::nanoseconds call_driver(const std::string& name, Call call) {
    Request request;
    auto& claim = *request.add_claims();
    claim.set_namespace_("team");
    claim.set_name(name);
    claim.set_uid("uid-" + name);
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    Response response;
    const auto start = Clock::now();
    const grpc::Status status = call(&context, request, &response);
    const auto took = Clock::now() - start;
    const auto found = response.claims().find("uid-" + name);
    if (!status.ok() || found == response.claims().end() || !found->second.error().empty()) {
      const std::string why =
          status.ok() && found != response.claims().end() ? found->second.error() : status.error_message();
      must(Status(fail(Code::kInternal, why, "claim " + name)));
    }
    return took;
  }
  static std::chrono::nanoseconds prepare(api::DRAPlugin::Stub& stub, const std::string& name) {
    return call_driver<api::NodePrepareResourcesRequest, api::NodePrepareResourcesResponse>(
        name, [&](auto* context, const auto& request, auto* response) {
          return stub.NodePrepareResources(context, request, response);
        });
  }
  static std::chrono::nanoseconds unprepare(api::DRAPlugin::Stub& stub, const std::string& name) {
    return call_driver<api::NodeUnprepareResourcesRequest, api::NodeUnprepareResourcesResponse>(
        name, [&](auto* context, const auto& request, auto* response) {
          return stub.NodeUnprepareResources(context, request, response);
        });
  }
  void prepare_and_end(const std::string& name) {
    const auto stub = driver_stub();
    prepare(*stub, name);
    unprepare(*stub, name);
  }

  void prepares() {
    const auto stub = driver_stub();
    Times prepared, unprepared;
    for (int i = 0; i < kPrepares; ++i) {
      const std::string name =
          "gpu-" + std::to_string(static_cast<unsigned>(i) % kGpus) + "-" + std::to_string(i);
      prepared.push_back(prepare(*stub, name));
      unprepared.push_back(unprepare(*stub, name));
    }
    row("prepare a claim, its GET included", prepared, "≤ 2 / 5 ms");
    row("unprepare a claim", unprepared, "");
  }

  // 100 claims at once, while the API server holds back the answer about another.
  void slow_claim() {
    std::thread slow([this] {
      const auto stub = driver_stub();
      slow_ = prepare(*stub, "gpu-0-admin-slow");
    });
    wait_until("the slow read", [this] { return server_.slow_reads() > 0; });
    std::mutex mutex;
    Times times;
    std::vector<std::thread> threads;
    const auto stub = driver_stub();
    for (int i = 0; i < kParallel; ++i) {
      threads.emplace_back([&, i] {
        const auto took = prepare(*stub, "gpu-0-admin-" + std::to_string(i));
        const std::lock_guard lock(mutex);
        times.push_back(took);
      });
    }
    for (auto& one : threads) one.join();
    slow.join();
    row("prepare 100 claims at once, beside a GET of 1 s", times, "< 1 s");
    must(slow_ >= std::chrono::milliseconds(kSlowReadMs), "the slow claim waited for its GET");
    for (int i = 0; i < kParallel; ++i) unprepare(*stub, "gpu-0-admin-" + std::to_string(i));
    unprepare(*stub, "gpu-0-admin-slow");
  }

  void deletions() {
    Times times;
    for (int i = 0; i < kStarts; ++i) {
      const auto start = Clock::now();
      for (const auto& name : server_.slices().names()) server_.slices().remove(name);
      wait_until("the slice again", [this] { return are_all_shown(); });
      times.push_back(Clock::now() - start);
    }
    row("slice deleted → there again", times, "≤ 1 s");
  }

  void faults() {
    const auto [tainted, back] = fault_times(
        node_->driver_root(),
        [this] {
          wait_until("the taint",
                     [this] { return server_.slices().devices().find('!') != std::string::npos; });
        },
        [this] { wait_until("the end of the taint", [this] { return are_all_shown(); }); }, kStarts);
    row("XID event → taint in the slice", tainted, "≤ 100 ms");
    row("fault cleared → no taint", back, "");
  }

  std::unique_ptr<sim::SimulatedNode> node_;
  ApiServer server_;
  double without_mb_ = 0;
  std::chrono::nanoseconds slow_{};
};

}  // namespace
}  // namespace gpulet::bench

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: claim_bench BIN SLICES\n";
    return 2;
  }
  gpulet::bench::Bench(argv[1]).run(argv[2]);
  return 0;
}

// `gpulet doctor` and the cluster: the API server, MIG and MPS, the support archive.
#include <sys/stat.h>

#include <mutex>

#include "base/text.h"
#include "k8s/test_api_server.h"
#include "scheduler/model/test_nodes.h"
#include "tests/sim/doctor_fixture.h"

namespace gpulet::tests {
namespace {

using k8s::TestApiServer;
namespace fs = std::filesystem;

class SimDoctorCluster : public SimDoctor {
 protected:
  void SetUp() override {
    SimDoctor::SetUp();
    serve_by_cdi();
    authority_ = Certificate::make_certificate("kubernetes", nullptr, "");
    server_ =
        std::make_unique<TestApiServer>(Certificate::make_certificate("apiserver", &authority_, "127.0.0.1"),
                                        [this](const k8s::Received& request) { return api_reply(request); });
    ASSERT_TRUE(write_file_atomic(sim_node().directory() + "/ca.crt", authority_.pem()));
    ASSERT_TRUE(write_file_atomic(
        kubeconfig(),
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- name: c\n  context: {cluster: "
        "k, user: u}\nclusters:\n- name: k\n  cluster: {certificate-authority: ca.crt, server: "
        "'https://127.0.0.1:" +
            std::to_string(server_->port()) + "'}\nusers:\n- name: u\n  user: {token: hunter2}\n"));
  }
  std::string kubeconfig() const { return node_directory() + "/kubeconfig"; }
  std::string node_directory() const { return fs::path(config_path()).parent_path(); }
  std::vector<std::string> cluster_options() const {
    return {"--kubeconfig", kubeconfig(), "--node-name", "node-1"};
  }

  // The objects of the API server.
  struct ClusterState {
    int ahead = 0;  // of its clock, in seconds
    bool no_patch = false;
    std::string pending{}, failed{}, mig_state = "success";
    std::string explanation{};  // of the extender; empty: no extender
    std::string gpu_nodes{};    // published GpuNodes; empty: none
  };
  void edit_cluster(ClusterState state) {
    const std::lock_guard lock(mutex_);
    state_ = std::move(state);
  }

  TestApiServer::Reply api_reply(const k8s::Received& request) const {
    const std::lock_guard lock(mutex_);
    const auto line = request.line();
    if (line.find("selfsubjectreviews") != std::string::npos) {
      const auto now = format_wall_time(std::chrono::system_clock::now() + std::chrono::seconds(state_.ahead))
                           .substr(0, 19) +
                       "Z";
      return {.body = R"({"metadata":{"creationTimestamp":")" + now +
                      R"("},"status":{"userInfo":{"username":"me"}}})"};
    }
    if (line.find("selfsubjectaccessreviews") != std::string::npos) {
      const bool refused = state_.no_patch && request.body.find("\"verb\":\"patch\"") != std::string::npos;
      return {.body = std::string(R"({"status":{"allowed":)") + (refused ? "false" : "true") + "}}"};
    }
    if (line.find("/proxy/explain?") != std::string::npos) {
      if (!state_.explanation.empty()) return {.status = 200, .body = state_.explanation};
      return {.status = 503, .body = R"({"kind":"Status","message":"no endpoints available"})"};
    }
    if (line.find("watch=true") != std::string::npos)
      return {.status = 200,
              .script = [](TestApiServer::Stream& stream) { return stream.wait_open(60'000); }};
    if (line.find("/gpunodes?") != std::string::npos) {
      if (state_.gpu_nodes.empty()) return {.status = 404, .body = "404 page not found"};
      return {.status = 200,
              .body = R"({"metadata":{"resourceVersion":"7"},"items":[)" + state_.gpu_nodes + "]}"};
    }
    if (line.find("/namespaces?") != std::string::npos)
      return {.status = 200, .body = R"({"metadata":{"resourceVersion":"7"},"items":[]})"};
    if (line.find("/pods/train") != std::string::npos) return {.status = 200, .body = state_.pending};
    if (line.find("/pods?") != std::string::npos && line.find("nodeName%21%3D") != std::string::npos)
      return {.status = 200, .body = R"({"metadata":{"resourceVersion":"7"},"items":[]})"};
    if (line.find("/pods?") != std::string::npos) {
      const bool pending = line.find("Pending") != std::string::npos;
      return {.status = 200, .body = R"({"items":[)" + (pending ? state_.pending : state_.failed) + "]}"};
    }
    return {
        .status = 200,
        .body = R"({"metadata":{"labels":{"nvidia.com/mig.config.state":")" + state_.mig_state + R"("}}})"};
  }

  Certificate authority_;
  std::unique_ptr<TestApiServer> server_;
  mutable std::mutex mutex_;
  ClusterState state_;
};

TEST_F(SimDoctorCluster, ReportsEveryCheck) {
  const auto report = run_doctor(cluster_options());
  EXPECT_EQ(checks_with(report, "fail") + checks_with(report, "warn") + checks_with(report, "unknown"), "")
      << report.dump(1);
  EXPECT_NE(finding_of(report, "clock").find("this node's clock matches the API server's"),
            std::string::npos);
}

TEST_F(SimDoctorCluster, NamesFaultsOfTheCluster) {
  const auto pod = [](const std::string& name, const std::string& limit, const std::string& status) {
    return R"({"metadata":{"namespace":"team","name":")" + name +
           R"("},"spec":{"containers":[{"resources":{"limits":{")" + limit + R"(":"9"}}}]},"status":{)" +
           status + "}}";
  };
  const auto waits = [](const std::string& message) {
    return R"("conditions":[{"type":"PodScheduled","status":"False","message":")" + message + R"("}])";
  };
  // A Pod without a GPU request is ignored.
  const std::string web = pod("web", "cpu", waits("0/1 cpu"));
  edit_cluster({.pending = web});
  EXPECT_EQ(checks_with(run_doctor(cluster_options()), "fail"), "");
  const std::string reason = "0/1 nodes: 1 gpulet: no 9 GPUs that are linked";
  edit_cluster({.pending = web + "," + pod("train", kGpu, waits(reason))});
  expect_finding("fail", "pods", "team/train: " + reason, cluster_options());
  edit_cluster(
      {.failed = pod("late", kGpu, R"("reason":"UnexpectedAdmissionError","message":"Allocate failed")")});
  expect_finding("fail", "pods", "team/late: Allocate failed", cluster_options());
  edit_cluster({.no_patch = true});
  expect_finding("fail", "rights",
                 "me lacks permission to: patch on events, patch on nodes/status, patch on nodes",
                 cluster_options());
  edit_cluster({.mig_state = "failed"});
  expect_finding("fail", "mig", "mig.config.state", cluster_options());
  edit_cluster({.ahead = 600});
  expect_finding("fail", "clock", "seconds behind the API server's", cluster_options());
  edit_cluster({.ahead = -60});
  const auto report = run_doctor(cluster_options());
  EXPECT_NE(finding_of(report, "clock").find("seconds ahead of the API server's"), std::string::npos);
  EXPECT_EQ(checks_with(report, "fail"), "");
}

TEST_F(SimDoctorCluster, ExplainsAPendingPodNodeByNode) {
  ClusterState state{
      .pending = R"({"metadata":{"namespace":"team","name":"train"},"spec":{"containers":[{"resources":)"
                 R"({"limits":{"nvidia.com/gpu":"9"}}}]},"status":{"conditions":[{"type":"PodScheduled",)"
                 R"("status":"False","message":"0/2 nodes are available"}]}})"};
  const auto details = [&] {
    const auto report = run_doctor(cluster_options());
    EXPECT_EQ(checks_with(report, "fail"), "pods") << report.dump(1);
    std::string lines;
    for (const auto& check : report["checks"]) {
      if (check["id"] != "pods") continue;
      for (const auto& line : check["details"]) lines += line.get<std::string>() + "\n";
    }
    return lines;
  };
  state.explanation =
      R"({"asks":"9 nvidia.com/gpu","nodes":[{"node":"a","fits":false,"reason":"2/8 held"},)"
      R"({"node":"node-1","fits":false,"reason":"8 free of 9 requested"}],"hints":["more of them"]})";
  edit_cluster(state);
  EXPECT_EQ(details(),
            "team/train requests 9 nvidia.com/gpu; according to gpulet's extender:\n"
            "  not on node-1: 8 free of 9 requested\n  not on a: 2/8 held\n  hint: more of them\n");
  // Without an extender, doctor uses the same code on the published GpuNodes.
  state.explanation.clear();
  state.gpu_nodes =
      nlohmann::json{{"metadata", {{"name", "node-1"}}},
                     {"spec", nlohmann::json::parse(scheduler::encode_spec(scheduler::test_node(8, 4)))}}
          .dump();
  edit_cluster(state);
  EXPECT_EQ(details().substr(0, 114),
            "team/train requests 9 nvidia.com/gpu; according to gpulet itself (no extender responds):\n"
            "  not on node-1: 0/8 held");
  state.gpu_nodes.clear();
  edit_cluster(state);
  const auto neither = details();
  EXPECT_EQ(neither.find("team/train could not be explained: no extender responds"), 0u) << neither;
}

TEST_F(SimDoctorCluster, AnUnreachableApiServerIsNotAFault) {
  server_.reset();
  const auto report = run_doctor(cluster_options());
  EXPECT_EQ(checks_with(report, "fail"), "") << report.dump(1);
  EXPECT_EQ(checks_with(report, "unknown"), "pods extender") << report.dump(1);
}

TEST_F(SimDoctorCluster, NamesHalfConfiguredMig) {
  allow_agent_exit();
  sim_node().kill_agent();
  {
    const auto edit = machine_state().lock_for_edit();
    ASSERT_EQ(sim::set_mig_mode(edit->gpus[2], true), sim::MigOutcome::kOk);
  }
  auto report = run_doctor();
  EXPECT_EQ(checks_with(report, "fail"), "plugin mig") << report.dump(1);
  EXPECT_NE(finding_of(report, "mig").find("GPU 2: MIG is on without instances"), std::string::npos)
      << finding_of(report, "mig");
  create_mig_devices(2, {"3g.40gb"});
  EXPECT_EQ(checks_with(run_doctor(), "fail"), "plugin");
  {
    const auto edit = machine_state().lock_for_edit();
    auto& gpu = edit->gpus[2];
    for (auto& instance : gpu.mig.instances) {
      if (!instance.used) continue;
      ASSERT_EQ(sim::destroy_compute_instance(gpu, instance, 0), sim::MigOutcome::kOk);
    }
  }
  report = run_doctor();
  EXPECT_NE(finding_of(report, "mig").find("GPU 2: 1 GPU instance without a compute instance"),
            std::string::npos)
      << finding_of(report, "mig");
}

TEST_F(SimDoctor, NamesAnUnresponsiveMpsDaemon) {
  const std::string mps = sim_node().mps_root();
  write_config(
      "version: v1\nflags: {mpsRoot: " + mps +
      "}\nsharing: {mps: {resources: [{name: gpu, devices: [0], rename: gpu.shared, replicas: 2}]}}\n");
  start_agent({.arguments = {"--config-file=" + config_path()}});
  ASSERT_TRUE(becomes_allocatable(2, "nvidia.com/gpu.shared")) << agent_log();
  ASSERT_TRUE(becomes_allocatable(7));
  // The host's root is the driver's, and contains the MPS root.
  fs::create_directories(fs::path(host_path(mps)).parent_path());
  fs::create_directory_symlink(mps, host_path(mps));
  EXPECT_EQ(checks_with(run_doctor(), "fail"), "");
  const std::string pipe = mps + "/nvidia.com/gpu.shared/pipe";
  const std::string sim = std::string(GPULET_PROGRAMS) + "/gpulet-sim";
  const auto hangs = sim::program_output({sim, "mps", "hang", pipe});
  ASSERT_TRUE(hangs) << hangs.error().full_message();
  const auto report = run_doctor();
  EXPECT_EQ(
      finding_of(report, "mps").find("the MPS control daemon of nvidia.com/gpu.shared does not respond"), 0u)
      << report.dump(1);
  EXPECT_NE(checks_with(report, "fail").find("mps"), std::string::npos);
  ASSERT_TRUE(sim::program_output({sim, "mps", "heal", pipe}));
}

TEST_F(SimDoctorCluster, TheArchiveContainsNoSecret) {
  write_host_file(
      "/etc/containerd/conf.d/registry.toml",
      "[plugins.'io.containerd.grpc.v1.cri'.registry.configs.'r.example'.auth]\n  password = 'hunter2'\n");
  write_host_file("/var/run/cdi/other.yaml",
                  "cdiVersion: 0.5.0\nkind: nvidia.com/other\ncontainerEdits:\n  env: [API_TOKEN=hunter2, "
                  "PLAIN=kept]\ndevices:\n- name: a\n"
                  "  containerEdits: {env: [X=1]}\n");
  write_host_file("/dev/kmsg", "3,1,1,-;NVRM: Xid (PCI:0000:1b:00): 79\n6,2,2,-;eth0: link up\n");
  const std::string archive = node_directory() + "/support.tar.gz";
  auto arguments = cluster_options();
  arguments.insert(arguments.end(), {"--bundle", archive});
  EXPECT_EQ(checks_with(run_doctor(arguments), "fail"), "");
  struct stat status{};
  ASSERT_EQ(::stat(archive.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  const auto names = sim::program_output({"/bin/tar", "-tzf", archive}, {"PATH=/usr/bin:/bin"});
  ASSERT_TRUE(names) << names.error().full_message();
  for (const char* name : {"report.txt", "report.json", "version.txt", "agent/node.json", "agent/config.yaml",
                           "agent/metrics.txt", "node/proc/driver/nvidia/version",
                           "node/etc/containerd/conf.d/registry.toml", "node/var/run/cdi/other.yaml",
                           "kubelet/device-plugins.txt", "node/etc/containerd/config.toml", "pci.txt"}) {
    EXPECT_NE(names->find(std::string("gpulet-doctor/") + name + "\n"), std::string::npos)
        << name << " is not in\n"
        << *names;
  }
  const auto all = sim::program_output({"/bin/tar", "-xzOf", archive}, {"PATH=/usr/bin:/bin"});
  ASSERT_TRUE(all) << all.error().full_message();
  EXPECT_EQ(all->find("hunter2"), std::string::npos);
  EXPECT_NE(all->find("PLAIN=kept"), std::string::npos);
  EXPECT_NE(all->find("gpulet_build_info"), std::string::npos);
  EXPECT_NE(all->find("NVRM: Xid (PCI:0000:1b:00): 79"), std::string::npos);
  EXPECT_EQ(all->find("eth0: link up"), std::string::npos);
}

TEST_F(SimDoctorCluster, ExitCodes) {
  const auto code = [&](const std::vector<std::string>& given) {
    const auto process =
        Process::spawn({.program = given[0], .arguments = given, .environment = sanitizer_options()});
    EXPECT_TRUE(process);
    const auto exit = (*process)->wait_for_exit(kTestTimeout);
    EXPECT_TRUE(exit);
    return exit ? exit->code : -1;
  };
  EXPECT_EQ(code(doctor_command()), 0);
  EXPECT_EQ(code(doctor_command({"--host-root", "relative"})), 2);
  EXPECT_EQ(code(doctor_command({"--bundle", "x.zip"})), 2);
  EXPECT_EQ(code(doctor_command({"--url", "https://x"})), 2);
  EXPECT_EQ(code(doctor_command({"--kubeconfig", "/nonexistent"})), 1);
  EXPECT_EQ(code(doctor_command({"--nonsense"})), 2);
  EXPECT_EQ(code(doctor_command({"--bundle", "/proc/none/x.tar"})), 1);
  write_host_file(kEngineConfig, kCdiOff);
  EXPECT_EQ(code(doctor_command()), 1);
}

}  // namespace
}  // namespace gpulet::tests

#include <sys/stat.h>

#include <gmock/gmock.h>

#include "base/text.h"
#include "http/access_gate.h"
#include "http/message.h"
#include "k8s/test_api.h"
#include "migrate/components.h"
#include "migrate/report.h"
#include "migrate/scan.h"
#include "migrate/test_objects.h"
#include "runtimes/test_root.h"

namespace gpulet::migrate {
namespace {

using k8s::Received;
using nlohmann::json;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// An API server with objects by path, without the query; other paths are 404.
class ClusterScan : public k8s::ApiTest {
 protected:
  void begin() {
    start_server([this](const Received& request) -> Reply {
      const std::string line = request.line(), path = line.substr(4, line.find('?') - 4);
      if (const auto found = refused_.find(path); found != refused_.end()) {
        return {found->second, R"({"kind":"Status","message":"not for you"})"};
      }
      if (const auto found = objects_.find(path); found != objects_.end()) return {200, found->second.dump()};
      return {404, R"({"kind":"Status"})"};
    });
  }
  static json list(const std::vector<json>& items) {
    return {{"metadata", {{"resourceVersion", "1"}}}, {"items", items}};
  }
  Result<Facts> look() { return scan_cluster(client_config(), std::chrono::seconds(20)); }

  std::map<std::string, json> objects_;
  std::map<std::string, int> refused_;
};

TEST_F(ClusterScan, ReadsWorkloadsAndTheirConfigs) {
  const json release{{"name", "nvdp"},
                     {"namespace", "gpu"},
                     {"version", 2},
                     {"chart", {{"metadata", {{"name", "nvidia-device-plugin"}, {"version", "0.17.1"}}}}},
                     {"config", {{"migStrategy", "mixed"}}}};
  objects_["/apis/apps/v1/daemonsets"] =
      list({test::chart_plugin(), test::exporter(),
            test::workload_object("kube-system", "other",
                                  {{"containers", {{{"name", "a"}, {"image", "nginx"}}}}})});
  objects_["/apis/apps/v1/deployments"] = list({});
  objects_["/apis/nvidia.com/v1/clusterpolicies"] = list({test::cluster_policy()});
  objects_["/api/v1/nodes"] =
      list({{{"metadata", {{"name", "n1"}}}, {"status", {{"allocatable", {{"nvidia.com/gpu", "8"}}}}}},
            {{"metadata", {{"name", "n2"}}}}});
  objects_["/api/v1/namespaces/gpu/configmaps/nvdp-configs"] = {{"data", {{"default", "version: v1\n"}}}};
  objects_["/api/v1/namespaces/monitoring/configmaps/my-counters"] = {
      {"data", {{"mine.csv", "DCGM_FI_DEV_GPU_TEMP, gauge, T\n"}, {"other", "x"}}}};
  objects_["/api/v1/namespaces/gpu/secrets"] =
      list({{{"type", "helm.sh/release.v1"},
             {"data", {{"release", text::encode_base64(text::encode_base64(http::gzip(release.dump())))}}}}});
  begin();
  const auto facts = look();
  ASSERT_TRUE(facts) << facts.error().full_message();
  EXPECT_THAT(facts->unread, IsEmpty());
  ASSERT_EQ(facts->programs.size(), 4u);
  EXPECT_THAT(facts->programs[2].configs,
              ElementsAre(NamedText{"configmap gpu/nvdp-configs, key default", "version: v1\n"}));
  ASSERT_EQ(facts->programs[3].counters.size(), 1u);
  ASSERT_EQ(facts->releases.size(), 1u);
  EXPECT_EQ(facts->releases[0].revision, "2");
  ASSERT_EQ(facts->policies.size(), 1u);
  ASSERT_EQ(facts->nodes.size(), 1u);
  EXPECT_EQ(request_count("GET /api/v1/namespaces/gpu/secrets?labelSelector="
                          "owner%3Dhelm%2Cstatus%3Ddeployed%2Cname%3Dnvdp&limit=250"),
            1);
  for (const auto& request : server_->received_requests())
    EXPECT_TRUE(request.line().starts_with("GET ")) << request.line();
}

TEST_F(ClusterScan, ReportsDeniedListsAndReadsTheRest) {
  objects_["/apis/apps/v1/daemonsets"] = list({test::chart_plugin()});
  for (const char* path :
       {"/apis/apps/v1/deployments", "/api/v1/nodes", "/api/v1/namespaces/gpu/configmaps/nvdp-configs",
        "/api/v1/namespaces/gpu/secrets"}) {
    refused_[path] = 403;
  }
  begin();
  const auto facts = look();
  ASSERT_TRUE(facts) << facts.error().full_message();
  EXPECT_EQ(facts->programs.size(), 3u);
  EXPECT_THAT(facts->unread, ElementsAre(HasSubstr("list on deployments.apps"), HasSubstr("list on nodes"),
                                         HasSubstr("get on configmaps in gpu")));
  EXPECT_FALSE(build_report(*facts).is_clear());
  EXPECT_THAT(build_report(*facts).rollback_steps, Contains(HasSubstr("helm rollback nvdp REVISION -n gpu")));
}

TEST_F(ClusterScan, FailsWithoutDaemonSets) {
  refused_["/apis/apps/v1/daemonsets"] = 403;
  begin();
  const auto facts = look();
  ASSERT_FALSE(facts);
  EXPECT_EQ(facts.error().code(), Code::kPermissionDenied);
  EXPECT_THAT(facts.error().full_message(), HasSubstr("list on daemonsets.apps"));
}

TEST_F(ClusterScan, ReadsListsInPages) {
  start_server([](const Received& request) -> Reply {
    const std::string line = request.line();
    if (line.find("/daemonsets?limit=250&continue=next%2B") != std::string::npos) {
      return {200, list({test::exporter()}).dump()};
    }
    if (line.find("/daemonsets?") == std::string::npos) return {404, R"({"kind":"Status"})"};
    json first = list({test::static_plugin()});
    first["metadata"]["continue"] = "next+";
    return {200, first.dump()};
  });
  const auto facts = look();
  ASSERT_TRUE(facts) << facts.error().full_message();
  EXPECT_EQ(facts->programs.size(), 2u);
  EXPECT_THAT(facts->unread,
              ElementsAre(HasSubstr("monitoring/my-counters is used by a program but does not exist")));
}

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// NUL-separated, as the kernel shows a command line and an environment.
std::string words(const std::vector<std::string>& all) {
  std::string text;
  for (const auto& word : all) text += word + '\0';
  return text;
}

class NodeScan : public testing::Test {
 protected:
  void process(int number, const std::string& file, const std::vector<std::string>& command,
               const std::vector<std::string>& environment = {}) {
    const std::string directory = "/proc/" + std::to_string(number);
    root_.add_file(directory + "/cmdline", words(command));
    root_.add_file(directory + "/environ", words(environment));
    root_.make_symlink(file, directory + "/exe");
    root_.make_directory(directory + "/root");
  }
  Facts look() {
    root_.make_directory("/proc");
    auto facts = scan_node(root_.host_root());
    EXPECT_TRUE(facts) << facts.error().full_message();
    return facts ? std::move(*facts) : Facts{};
  }
  std::vector<std::string> traces(const Facts& facts) {
    std::vector<std::string> paths;
    for (const auto& trace : facts.traces)
      paths.push_back(std::string(json_key(trace.component)) + " " + trace.path);
    return paths;
  }

  runtimes::TestRoot root_;
};

TEST_F(NodeScan, EmptyNodeHasNoFacts) {
  const auto facts = look();
  EXPECT_THAT(facts.programs, IsEmpty());
  EXPECT_THAT(facts.traces, IsEmpty());
  EXPECT_THAT(facts.unread, IsEmpty());
  EXPECT_THAT(build_report(facts).found, IsEmpty());
}

TEST_F(NodeScan, AMachineThatGpuletDoesNotServeNeedsADecision) {
  root_.add_file("/etc/nv_tegra_release", "# R36 (release)\n");
  EXPECT_THAT(
      build_report(look()).decisions,
      ElementsAre(HasSubstr("this machine is Tegra (/etc/nv_tegra_release): gpulet does not support")));
}

TEST_F(NodeScan, ReadsProcessesWithSettingsAndFiles) {
  process(71, "/usr/bin/nvidia-device-plugin",
          {"/usr/bin/nvidia-device-plugin", "--config-file", "/config/config.yaml"},
          {"MIG_STRATEGY=mixed", "PATH=/bin", "TOKEN=hunter2"});
  root_.add_file("/proc/71/root/config/config.yaml", "flags: {migStrategie: x}\n");
  process(9, "/usr/bin/dcgm-exporter", {"dcgm-exporter", "-f", "/etc/c.csv"});
  root_.add_file("/proc/9/root/etc/c.csv", "DCGM_FI_DEV_GPU_TEMP, gauge, T\n");
  process(12, "/usr/bin/vim", {"vim", "nvidia-device-plugin"});
  const auto facts = look();
  ASSERT_EQ(facts.programs.size(), 2u);
  EXPECT_EQ(facts.programs[0].component, Component::kDcgmExporter);
  EXPECT_EQ(facts.programs[0].counters.size(), 1u);
  EXPECT_EQ(facts.programs[1].location(), "process 71");
  EXPECT_THAT(facts.programs[1].environment, ElementsAre(std::pair("MIG_STRATEGY", "mixed")));
  EXPECT_THAT(facts.programs[1].configs,
              ElementsAre(NamedText{"/config/config.yaml of process 71", "flags: {migStrategie: x}\n"}));
  EXPECT_THAT(build_report(facts).next_steps, Contains(HasSubstr("gpulet migrate check --cluster")));
}

TEST_F(NodeScan, RecognizesGpuletUnderNvidiasName) {
  process(5, "/usr/bin/gpulet", {"nvidia-device-plugin"});
  process(6, "/usr/bin/gpulet", {"gpulet", "agent"});
  process(7, "/usr/bin/gpulet", {"gpulet", "top"});
  const auto facts = look();
  ASSERT_EQ(facts.programs.size(), 2u);
  EXPECT_TRUE(facts.programs[0].is_gpulet);
  EXPECT_EQ(facts.programs[1].component, Component::kAgent);
}

TEST_F(NodeScan, ResolvesLinksInsideTheContainer) {
  process(71, "/usr/bin/nvidia-device-plugin", {"nvidia-device-plugin", "--config-file=/config.yaml"});
  root_.add_file("/etc/shadow", "root:hunter2");
  root_.make_symlink("../../../etc/shadow", "/proc/71/root/config.yaml");
  const auto facts = look();
  ASSERT_EQ(facts.programs.size(), 1u);
  EXPECT_THAT(facts.programs[0].configs, IsEmpty());
  EXPECT_THAT(facts.unread, ElementsAre(HasSubstr("/config.yaml of process 71")));
}

TEST_F(NodeScan, NeverBlocksOnAContainersFile) {
  process(71, "/usr/bin/nvidia-device-plugin", {"nvidia-device-plugin", "--config-file=/config.yaml"});
  ASSERT_EQ(::mkfifo(root_.at("/proc/71/root/config.yaml").c_str(), 0600), 0);
  const auto facts = look();
  EXPECT_THAT(facts.unread, ElementsAre(HasSubstr("not a regular file")));
}

TEST_F(NodeScan, ReadsADirectoryOfConfigs) {
  process(71, "/usr/bin/config-manager", {"config-manager"}, {"CONFIG_FILE_SRCDIR=/available-configs"});
  root_.add_file("/proc/71/root/available-configs/..data", "hidden");
  root_.add_file("/proc/71/root/available-configs/a", "version: v1\n");
  root_.add_file("/proc/71/root/available-configs/b", "version: v7\n");
  const auto report = build_report(look());
  EXPECT_THAT(report.decisions, ElementsAre(HasSubstr("unknown version: v7")));
}

TEST_F(NodeScan, ReadsFilesServicesAndEngines) {
  root_.add_file("/var/snap/microk8s/common/var/lib/kubelet/device-plugins/nvidia-gpu.sock", "");
  root_.make_symlink("/var/snap/microk8s/common/var/lib/kubelet", "/var/lib/kubelet");
  root_.add_file("/usr/lib/systemd/system/nvidia-mig-manager.service", "");
  root_.add_file("/etc/nvidia-mig-manager/config.yaml", "version: v1\n");
  root_.add_file("/etc/containerd/config.toml",
                 "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = true\n"
                 "cdi_spec_dirs = ['/etc/cdi', '/var/run/cdi']\n"
                 "[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia]\nruntime_type = 'x'\n");
  root_.add_file("/etc/docker/daemon.json",
                 R"({"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}})");
  const auto facts = look();
  EXPECT_THAT(traces(facts), ElementsAre("device-plugin /var/lib/kubelet/device-plugins/nvidia-gpu.sock",
                                         "mig-manager /etc/nvidia-mig-manager/config.yaml",
                                         "mig-manager /usr/lib/systemd/system/nvidia-mig-manager.service"));
  ASSERT_EQ(facts.engines.size(), 2u);
  EXPECT_EQ(facts.engines[0].nvidia_runtime, "/etc/containerd/config.toml");
  EXPECT_TRUE(facts.engines[0].cdi_ready);
  EXPECT_EQ(facts.engines[1].nvidia_runtime, "/etc/docker/daemon.json");
  EXPECT_FALSE(facts.engines[1].cdi_ready);
  const auto report = build_report(facts);
  EXPECT_THAT(report.next_steps, Contains(HasSubstr("gpulet runtime configure --runtime docker")));
  EXPECT_THAT(report.next_steps, Not(Contains(HasSubstr("gpulet runtime configure --runtime containerd"))));
  EXPECT_THAT(report.next_steps, Contains(HasSubstr("systemctl disable --now nvidia-mig-manager.service")));
  EXPECT_THAT(report.rollback_steps,
              Contains(HasSubstr("systemctl enable --now nvidia-mig-manager.service")));
}

TEST_F(NodeScan, MissingRootIsAnError) { EXPECT_FALSE(scan_node(root_.host_root() + "/none")); }

}  // namespace
}  // namespace gpulet::migrate

#include "migrate/node_look.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "migrate/analyse.h"
#include "migrate/parts.h"
#include "runtimes/test_root.h"

namespace gpulet::migrate {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Words as the kernel shows a command line and an environment.
std::string words(const std::vector<std::string>& all) {
  std::string text;
  for (const auto& word : all) text += word + '\0';
  return text;
}

class NodeLook : public testing::Test {
 protected:
  void process(int number, const std::string& file, const std::vector<std::string>& command,
               const std::vector<std::string>& environment = {}) {
    const std::string folder = "/proc/" + std::to_string(number);
    root_.write(folder + "/cmdline", words(command));
    root_.write(folder + "/environ", words(environment));
    root_.link(file, folder + "/exe");
    root_.folder(folder + "/root");
  }
  Facts look() {
    root_.folder("/proc");
    auto facts = look_at_node(root_.path());
    EXPECT_TRUE(facts) << facts.error().text();
    return facts ? std::move(*facts) : Facts{};
  }
  std::vector<std::string> traces(const Facts& facts) {
    std::vector<std::string> paths;
    for (const auto& trace : facts.traces) paths.push_back(std::string(key(trace.part)) + " " + trace.path);
    return paths;
  }

  runtimes::TestRoot root_;
};

TEST_F(NodeLook, AnEmptyNodeHasNothing) {
  const auto facts = look();
  EXPECT_THAT(facts.programs, IsEmpty());
  EXPECT_THAT(facts.traces, IsEmpty());
  EXPECT_THAT(facts.not_read, IsEmpty());
  EXPECT_THAT(analyse(facts).found, IsEmpty());
}

TEST_F(NodeLook, ProcessesWithTheirSettingsAndFiles) {
  process(71, "/usr/bin/nvidia-device-plugin",
          {"/usr/bin/nvidia-device-plugin", "--config-file", "/config/config.yaml"},
          {"MIG_STRATEGY=mixed", "PATH=/bin", "TOKEN=hunter2"});
  root_.write("/proc/71/root/config/config.yaml", "flags: {migStrategie: x}\n");
  process(9, "/usr/bin/dcgm-exporter", {"dcgm-exporter", "-f", "/etc/c.csv"});
  root_.write("/proc/9/root/etc/c.csv", "DCGM_FI_DEV_GPU_TEMP, gauge, T\n");
  process(12, "/usr/bin/vim", {"vim", "nvidia-device-plugin"});
  const auto facts = look();
  ASSERT_EQ(facts.programs.size(), 2u);
  EXPECT_EQ(facts.programs[0].part, Part::kDcgmExporter);
  EXPECT_EQ(facts.programs[0].counters.size(), 1u);
  EXPECT_EQ(facts.programs[1].where(), "process 71");
  EXPECT_THAT(facts.programs[1].environment, ElementsAre(std::pair("MIG_STRATEGY", "mixed")));
  EXPECT_THAT(facts.programs[1].configs,
              ElementsAre(NamedText{"/config/config.yaml of process 71", "flags: {migStrategie: x}\n"}));
  EXPECT_THAT(analyse(facts).next, Contains(HasSubstr("gpulet migrate check --cluster")));
}

TEST_F(NodeLook, GpuletByNvidiasNameIsGpulet) {
  process(5, "/usr/bin/gpulet", {"nvidia-device-plugin"});
  process(6, "/usr/bin/gpulet", {"gpulet", "agent"});
  process(7, "/usr/bin/gpulet", {"gpulet", "top"});
  const auto facts = look();
  ASSERT_EQ(facts.programs.size(), 2u);
  EXPECT_TRUE(facts.programs[0].ours);
  EXPECT_EQ(facts.programs[1].part, Part::kAgent);
}

TEST_F(NodeLook, ALinkOfAContainerLeadsNowhereElse) {
  process(71, "/usr/bin/nvidia-device-plugin", {"nvidia-device-plugin", "--config-file=/config.yaml"});
  root_.write("/etc/shadow", "root:hunter2");
  root_.link("../../../etc/shadow", "/proc/71/root/config.yaml");
  const auto facts = look();
  ASSERT_EQ(facts.programs.size(), 1u);
  EXPECT_THAT(facts.programs[0].configs, IsEmpty());
  EXPECT_THAT(facts.not_read, ElementsAre(HasSubstr("/config.yaml of process 71")));
}

TEST_F(NodeLook, NoFileOfAContainerMakesItWait) {
  process(71, "/usr/bin/nvidia-device-plugin", {"nvidia-device-plugin", "--config-file=/config.yaml"});
  ASSERT_EQ(::mkfifo(root_.at("/proc/71/root/config.yaml").c_str(), 0600), 0);
  const auto facts = look();
  EXPECT_THAT(facts.not_read, ElementsAre(HasSubstr("no regular file")));
}

TEST_F(NodeLook, AFolderOfConfigsIsRead) {
  process(71, "/usr/bin/config-manager", {"config-manager"}, {"CONFIG_FILE_SRCDIR=/available-configs"});
  root_.write("/proc/71/root/available-configs/..data", "hidden");
  root_.write("/proc/71/root/available-configs/a", "version: v1\n");
  root_.write("/proc/71/root/available-configs/b", "version: v7\n");
  const auto report = analyse(look());
  EXPECT_THAT(report.decide, ElementsAre(HasSubstr("unknown version: v7")));
}

TEST_F(NodeLook, FilesServicesAndEngines) {
  root_.write("/var/snap/microk8s/common/var/lib/kubelet/device-plugins/nvidia-gpu.sock", "");
  root_.link("/var/snap/microk8s/common/var/lib/kubelet", "/var/lib/kubelet");
  root_.write("/usr/lib/systemd/system/nvidia-mig-manager.service", "");
  root_.write("/etc/nvidia-mig-manager/config.yaml", "version: v1\n");
  root_.write("/etc/containerd/config.toml",
              "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = true\n"
              "cdi_spec_dirs = ['/etc/cdi', '/var/run/cdi']\n"
              "[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia]\nruntime_type = 'x'\n");
  root_.write("/etc/docker/daemon.json", R"({"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}})");
  const auto facts = look();
  EXPECT_THAT(traces(facts), ElementsAre("device-plugin /var/lib/kubelet/device-plugins/nvidia-gpu.sock",
                                         "mig-manager /etc/nvidia-mig-manager/config.yaml",
                                         "mig-manager /usr/lib/systemd/system/nvidia-mig-manager.service"));
  ASSERT_EQ(facts.engines.size(), 2u);
  EXPECT_EQ(facts.engines[0].nvidia_runtime, "/etc/containerd/config.toml");
  EXPECT_TRUE(facts.engines[0].fit);
  EXPECT_EQ(facts.engines[1].nvidia_runtime, "/etc/docker/daemon.json");
  EXPECT_FALSE(facts.engines[1].fit);
  const auto report = analyse(facts);
  EXPECT_THAT(report.next, Contains(HasSubstr("gpulet runtime configure --runtime docker")));
  EXPECT_THAT(report.next, Not(Contains(HasSubstr("gpulet runtime configure --runtime containerd"))));
  EXPECT_THAT(report.next, Contains(HasSubstr("systemctl disable --now nvidia-mig-manager.service")));
  EXPECT_THAT(report.back, Contains(HasSubstr("systemctl enable --now nvidia-mig-manager.service")));
}

TEST_F(NodeLook, ANodeThatIsNotThereIsAnError) { EXPECT_FALSE(look_at_node(root_.path() + "/none")); }

}  // namespace
}  // namespace gpulet::migrate

// `gpulet doctor` on a simulated node with one fault after the other: exactly the right check reports each.
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/file.h"
#include "sim/root/driver_files.h"
#include "tests/sim/doctor_fixture.h"

namespace gpulet::tests {
namespace {

namespace fs = std::filesystem;

TEST_F(SimDoctor, PassesAHealthyNode) {
  serve_by_cdi();
  const auto report = run_doctor();
  EXPECT_EQ(checks_with(report, "fail"), "") << report.dump(1);
  EXPECT_EQ(checks_with(report, "warn"), "") << report.dump(1);
  EXPECT_EQ(checks_with(report, "unknown"), "pods extender") << report.dump(1);
}

TEST_F(SimDoctor, NamesTheReasonForNoGpu) {
  serve_by_cdi();
  const std::string devices = "/sys/bus/pci/devices";
  const auto links = [&] {
    std::vector<fs::path> drivers;
    for (const auto& device : fs::directory_iterator(host_path(devices))) {
      if (fs::is_symlink(device.path() / "driver")) drivers.push_back(device.path() / "driver");
    }
    return drivers;
  };
  const auto bind = [&](const char* driver) {
    for (const auto& link : links()) {
      fs::remove(link);
      fs::create_directory_symlink("../../../bus/pci/drivers/" + std::string(driver), link);
    }
  };
  for (const char* driver : {"nouveau", "vfio-pci"})
    fs::create_directories(host_path("/sys/bus/pci/drivers/") + driver);
  const std::string libraries = "/" + std::string(sim::kLibraryDirectory);
  ASSERT_TRUE(
      sim_node().run_gpulet_sim({"fail", "init", "9"}));  // NVML_ERROR_DRIVER_NOT_LOADED, for new clients
  expect_finding("fail", "driver-answers", "the driver does not respond");

  move_away(devices);
  fs::create_directories(host_path(devices));
  expect_finding("fail", "pci", "no NVIDIA GPU on the PCI bus");
  move_back(devices);

  bind("vfio-pci");
  expect_finding("fail", "pci", "vfio-pci");
  bind("nouveau");
  expect_finding("fail", "nouveau", "Nouveau is bound to 0000:");
  bind("nvidia");

  move_away("/proc/driver/nvidia/version");
  move_away("/sys/module/nvidia");
  expect_finding("fail", "driver", "the NVIDIA kernel module is not loaded");
  move_back("/sys/module/nvidia");
  move_back("/proc/driver/nvidia/version");

  std::vector<std::string> moved;
  for (const auto& entry : fs::directory_iterator(host_path(libraries))) {
    const auto name = entry.path().filename().string();
    if (name.starts_with("libnvidia-ml.so")) moved.push_back(libraries + "/" + name);
  }
  fs::create_directories(sim_node().directory() + "/moved");
  for (const auto& path : moved)
    fs::rename(host_path(path), sim_node().directory() + "/moved/" + fs::path(path).filename().string());
  expect_finding("fail", "driver-library", "libnvidia-ml.so.1 is not below");
  for (const auto& path : moved)
    fs::rename(sim_node().directory() + "/moved/" + fs::path(path).filename().string(), host_path(path));

  move_away("/proc/driver/nvidia/version");
  write_host_file("/proc/driver/nvidia/version",
                  "NVRM version: NVIDIA UNIX x86_64 Kernel Module  575.57.08  Wed Feb 26\n");
  expect_finding("fail", "driver-version", "the loaded kernel module is 575.57.08");
  move_back("/proc/driver/nvidia/version");

  ASSERT_TRUE(sim_node().run_gpulet_sim({"fail", "init", "0"}));
  EXPECT_EQ(checks_with(run_doctor(), "fail"), "");
}

TEST_F(SimDoctor, ChecksDeviceNodesAndTheirAccess) {
  serve_by_cdi();
  move_away("/dev/nvidia-uvm");
  expect_finding("fail", "device-nodes", "missing: /dev/nvidia-uvm");
  ASSERT_EQ(::mknod(host_path("/dev/nvidia-uvm").c_str(), S_IFCHR | 0666, makedev(499, 0)), 0);
  expect_finding("fail", "device-nodes", "has the major number 499");
  move_back("/dev/nvidia-uvm");
  ASSERT_TRUE(becomes_allocatable(gpu_count())) << agent_log();
  ASSERT_EQ(::chmod(host_path("/dev/nvidiactl").c_str(), 0600), 0);
  expect_finding("warn", "device-rights", "not every user can open /dev/nvidiactl");
  ASSERT_EQ(::chmod(host_path("/dev/nvidiactl").c_str(), 0666), 0);
  fs::create_directories(host_path("/dev/char"));
  expect_finding("warn", "device-rights", "daemon-reload");
  fs::remove(host_path("/dev/char"));
  // As with a device cgroup: not even root may open it.
  const std::string dev = host_path("/dev");
  expect_finding(
      "fail", "device-rights", "cannot be opened: /dev/nvidiactl", {},
      {"/usr/bin/unshare", "-m", "/bin/sh", "-c",
       "mount --bind " + dev + " " + dev + " && mount -o remount,bind,nodev " + dev + " && exec \"$@\"",
       "sh"});
  EXPECT_EQ(checks_with(run_doctor(), "warn") + checks_with(run_doctor(), "fail"), "");
}

TEST_F(SimDoctor, ChecksTheContainerEngine) {
  serve_by_cdi();
  write_host_file(kEngineConfig, kCdiOff);
  expect_finding("fail", "runtime", "is not ready for CDI");
  // k3s runs here with its own containerd, which is checked.
  const std::string k3s = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml";
  write_host_file(k3s, kCdiOn);
  write_host_file("/run/k3s/containerd/containerd.sock", "");
  EXPECT_EQ(checks_with(run_doctor(), "fail"), "");
  write_host_file(k3s, kCdiOff);
  write_host_file(kEngineConfig, kCdiOn);
  expect_finding("fail", "runtime", "of k3s is not ready for CDI: off (" + k3s);
  fs::remove_all(host_path("/var/lib/rancher"));
  fs::remove_all(host_path("/run/k3s"));

  const auto spec = read_file(host_path(kSpec));
  ASSERT_TRUE(spec);
  fs::remove(host_path(kSpec));
  expect_finding("fail", "cdi", "no CDI spec for an NVIDIA GPU");
  const std::string version = machine_state().lock_for_read()->driver.version;
  std::string stale = *spec;
  for (auto here = stale.find(version); here != std::string::npos; here = stale.find(version, here))
    stale.replace(here, version.size(), "535.54.03");
  write_host_file(kSpec, stale);
  expect_finding("fail", "cdi", "the CDI spec is for driver 535.54.03, the installed driver is " + version);
  write_host_file(kSpec, spec->substr(0, spec->size() / 2));
  expect_finding("fail", "cdi", "engines reject a CDI spec");
  write_host_file(kSpec, *spec);
  move_away("/usr/bin/gpulet-hook");
  expect_finding("fail", "cdi", "missing files: /usr/bin/gpulet-hook");
  move_back("/usr/bin/gpulet-hook");

  write_host_file("/proc/1/comm", "systemd\n");
  write_host_file("/proc/" + std::to_string(sim_node().agent_id()) + "/cmdline",
                  std::string("gpulet\0agent\0", 13));
  EXPECT_EQ(checks_with(run_doctor(), "fail"), "");
  write_host_file("/proc/4243/cmdline", std::string("/usr/bin/nvidia-device-plugin\0", 30));
  expect_finding("fail", "two-plugins", "nvidia-device-plugin (process 4243)");
  fs::remove_all(host_path("/proc/4243"));

  for (int pod = 0; pod < 4; ++pod) admit_pod("pod-" + std::to_string(pod), 2);
  expect_finding("warn", "resource", "all are allocated: 8 nvidia.com/gpu");
}

TEST_F(SimDoctor, ChecksTheKubeletAndItsPlugin) {
  serve_by_cdi();
  const std::string plugins = sim_node().directory() + "/kubelet/device-plugins";
  const auto bound = bind_unix_socket(plugins + "/nvidiaGPU-other.sock");
  ASSERT_TRUE(bound && start_listening(*bound, plugins));
  expect_finding("fail", "two-plugins", "process " + std::to_string(::getpid()));
  fs::remove(plugins + "/nvidiaGPU-other.sock");

  allow_agent_exit();
  sim_node().kill_agent();
  expect_finding("fail", "plugin", "no response at nvidia-gpu.sock");
  fs::remove(plugins + "/nvidia-gpu.sock");
  expect_finding("fail", "plugin", "no device plugin");
  fs::rename(plugins + "/kubelet.sock", plugins + "/away.sock");
  expect_finding("fail", "kubelet", "no kubelet is running: missing " + plugins + "/kubelet.sock");
  fs::create_directories(host_path("/var/lib/k0s/kubelet/device-plugins"));
  const auto other = bind_unix_socket(host_path("/var/lib/k0s/kubelet/device-plugins/kubelet.sock"));
  ASSERT_TRUE(other && start_listening(*other, "kubelet.sock"));
  expect_finding("fail", "kubelet", "one is in " + host_path("/var/lib/k0s/kubelet"));
}

TEST_F(SimDoctor, ReportsWhyTheAgentIsNotReady) {
  serve_by_cdi();
  write_config("version: v1\nflags: {plugin: {deviceListStrategy: [cdi-cri]}}\nnonsense: 1\n");
  ASSERT_TRUE(becomes_true([&] { return http_get(sim_node().socket(), "/readyz").status != 200; }))
      << agent_log();
  expect_finding("fail", "agent", "nonsense");
}

TEST_F(SimDoctor, NamesBrokenGpus) {
  serve_by_cdi();
  ASSERT_TRUE(sim::control::set_temperature(machine_state(), 3, 95));
  expect_finding("warn", "clocks", "GPU 3 is too hot at 95 °C");
  ASSERT_TRUE(sim_node().run_gpulet_sim({"heal"}));
  ASSERT_TRUE(sim::control::set_pcie_width(machine_state(), 2, 4));
  expect_finding("warn", "pcie-width", "GPU 2 has 4 of 16 lanes");
  ASSERT_TRUE(sim_node().run_gpulet_sim({"heal"}));
  for (const char* state : {"joining", "failed"}) {
    ASSERT_TRUE(sim_node().run_gpulet_sim({"fabric", "1", state}));
    expect_finding("fail", "fabric", "GPU 1 ");
  }
  ASSERT_TRUE(sim_node().run_gpulet_sim({"heal"}));

  ASSERT_TRUE(sim_node().run_gpulet_sim({"xid", "5", "79"}));
  ASSERT_TRUE(becomes_unhealthy({gpu_uuid(5)})) << agent_log();
  expect_finding("fail", "gpus", "GPU 5 is lost: XID 79");
  for (std::uint32_t gpu = 0; gpu < gpu_count(); ++gpu)
    ASSERT_TRUE(sim_node().run_gpulet_sim({"xid", std::to_string(gpu), "79"}));
  ASSERT_TRUE(wait_for_kubelet([](const auto& state) {
    return find_resource(state, kGpu)->allocatable() == 0;
  })) << agent_log();
  const auto report = run_doctor();
  EXPECT_EQ(checks_with(report, "fail"), "resource gpus") << report.dump(1);
  EXPECT_NE(finding_of(report, "resource").find("no healthy NVIDIA device: GPU 0 is lost: XID 79"),
            std::string::npos)
      << finding_of(report, "resource");
}

TEST_F(SimDoctor, ReadsTheDriverWithoutAnAgent) {
  ASSERT_TRUE(sim_node().run_gpulet_sim({"lost", "4"}));
  auto report = run_doctor();
  EXPECT_EQ(checks_with(report, "fail"), "plugin gpus") << report.dump(1);
  EXPECT_NE(finding_of(report, "gpus").find("GPU 4: "), std::string::npos) << finding_of(report, "gpus");
  ASSERT_TRUE(sim_node().run_gpulet_sim({"heal"}));
  ASSERT_TRUE(sim_node().run_gpulet_sim({"remap", "6", "pending"}));
  report = run_doctor();
  EXPECT_EQ(checks_with(report, "fail"), "plugin gpus");
  EXPECT_NE(finding_of(report, "gpus").find("GPU 6: the driver requests: "), std::string::npos)
      << finding_of(report, "gpus");
}

TEST_F(SimDoctor, DoesNotBlockOnAHangingDriver) {
  ASSERT_TRUE(sim_node().run_gpulet_sim({"hang", "all"}));
  const auto start = std::chrono::steady_clock::now();
  const auto report = run_doctor();
  EXPECT_LT(std::chrono::steady_clock::now() - start, kTestTimeout);
  EXPECT_NE(checks_with(report, "fail").find("driver-answers"), std::string::npos) << report.dump(1);
  ASSERT_TRUE(sim_node().run_gpulet_sim({"heal"}));
}

TEST_F(SimDoctor, ChecksLinksBetweenGpus) {
  serve_by_cdi();
  // The first GPU behind a bridge whose ACS redirects requests.
  fs::path link;
  for (const auto& device : fs::directory_iterator(host_path("/sys/bus/pci/devices"))) {
    if (fs::is_symlink(device.path() / "driver") && (link.empty() || device.path() < link))
      link = device.path();
  }
  const auto gpu = fs::canonical(link);
  const auto bridge = gpu.parent_path() / "0000:19:01.0";
  fs::create_directories(bridge);
  fs::rename(gpu, bridge / gpu.filename());
  const auto config = [&](char control) {
    std::string space(4096, '\0');
    space[0x100] = 0x0D;  // the capability's id; the last one
    space[0x106] = control;
    write_host_file((bridge / "config").string().substr(sim_node().driver_root().size()), space);
  };
  // sysfs' own links are relative; the kernel resolves this one inside the tree.
  fs::remove(link);
  fs::create_directory_symlink(
      "../../.." + (bridge / gpu.filename()).string().substr(host_path("/sys").size()), link);
  fs::remove(bridge / gpu.filename() / "driver");
  fs::create_directory_symlink("../../../../bus/pci/drivers/nvidia", bridge / gpu.filename() / "driver");
  config(0x01);
  EXPECT_EQ(checks_with(run_doctor(), "warn"), "");
  config(0x1D);
  expect_finding("warn", "iommu", "at 0000:19:01.0");
  config(0x00);
  write_host_file(
      (bridge / gpu.filename() / "iommu_group/type").string().substr(sim_node().driver_root().size()),
      "DMA-FQ\n");
  expect_finding("warn", "iommu", "the IOMMU translates the DMA of " + gpu.filename().string());
}

class SimDoctorA100 : public SimDoctor {
 protected:
  void SetUp() override { prepare_root("dgx-a100"); }
};

// Its GPUs do not report fabric registration, and change MIG mode only with a reset.
TEST_F(SimDoctorA100, ChecksTheFabricManager) {
  serve_by_cdi();
  EXPECT_EQ(checks_with(run_doctor(), "fail"), "");
  write_host_file("/proc/1/comm", "systemd\n");
  expect_finding("fail", "fabric", "no fabric manager");
  write_host_file("/proc/77/cmdline", std::string("/usr/bin/nv-fabricmanager\0-c\0x\0", 31));
  EXPECT_EQ(checks_with(run_doctor(), "fail"), "");
}

// As in the agent's Pod, where a process of `kubectl exec` may not open the driver.
TEST_F(SimDoctor, AsksTheAgentWhereNvmlDoesNotOpen) {
  serve_by_cdi();
  ASSERT_TRUE(sim_node().run_gpulet_sim({"fail", "init", "9"}));
  const auto by_agent = [&](const char* id) {
    return finding_of(run_doctor(), id).find("(by the agent)") != std::string::npos;
  };
  // Each health poll reads them once.
  for (const char* id : {"mig", "clocks", "pcie-width", "fabric"})
    EXPECT_TRUE(becomes_true([&] { return by_agent(id); })) << id << ": " << finding_of(run_doctor(), id);
}

TEST_F(SimDoctorA100, NamesAPendingMigMode) {
  {
    const auto machine = machine_state().lock_for_edit();
    machine->gpus[1].mig.passthrough = 1;  // the driver of a VM cannot reset it
    ASSERT_EQ(sim::set_mig_mode(machine->gpus[1], true), sim::MigOutcome::kResetRequired);
  }
  const auto report = run_doctor();
  EXPECT_EQ(checks_with(report, "fail"), "plugin mig") << report.dump(1);
  EXPECT_NE(finding_of(report, "mig").find("GPU 1: MIG is off, and on after the next reset"),
            std::string::npos);
}

}  // namespace
}  // namespace gpulet::tests

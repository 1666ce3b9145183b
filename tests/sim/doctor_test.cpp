// `gpulet doctor` on a simulated node with one fault after the other: each is named by the check that is
// about it, and by no other.
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/unix_socket.h"
#include "sim/root/driver_files.h"
#include "tests/sim/doctor_fixture.h"

namespace gpulet::tests {
namespace {

namespace fs = std::filesystem;

TEST_F(SimDoctor, AHealthyNodeHasNoFault) {
  serve_by_cdi();
  const auto report = doctor();
  EXPECT_EQ(with(report, "fail"), "") << report.dump(1);
  EXPECT_EQ(with(report, "warn"), "") << report.dump(1);
  EXPECT_EQ(with(report, "cannot tell"), "pods") << report.dump(1);
}

TEST_F(SimDoctor, NoGpuIsFoundForTheRightReason) {
  serve_by_cdi();
  const std::string devices = "/sys/bus/pci/devices";
  const auto links = [&] {
    std::vector<fs::path> drivers;
    for (const auto& device : fs::directory_iterator(at(devices))) {
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
    fs::create_directories(at("/sys/bus/pci/drivers/") + driver);
  const std::string libraries = "/" + std::string(sim::kLibraryFolder);
  ASSERT_TRUE(node().sim({"fail", "init", "9"}));  // NVML_ERROR_DRIVER_NOT_LOADED, to who comes now
  expect_fault("fail", "driver-answers", "the driver does not answer");

  away(devices);
  fs::create_directories(at(devices));
  expect_fault("fail", "pci", "no NVIDIA GPU is on the PCI bus");
  back(devices);

  bind("vfio-pci");
  expect_fault("fail", "pci", "vfio-pci");
  bind("nouveau");
  expect_fault("fail", "nouveau", "Nouveau has 0000:");
  bind("nvidia");

  away("/proc/driver/nvidia/version");
  away("/sys/module/nvidia");
  expect_fault("fail", "driver", "the NVIDIA kernel module is not loaded");
  back("/sys/module/nvidia");
  back("/proc/driver/nvidia/version");

  std::vector<std::string> moved;
  for (const auto& entry : fs::directory_iterator(at(libraries))) {
    const auto name = entry.path().filename().string();
    if (name.starts_with("libnvidia-ml.so")) moved.push_back(libraries + "/" + name);
  }
  fs::create_directories(node().folder() + "/moved");
  for (const auto& path : moved)
    fs::rename(at(path), node().folder() + "/moved/" + fs::path(path).filename().string());
  expect_fault("fail", "driver-library", "libnvidia-ml.so.1 is not below");
  for (const auto& path : moved)
    fs::rename(node().folder() + "/moved/" + fs::path(path).filename().string(), at(path));

  away("/proc/driver/nvidia/version");
  put("/proc/driver/nvidia/version",
      "NVRM version: NVIDIA UNIX x86_64 Kernel Module  575.57.08  Wed Feb 26\n");
  expect_fault("fail", "driver-version", "the loaded kernel module is 575.57.08");
  back("/proc/driver/nvidia/version");

  ASSERT_TRUE(node().sim({"fail", "init", "0"}));
  EXPECT_EQ(with(doctor(), "fail"), "");
}

TEST_F(SimDoctor, DeviceNodesAndWhoMayOpenThem) {
  serve_by_cdi();
  away("/dev/nvidia-uvm");
  expect_fault("fail", "device-nodes", "missing: /dev/nvidia-uvm");
  ASSERT_EQ(::mknod(at("/dev/nvidia-uvm").c_str(), S_IFCHR | 0666, makedev(499, 0)), 0);
  expect_fault("fail", "device-nodes", "has the major number 499");
  back("/dev/nvidia-uvm");
  ASSERT_EQ(::chmod(at("/dev/nvidiactl").c_str(), 0600), 0);
  expect_fault("warn", "device-rights", "only some users may open /dev/nvidiactl");
  ASSERT_EQ(::chmod(at("/dev/nvidiactl").c_str(), 0666), 0);
  fs::create_directories(at("/dev/char"));
  expect_fault("warn", "device-rights", "daemon-reload");
  fs::remove(at("/dev/char"));
  // As a device cgroup: not even root may.
  const std::string dev = at("/dev");
  expect_fault(
      "fail", "device-rights", "may not be opened: /dev/nvidiactl", {},
      {"/usr/bin/unshare", "-m", "/bin/sh", "-c",
       "mount --bind " + dev + " " + dev + " && mount -o remount,bind,nodev " + dev + " && exec \"$@\"",
       "sh"});
  EXPECT_EQ(with(doctor(), "warn") + with(doctor(), "fail"), "");
}

TEST_F(SimDoctor, TheWayToAContainer) {
  serve_by_cdi();
  put(kEngineConfig, kCdiOff);
  expect_fault("fail", "runtime", "is not fit for CDI");
  // k3s runs here, with a containerd of its own: that one is judged.
  const std::string k3s = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml";
  put(k3s, kCdiOn);
  put("/run/k3s/containerd/containerd.sock", "");
  EXPECT_EQ(with(doctor(), "fail"), "");
  put(k3s, kCdiOff);
  put(kEngineConfig, kCdiOn);
  expect_fault("fail", "runtime", "of k3s is not fit for CDI: off (" + k3s);
  fs::remove_all(at("/var/lib/rancher"));
  fs::remove_all(at("/run/k3s"));

  const auto spec = read_file(at(kSpec));
  ASSERT_TRUE(spec);
  fs::remove(at(kSpec));
  expect_fault("fail", "cdi", "no CDI spec of an NVIDIA GPU");
  const std::string version = machine().read()->driver.version;
  std::string stale = *spec;
  for (auto here = stale.find(version); here != std::string::npos; here = stale.find(version, here))
    stale.replace(here, version.size(), "535.54.03");
  put(kSpec, stale);
  expect_fault("fail", "cdi", "the CDI spec is of driver 535.54.03, the driver is " + version);
  put(kSpec, spec->substr(0, spec->size() / 2));
  expect_fault("fail", "cdi", "engines refuse a CDI spec");
  put(kSpec, *spec);
  away("/usr/bin/gpulet-hook");
  expect_fault("fail", "cdi", "what is not there: /usr/bin/gpulet-hook");
  back("/usr/bin/gpulet-hook");

  put("/proc/1/comm", "systemd\n");
  put("/proc/" + std::to_string(node().agent_id()) + "/cmdline", std::string("gpulet\0agent\0", 13));
  EXPECT_EQ(with(doctor(), "fail"), "");
  put("/proc/4243/cmdline", std::string("/usr/bin/nvidia-device-plugin\0", 30));
  expect_fault("fail", "two-plugins", "nvidia-device-plugin (process 4243)");
  fs::remove_all(at("/proc/4243"));

  for (int pod = 0; pod < 4; ++pod) admit("pod-" + std::to_string(pod), 2);
  expect_fault("warn", "resource", "all are held: 8 nvidia.com/gpu");
}

TEST_F(SimDoctor, TheKubeletAndThePluginOnIt) {
  serve_by_cdi();
  const std::string plugins = node().folder() + "/kubelet/device-plugins";
  const auto bound = bind_unix(plugins + "/nvidiaGPU-other.sock");
  ASSERT_TRUE(bound && start_listening(*bound, plugins));
  expect_fault("fail", "two-plugins", "process " + std::to_string(::getpid()));
  fs::remove(plugins + "/nvidiaGPU-other.sock");

  agent_may_end();
  node().kill_agent();
  expect_fault("fail", "plugin", "nobody answers at nvidia-gpu.sock");
  fs::remove(plugins + "/nvidia-gpu.sock");
  expect_fault("fail", "plugin", "no device plugin");
  fs::rename(plugins + "/kubelet.sock", plugins + "/away.sock");
  expect_fault("fail", "kubelet", "no kubelet runs here: there is no " + plugins + "/kubelet.sock");
  fs::create_directories(at("/var/lib/k0s/kubelet/device-plugins"));
  const auto other = bind_unix(at("/var/lib/k0s/kubelet/device-plugins/kubelet.sock"));
  ASSERT_TRUE(other && start_listening(*other, "kubelet.sock"));
  expect_fault("fail", "kubelet", "one is at " + at("/var/lib/k0s/kubelet"));
}

TEST_F(SimDoctor, AnAgentThatIsNotReadySaysWhy) {
  serve_by_cdi();
  write_config("version: v1\nflags: {plugin: {deviceListStrategy: [cdi-cri]}}\nnonsense: 1\n");
  ASSERT_TRUE(eventually([&] { return http_get(node().socket(), "/readyz").status != 200; })) << log();
  expect_fault("fail", "agent", "nonsense");
}

TEST_F(SimDoctor, BrokenGpus) {
  serve_by_cdi();
  ASSERT_TRUE(sim::control::thermal(machine(), 3, 95));
  expect_fault("warn", "clocks", "GPU 3 is too hot at 95 °C");
  ASSERT_TRUE(node().sim({"heal"}));
  ASSERT_TRUE(sim::control::pcie_width(machine(), 2, 4));
  expect_fault("warn", "pcie-width", "GPU 2 has 4 of 16 lanes");
  ASSERT_TRUE(node().sim({"heal"}));
  for (const char* state : {"joining", "failed"}) {
    ASSERT_TRUE(node().sim({"fabric", "1", state}));
    expect_fault("fail", "fabric", "GPU 1 ");
  }
  ASSERT_TRUE(node().sim({"heal"}));

  ASSERT_TRUE(node().sim({"xid", "5", "79"}));
  ASSERT_TRUE(unhealthy({uuid(5)})) << log();
  expect_fault("fail", "gpus", "GPU 5 is lost: XID 79");
  for (std::uint32_t gpu = 0; gpu < gpu_count(); ++gpu)
    ASSERT_TRUE(node().sim({"xid", std::to_string(gpu), "79"}));
  ASSERT_TRUE(wait_for([](const auto& state) { return find(state, kGpu)->allocatable() == 0; })) << log();
  const auto report = doctor();
  EXPECT_EQ(with(report, "fail"), "resource gpus") << report.dump(1);
  EXPECT_NE(found(report, "resource").find("no healthy device of NVIDIA's: GPU 0 is lost: XID 79"),
            std::string::npos)
      << found(report, "resource");
}

TEST_F(SimDoctor, WithoutAnAgentTheDriverIsAsked) {
  ASSERT_TRUE(node().sim({"lost", "4"}));
  auto report = doctor();
  EXPECT_EQ(with(report, "fail"), "plugin gpus") << report.dump(1);
  EXPECT_NE(found(report, "gpus").find("GPU 4: "), std::string::npos) << found(report, "gpus");
  ASSERT_TRUE(node().sim({"heal"}));
  ASSERT_TRUE(node().sim({"remap", "6", "pending"}));
  report = doctor();
  EXPECT_EQ(with(report, "fail"), "plugin gpus");
  EXPECT_NE(found(report, "gpus").find("GPU 6: the driver asks for: "), std::string::npos)
      << found(report, "gpus");
}

TEST_F(SimDoctor, AHangingDriverHoldsNothingUp) {
  ASSERT_TRUE(node().sim({"hang", "all"}));
  const auto start = std::chrono::steady_clock::now();
  const auto report = doctor();
  EXPECT_LT(std::chrono::steady_clock::now() - start, kPatience);
  EXPECT_NE(with(report, "fail").find("driver-answers"), std::string::npos) << report.dump(1);
  ASSERT_TRUE(node().sim({"heal"}));
}

TEST_F(SimDoctor, WhatIsBetweenGpus) {
  serve_by_cdi();
  // The first GPU behind a bridge whose ACS redirects requests.
  fs::path link;
  for (const auto& device : fs::directory_iterator(at("/sys/bus/pci/devices"))) {
    if (fs::is_symlink(device.path() / "driver") && (link.empty() || device.path() < link))
      link = device.path();
  }
  const auto gpu = fs::canonical(link);
  const auto bridge = gpu.parent_path() / "0000:19:01.0";
  fs::create_directories(bridge);
  fs::rename(gpu, bridge / gpu.filename());
  const auto config = [&](char control) {
    std::string space(4096, '\0');
    space[0x100] = 0x0D;  // the capability's id, no other behind it
    space[0x106] = control;
    put((bridge / "config").string().substr(node().root().size()), space);
  };
  // sysfs' own links are relative; the kernel resolves this one inside the tree.
  fs::remove(link);
  fs::create_directory_symlink("../../.." + (bridge / gpu.filename()).string().substr(at("/sys").size()),
                               link);
  fs::remove(bridge / gpu.filename() / "driver");
  fs::create_directory_symlink("../../../../bus/pci/drivers/nvidia", bridge / gpu.filename() / "driver");
  config(0x01);
  EXPECT_EQ(with(doctor(), "warn"), "");
  config(0x1D);
  expect_fault("warn", "iommu", "at 0000:19:01.0");
  config(0x00);
  put((bridge / gpu.filename() / "iommu_group/type").string().substr(node().root().size()), "DMA-FQ\n");
  expect_fault("warn", "iommu", "the IOMMU translates the DMA of " + gpu.filename().string());
}

class SimDoctorA100 : public SimDoctor {
 protected:
  void SetUp() override { lay_out("dgx-a100"); }
};

// Its GPUs do not say whether they have joined the fabric, and take another MIG mode only with a reset.
TEST_F(SimDoctorA100, TheFabricManagerIsLookedFor) {
  serve_by_cdi();
  EXPECT_EQ(with(doctor(), "fail"), "");
  put("/proc/1/comm", "systemd\n");
  expect_fault("fail", "fabric", "no fabric manager");
  put("/proc/77/cmdline", std::string("/usr/bin/nv-fabricmanager\0-c\0x\0", 31));
  EXPECT_EQ(with(doctor(), "fail"), "");
}

TEST_F(SimDoctorA100, AMigModeThatWaitsForAReset) {
  ASSERT_EQ(sim::set_mig_mode(machine().edit()->gpus[1], true), sim::MigOutcome::kResetRequired);
  const auto report = doctor();
  EXPECT_EQ(with(report, "fail"), "plugin mig") << report.dump(1);
  EXPECT_NE(found(report, "mig").find("GPU 1: MIG is off, and on after the next reset"), std::string::npos);
}

}  // namespace
}  // namespace gpulet::tests

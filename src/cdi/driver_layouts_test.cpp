// The driver's files in the layouts of distributions: each root consists of stubs, and the whole
// result is checked.
#include <gmock/gmock.h>

#include <algorithm>

#include "cdi/driver_files.h"
#include "cdi/driver_search.h"
#include "cdi/test_driver_root.h"

namespace gpulet::cdi {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::Not;
using testing::StartsWith;

const std::string kLayoutsVersion = "535.247.01";
const std::string kMultiarch = "/usr/lib/" + std::string(kTriplet);

DriverFiles found(TestTree& tree, const std::string& host_path = {},
                  const std::string& hint = kLayoutsVersion, DriverFileOptions options = {}) {
  options.kernel_release = "6.1.0-stub";
  const Roots roots = tree.open_tree(host_path);
  auto files = find_driver_files(roots, hint, options);
  EXPECT_TRUE(files.has_value()) << files.error().full_message();
  return files ? std::move(*files) : DriverFiles{};
}

FileMount mount(const std::string& host, const std::string& container, bool ipc = false) {
  return {host, container, ipc};
}

std::vector<std::string> containers(const std::vector<FileMount>& mounts) {
  std::vector<std::string> paths;
  for (const FileMount& each : mounts) paths.push_back(each.container_path);
  return paths;
}

void add_library(TestTree& tree, const std::string& directory, const std::string& name,
                 const std::string& soname) {
  tree.make_file(directory + "/" + name + ".so." + kLayoutsVersion);
  if (!soname.empty()) tree.make_link(directory + "/" + soname, name + ".so." + kLayoutsVersion);
}

// Debian: the driver's libraries are in nvidia/current, behind absolute links through
// /etc/alternatives.
void make_debian(TestTree& tree) {
  const std::string current = kMultiarch + "/nvidia/current";
  add_library(tree, current, "libcuda", "libcuda.so.1");
  tree.make_link(current + "/libcuda.so", "libcuda.so.1");
  add_library(tree, current, "libnvidia-ml", "libnvidia-ml.so.1");
  add_library(tree, kMultiarch, "libnvidia-ptxjitcompiler", "libnvidia-ptxjitcompiler.so.1");
  add_library(tree, kMultiarch, "libnvidia-allocator", "libnvidia-allocator.so.1");
  tree.make_link("/etc/alternatives/nvidia--libcuda.so.1", current + "/libcuda.so.1");
  tree.make_link(kMultiarch + "/libcuda.so.1", "/etc/alternatives/nvidia--libcuda.so.1");
  tree.make_file(kMultiarch + "/libc.so.6");
  tree.make_link("/lib", "usr/lib");
  tree.make_link("/bin", "/usr/bin");
  tree.make_program("/usr/lib/nvidia/current/nvidia-smi");
  tree.make_link("/etc/alternatives/nvidia--nvidia-smi", "/usr/lib/nvidia/current/nvidia-smi");
  tree.make_link("/usr/bin/nvidia-smi", "/etc/alternatives/nvidia--nvidia-smi");
  tree.make_file("/usr/lib/nvidia/current/nvidia_drv.so");
  tree.make_file("/usr/lib/firmware/nvidia/" + kLayoutsVersion + "/gsp_ga10x.bin");
  tree.make_file("/usr/lib/firmware/nvidia/" + kLayoutsVersion + "/gsp_tu10x.bin");
  tree.make_file("/etc/nvidia/current/10_nvidia.json", "{}");
  tree.make_link("/etc/alternatives/glx--10_nvidia.json", "/etc/nvidia/current/10_nvidia.json");
  tree.make_link("/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "/etc/alternatives/glx--10_nvidia.json");
}

TEST(DriverLayoutsTest, DebianWithAlternatives) {
  TestTree tree;
  make_debian(tree);
  const DriverFiles files = found(tree, "/run/nvidia/driver");
  const std::string host = "/run/nvidia/driver";
  const std::string current = kMultiarch + "/nvidia/current";
  auto same = [&](const std::string& path) { return mount(host + path, path); };
  EXPECT_EQ(files.version, kLayoutsVersion);
  EXPECT_THAT(files.libraries,
              ElementsAre(same("/usr/lib/nvidia/current/nvidia_drv.so"),
                          same(kMultiarch + "/libnvidia-allocator.so." + kLayoutsVersion),
                          same(kMultiarch + "/libnvidia-ptxjitcompiler.so." + kLayoutsVersion),
                          same(current + "/libcuda.so." + kLayoutsVersion),
                          same(current + "/libnvidia-ml.so." + kLayoutsVersion)));
  EXPECT_THAT(files.library_dirs, ElementsAre(kMultiarch, current));
  EXPECT_THAT(files.cuda_library_dirs, ElementsAre(kMultiarch, current));
  EXPECT_THAT(files.binaries,
              ElementsAre(mount(host + "/usr/lib/nvidia/current/nvidia-smi", "/usr/bin/nvidia-smi")));
  const std::string firmware = "/firmware/nvidia/" + kLayoutsVersion;
  EXPECT_THAT(
      files.firmware,
      ElementsAre(
          mount(host + "/usr/lib" + firmware + "/gsp_ga10x.bin", "/lib" + firmware + "/gsp_ga10x.bin"),
          mount(host + "/usr/lib" + firmware + "/gsp_tu10x.bin", "/lib" + firmware + "/gsp_tu10x.bin")));
  EXPECT_THAT(files.configs, ElementsAre(mount(host + "/etc/nvidia/current/10_nvidia.json",
                                               "/usr/share/glvnd/egl_vendor.d/10_nvidia.json")));
  EXPECT_THAT(
      files.links,
      ElementsAre(Link{"../libnvidia-allocator.so.1", kMultiarch + "/gbm/nvidia-drm_gbm.so"},
                  Link{"libnvidia-allocator.so." + kLayoutsVersion, kMultiarch + "/libnvidia-allocator.so.1"},
                  Link{"libnvidia-ptxjitcompiler.so." + kLayoutsVersion,
                       kMultiarch + "/libnvidia-ptxjitcompiler.so.1"},
                  Link{"libcuda.so.1", current + "/libcuda.so"},
                  Link{"libcuda.so." + kLayoutsVersion, current + "/libcuda.so.1"},
                  Link{"libnvidia-ml.so." + kLayoutsVersion, current + "/libnvidia-ml.so.1"}));
  EXPECT_THAT(files.sockets, IsEmpty());
  EXPECT_THAT(files.warnings, Contains("not found: nvidia-debugdump"));
}

// The chart's driverRootPaths: /usr and /etc of the host below a directory of the image, which has a merged
// root's links (deploy/image/rootfs). Only what is in no other directory is missing.
TEST(DriverLayoutsTest, NeedsUsrAndEtcOfAMergedRoot) {
  TestTree whole, parts;
  for (TestTree* tree : {&whole, &parts}) {
    make_debian(*tree);
    tree->make_program("/usr/sbin/nvidia-persistenced");
    tree->make_file("/etc/OpenCL/vendors/nvidia.icd");
    tree->make_file("/etc/shadow", "secret", 0600);
  }
  whole.make_link("/sbin", "usr/sbin");
  whole.make_link("/lib64", "usr/lib64");
  whole.make_socket("/run/nvidia-persistenced/socket");
  for (const auto& entry : std::filesystem::directory_iterator(parts.tree_path())) {
    if (entry.path().filename() != "usr" && entry.path().filename() != "etc")
      std::filesystem::remove_all(entry.path());
  }
  for (const std::string name : {"bin", "sbin", "lib", "lib64"}) parts.make_link("/" + name, "usr/" + name);
  const DriverFiles all = found(whole), some = found(parts);
  EXPECT_EQ(containers(all.sockets), std::vector<std::string>{"/run/nvidia-persistenced/socket"});
  EXPECT_THAT(some.sockets, IsEmpty());
  const auto names = [](const std::string& root, const std::vector<FileMount>& mounts) {
    std::vector<FileMount> below;
    for (FileMount each : mounts) {
      EXPECT_TRUE(each.host_path.starts_with(root)) << each.host_path;
      each.host_path.erase(0, root.size());
      below.push_back(std::move(each));
    }
    return below;
  };
  for (const auto kind :
       {&DriverFiles::libraries, &DriverFiles::binaries, &DriverFiles::firmware, &DriverFiles::configs}) {
    EXPECT_THAT(all.*kind, Not(IsEmpty()));
    EXPECT_EQ(names(parts.tree_path(), some.*kind), names(whole.tree_path(), all.*kind));
  }
  EXPECT_EQ(some.links, all.links);
  EXPECT_EQ(some.library_dirs, all.library_dirs);
}

TEST(DriverLayoutsTest, KeepsAlternativesForXAndVdpauLinks) {
  TestTree tree;
  const std::string current = kMultiarch + "/nvidia/current";
  const std::string glx = "/usr/lib/nvidia/current/libglxserver_nvidia.so";
  add_library(tree, current, "libvdpau_nvidia", "libvdpau_nvidia.so.1");
  tree.make_file(glx + "." + kLayoutsVersion);
  tree.make_link(glx, "libglxserver_nvidia.so." + kLayoutsVersion);
  tree.make_link("/etc/alternatives/glx--libglxserver_nvidia.so", glx);
  tree.make_link("/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so",
                 "/etc/alternatives/glx--libglxserver_nvidia.so");
  tree.make_link(kMultiarch + "/vdpau/libvdpau_nvidia.so.1", current + "/libvdpau_nvidia.so.1");
  tree.make_file(kMultiarch + "/libnvidia-glcore.so." + kLayoutsVersion);
  tree.make_file("/usr/lib/nvidia/current/nvidia_drv.so");
  tree.make_link("/usr/lib/xorg/modules/drivers/nvidia_drv.so", "/usr/lib/nvidia/current/nvidia_drv.so");
  const DriverFiles files = found(tree, "/run/nvidia/driver");
  EXPECT_THAT(files.links, IsSupersetOf({Link{glx + "." + kLayoutsVersion,
                                              "/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so"},
                                         Link{"libglxserver_nvidia.so." + kLayoutsVersion, glx},
                                         Link{current + "/libvdpau_nvidia.so." + kLayoutsVersion,
                                              kMultiarch + "/vdpau/libvdpau_nvidia.so.1"}}));
  EXPECT_THAT(files.libraries, Contains(mount("/run/nvidia/driver/usr/lib/nvidia/current/nvidia_drv.so",
                                              "/usr/lib/xorg/modules/drivers/nvidia_drv.so")));
}

TEST(DriverLayoutsTest, ReadsTheVersionFromNamesWithoutAHint) {
  TestTree tree;
  make_debian(tree);
  tree.make_file(kMultiarch + "/nvidia/current/libcuda.so.470.1.2");  // left over; libcuda.so.1 decides
  EXPECT_EQ(found(tree, {}, "").version, kLayoutsVersion);
}

TEST(DriverLayoutsTest, LinksDebiansAllocatorForGbm) {
  TestTree tree;
  add_library(tree, kMultiarch + "/nvidia/current", "libnvidia-allocator", "libnvidia-allocator.so.1");
  const DriverFiles files = found(tree);
  EXPECT_THAT(
      files.links,
      IsSupersetOf(
          {Link{"../nvidia/current/libnvidia-allocator.so.1", kMultiarch + "/gbm/nvidia-drm_gbm.so"},
           Link{"../libnvidia-allocator.so.1", kMultiarch + "/nvidia/current/gbm/nvidia-drm_gbm.so"}}));
  EXPECT_THAT(files.warnings, Contains(StartsWith("not found: libcuda.so." + kLayoutsVersion)));
}

// Two branches side by side, as Debian allows; its alternatives choose tesla-470.
TEST(DriverLayoutsTest, DebiansAlternativesChooseABranch) {
  TestTree tree;
  const std::string chosen = kMultiarch + "/nvidia/tesla-470", other = kMultiarch + "/nvidia/current";
  for (const std::string name : {"libcuda", "libnvidia-ml", "libnvidia-allocator"}) {
    add_library(tree, chosen, name, name + ".so.1");
    tree.make_file(other + "/" + name + ".so.999.9.9");
    tree.make_link(other + "/" + name + ".so.1", name + ".so.999.9.9");
    const std::string alternative = "/etc/alternatives/nvidia--" + name + ".so.1";
    tree.make_link(alternative, chosen + "/" + name + ".so.1");
    tree.make_link(kMultiarch + "/" + name + ".so.1", alternative);
  }
  add_library(tree, kMultiarch, "libnvidia-glcore", "");
  tree.make_link("/usr/lib/nvidia/nvidia", "/etc/alternatives/nvidia");
  tree.make_link("/etc/alternatives/nvidia", "/usr/lib/nvidia/tesla-470");
  const std::string glx = "/usr/lib/nvidia/tesla-470/libglxserver_nvidia.so." + kLayoutsVersion;
  tree.make_file(glx);
  for (const std::string& hint : {std::string(), kLayoutsVersion}) {
    const DriverFiles files = found(tree, {}, hint);
    EXPECT_EQ(files.version, kLayoutsVersion);
    EXPECT_THAT(containers(files.libraries),
                ElementsAre(glx, kMultiarch + "/libnvidia-glcore.so." + kLayoutsVersion,
                            chosen + "/libcuda.so." + kLayoutsVersion,
                            chosen + "/libnvidia-allocator.so." + kLayoutsVersion,
                            chosen + "/libnvidia-ml.so." + kLayoutsVersion));
    EXPECT_THAT(files.links, Contains(Link{"../nvidia/tesla-470/libnvidia-allocator.so.1",
                                           kMultiarch + "/gbm/nvidia-drm_gbm.so"}));
  }
}

// RHEL: /usr/lib64 with /lib64 a link to it; X modules, Vulkan's JSON with the machine's name.
TEST(DriverLayoutsTest, Rhel) {
  TestTree tree;
  const std::string lib = "/usr/lib64";
  add_library(tree, lib, "libcuda", "libcuda.so.1");
  add_library(tree, lib, "libGLX_nvidia", "libGLX_nvidia.so.0");
  tree.make_link(lib + "/libGLX_indirect.so.0", "libGLX_nvidia.so." + kLayoutsVersion);
  add_library(tree, lib, "libnvidia-opticalflow", "libnvidia-opticalflow.so.1");
  add_library(tree, lib, "libnvidia-vulkan-producer", "");
  add_library(tree, lib, "libnvidia-glcore", "");
  add_library(tree, lib + "/vdpau", "libvdpau_nvidia", "libvdpau_nvidia.so.1");
  tree.make_file(lib + "/libnvidia-egl-gbm.so.1.1.0");
  tree.make_link(lib + "/libnvidia-egl-gbm.so.1", "libnvidia-egl-gbm.so.1.1.0");
  tree.make_file(lib + "/libnvidia-nvvm70.so.4");
  tree.make_file(lib + "/libnvidia-glcore.so.470.1.2");  // of an older driver
  tree.make_file(lib + "/xorg/modules/drivers/nvidia_drv.so");
  tree.make_file(lib + "/xorg/modules/extensions/libglxserver_nvidia.so." + kLayoutsVersion);
  tree.make_link("/lib64", "/usr/lib64");
  tree.make_program("/usr/bin/nvidia-smi");
  tree.make_program("/usr/bin/nvidia-cuda-mps-control");
  tree.make_file("/usr/bin/nvidia-imex", "not executable", 0644);
  tree.make_file("/usr/share/vulkan/icd.d/nvidia_icd." + std::string(kMachine) + ".json", "{}");
  tree.make_file("/etc/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1");
  tree.make_socket("/run/nvidia-persistenced/socket");
  tree.make_link("/var/run", "../run");
  tree.make_directory("/tmp/nvidia-mps");
  const DriverFiles files = found(tree, "/");
  EXPECT_THAT(
      containers(files.libraries),
      ElementsAre(lib + "/libGLX_nvidia.so." + kLayoutsVersion, lib + "/libcuda.so." + kLayoutsVersion,
                  lib + "/libnvidia-egl-gbm.so.1.1.0", lib + "/libnvidia-glcore.so." + kLayoutsVersion,
                  lib + "/libnvidia-nvvm70.so.4", lib + "/libnvidia-opticalflow.so." + kLayoutsVersion,
                  lib + "/libnvidia-vulkan-producer.so." + kLayoutsVersion,
                  lib + "/vdpau/libvdpau_nvidia.so." + kLayoutsVersion,
                  lib + "/xorg/modules/drivers/nvidia_drv.so",
                  lib + "/xorg/modules/extensions/libglxserver_nvidia.so." + kLayoutsVersion));
  for (const FileMount& library : files.libraries) EXPECT_EQ(library.host_path, library.container_path);
  EXPECT_THAT(files.library_dirs, ElementsAre(lib, lib + "/vdpau"));
  EXPECT_THAT(files.cuda_library_dirs, ElementsAre(lib));
  EXPECT_THAT(
      files.links,
      ElementsAre(
          Link{"libGLX_nvidia.so." + kLayoutsVersion, lib + "/libGLX_indirect.so.0"},
          Link{"libGLX_nvidia.so." + kLayoutsVersion, lib + "/libGLX_nvidia.so.0"},
          Link{"libcuda.so.1", lib + "/libcuda.so"},
          Link{"libcuda.so." + kLayoutsVersion, lib + "/libcuda.so.1"},
          Link{"libnvidia-egl-gbm.so.1.1.0", lib + "/libnvidia-egl-gbm.so.1"},
          Link{"libnvidia-opticalflow.so.1", lib + "/libnvidia-opticalflow.so"},
          Link{"libnvidia-opticalflow.so." + kLayoutsVersion, lib + "/libnvidia-opticalflow.so.1"},
          Link{"libnvidia-vulkan-producer.so." + kLayoutsVersion, lib + "/libnvidia-vulkan-producer.so"},
          Link{"libvdpau_nvidia.so." + kLayoutsVersion, lib + "/vdpau/libvdpau_nvidia.so.1"},
          Link{"libglxserver_nvidia.so." + kLayoutsVersion,
               lib + "/xorg/modules/extensions/libglxserver_nvidia.so"}));
  EXPECT_THAT(containers(files.binaries),
              ElementsAre("/usr/bin/nvidia-cuda-mps-control", "/usr/bin/nvidia-smi"));
  EXPECT_THAT(files.warnings, Contains("not found: nvidia-imex"));
  EXPECT_THAT(files.configs,
              ElementsAre(mount("/etc/OpenCL/vendors/nvidia.icd", "/etc/OpenCL/vendors/nvidia.icd"),
                          mount("/usr/share/vulkan/icd.d/nvidia_icd." + std::string(kMachine) + ".json",
                                "/etc/vulkan/icd.d/nvidia_icd." + std::string(kMachine) + ".json")));
  EXPECT_THAT(files.sockets,
              ElementsAre(mount("/run/nvidia-persistenced/socket", "/run/nvidia-persistenced/socket", true),
                          mount("/tmp/nvidia-mps", "/tmp/nvidia-mps", true)));
}

void make_gke(TestTree& tree, const std::string& prefix) {
  add_library(tree, prefix + "/lib64", "libcuda", "libcuda.so.1");
  add_library(tree, prefix + "/lib64", "libnvidia-ml", "libnvidia-ml.so.1");
  tree.make_program(prefix + "/bin/nvidia-smi");
  tree.make_file(prefix + "/vulkan/icd.d/nvidia_icd.json", "{}");
  tree.make_file(prefix + "/firmware/nvidia/" + kLayoutsVersion + "/gsp_ga10x.bin");
}

TEST(DriverLayoutsTest, GkesDirectoryAsTheDriverRoot) {
  TestTree tree;
  make_gke(tree, "");
  const std::string host = "/home/kubernetes/bin/nvidia";
  tree.make_file("/sys/module/firmware_class/parameters/path", host + "/firmware\n");
  const DriverFiles files = found(tree, host);
  EXPECT_THAT(files.libraries, ElementsAre(mount(host + "/lib64/libcuda.so." + kLayoutsVersion,
                                                 "/lib64/libcuda.so." + kLayoutsVersion),
                                           mount(host + "/lib64/libnvidia-ml.so." + kLayoutsVersion,
                                                 "/lib64/libnvidia-ml.so." + kLayoutsVersion)));
  EXPECT_THAT(files.binaries, ElementsAre(mount(host + "/bin/nvidia-smi", "/bin/nvidia-smi")));
  EXPECT_THAT(files.configs, ElementsAre(mount(host + "/vulkan/icd.d/nvidia_icd.json",
                                               "/etc/vulkan/icd.d/nvidia_icd.json")));
  const std::string firmware = "/firmware/nvidia/" + kLayoutsVersion + "/gsp_ga10x.bin";
  EXPECT_THAT(files.firmware, ElementsAre(mount(host + firmware, firmware)));
}

TEST(DriverLayoutsTest, GkesDirectoryBelowTheHostsRoot) {
  TestTree tree;
  const std::string prefix = "/home/kubernetes/bin/nvidia";
  make_gke(tree, prefix);
  tree.make_file("/usr/lib64/libc.so.6");
  const DriverFiles files = found(tree, "/");
  EXPECT_THAT(files.cuda_library_dirs, ElementsAre(prefix + "/lib64"));
  EXPECT_THAT(files.binaries, ElementsAre(mount(prefix + "/bin/nvidia-smi", "/usr/bin/nvidia-smi")));
  EXPECT_THAT(containers(files.configs), ElementsAre("/etc/vulkan/icd.d/nvidia_icd.json"));
  EXPECT_EQ(files.firmware.size(), 1u);
}

TEST(DriverLayoutsTest, Talos) {
  TestTree tree;
  add_library(tree, "/usr/local/glibc/usr/lib", "libcuda", "libcuda.so.1");
  tree.make_program("/usr/local/bin/nvidia-smi");
  const DriverFiles files = found(tree, "/");
  EXPECT_THAT(files.library_dirs, ElementsAre("/usr/local/glibc/usr/lib"));
  EXPECT_THAT(containers(files.binaries), ElementsAre("/usr/local/bin/nvidia-smi"));
}

// A driver container: its root is a directory of the host, and the kernel's firmware path is the
// host's.
TEST(DriverLayoutsTest, DriverContainer) {
  TestTree tree;
  add_library(tree, kMultiarch, "libcuda", "libcuda.so.1");
  tree.make_link("/lib", "usr/lib");
  tree.make_file("/usr/lib/firmware/nvidia/" + kLayoutsVersion + "/gsp_ga10x.bin");
  tree.make_file("/usr/lib/firmware/updates/nvidia/" + kLayoutsVersion + "/gsp_ga10x.bin");
  tree.make_file("/sys/module/firmware_class/parameters/path", "/run/nvidia/driver/lib/firmware\n");
  tree.make_socket("/run/nvidia-fabricmanager/socket");
  const DriverFiles files = found(tree, "/run/nvidia/driver");
  EXPECT_THAT(
      files.firmware,
      ElementsAre(mount("/run/nvidia/driver/usr/lib/firmware/nvidia/" + kLayoutsVersion + "/gsp_ga10x.bin",
                        "/lib/firmware/nvidia/" + kLayoutsVersion + "/gsp_ga10x.bin")))
      << "the kernel's directory comes first, and each name once";
  EXPECT_THAT(files.sockets, ElementsAre(mount("/run/nvidia/driver/run/nvidia-fabricmanager/socket",
                                               "/run/nvidia-fabricmanager/socket", true)));
  for (const auto* mounts : {&files.libraries, &files.firmware, &files.sockets})
    EXPECT_THAT(*mounts, Each(Field(&FileMount::host_path, StartsWith("/run/nvidia/driver/"))));
}

// NixOS: the directory of the running system holds links into a store.
TEST(DriverLayoutsTest, LinksIntoAStore) {
  TestTree tree;
  tree.make_file("/nix/store/abc-nvidia/lib/libcuda.so." + kLayoutsVersion);
  tree.make_link("/run/opengl-driver/lib/libcuda.so." + kLayoutsVersion,
                 "/nix/store/abc-nvidia/lib/libcuda.so." + kLayoutsVersion);
  const DriverFiles files = found(tree, "/");
  EXPECT_THAT(files.libraries, ElementsAre(mount("/nix/store/abc-nvidia/lib/libcuda.so." + kLayoutsVersion,
                                                 "/run/opengl-driver/lib/libcuda.so." + kLayoutsVersion)));
  EXPECT_THAT(files.library_dirs, ElementsAre("/run/opengl-driver/lib"));
}

TEST(DriverLayoutsTest, SearchPathsReplaceTheKnownOnes) {
  TestTree tree;
  add_library(tree, "/usr/lib64", "libcuda", "libcuda.so.1");
  add_library(tree, "/opt/driver", "libcuda", "libcuda.so.1");
  tree.make_file("/opt/config/nvidia/nvoptix.bin");
  tree.make_file("/usr/share/nvidia/nvoptix.bin");
  DriverFileOptions options;
  options.library_search_paths = {"/opt/driver"};
  options.config_search_paths = {"/opt/config"};
  const DriverFiles files = found(tree, "/", kLayoutsVersion, options);
  EXPECT_THAT(files.cuda_library_dirs, ElementsAre("/opt/driver"));
  EXPECT_THAT(files.configs,
              ElementsAre(mount("/opt/config/nvidia/nvoptix.bin", "/usr/share/nvidia/nvoptix.bin")));
  // The same directory by its name on the host.
  options.library_search_paths = {"/run/nvidia/driver/opt/driver"};
  EXPECT_THAT(found(tree, "/run/nvidia/driver", kLayoutsVersion, options).cuda_library_dirs,
              ElementsAre("/opt/driver"));
}

TEST(DriverLayoutsTest, ExplicitLibraries) {
  TestTree tree;
  add_library(tree, "/usr/lib64", "libcuda", "libcuda.so.1");
  tree.make_file("/usr/lib64/libEGL.so.1.1.0");
  tree.make_link("/usr/lib64/libEGL.so.1", "libEGL.so.1.1.0");
  tree.make_link("/usr/lib64/libEGL.so", "libEGL.so.1");
  EXPECT_THAT(containers(found(tree, "/").libraries), Not(Contains(HasSubstr("libEGL"))));
  DriverFileOptions options;
  options.explicit_libraries = true;
  const DriverFiles files = found(tree, "/", kLayoutsVersion, options);
  EXPECT_THAT(containers(files.libraries), Contains("/usr/lib64/libEGL.so.1.1.0"));
  EXPECT_THAT(files.links, IsSupersetOf({Link{"libEGL.so.1.1.0", "/usr/lib64/libEGL.so.1"},
                                         Link{"libEGL.so.1", "/usr/lib64/libEGL.so"}}));
  EXPECT_THAT(files.warnings, Contains("not found: libOpenCL.so"));
}

TEST(DriverLayoutsTest, ReportsTheInstalledVersion) {
  TestTree tree;
  add_library(tree, "/usr/lib64", "libcuda", "libcuda.so.1");
  const Roots roots = tree.open_tree();
  const auto files = find_driver_files(roots, "570.1.2");
  ASSERT_FALSE(files.has_value());
  EXPECT_EQ(files.error().code(), Code::kNotFound);
  EXPECT_THAT(files.error().message(), AllOf(HasSubstr("lib*.so.570.1.2"), HasSubstr(kLayoutsVersion)));
  EXPECT_EQ(find_driver_files(roots, "../../etc").error().code(), Code::kInvalidArgument);
  TestTree empty;
  EXPECT_EQ(find_driver_files(empty.open_tree(), "").error().code(), Code::kNotFound);
}

TEST(DriverLayoutsTest, NoSocketsWhenSwitchedOff) {
  TestTree tree;
  add_library(tree, "/usr/lib64", "libcuda", "libcuda.so.1");
  tree.make_directory("/tmp/nvidia-mps");
  DriverFileOptions options;
  options.sockets = false;
  EXPECT_THAT(found(tree, "/", kLayoutsVersion, options).sockets, IsEmpty());
}

TEST(DriverLayoutsTest, GdsFiles) {
  TestTree tree;
  EXPECT_THAT(find_gds_files(tree.open_tree()), IsEmpty());
  tree.make_directory("/run/udev");
  tree.make_file("/usr/local/cuda/gds/cufile.json", "{}");
  tree.make_link("/etc/cufile.json", "/usr/local/cuda/gds/cufile.json");
  EXPECT_THAT(find_gds_files(tree.open_tree("/")),
              ElementsAre(mount("/usr/local/cuda/gds/cufile.json", "/etc/cufile.json"),
                          mount("/run/udev", "/run/udev")));
}

TEST(DriverLayoutsTest, Wsl) {
  TestTree tree;
  EXPECT_EQ(find_wsl_files(tree.open_tree()).error().code(), Code::kNotFound);
  const std::string store = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_0123";
  for (const char* name : {"libcuda.so.1.1", "libcuda_loader.so", "nvcubins.bin", "nvidia-smi",
                           "libnvwgf2umx.so", "nvoptix.bin", "readme.txt"})
    tree.make_file(store + "/" + name);
  tree.make_file("/usr/lib/wsl/lib/libdxcore.so");
  tree.make_file("/usr/lib/wsl/lib/libd3d12.so");
  const auto files = find_wsl_files(tree.open_tree("/"));
  ASSERT_TRUE(files.has_value()) << files.error().full_message();
  EXPECT_THAT(containers(files->libraries),
              ElementsAre(store + "/libcuda.so.1.1", store + "/libcuda_loader.so", store + "/libnvwgf2umx.so",
                          store + "/nvcubins.bin", store + "/nvoptix.bin", "/usr/lib/wsl/lib/libdxcore.so"));
  EXPECT_THAT(files->links, ElementsAre(Link{store + "/nvidia-smi", "/usr/bin/nvidia-smi"}));
  EXPECT_THAT(files->library_dirs, ElementsAre(store, "/usr/lib/wsl/lib"));
  EXPECT_THAT(files->warnings, Contains("not found: libnvdxgdmal.so.1"));
}

}  // namespace
}  // namespace gpulet::cdi

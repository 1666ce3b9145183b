// Real driver libraries of two branches in the layouts of tests/drivers/fetch.py, compared with a plain walk
// over the same directories. tests/drivers/run.py creates the layouts and passes their directory in
// GPULET_DRIVER_ROOTS.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <tuple>

#include "cdi/driver_files.h"

namespace gpulet::cdi {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::Field;

struct Branch {
  const char* name;        // the directory of its layouts
  const char* debian;      // its library directory on Debian
  std::size_t min_walked;  // libraries of its version
  std::size_t min_links;
  std::size_t firmware;  // files of the GPU System Processor
  bool gbm;              // has a backend of GBM
};
constexpr Branch kBranches[] = {
    {"470", "/usr/lib/x86_64-linux-gnu/nvidia/tesla-470", 22, 25, 1, false},
    {"535", "/usr/lib/x86_64-linux-gnu/nvidia/current", 24, 25, 2, true},
};

struct Layout {
  const char* name;
  const char* root;       // below the branch's directory
  const char* host_path;  // its path for the container engine
  const char* libcuda;    // its directory in the container; null: the branch's on Debian
  const char* smi;        // nvidia-smi's path in the container
  bool graphics;          // has X's modules and GLVND's configs
};
constexpr Layout kLayouts[] = {
    {"debian", "debian", "/run/nvidia/driver", nullptr, "/usr/bin/nvidia-smi", true},
    {"rhel", "rhel", "/", "/usr/lib64", "/usr/bin/nvidia-smi", true},
    {"gke", "gke/home/kubernetes/bin/nvidia", "/home/kubernetes/bin/nvidia", "/lib64", "/bin/nvidia-smi",
     false},
    {"gke_from_the_host", "gke", "/", "/home/kubernetes/bin/nvidia/lib64", "/usr/bin/nvidia-smi", false},
    {"driver_container", "driver-container", "/run/nvidia/driver", "/usr/lib/x86_64-linux-gnu",
     "/usr/bin/nvidia-smi", true},
};

class DriversTest : public testing::TestWithParam<std::tuple<Branch, Layout>> {
 protected:
  void SetUp() override {
    const char* directory = std::getenv("GPULET_DRIVER_ROOTS");
    ASSERT_NE(directory, nullptr) << "tests/drivers/run.py makes the layouts and runs this";
    root_ = fs::path(directory) / branch().name / layout().root;
    find("", files_);
  }

  static const Branch& branch() { return std::get<Branch>(GetParam()); }
  static const Layout& layout() { return std::get<Layout>(GetParam()); }
  static std::string libcuda_directory() {
    return layout().libcuda == nullptr ? branch().debian : layout().libcuda;
  }

  void find(const std::string& version_hint, DriverFiles& found) const {
    auto roots =
        open_roots({.driver = root_, .driver_on_host = layout().host_path, .dev = "/", .sys = "/sys"});
    ASSERT_TRUE(roots.has_value()) << roots.error().full_message();
    auto files = find_driver_files(*roots, version_hint);
    ASSERT_TRUE(files.has_value()) << files.error().full_message();
    found = std::move(*files);
  }

  // Returns the file in the layout of a host path.
  fs::path path_in_root(const std::string& host_path) const {
    const std::string prefix = layout().host_path;
    return root_ / fs::path(prefix == "/" ? host_path : host_path.substr(prefix.size())).relative_path();
  }

  fs::path root_;
  DriverFiles files_;
};

TEST_P(DriversTest, MountsEveryLibraryOfTheVersionOnce) {
  std::set<fs::path> walked, mounted;
  for (const auto& entry : fs::recursive_directory_iterator(root_)) {
    if (entry.is_regular_file() && !entry.is_symlink() &&
        entry.path().filename().string().ends_with(".so." + files_.version))
      walked.insert(entry.path());
  }
  EXPECT_GE(walked.size(), branch().min_walked);
  for (const FileMount& library : files_.libraries) {
    const fs::path file = path_in_root(library.host_path);
    ASSERT_TRUE(fs::is_regular_file(fs::symlink_status(file))) << library.host_path;
    if (file.filename().string().ends_with(".so." + files_.version)) {
      EXPECT_TRUE(mounted.insert(file).second) << file;
    }
  }
  EXPECT_EQ(mounted, walked);
}

TEST_P(DriversTest, PlacesCudaSmiAndFirmware) {
  const std::string cuda = libcuda_directory() + "/libcuda.so." + files_.version;
  EXPECT_THAT(files_.libraries, Contains(Field(&FileMount::container_path, cuda)));
  EXPECT_THAT(files_.library_dirs, Contains(libcuda_directory()));
  EXPECT_THAT(files_.cuda_library_dirs, Contains(libcuda_directory()));
  EXPECT_THAT(files_.binaries, Contains(Field(&FileMount::container_path, layout().smi)));
  EXPECT_THAT(files_.firmware.size(), branch().firmware);
  EXPECT_THAT(files_.binaries.size(), 5u);
  for (const auto* mounts : {&files_.binaries, &files_.firmware, &files_.configs}) {
    for (const FileMount& mount : *mounts)
      EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(path_in_root(mount.host_path)))) << mount.host_path;
  }
}

// Each link ends at a mounted file, through other created links.
TEST_P(DriversTest, LinksResolveToMountedFiles) {
  EXPECT_GE(files_.links.size(), branch().min_links);
  for (const Link& link : files_.links) {
    std::string at = link.link;
    for (int step = 0; step < 8; ++step) {
      const auto next = std::ranges::find(files_.links, at, &Link::link);
      if (next == files_.links.end()) break;
      at = next->target.starts_with("/")
               ? next->target
               : (fs::path(at).parent_path() / next->target).lexically_normal().string();
    }
    EXPECT_THAT(files_.libraries, Contains(Field(&FileMount::container_path, at))) << link.link;
  }
  EXPECT_THAT(files_.links, Contains(Link{"libcuda.so.1", libcuda_directory() + "/libcuda.so"}));
}

TEST_P(DriversTest, Graphics) {
  auto has = [&](const std::vector<FileMount>& mounts, const std::string& end) {
    return std::ranges::any_of(mounts,
                               [&](const FileMount& each) { return each.container_path.ends_with(end); });
  };
  EXPECT_TRUE(has(files_.libraries, "/libnvidia-egl-wayland.so.1.1.10"));
  EXPECT_EQ(has(files_.libraries, "/libnvidia-egl-gbm.so.1.1.0"), branch().gbm);
  EXPECT_TRUE(has(files_.configs, ".json"));
  EXPECT_EQ(has(files_.libraries, "/nvidia_drv.so"), layout().graphics);
  EXPECT_EQ(has(files_.libraries, "/libglxserver_nvidia.so." + files_.version), layout().graphics);
  EXPECT_EQ(has(files_.configs, "/usr/share/glvnd/egl_vendor.d/10_nvidia.json"), layout().graphics);
  EXPECT_EQ(has(files_.configs, "/etc/OpenCL/vendors/nvidia.icd"), layout().graphics);
}

// The agent knows the version of the loaded driver and searches with it.
TEST_P(DriversTest, TheVersionOfTheLoadedDriverFindsTheSame) {
  EXPECT_TRUE(files_.version.starts_with(std::string(branch().name) + ".")) << files_.version;
  DriverFiles hinted;
  find(files_.version, hinted);
  for (const auto kind :
       {&DriverFiles::libraries, &DriverFiles::binaries, &DriverFiles::firmware, &DriverFiles::configs})
    EXPECT_EQ(hinted.*kind, files_.*kind);
  EXPECT_EQ(hinted.links, files_.links);
  EXPECT_EQ(hinted.warnings, files_.warnings);
}

INSTANTIATE_TEST_SUITE_P(, DriversTest,
                         testing::Combine(testing::ValuesIn(kBranches), testing::ValuesIn(kLayouts)),
                         [](const auto& info) {
                           return std::string(std::get<Branch>(info.param).name) + "_" +
                                  std::get<Layout>(info.param).name;
                         });

}  // namespace
}  // namespace gpulet::cdi

// A driver root with the simulated driver in it, its own machine behind it, for one test. The library is copied: each
// root is then another library to the loader, with its own machine, even within one process.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "sim/state/small_machine.h"

namespace gpulet::nvml {

class SimRoot {
 public:
  explicit SimRoot(const sim::Machine& machine, const char* library = GPULET_SIM_LIBRARY) {
    // Beside the environment's own state, if a developer has one.
    ::unsetenv("GPULET_SIM_STATE");
    char folder[] = "/tmp/gpulet-root-XXXXXX";
    if (::mkdtemp(folder) == nullptr) std::abort();
    path_ = folder;
    install(library, machine.driver.version);
    auto made = sim::StateFile::create(path_ + "/" + std::string(sim::kStatePathInRoot), machine);
    EXPECT_TRUE(made) << made.error().text();
    state_ = std::move(*made);
  }
  explicit SimRoot(std::uint32_t gpus = 4) : SimRoot(*sim::small_machine(gpus)) {}
  // A driver that is only being installed: its library cannot be loaded yet. (With none at all the loader would look
  // for one on this machine, and might find it.)
  static std::unique_ptr<SimRoot> unfinished() {
    auto root = std::make_unique<SimRoot>();
    std::filesystem::remove_all(root->path_ + "/usr");
    root->write("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "");
    return root;
  }
  ~SimRoot() {
    if (state_.valid()) {
      // Whoever still hangs in a call of this machine is let go.
      auto machine = state_.edit();
      machine->driver.hang = 0;
      for (auto& gpu : machine->gpus) gpu.faults = {};
      sim::unload_driver(*machine);
    }
    std::filesystem::remove_all(path_);
  }
  SimRoot(const SimRoot&) = delete;

  const std::string& path() const { return path_; }
  sim::EditGuard edit() { return state_.edit(); }

  void install(const char* library, const std::string& version) {
    const std::string folder = path_ + "/usr/lib/x86_64-linux-gnu";
    std::filesystem::create_directories(folder);
    const std::string name = "libnvidia-ml.so." + version;
    std::filesystem::copy_file(library, folder + "/" + name);
    std::filesystem::remove(folder + "/libnvidia-ml.so.1");
    std::filesystem::create_symlink(name, folder + "/libnvidia-ml.so.1");
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    // The sanitizers do not see the loader unmap a library and map another one in its place.
    EXPECT_NE(::dlopen((folder + "/" + name).c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE), nullptr) << ::dlerror();
#endif
  }
  void write(const std::string& path, const std::string& content) {
    const auto whole = std::filesystem::path(path_ + "/" + path);
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << content;
  }

 private:
  std::string path_;
  sim::StateFile state_;
};

}  // namespace gpulet::nvml

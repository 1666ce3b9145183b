// A driver root with the simulated driver and its own machine, for one test. The library is copied,
// so that each root is a separate library for the loader, with its own machine, even within one
// process.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "sim/state/test_machine.h"

namespace gpulet::nvml {

class SimRoot {
 public:
  explicit SimRoot(const sim::Machine& machine, const char* library = GPULET_SIM_LIBRARY) {
    // Ignores the developer's own simulator state.
    ::unsetenv("GPULET_SIM_STATE");
    char directory[] = "/tmp/gpulet-root-XXXXXX";
    if (::mkdtemp(directory) == nullptr) std::abort();
    path_ = directory;
    install(library, machine.driver.version);
    auto made = sim::StateFile::create_state(path_ + "/" + std::string(sim::kStatePathInRoot), machine);
    EXPECT_TRUE(made) << made.error().full_message();
    state_ = std::move(*made);
  }
  explicit SimRoot(std::uint32_t gpus = 4) : SimRoot(*sim::small_machine(gpus)) {}
  // A driver whose installation is incomplete: its library cannot be loaded yet. (Without any
  // library the loader might find one on this machine.)
  static std::unique_ptr<SimRoot> without_library() {
    auto root = std::make_unique<SimRoot>();
    std::filesystem::remove_all(root->path_ + "/usr");
    root->add_root_file("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "");
    return root;
  }
  ~SimRoot() {
    if (state_.is_mapped()) {
      // Releases every call that still hangs in this machine.
      auto machine = state_.lock_for_edit();
      machine->driver.hang = 0;
      for (auto& gpu : machine->gpus) gpu.faults = {};
      sim::unload_driver(*machine);
    }
    std::filesystem::remove_all(path_);
  }
  SimRoot(const SimRoot&) = delete;

  const std::string& sim_root() const { return path_; }
  sim::EditGuard edit_machine() { return state_.lock_for_edit(); }

  void install(const char* library, const std::string& version,
               const std::string& inside = "/usr/lib/x86_64-linux-gnu") {
    const std::string directory = path_ + inside;
    std::filesystem::create_directories(directory);
    const std::string name = "libnvidia-ml.so." + version;
    std::filesystem::copy_file(library, directory + "/" + name);
    std::filesystem::remove(directory + "/libnvidia-ml.so.1");
    std::filesystem::create_symlink(name, directory + "/libnvidia-ml.so.1");
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    // The sanitizers do not notice that the loader unmaps a library and maps another one in its
    // place.
    EXPECT_NE(::dlopen((directory + "/" + name).c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE), nullptr)
        << ::dlerror();
#endif
  }
  void add_root_file(const std::string& path, const std::string& content) {
    const auto whole = std::filesystem::path(path_ + "/" + path);
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << content;
  }

 private:
  std::string path_;
  sim::StateFile state_;
};

}  // namespace gpulet::nvml

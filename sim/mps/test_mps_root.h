// For one test: a driver root with a simulated machine, nvidia-smi and nvidia-cuda-mps-control, and an MPS
// root beside it. Kills every control daemon below it at the end.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "base/file.h"
#include "base/text.h"
#include "sim/mps/daemon.h"
#include "sim/state/test_machine.h"

namespace gpulet::sim::mps {

class TestMpsRoot {
 public:
  explicit TestMpsRoot(std::uint32_t gpus = 4) {
    ::unsetenv("GPULET_SIM_STATE");
    char directory[] = "/tmp/gpulet-mps-XXXXXX";
    if (::mkdtemp(directory) == nullptr) std::abort();
    path_ = directory;
    install_program("nvidia-cuda-mps-control", GPULET_SIM_MPS_CONTROL);
    auto made =
        StateFile::create_state(driver_root() + "/" + std::string(kStatePathInRoot), *small_machine(gpus));
    EXPECT_TRUE(made) << made.error().full_message();
    state_ = std::move(*made);
  }
  ~TestMpsRoot() {
    std::error_code error;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path_, error)) {
      if (entry.path().filename().string().starts_with("pipe")) kill_daemon(entry.path());
    }
    std::filesystem::remove_all(path_, error);
  }
  TestMpsRoot(const TestMpsRoot&) = delete;

  void install_program(const std::string& name, const std::string& file) const {
    std::filesystem::create_directories(driver_root() + "/usr/bin");
    std::filesystem::copy_file(file, driver_root() + "/usr/bin/" + name);
  }
  void use_driver(const std::string& version) const { set_text(edit_machine()->driver.version, version); }
  std::string driver_root() const { return path_ + "/driver"; }
  std::string control_program() const { return driver_root() + "/usr/bin/nvidia-cuda-mps-control"; }
  std::string mps_root() const { return path_ + "/mps"; }
  std::string pipe_directory(const std::string& resource) const {
    return mps_root() + "/" + resource + "/pipe";
  }
  EditGuard edit_machine() const { return state_.lock_for_edit(); }
  std::unique_ptr<Machine> copy_machine() const { return std::make_unique<Machine>(*state_.lock_for_read()); }

  static void kill_daemon(const std::string& pipes) {
    if (const auto pid = daemon_pid(pipes)) ::kill(*pid, SIGKILL);
  }

 private:
  std::string path_;
  StateFile state_;
};

}  // namespace gpulet::sim::mps

// A node with the simulated MPS program and its daemons, for one test.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mps/daemon.h"
#include "sim/mps/test_mps_root.h"

namespace gpulet::mps {

struct TestMpsNode {
  static constexpr std::chrono::seconds kTestTimeout{30};

  TestMpsNode() {
    options.root = root.mps_root();
    options.driver_root = root.driver_root();
    options.retry = {std::chrono::milliseconds(5), std::chrono::milliseconds(50)};
  }

  // Four shares of each of the first `gpus` GPUs of 81559 MiB.
  DaemonSpec make_spec(unsigned gpus, const std::string& name = "nvidia.com/gpu", unsigned first = 0) const {
    const auto machine = root.copy_machine();
    DaemonSpec made;
    made.name = name;
    made.resources = {ResourceName(name)};
    for (unsigned i = 0; i < gpus; ++i) {
      const DeviceUuid uuid(machine->gpus[first + i].uuid);
      made.devices.push_back({uuid, first + i, false, mebibytes(81559)});
      made.visible_devices.push_back(uuid);
      made.memory_limits.push_back({i, 20389});
    }
    made.thread_percentage = 25;
    return made;
  }

  SetComputeMode set_compute_mode() {
    return [this](const DeviceUuid& uuid, ComputeMode mode, std::function<void(Status)> done) {
      ++mode_calls;
      if (mode_error) return loop.post([done, error = *mode_error] { done(fail(error)); });
      {
        auto machine = root.edit_machine();
        for (auto& gpu : machine->gpus) {
          if (uuid.str() == gpu.uuid) gpu.compute_mode = mode == ComputeMode::kDefault ? 0 : 3;
        }
      }
      loop.post([done] { done({}); });
    };
  }
  std::unique_ptr<Daemon> make_daemon(DaemonSpec made) {
    return std::make_unique<Daemon>(loop, std::move(made), options, set_compute_mode(),
                                    [this](const inventory::Health& health) { history.push_back(health); });
  }

  // Runs the loop until `condition` holds, checked every few milliseconds; false after
  // kTestTimeout.
  bool wait_until(const std::function<bool()>& condition) {
    const Time end = loop.now() + kTestTimeout;
    while (!condition()) {
      if (loop.now() > end) return false;
      run_for(std::chrono::milliseconds(2));
    }
    return true;
  }
  void run_for(Duration duration) {
    const Subscription timer = loop.after(duration, [this] { loop.stop_loop(); });
    loop.run_loop();
  }

  std::string pipes(const std::string& name = "nvidia.com/gpu") const {
    return pipe_directory(options.root, name, protocol);
  }
  std::string send_command(const std::string& command, const std::string& name = "nvidia.com/gpu") const {
    return sim::mps::send_command(pipes(name), command).value_or("gone");
  }
  pid_t pid(const std::string& name = "nvidia.com/gpu") const {
    return sim::mps::daemon_pid(pipes(name)).value_or(0);
  }
  std::vector<unsigned> modes() const {
    std::vector<unsigned> modes;
    const auto machine = root.copy_machine();
    for (unsigned i = 0; i < machine->gpu_count; ++i) modes.push_back(machine->gpus[i].compute_mode);
    return modes;
  }

  sim::mps::TestMpsRoot root;
  EpollLoop loop;
  DaemonOptions options;
  std::vector<inventory::Health> history;
  std::optional<Error> mode_error;
  unsigned mode_calls = 0;
  unsigned protocol = 2;  // of the daemons that the functions above ask
};

}  // namespace gpulet::mps

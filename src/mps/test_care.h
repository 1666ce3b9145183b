// A node with the simulated MPS program and what takes care of its daemons, for one test.
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

struct Care {
  static constexpr std::chrono::seconds kPatience{30};

  Care() {
    options.root = root.root();
    options.driver_root = root.driver_root();
    options.retry = {std::chrono::milliseconds(5), std::chrono::milliseconds(50)};
  }

  // Four shares of each of the first `gpus` GPUs of 81559 MiB.
  DaemonSpec spec(unsigned gpus, const std::string& name = "nvidia.com/gpu", unsigned first = 0) const {
    const auto machine = root.machine();
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
        auto machine = root.edit();
        for (auto& gpu : machine->gpus) {
          if (uuid.str() == gpu.uuid) gpu.compute_mode = mode == ComputeMode::kDefault ? 0 : 3;
        }
      }
      loop.post([done] { done({}); });
    };
  }
  std::unique_ptr<Daemon> daemon(DaemonSpec made) {
    return std::make_unique<Daemon>(loop, std::move(made), options, set_compute_mode(),
                                    [this](const inventory::Health& health) { history.push_back(health); });
  }

  // Runs the loop until `condition` holds, looked at every few milliseconds; false after kPatience.
  bool until(const std::function<bool()>& condition) {
    const Time end = loop.now() + kPatience;
    while (!condition()) {
      if (loop.now() > end) return false;
      run_for(std::chrono::milliseconds(2));
    }
    return true;
  }
  void run_for(Duration duration) {
    const Subscription timer = loop.after(duration, [this] { loop.stop(); });
    loop.run();
  }

  std::string pipes(const std::string& name = "nvidia.com/gpu") const {
    return pipe_directory(options.root, name);
  }
  std::string ask(const std::string& command, const std::string& name = "nvidia.com/gpu") const {
    return sim::mps::ask(pipes(name), command).value_or("gone");
  }
  pid_t pid(const std::string& name = "nvidia.com/gpu") const {
    return sim::mps::daemon_pid(pipes(name)).value_or(0);
  }
  std::vector<unsigned> modes() const {
    std::vector<unsigned> modes;
    const auto machine = root.machine();
    for (unsigned i = 0; i < machine->gpu_count; ++i) modes.push_back(machine->gpus[i].compute_mode);
    return modes;
  }

  sim::mps::TestMpsRoot root;
  EpollLoop loop;
  DaemonOptions options;
  std::vector<inventory::Health> history;
  std::optional<Error> mode_error;
  unsigned mode_calls = 0;
};

}  // namespace gpulet::mps

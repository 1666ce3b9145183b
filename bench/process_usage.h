// What a process and its children have used of the machine. Source: /proc/PID/task/TID/schedstat, status and
// children (proc(5)).
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

namespace gpulet::bench {

// The process and its children, and theirs. One that ends meanwhile is left out.
inline std::vector<pid_t> process_tree(pid_t process) {
  std::vector<pid_t> all{process};
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::error_code ended;
    std::filesystem::directory_iterator task("/proc/" + std::to_string(all[i]) + "/task", ended);
    for (; task != std::filesystem::directory_iterator(); task.increment(ended)) {
      std::ifstream children(task->path() / "children");
      for (pid_t child = 0; children >> child;) all.push_back(child);
    }
  }
  return all;
}

struct Usage {
  std::chrono::nanoseconds cpu{};
  std::uint64_t wake_ups = 0;
  std::size_t threads = 0;
};

// Of every thread of the process and its children.
inline Usage usage_of(pid_t process) {
  Usage usage;
  for (const pid_t pid : process_tree(process)) {
    std::error_code ended;
    std::filesystem::directory_iterator task("/proc/" + std::to_string(pid) + "/task", ended);
    for (; task != std::filesystem::directory_iterator(); task.increment(ended)) {
      ++usage.threads;
      std::int64_t on_cpu = 0;
      std::ifstream(task->path() / "schedstat") >> on_cpu;
      usage.cpu += std::chrono::nanoseconds(on_cpu);
      std::ifstream status(task->path() / "status");
      for (std::string line; std::getline(status, line);) {
        if (line.starts_with("voluntary_ctxt_switches:")) usage.wake_ups += std::stoull(line.substr(24));
      }
    }
  }
  return usage;
}

}  // namespace gpulet::bench

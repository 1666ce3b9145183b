#include "warm_pages.h"

#include <sys/uio.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "process_usage.h"

namespace gpulet::bench {
namespace {

constexpr std::uintptr_t kPageBytes = 4096;
constexpr std::uintptr_t kMostBytes = 64U << 20;  // larger mappings are reserved, not used
constexpr std::size_t kPagesAtOnce = 512;
constexpr std::chrono::milliseconds kInterval{20};

// Pages that cannot be read are left out.
void read_mapping(pid_t pid, std::uintptr_t begin, std::uintptr_t end) {
  std::vector<std::uint64_t> words(kPagesAtOnce);
  std::vector<iovec> local, remote;
  for (auto at = begin; at < end; at += kPageBytes) {
    local.push_back({&words[local.size()], sizeof(std::uint64_t)});
    remote.push_back({reinterpret_cast<void*>(at), sizeof(std::uint64_t)});
    if (local.size() < kPagesAtOnce && at + kPageBytes < end) continue;
    static_cast<void>(::process_vm_readv(pid, local.data(), local.size(), remote.data(), remote.size(), 0));
    local.clear();
    remote.clear();
  }
}

void read_pages(pid_t pid) {
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    char access = '-';
    if (std::sscanf(line.c_str(), "%lx-%lx %c", &begin, &end, &access) != 3) continue;
    const bool is_of_kernel = line.find("[v") != std::string::npos;
    if (access == 'r' && !is_of_kernel && end - begin <= kMostBytes) read_mapping(pid, begin, end);
  }
}

}  // namespace

WarmPages::WarmPages(pid_t process) {
  thread_ = std::thread([this, process] {
    std::unique_lock lock(mutex_);
    while (!is_ending_) {
      for (const pid_t pid : process_tree(process)) read_pages(pid);
      ended_.wait_for(lock, kInterval, [this] { return is_ending_; });
    }
  });
}

WarmPages::~WarmPages() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

}  // namespace gpulet::bench

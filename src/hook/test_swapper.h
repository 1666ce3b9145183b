// For tests: a rival of the hook's.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>

namespace gpulet::hook {

// A rival with the image's files in its hands swaps what the hook is about to use, for as long as it takes.
class Swapper {
 public:
  Swapper(const std::filesystem::path& place, const std::string& target) : place_(place) {
    std::filesystem::create_directories(place);
    std::filesystem::create_symlink(target, other());
    thread_ = std::thread([this] {
      while (!stop_) {
        ::syscall(SYS_renameat2, AT_FDCWD, place_.c_str(), AT_FDCWD, other().c_str(), RENAME_EXCHANGE);
        swaps_++;
      }
    });
  }
  ~Swapper() {
    stop_ = true;
    thread_.join();
  }
  unsigned long swaps() const { return swaps_; }

 private:
  std::string other() const { return place_.string() + ".other"; }
  std::filesystem::path place_;
  std::atomic<bool> stop_{false};
  std::atomic<unsigned long> swaps_{0};
  std::thread thread_;
};

}  // namespace gpulet::hook

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
// Its thread allocates nothing once the constructor has returned: the test forks beside it, and a sanitizer's
// allocator does not know of that.
class Swapper {
 public:
  Swapper(const std::filesystem::path& place, const std::string& target)
      : place_(place), other_(place.string() + ".other") {
    std::filesystem::create_directories(place_);
    std::filesystem::create_symlink(target, other_);
    thread_ = std::thread([this] {
      while (!stop_) {
        ::syscall(SYS_renameat2, AT_FDCWD, place_.c_str(), AT_FDCWD, other_.c_str(), RENAME_EXCHANGE);
        swaps_++;
      }
    });
    while (swaps_ == 0) std::this_thread::yield();
  }
  ~Swapper() {
    stop_ = true;
    thread_.join();
  }
  unsigned long swaps() const { return swaps_; }

 private:
  const std::filesystem::path place_, other_;
  std::atomic<bool> stop_{false};
  std::atomic<unsigned long> swaps_{0};
  std::thread thread_;
};

}  // namespace gpulet::hook

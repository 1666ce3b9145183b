#include "sim/driver/process_end.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>

namespace gpulet::sim {
namespace {

constexpr useconds_t kShutdownUs = 2'000;
std::atomic<bool> is_destroyed{false};

bool is_fragile() {
  static const bool kFragile = std::getenv("GPULET_SIM_FRAGILE") != nullptr;
  return kFragile;
}

struct StaticObject {
  ~StaticObject() {
    if (!is_fragile()) return;
    is_destroyed = true;
    usleep(2 * kShutdownUs);
  }
} static_object;

}  // namespace

void crash_if_destroyed() {
  if (is_destroyed) std::raise(SIGSEGV);
}

void linger_in_shutdown() {
  if (is_fragile()) usleep(kShutdownUs);
}

}  // namespace gpulet::sim

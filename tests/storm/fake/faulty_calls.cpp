// Preloaded into the agent (LD_PRELOAD): file calls that fail on one volume, and a wall clock that jumps, as
// the FaultBlock says. Everything else is passed on to the C library. It must not allocate, nor use what may:
// some of these calls are made before the program's runtime is ready.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "tests/storm/fault_block.h"

namespace {

using gpulet::storm::FaultBlock;

FaultBlock* block = nullptr;
const char* volume = nullptr;
std::size_t volume_length = 0;
dev_t volume_device = 0;

__attribute__((constructor)) void map_fault_block() {
  const char* path = ::getenv(gpulet::storm::kFaultFileVariable);
  const char* directory = ::getenv(gpulet::storm::kVolumeVariable);
  if (path == nullptr || directory == nullptr) return;
  struct stat status{};
  const int fd = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC));
  if (fd < 0 || ::stat(directory, &status) != 0) ::abort();  // a storm without faults would test nothing
  void* memory = ::mmap(nullptr, sizeof(FaultBlock), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::syscall(SYS_close, fd);
  if (memory == MAP_FAILED) ::abort();
  volume = directory;
  volume_length = ::strlen(directory);
  volume_device = status.st_dev;
  block = static_cast<FaultBlock*>(memory);
}

template <class Function>
Function* next_symbol(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

int current_error(bool writes) {
  const int error = block == nullptr ? 0 : block->error.load(std::memory_order_relaxed);
  return error == EROFS && !writes ? 0 : error;
}

void count_change() {
  if (block->changes_left.load(std::memory_order_relaxed) < 0) return;
  if (block->changes_left.fetch_sub(1) == 0) ::kill(::getpid(), SIGKILL);
}

bool fails(int error) {
  if (error != 0) errno = error;
  return error != 0;
}

bool is_log(int fd) { return (::fcntl(fd, F_GETFL) & O_APPEND) != 0; }

bool path_fails(const char* path, bool writes) {
  if (block == nullptr || path == nullptr || ::strncmp(path, volume, volume_length) != 0) return false;
  if (path[volume_length] != '/' && path[volume_length] != '\0') return false;
  if (writes) count_change();
  return fails(current_error(writes));
}

bool descriptor_fails(int fd, bool writes) {
  const int error = current_error(writes);
  const bool counts = writes && block != nullptr && block->changes_left.load(std::memory_order_relaxed) >= 0;
  struct stat status{};
  if ((error == 0 && !counts) || ::fstat(fd, &status) != 0 || status.st_dev != volume_device) return false;
  if (counts && !is_log(fd)) count_change();
  return fails(error);
}

// A path of a call with a directory's descriptor.
bool path_fails(int directory, const char* path, bool writes) {
  if (path != nullptr && path[0] == '/') return path_fails(path, writes);
  return directory != AT_FDCWD && descriptor_fails(directory, writes);
}

bool open_writes(int flags) { return (flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) != 0; }

mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

std::int64_t clock_shift() {
  return block == nullptr ? 0 : block->clock_shift_s.load(std::memory_order_relaxed);
}

// A wait until a time of the shifted clock is one of several short waits, so that a jump counts for a thread
// that waits already, as in the kernel.
constexpr long kPieceNs = 20'000'000;
constexpr long kSecondNs = 1'000'000'000;

bool is_before(const timespec& a, const timespec& b) {
  return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

// The end of the next piece on the real clock; `last`: it is the end of the wait.
timespec piece_end(const timespec& shifted_deadline, bool& last) {
  timespec deadline = shifted_deadline, end{};
  deadline.tv_sec -= clock_shift();
  ::syscall(SYS_clock_gettime, CLOCK_REALTIME, &end);
  end.tv_nsec += kPieceNs;
  if (end.tv_nsec >= kSecondNs) {
    end.tv_nsec -= kSecondNs;
    ++end.tv_sec;
  }
  last = !is_before(end, deadline);
  return last ? deadline : end;
}

}  // namespace

#define GPULET_NEXT(name) static auto* const next = next_symbol<decltype(name)>(#name)

extern "C" {

__attribute__((visibility("default"))) int open(const char* path, int flags, ...) {
  GPULET_NEXT(open);
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return path_fails(path, open_writes(flags)) ? -1 : next(path, flags, mode);
}

__attribute__((visibility("default"))) int open64(const char* path, int flags, ...) {
  GPULET_NEXT(open64);
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return path_fails(path, open_writes(flags)) ? -1 : next(path, flags, mode);
}

__attribute__((visibility("default"))) int openat(int directory, const char* path, int flags, ...) {
  GPULET_NEXT(openat);
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return path_fails(directory, path, open_writes(flags)) ? -1 : next(directory, path, flags, mode);
}

// What open() with a constant path and flags becomes in a hardened build.
__attribute__((visibility("default"))) int __open_2(const char* path, int flags) { return open(path, flags); }
__attribute__((visibility("default"))) int __open64_2(const char* path, int flags) {
  return open64(path, flags);
}

__attribute__((visibility("default"))) ssize_t read(int fd, void* buffer, size_t size) {
  GPULET_NEXT(read);
  return descriptor_fails(fd, false) ? -1 : next(fd, buffer, size);
}

__attribute__((visibility("default"))) ssize_t __read_chk(int fd, void* buffer, size_t size, size_t room) {
  if (size > room) ::abort();
  return read(fd, buffer, size);
}

__attribute__((visibility("default"))) ssize_t write(int fd, const void* buffer, size_t size) {
  GPULET_NEXT(write);
  return descriptor_fails(fd, true) ? -1 : next(fd, buffer, size);
}

__attribute__((visibility("default"))) int fsync(int fd) {
  GPULET_NEXT(fsync);
  return descriptor_fails(fd, true) ? -1 : next(fd);
}

__attribute__((visibility("default"))) int fchmod(int fd, mode_t mode) noexcept {
  GPULET_NEXT(fchmod);
  return descriptor_fails(fd, true) ? -1 : next(fd, mode);
}

__attribute__((visibility("default"))) int rename(const char* from, const char* to) noexcept {
  GPULET_NEXT(rename);
  return path_fails(from, true) || path_fails(to, true) ? -1 : next(from, to);
}

__attribute__((visibility("default"))) int renameat(int from_directory, const char* from, int to_directory,
                                                    const char* to) noexcept {
  GPULET_NEXT(renameat);
  const bool failed = path_fails(from_directory, from, true) || path_fails(to_directory, to, true);
  return failed ? -1 : next(from_directory, from, to_directory, to);
}

__attribute__((visibility("default"))) int unlinkat(int directory, const char* path, int flags) noexcept {
  GPULET_NEXT(unlinkat);
  return path_fails(directory, path, true) ? -1 : next(directory, path, flags);
}

__attribute__((visibility("default"))) int utimensat(int directory, const char* path, const timespec times[2],
                                                     int flags) noexcept {
  GPULET_NEXT(utimensat);
  return path_fails(directory, path, true) ? -1 : next(directory, path, times, flags);
}

__attribute__((visibility("default"))) int unlink(const char* path) noexcept {
  GPULET_NEXT(unlink);
  return path_fails(path, true) ? -1 : next(path);
}

// The kernel finds an existing name before it finds that it cannot write.
__attribute__((visibility("default"))) int mkdir(const char* path, mode_t mode) noexcept {
  GPULET_NEXT(mkdir);
  if (current_error(true) != 0 && ::access(path, F_OK) != 0 && path_fails(path, true)) return -1;
  return next(path, mode);
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, timespec* time) noexcept {
  GPULET_NEXT(clock_gettime);
  const int result = next(clock, time);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    time->tv_sec += clock_shift();
  return result;
}

__attribute__((visibility("default"))) int gettimeofday(timeval* time, void* zone) noexcept {
  GPULET_NEXT(gettimeofday);
  const int result = next(time, zone);
  if (result == 0) time->tv_sec += clock_shift();
  return result;
}

__attribute__((visibility("default"))) time_t time(time_t* out) noexcept {
  GPULET_NEXT(time);
  const time_t now = next(nullptr) + clock_shift();
  if (out != nullptr) *out = now;
  return now;
}

// A condition variable may wake without a reason: the end of a piece is such a wake.
__attribute__((visibility("default"))) int pthread_cond_clockwait(pthread_cond_t* condition,
                                                                  pthread_mutex_t* mutex, clockid_t clock,
                                                                  const timespec* deadline) {
  GPULET_NEXT(pthread_cond_clockwait);
  if (clock != CLOCK_REALTIME || block == nullptr) return next(condition, mutex, clock, deadline);
  bool last = false;
  const timespec end = piece_end(*deadline, last);
  const int result = next(condition, mutex, clock, &end);
  return result == ETIMEDOUT && !last ? 0 : result;
}

// Abseil's mutexes, which gRPC uses, wait by futex(2) until a time of the wall clock.
__attribute__((visibility("default"))) long syscall(long number, ...) noexcept {
  using Call = long(long, ...);
  static auto* const next = next_symbol<Call>("syscall");
  va_list arguments;
  va_start(arguments, number);
  long values[6];
  for (long& value : values) value = va_arg(arguments, long);
  va_end(arguments);
  const bool waits = number == SYS_futex && block != nullptr && values[3] != 0 &&
                     (values[1] & FUTEX_CLOCK_REALTIME) != 0 &&
                     (values[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET;
  if (!waits) return next(number, values[0], values[1], values[2], values[3], values[4], values[5]);
  bool last = false;
  const timespec end = piece_end(*reinterpret_cast<const timespec*>(values[3]), last);
  const long result =
      next(number, values[0], values[1], values[2], reinterpret_cast<long>(&end), values[4], values[5]);
  if (result == -1 && errno == ETIMEDOUT && !last) errno = EINTR;
  return result;
}

}  // extern "C"

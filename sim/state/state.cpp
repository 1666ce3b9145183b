// The shared file: its making and mapping, its lock and the futex of its changes. The mutex is robust and the
// futex word is keyed by the file, so that both work between containers too, each with process ids of its
// own.
#include "sim/state/state.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <new>

#include "base/file.h"

namespace gpulet::sim {
namespace {

long futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, word, operation, value, timeout, nullptr, 0);
}

void lock(Shared* shared) {
  // Who died with the lock held had at most half written one number: all of them are plain, so go on from
  // there.
  if (pthread_mutex_lock(&shared->mutex) == EOWNERDEAD) pthread_mutex_consistent(&shared->mutex);
}

Status initialise_mutex(pthread_mutex_t& mutex) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  const int error = pthread_mutex_init(&mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  if (error != 0) return fail(errno_error("make a shared mutex", error));
  return {};
}

Result<Shared*> map(int fd, const std::string& path) {
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return fail(errno_error("map", errno, path));
  return static_cast<Shared*>(memory);
}

// Who still has the file at `path` mapped sees the driver go. Returns the generation that the next state
// begins with.
std::uint32_t retire(const std::string& path) {
  auto old = StateFile::open(path);
  if (!old) return 1;
  EditGuard machine = old->edit();
  unload_driver(*machine);
  return machine->driver.generation + 1;
}

}  // namespace

template <class Target>
Guard<Target>::Guard(Shared* shared) : shared_(shared) {
  lock(shared_);
}

template <class Target>
Guard<Target>::~Guard() {
  if (shared_ == nullptr) return;
  constexpr bool kEdits = !std::is_const_v<Target>;
  if (kEdits) shared_->changes.fetch_add(1, std::memory_order_seq_cst);
  pthread_mutex_unlock(&shared_->mutex);
  if (kEdits && shared_->waiters.load(std::memory_order_seq_cst) != 0) {
    futex(&shared_->changes, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

template class Guard<Machine>;
template class Guard<const Machine>;

StateFile& StateFile::operator=(StateFile&& other) noexcept {
  std::swap(shared_, other.shared_);
  std::swap(path_, other.path_);
  return *this;
}

StateFile::~StateFile() {
  if (shared_ != nullptr) munmap(shared_, sizeof(Shared));
}

Result<StateFile> StateFile::create(const std::string& path, const Machine& initial) {
  const auto slash = path.rfind('/');
  if (slash != std::string::npos && slash > 0) GPULET_TRY(make_directories(path.substr(0, slash)));
  const std::uint32_t generation = std::max(retire(path), initial.driver.generation);

  const std::string fresh = path + ".new";
  unlink(fresh.c_str());
  FileDescriptor fd(::open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid()) return fail(errno_error("create", errno, fresh));
  if (ftruncate(fd.get(), sizeof(Shared)) != 0) return fail(errno_error("size", errno, fresh));
  GPULET_TRY_ASSIGN(Shared * shared, map(fd.get(), fresh));
  StateFile file;
  file.shared_ = shared;
  file.path_ = path;

  new (&shared->changes) std::atomic<std::uint32_t>(0);
  new (&shared->waiters) std::atomic<std::uint32_t>(0);
  GPULET_TRY(initialise_mutex(shared->mutex));
  std::memcpy(static_cast<void*>(&shared->machine), &initial, sizeof(Machine));
  shared->machine.driver.generation = generation;
  for (std::uint32_t i = 0; i < initial.gpu_count; ++i) {
    Gpu& gpu = shared->machine.gpus[i];
    if (gpu.energy_since_ns == 0) gpu.energy_since_ns = monotonic_ns();
  }
  shared->layout_version = kLayoutVersion;
  shared->bytes = sizeof(Shared);
  shared->magic = kMagic;
  if (fchmod(fd.get(), 0666) != 0) return fail(errno_error("chmod", errno, fresh));
  if (rename(fresh.c_str(), path.c_str()) != 0) return fail(errno_error("rename", errno, path));
  return file;
}

Result<StateFile> StateFile::open(const std::string& path) {
  FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid()) return fail(errno_error("open", errno, path));
  struct stat info{};
  if (fstat(fd.get(), &info) != 0) return fail(errno_error("stat", errno, path));
  if (info.st_size != static_cast<off_t>(sizeof(Shared))) {
    return fail(Code::kFailedPrecondition, "not a state of this build of the simulated driver", path);
  }
  GPULET_TRY_ASSIGN(Shared * shared, map(fd.get(), path));
  StateFile file;
  file.shared_ = shared;
  file.path_ = path;
  if (shared->magic != kMagic || shared->layout_version != kLayoutVersion ||
      shared->bytes != sizeof(Shared)) {
    return fail(Code::kFailedPrecondition, "not a state of this build of the simulated driver", path);
  }
  return file;
}

void StateFile::wait(std::uint32_t seen, std::int64_t timeout_ms) const {
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(timeout_ms / 1000);
  timeout.tv_nsec = static_cast<long>(timeout_ms % 1000) * 1'000'000;
  shared_->waiters.fetch_add(1, std::memory_order_seq_cst);
  if (changes() == seen) futex(&shared_->changes, FUTEX_WAIT, seen, timeout_ms < 0 ? nullptr : &timeout);
  shared_->waiters.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace gpulet::sim

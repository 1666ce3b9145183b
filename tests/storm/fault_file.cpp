#include "tests/storm/fault_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <new>

#include "base/file.h"
#include "base/text.h"

namespace gpulet::storm {
namespace {

// The sanitizer runtime of this process must come before any other preloaded library.
std::string sanitizer_runtime() {
  const auto maps = read_file("/proc/self/maps");
  for (const auto& line : text::split(maps.value_or(""), '\n')) {
    const auto slash = line.find('/');
    if (slash != std::string::npos && line.find("/libasan.so", slash) != std::string::npos)
      return line.substr(slash);
  }
  return {};
}

}  // namespace

bool is_sanitized(const std::string& programs) {
  return programs == GPULET_PROGRAMS && !sanitizer_runtime().empty();
}

void FaultFile::Unmap::operator()(FaultBlock* block) const { ::munmap(block, sizeof(FaultBlock)); }

Result<FaultFile> FaultFile::create_file(const std::string& path) {
  const FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.is_open() || ::ftruncate(fd.get(), sizeof(FaultBlock)) != 0)
    return fail(errno_error("cannot create", errno, path));
  void* memory = ::mmap(nullptr, sizeof(FaultBlock), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return fail(errno_error("cannot map", errno, path));
  FaultFile file;
  file.path_ = path;
  file.block_.reset(new (memory) FaultBlock);
  return file;
}

std::vector<std::string> FaultFile::environment(const std::string& library, const std::string& programs,
                                                const std::string& volume) const {
  const std::string runtime = is_sanitized(programs) ? sanitizer_runtime() + ":" : "";
  return {"LD_PRELOAD=" + runtime + library, std::string(kFaultFileVariable) + "=" + path_,
          std::string(kVolumeVariable) + "=" + volume};
}

}  // namespace gpulet::storm

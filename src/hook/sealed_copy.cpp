#include "hook/sealed_copy.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

namespace gpulet::hook {
namespace {

#if defined(__x86_64__)
constexpr Elf64_Half kElfMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr Elf64_Half kElfMachine = EM_AARCH64;
#else
#error "which machine's programs run here?"
#endif

Result<FileDescriptor> open_program(const std::string& path, std::size_t& size) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file.valid()) return fail(errno_error("cannot open the host's ldconfig", errno, path));
  struct stat status{};
  if (::fstat(file.get(), &status) != 0)
    return fail(errno_error("cannot examine the host's ldconfig", errno, path));
  if (!S_ISREG(status.st_mode))
    return fail(Code::kFailedPrecondition, "the host's ldconfig is not a regular file", path);
  size = static_cast<std::size_t>(status.st_size);
  if (size > kMaxProgramBytes)
    return fail(Code::kInvalidArgument, "the host's ldconfig is too large to be one", path);
  return file;
}

Result<FileDescriptor> new_memory() {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  FileDescriptor memory(::memfd_create("ldconfig", kFlags | MFD_EXEC));
  // Linux 6.3 knows MFD_EXEC; before it every such file may be executed.
  if (!memory.valid() && errno == EINVAL) memory = FileDescriptor(::memfd_create("ldconfig", kFlags));
  if (memory.valid()) return memory;
  return fail(Code::kUnsupported, std::string("cannot make a file in memory: ") + ::strerror(errno));
}

bool read_at(int fd, std::uint64_t offset, void* out, std::size_t size) {
  return ::pread(fd, out, size, static_cast<off_t>(offset)) == static_cast<ssize_t>(size);
}

// Asked of the copy, which does not change any more.
Status check_static(int fd, const std::string& path) {
  constexpr std::size_t kMaxSegments = 64;
  Elf64_Ehdr header{};
  if (!read_at(fd, 0, &header, sizeof header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
    return fail(Code::kFailedPrecondition,
                "the host's ldconfig is not a program but a script, say: name the real one", path);
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != kElfMachine ||
      header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phnum > kMaxSegments)
    return fail(Code::kFailedPrecondition, "the host's ldconfig is not a program of this machine's", path);
  for (std::size_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    if (!read_at(fd, header.e_phoff + i * sizeof segment, &segment, sizeof segment))
      return fail(Code::kFailedPrecondition, "the host's ldconfig is cut off", path);
    if (segment.p_type == PT_INTERP)
      return fail(Code::kFailedPrecondition,
                  "the host's ldconfig is not static: it would run the container's loader", path);
  }
  return {};
}

}  // namespace

Result<FileDescriptor> sealed_ldconfig(const std::string& path) {
  std::size_t size = 0;
  auto file = open_program(path + ".real", size);
  if (!file && file.error().code() == Code::kNotFound) file = open_program(path, size);
  if (!file) return fail(file.error());
  GPULET_TRY_ASSIGN(FileDescriptor copy, new_memory());
  off_t offset = 0;
  while (static_cast<std::size_t>(offset) < size) {
    const ssize_t sent =
        ::sendfile(copy.get(), file->get(), &offset, size - static_cast<std::size_t>(offset));
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return fail(errno_error("cannot copy the host's ldconfig", errno, path));
    if (sent == 0) break;  // it became shorter
  }
  constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
  if (::fcntl(copy.get(), F_ADD_SEALS, kSeals) != 0)
    return fail(Code::kUnsupported, std::string("cannot seal a file in memory: ") + ::strerror(errno));
  GPULET_TRY(check_static(copy.get(), path));
  return copy;
}

}  // namespace gpulet::hook

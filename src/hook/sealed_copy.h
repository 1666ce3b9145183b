// A program of the host's as a file that nobody can change any more: a sealed copy in memory, run by its
// descriptor, so that neither its path nor the host's file is seen by what it runs among.
#pragma once

#include <string>

#include "base/file.h"
#include "base/result.h"

namespace gpulet::hook {

inline constexpr std::size_t kMaxProgramBytes = 64u << 20;

// The host's ldconfig at `path`: "<path>.real" where there is one, for Ubuntu's is a script around it, else
// `path`. It must be a static ELF program, as every distribution's is: one with an interpreter would run the
// loader of the container that it is run in. Errors: kNotFound, kFailedPrecondition (a script, dynamic,
// another machine's), kInvalidArgument (larger than kMaxProgramBytes), kUnsupported (no sealed files here),
// kIo.
Result<FileDescriptor> sealed_ldconfig(const std::string& path);

}  // namespace gpulet::hook

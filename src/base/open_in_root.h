// Opens a path inside a folder that stands for "/": openat2 with RESOLVE_IN_ROOT where the kernel has it
// (5.6) and lets us, and the same step by step where not: RHEL 8, Ubuntu 20.04's first kernel, old seccomp
// profiles.
#pragma once

#include <cstdint>
#include <string>

namespace gpulet {

// `flags` are open(2)'s, O_CLOEXEC is added; `more_resolve` are openat2's RESOLVE_ flags beside
// RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS. Returns the descriptor, or -1 with errno.
int open_in_root(int root, const std::string& path, int flags, std::uint64_t more_resolve);

// Without openat2: every component is opened from the one before it and not followed; a link's text is walked
// by us. RESOLVE_NO_SYMLINKS is honoured. A magic link of /proc counts by its text, inside the root.
int open_in_root_by_steps(int root, const std::string& path, int flags, std::uint64_t more_resolve);

}  // namespace gpulet

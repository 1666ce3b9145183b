// The loader's cache, /etc/ld.so.cache, which maps library names to files. Used if a driver's libraries are
// in none of the known directories (Bottlerocket, Mageia, a custom prefix). Source: glibc's dl-cache.h: the
// format "glibc-ld.so.cache1.1", alone or behind the older "ld.so-1.7.0".
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpulet {

class RootDirectory;

struct LdCacheEntry {
  std::string_view name;  // "libcuda.so.1"
  std::string_view path;  // "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
};

// Where a root may have its cache, relative to it: "/etc/ld.so.cache". Pure.
std::span<const std::string_view> ld_cache_files();

// The libraries of this machine's architecture, in the cache's order; the views point into `bytes`. Pure.
// Errors: kInvalidArgument for anything that is not such a cache or has offsets outside itself.
Result<std::vector<LdCacheEntry>> parse_ld_cache(std::string_view bytes);

// The paths inside `root` that its caches have for the library `name` ("libnvidia-ml.so.1"). A cache that is
// missing or damaged has none.
std::vector<std::string> find_in_ld_caches(const RootDirectory& root, std::string_view name);

}  // namespace gpulet

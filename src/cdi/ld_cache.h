// The loader's cache, /etc/ld.so.cache: which file a library's name leads to. Read where a driver's libraries
// lie in none of the known folders (Bottlerocket, Mageia, an own prefix). Source: glibc's dl-cache.h: the
// format "glibc-ld.so.cache1.1", alone or behind the older "ld.so-1.7.0".
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpulet::cdi {

struct LdCacheEntry {
  std::string_view name;  // "libcuda.so.1"
  std::string_view path;  // "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
};

// The libraries of this machine's architecture, in the cache's order; the views are into `bytes`.
// Errors: kInvalidArgument for anything that is not such a cache or that points outside itself.
Result<std::vector<LdCacheEntry>> parse_ld_cache(std::string_view bytes);

}  // namespace gpulet::cdi

// The driver's library, libnvidia-ml.so.1, found and loaded as NVIDIA's plugin does: in six directories below the
// container's driver root, else by the loader's own search.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"

namespace gpulet::nvml {

struct Api;

inline constexpr std::string_view kLibraryName = "libnvidia-ml.so.1";

// One loaded copy. Destroying it unloads it, so whoever may be inside one of its functions holds a shared_ptr.
class Library {
 public:
  // Loads by the path that every link leads to ("…/libnvidia-ml.so.570.124.06"): after a driver update the loader must
  // not answer with the old library, which somebody may still hold, under the same name.
  // `driver_root`: "/driver-root", "/", or what is not there.
  // `name`: for tests, which must not find the driver of the machine that they run on.
  // Errors: kUnavailable, saying where it looked and what the loader said.
  // Source: facts/device-plugin 1.1 (--driver-root-ctr-path).
  static Result<std::shared_ptr<const Library>> open(const std::string& driver_root,
                                                     const std::string& name = std::string(kLibraryName));
  ~Library();
  Library(const Library&) = delete;

  // Functions that this driver does not have are null.
  const Api& api() const { return *api_; }
  const std::string& path() const { return path_; }

 private:
  Library(void* handle, std::string path);
  void* handle_;
  std::string path_;
  std::unique_ptr<const Api> api_;
};

}  // namespace gpulet::nvml

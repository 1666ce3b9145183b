#include "nvml/library.h"

#include <dlfcn.h>

#include "base/file.h"
#include "nvml/api.h"

namespace gpulet::nvml {
namespace {

// In NVIDIA's order. Source: k8s-device-plugin, cmd/nvidia-device-plugin/root.go.
constexpr std::string_view kDirectories[] = {
    "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
    "/lib64",     "/lib/x86_64-linux-gnu",     "/lib/aarch64-linux-gnu",
};

// The library's own path below `driver_root`, or empty.
std::string find_below(const std::string& driver_root, const std::string& name) {
  const auto root = RootDirectory::open(driver_root);
  if (!root) return {};
  for (const auto directory : kDirectories) {
    const auto inside = root->resolve(std::string(directory) + "/" + name);
    if (!inside) continue;
    return (driver_root == "/" ? std::string() : driver_root) + *inside;
  }
  return {};
}

std::string loader_error() {
  const char* text = ::dlerror();
  return text == nullptr ? "unknown error" : text;
}

template <class Function>
Function find_symbol(void* handle, const char* name, const char* older) {
  void* found = ::dlsym(handle, name);
  if (found == nullptr && older != nullptr) found = ::dlsym(handle, older);
  return reinterpret_cast<Function>(found);
}

}  // namespace

Library::Library(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {
  auto api = std::make_unique<Api>();
#define GPULET_NVML_FIND(function, older) \
  api->function = find_symbol<decltype(api->function)>(handle_, #function, older);
  GPULET_NVML_FUNCTIONS(GPULET_NVML_FIND)
#undef GPULET_NVML_FIND
  api_ = std::move(api);
}

Library::~Library() { ::dlclose(handle_); }

Result<std::shared_ptr<const Library>> Library::open(const std::string& driver_root, const std::string& name) {
  const std::string below = find_below(driver_root, name);
  const std::string path = below.empty() ? name : below;
  void* handle = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) {
    const std::string why = loader_error();
    return fail(Code::kUnavailable,
                below.empty() ? "no NVIDIA driver here: " + name + " is neither below " + driver_root +
                                    " nor where the loader looks (" + why + ")"
                              : "the NVIDIA driver's library cannot be loaded: " + why);
  }
  return std::shared_ptr<const Library>(new Library(handle, path));
}

}  // namespace gpulet::nvml

#include "nvml/library.h"

#include <dlfcn.h>

#include "base/driver_root.h"
#include "base/file.h"

namespace gpulet::nvml {
namespace {

// The library's resolved path below `driver_root`, or empty.
std::string find_below(const std::string& driver_root, const std::string& name) {
  const auto root = RootDirectory::open_root(driver_root);
  if (!root) return {};
  for (const auto directory : library_directories()) {
    const auto inside = root->resolve(std::string(directory) + "/" + name);
    if (inside) return (driver_root == "/" ? std::string() : driver_root) + *inside;
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

Result<std::shared_ptr<const Library>> Library::load_library(const std::string& driver_root,
                                                             const std::string& name) {
  const std::string below = find_below(driver_root, name);
  const std::string path = below.empty() ? name : below;
  void* handle = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) {
    const std::string why = loader_error();
    return fail(Code::kUnavailable, below.empty()
                                        ? "no NVIDIA driver found: " + name + " is neither below " +
                                              driver_root + " nor in the loader's search path (" + why + ")"
                                        : "cannot load the NVIDIA driver's library: " + why);
  }
  return std::shared_ptr<const Library>(new Library(handle, path));
}

Code to_code(nvmlReturn_t result) {
  switch (result) {
    case NVML_ERROR_INVALID_ARGUMENT:
    case NVML_ERROR_INSUFFICIENT_SIZE:
      return Code::kInvalidArgument;
    case NVML_ERROR_NOT_SUPPORTED:
    case NVML_ERROR_FUNCTION_NOT_FOUND:
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
    case NVML_ERROR_DEPRECATED:
      return Code::kUnsupported;
    case NVML_ERROR_NO_PERMISSION:
      return Code::kPermissionDenied;
    case NVML_ERROR_NOT_FOUND:
      return Code::kNotFound;
    case NVML_ERROR_TIMEOUT:
      return Code::kDeadlineExceeded;
    case NVML_ERROR_GPU_IS_LOST:
    case NVML_ERROR_GPU_NOT_FOUND:
      return Code::kDeviceLost;
    case NVML_ERROR_RESET_REQUIRED:
    case NVML_ERROR_IN_USE:
    case NVML_ERROR_INSUFFICIENT_RESOURCES:
    case NVML_ERROR_NOT_READY:
    case NVML_ERROR_INVALID_STATE:
      return Code::kFailedPrecondition;
    // The driver is gone or its library was replaced: the caller must open a new Session.
    case NVML_ERROR_UNINITIALIZED:
    case NVML_ERROR_DRIVER_NOT_LOADED:
    case NVML_ERROR_LIBRARY_NOT_FOUND:
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH:
      return Code::kUnavailable;
    default:
      return Code::kIo;
  }
}

Status to_status(const Api& api, nvmlReturn_t result, const char* function) {
  if (result == NVML_SUCCESS) return {};
  const char* message = api.nvmlErrorString != nullptr ? api.nvmlErrorString(result) : nullptr;
  return fail(to_code(result),
              std::string(function) + ": " +
                  (message != nullptr ? std::string(message) : "NVML error " + std::to_string(result)));
}

}  // namespace gpulet::nvml

#include "nvml/library.h"

#include <dlfcn.h>

#include <algorithm>
#include <vector>

#include "base/driver_library.h"

namespace gpulet::nvml {
namespace {

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
                                                             const std::vector<std::string>& directories,
                                                             const std::string& name) {
  const std::string below = find_driver_library(driver_root, directories, name);
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

Status to_status(const Api& api, nvmlReturn_t result, const char* function) {
  if (result == NVML_SUCCESS) return {};
  const auto& row = find_return_code(result);
  const char* message = api.nvmlErrorString != nullptr ? api.nvmlErrorString(result) : nullptr;
  std::string text = std::string(function) + ": ";
  if (message != nullptr) {
    text += message;
  } else {
    text += "NVML error " + (row.nvml_return == result ? std::string(row.name) : std::to_string(result));
  }
  if (row.meaning == Meaning::kNeedsRight) text += "; it needs " + std::string(needed_right(function));
  return fail(row.code, std::move(text));
}

std::uint64_t field_number(const nvmlFieldValue_t& field) {
  if (field.fieldId == NVML_FI_DEV_MEMORY_TEMP) return field.value.uiVal;
  switch (field.valueType) {
    case NVML_VALUE_TYPE_DOUBLE:
      return static_cast<std::uint64_t>(std::max(0.0, field.value.dVal));
    case NVML_VALUE_TYPE_UNSIGNED_INT:
    case NVML_VALUE_TYPE_SIGNED_INT:
      return field.value.uiVal;
    case NVML_VALUE_TYPE_UNSIGNED_SHORT:
      return field.value.usVal;
    default:
      return field.value.ullVal;
  }
}

}  // namespace gpulet::nvml

#include "preflight/cuda_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <string_view>

namespace gpulet::preflight {

namespace {

// libcuda loads its compiler of PTX by name, which finds only what is on the loader's path or loaded already:
// in a driver root, neither. Those of the same version, beside it; where one is missing, `compute` does not
// run. The root's directory is no library path, because its libc is not this process's.
void load_compiler(const std::string& cuda_path) {
  const auto slash = cuda_path.rfind('/');
  const auto name = cuda_path.substr(slash == std::string::npos ? 0 : slash + 1);
  constexpr std::string_view kStem = "libcuda.so.";
  if (slash == std::string::npos || !name.starts_with(kStem)) return;
  const auto directory = cuda_path.substr(0, slash + 1);
  const auto version = name.substr(kStem.size());
  for (const char* const library : {"libnvidia-gpucomp.so.", "libnvidia-ptxjitcompiler.so."})
    ::dlopen((directory + library + version).c_str(), RTLD_LAZY | RTLD_GLOBAL | RTLD_NODELETE);
}

}  // namespace

Result<std::unique_ptr<CudaLibrary>> CudaLibrary::load_library(const std::string& path) {
  load_compiler(path);
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    return fail(Code::kUnavailable, "cannot load libcuda: " + std::string(why == nullptr ? "" : why));
  }
  auto library = std::make_unique<CudaLibrary>();
#define GPULET_CUDA_FIND(member, name, parameters)                                      \
  library->member = reinterpret_cast<decltype(library->member)>(::dlsym(handle, name)); \
  if (library->member == nullptr) return fail(Code::kUnavailable, "libcuda has no " name);
  GPULET_CUDA_FUNCTIONS(GPULET_CUDA_FIND)
#undef GPULET_CUDA_FIND
  return library;
}

std::string CudaLibrary::error_text(CudaResult result) const {
  const char* name = nullptr;
  if (error_name(result, &name) == 0 && name != nullptr) return name;
  return "CUDA error " + std::to_string(result);
}

bool is_gpu_fault(CudaResult result) {
  // ECC_UNCORRECTABLE, NVLINK_UNCORRECTABLE, ILLEGAL_ADDRESS, HARDWARE_STACK_ERROR, ILLEGAL_INSTRUCTION,
  // MISALIGNED_ADDRESS, INVALID_ADDRESS_SPACE, INVALID_PC, LAUNCH_FAILED, CONTAINED: of the checks' own calls
  // and kernel, whose addresses and instructions are right.
  static constexpr CudaResult kFaults[] = {214, 220, 700, 714, 715, 716, 717, 718, 719, 721};
  return std::ranges::find(kFaults, result) != std::end(kFaults);
}

}  // namespace gpulet::preflight

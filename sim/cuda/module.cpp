// Modules and kernels as stubs: a module is accepted if it looks like one, and a kernel does nothing, except
// the one of gpulet's preflight, which is known by its name and has its effect.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "sim/cuda/client.h"
#include "sim/cuda/stream.h"

using namespace gpulet::sim;
using namespace gpulet::sim::cuda;

namespace {

constexpr unsigned int kMaxThreads = 1024;

struct Module {
  CUcontext context = nullptr;
  std::string ptx{};  // empty: of machine code, whose names are not read
};
struct Function {
  CUmodule module = nullptr;
  std::string name{};
};

HandleTable<CUmodule, Module>& modules() {
  static auto* const kModules = new HandleTable<CUmodule, Module>;
  return *kModules;
}
HandleTable<CUfunction, Function>& functions() {
  static auto* const kFunctions = new HandleTable<CUfunction, Function>;
  return *kFunctions;
}

// ELF, a fat binary, or PTX, which is text.
bool is_machine_code(const char* image) {
  return std::memcmp(image,
                     "\x7f"
                     "ELF",
                     4) == 0 ||
         std::memcmp(image, "\x50\xed\x55\xba", 4) == 0;
}

CUresult load_module(CUmodule* module, const void* image) {
  const ContextCall call;
  if (const auto error = call.call_error(module, image)) return error;
  const char* const text = static_cast<const char*>(image);
  Module made{call.handle()};
  // Byte by byte: an image may be shorter than a magic number.
  const bool is_short = text[0] == '\0' || text[1] == '\0' || text[2] == '\0' || text[3] == '\0';
  if (is_short) return CUDA_ERROR_INVALID_IMAGE;
  if (!is_machine_code(text)) {
    made.ptx = text;
    if (made.ptx.find(".version") == std::string::npos) return CUDA_ERROR_INVALID_IMAGE;
  }
  *module = modules().add(std::move(made));
  return CUDA_SUCCESS;
}

bool has_kernel(const Module& module, const std::string& name) {
  if (module.ptx.empty()) return !name.empty();
  const auto at = module.ptx.find(".entry " + name);
  if (name.empty() || at == std::string::npos) return false;
  const char after = module.ptx[at + std::strlen(".entry ") + name.size()];
  return after == '(' || after == ' ' || after == '\n' || after == '\t' || after == '\r';
}

// gpulet_preflight(out, count, rounds) of src/preflight/kernel.h, whose comment says what it computes.
constexpr const char* kPreflightKernel = "gpulet_preflight";

CUresult run_preflight_kernel(const Gpu& gpu, std::uint64_t threads, void** parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto address = *static_cast<const CUdeviceptr*>(parameters[0]);
  const auto count = *static_cast<const std::uint32_t*>(parameters[1]);
  const auto rounds = *static_cast<const std::uint32_t*>(parameters[2]);
  if (find_allocation(address, std::uint64_t{count} * 4) == nullptr) return CUDA_ERROR_LAUNCH_FAILED;
  auto* const out = reinterpret_cast<std::uint32_t*>(address);
  for (std::uint32_t i = 0; i < count && i < threads; ++i) {
    std::uint32_t x = i * 0x9E3779B9U + 1;
    float f = 1.0F;
    for (std::uint32_t round = 0; round < rounds; ++round) {
      x = x * 1664525U + 1013904223U;
      x ^= x >> 13;
      f = std::fma(f, 0.5F, static_cast<float>(x >> 8) * 0x1p-24F);
    }
    std::uint32_t bits = 0;
    std::memcpy(&bits, &f, sizeof bits);
    out[i] = x ^ bits;
  }
  if (gpu.faults.wrong_results != 0 && count > 7) out[7] += 2;
  return CUDA_SUCCESS;
}

bool is_size(unsigned int x, unsigned int y, unsigned int z, std::uint64_t most) {
  return x != 0 && y != 0 && z != 0 && std::uint64_t{x} * y <= most && std::uint64_t{x} * y * z <= most;
}

}  // namespace

GPULET_CUDA_EXPORT cuModuleLoadData(CUmodule* module, const void* image) {
  return load_module(module, image);
}
GPULET_CUDA_EXPORT cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int, int*, void**) {
  return load_module(module, image);
}
GPULET_CUDA_EXPORT cuModuleUnload(CUmodule module) {
  const Call call;
  if (const auto error = call.call_error()) return error;
  if (!modules().remove(module)) return CUDA_ERROR_INVALID_HANDLE;
  functions().remove_if([module](const Function& function) { return function.module == module; });
  return CUDA_SUCCESS;
}
GPULET_CUDA_EXPORT cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  const ContextCall call;
  if (const auto error = call.call_error(function, name)) return error;
  const Module* const found = modules().find(module);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!has_kernel(*found, name)) return CUDA_ERROR_NOT_FOUND;
  *function = functions().add(Function{module, name});
  return CUDA_SUCCESS;
}
// Modules have no memory.
GPULET_CUDA_EXPORT cuModuleGetGlobal_v2(CUdeviceptr*, std::size_t*, CUmodule module, const char* name) {
  const ContextCall call;
  if (const auto error = call.call_error(name)) return error;
  return modules().find(module) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_NOT_FOUND;
}

// CUfunction_attribute: 0 MAX_THREADS_PER_BLOCK, 5 PTX_VERSION, 6 BINARY_VERSION.
GPULET_CUDA_EXPORT cuFuncGetAttribute(int* value, int attribute, CUfunction function) {
  const ContextCall call;
  if (const auto error = call.call_error(value)) return error;
  if (functions().find(function) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (attribute < 0 || attribute > 15) return CUDA_ERROR_INVALID_VALUE;
  *value = attribute == 0 ? static_cast<int>(kMaxThreads) : 0;
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                  unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                  unsigned int block_z, unsigned int /*shared_bytes*/, CUstream stream,
                                  void** parameters, void** /*extra*/) {
  const ContextCall call;
  if (const auto error = call.call_error()) return error;
  const Function* const found = functions().find(function);
  if (found == nullptr || !is_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
  const bool is_valid = is_size(grid_x, grid_y, grid_z, ~std::uint64_t{0} >> 1) &&
                        is_size(block_x, block_y, block_z, kMaxThreads);
  if (!is_valid) return CUDA_ERROR_INVALID_VALUE;
  const ReadGuard machine = client().state.lock_for_read();
  const Gpu& gpu = machine->gpus[call.device().gpu];
  if (gpu.faults.launch_error != 0) return static_cast<CUresult>(gpu.faults.launch_error);
  if (found->name != kPreflightKernel) return CUDA_SUCCESS;
  return run_preflight_kernel(gpu, std::uint64_t{grid_x} * block_x, parameters);
}
GPULET_CUDA_ALIAS(cuLaunchKernel, cuLaunchKernel_ptsz);

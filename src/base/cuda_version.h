// CUDA versions as people write them.
#pragma once

#include <string>

namespace gpulet {

// "12.8" from 12080: major * 1000 + minor * 10, as nvmlSystemGetCudaDriverVersion has it.
inline std::string cuda_version_text(unsigned version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace gpulet

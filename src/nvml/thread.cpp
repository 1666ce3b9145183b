#include "nvml/thread.h"

namespace gpulet::nvml {
namespace {

thread_local bool is_loop = false;

}  // namespace

void never_block_here() { is_loop = true; }
bool may_block_here() { return !is_loop; }

}  // namespace gpulet::nvml

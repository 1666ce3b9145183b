// gpulet: one binary for every command, and for the programs of NVIDIA's that it replaces
// (cli/main/command_line.h).
#include <malloc.h>

#include "cli/main/command_line.h"

namespace {

// An agent runs for months on a node with other workloads. By default glibc gives each thread its own heap,
// and after each freed large block keeps more free memory: unused pages stay resident. Source: mallopt(3),
// M_ARENA_MAX, and "dynamic mmap threshold".
void limit_heap_retention() {
  constexpr int kHeaps = 2, kLargeBytes = 128 << 10;
  ::mallopt(M_ARENA_MAX, kHeaps);
  ::mallopt(M_MMAP_THRESHOLD, kLargeBytes);
  ::mallopt(M_TRIM_THRESHOLD, kLargeBytes);
}

}  // namespace

int main(int argc, char** argv) {
  limit_heap_retention();
  gpulet::cli::main(argc, argv);
}

// gpulet: one binary for every command, and for NVIDIA's programs that it stands in for (cli/command_line.h).
#include <malloc.h>

#include "cli/command_line.h"

namespace {

// An agent runs for months, beside what the node is for. By itself glibc gives each thread a heap of its own,
// and learns from every large block that was freed to keep the next one: pages are held that nothing is in.
// Source: mallopt(3), M_ARENA_MAX, and "dynamic mmap threshold".
void give_back_what_is_free() {
  constexpr int kHeaps = 2, kLargeBytes = 128 << 10;
  ::mallopt(M_ARENA_MAX, kHeaps);
  ::mallopt(M_MMAP_THRESHOLD, kLargeBytes);
  ::mallopt(M_TRIM_THRESHOLD, kLargeBytes);
}

}  // namespace

int main(int argc, char** argv) {
  give_back_what_is_free();
  return gpulet::cli::main(argc, argv);
}

// The new process of confinement.h, from its first instruction to the program's.
#pragma once

#include <string>
#include <vector>

namespace gpulet::hook {

// What the child needs; all of it was made before it. Descriptors are the parent's.
struct ChildPlan {
  int tree = -1;                    // the cloned mounts of the root, attached nowhere
  int scratch = -1;                 // a tmpfs, attached nowhere
  std::string scratch_name;         // "proc": where it goes in the tree
  std::vector<std::string> hidden;  // absolute: it goes there too, where there is a folder
  int program = -1;
  std::vector<std::string> arguments;
  int null = -1;  // its standard input
  int output = -1;
  int complaints = -1;
  int failure = -1;  // ChildFailure is written here when the program could not be started
};

struct ChildFailure {
  char what[96];  // ends in NUL
  int error_number;
};

// In a process alone in new namespaces. Does not return.
[[noreturn]] void run_child(const ChildPlan& plan);

}  // namespace gpulet::hook

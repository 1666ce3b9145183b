// Links between a node's GPUs as few characters: the kinds of pair once, and a letter for each pair. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "topology/topology.h"

namespace gpulet::scheduler {

inline constexpr std::size_t kMaxLinkClasses = 52;

struct LinkMatrix {
  std::vector<std::string>
      classes;        // "SYS", "PIX+NV4" (direct), "SYS+NVS18" (through switches); in order of appearance
  std::string pairs;  // A-Z, a-z: (0,1), (0,2) … (1,2) …; no diagonal
  friend bool operator==(const LinkMatrix&, const LinkMatrix&) = default;
};

// `pairs` is of `size` squared, row by row, and symmetric. A pair of a further kind than kMaxLinkClasses
// becomes one of the last.
LinkMatrix link_matrix(const std::vector<topology::Pair>& pairs, std::size_t size);

// Errors: kInvalidArgument for a class that is none, a letter without a class, and a length that is not
// size's.
Result<std::vector<topology::Pair>> pairs_of(const LinkMatrix& matrix, std::size_t size);

}  // namespace gpulet::scheduler

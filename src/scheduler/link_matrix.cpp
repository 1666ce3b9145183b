#include "scheduler/link_matrix.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/text.h"

namespace gpulet::scheduler {
namespace {

using inventory::PcieDistance;
using topology::Pair;

constexpr unsigned kMostLinks = 64;  // of one pair
// In the order of PcieDistance.
constexpr std::array<std::string_view, 7> kDistances = {"?", "SYS", "NODE", "PHB", "PXB", "PIX", "BOARD"};

std::string class_of(const Pair& pair) {
  std::string text(kDistances[static_cast<std::size_t>(pair.pcie)]);
  if (pair.direct_nvlinks != 0) text += "+NV" + std::to_string(pair.direct_nvlinks);
  if (pair.switched_nvlinks != 0) text += "+NVS" + std::to_string(pair.switched_nvlinks);
  return text;
}

std::optional<Pair> pair_of(std::string_view text) {
  const auto parts = text::split(text, '+');
  if (parts.empty()) return std::nullopt;
  const auto* const distance = std::ranges::find(kDistances, parts.front());
  if (distance == kDistances.end()) return std::nullopt;
  Pair pair{.pcie = static_cast<PcieDistance>(distance - kDistances.begin())};
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const bool switched = parts[i].starts_with("NVS");
    if (!parts[i].starts_with("NV")) return std::nullopt;
    const auto count = text::parse_unsigned(std::string_view(parts[i]).substr(switched ? 3 : 2));
    if (!count || *count == 0 || *count > kMostLinks) return std::nullopt;
    (switched ? pair.switched_nvlinks : pair.direct_nvlinks) = static_cast<unsigned>(*count);
  }
  return pair;
}

char letter(std::size_t index) { return static_cast<char>(index < 26 ? 'A' + index : 'a' + (index - 26)); }

std::optional<std::size_t> index_of(char c) {
  if (c >= 'A' && c <= 'Z') return static_cast<std::size_t>(c - 'A');
  if (c >= 'a' && c <= 'z') return static_cast<std::size_t>(c - 'a') + 26;
  return std::nullopt;
}

}  // namespace

LinkMatrix link_matrix(const std::vector<Pair>& pairs, std::size_t size) {
  LinkMatrix matrix;
  for (std::size_t a = 0; a < size; ++a) {
    for (std::size_t b = a + 1; b < size; ++b) {
      const std::string kind = class_of(pairs[a * size + b]);
      auto at = std::ranges::find(matrix.classes, kind);
      if (at == matrix.classes.end() && matrix.classes.size() < kMaxLinkClasses) {
        matrix.classes.push_back(kind);
        at = matrix.classes.end() - 1;
      }
      const auto index = std::min(static_cast<std::size_t>(at - matrix.classes.begin()), kMaxLinkClasses - 1);
      matrix.pairs += letter(index);
    }
  }
  return matrix;
}

Result<std::vector<Pair>> pairs_of(const LinkMatrix& matrix, std::size_t size) {
  const std::size_t expected = size == 0 ? 0 : size * (size - 1) / 2;
  if (matrix.pairs.size() != expected) {
    return fail(Code::kInvalidArgument, "has " + std::to_string(matrix.pairs.size()) + " pairs, not the " +
                                            std::to_string(expected) + " of " + std::to_string(size) +
                                            " GPUs");
  }
  std::vector<Pair> classes;
  for (const auto& text : matrix.classes) {
    const auto pair = pair_of(text);
    if (!pair)
      return fail(Code::kInvalidArgument, "'" + text + "' is no kind of link, as SYS or PIX+NV4 are");
    classes.push_back(*pair);
  }
  std::vector<Pair> pairs(size * size);
  std::size_t next = 0;
  for (std::size_t a = 0; a < size; ++a) {
    pairs[a * size + a].pcie = PcieDistance::kInternal;
    for (std::size_t b = a + 1; b < size; ++b) {
      const auto index = index_of(matrix.pairs[next++]);
      if (!index || *index >= classes.size()) {
        return fail(Code::kInvalidArgument, "names a kind of link that is not in the list");
      }
      pairs[a * size + b] = pairs[b * size + a] = classes[*index];
    }
  }
  return pairs;
}

}  // namespace gpulet::scheduler

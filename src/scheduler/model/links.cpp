#include "scheduler/model/links.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <string>

#include "base/text.h"
#include "scheduler/model/node_state.h"

namespace gpulet::scheduler {
namespace {

using inventory::PcieDistance;
using topology::Pair;

constexpr unsigned kMaxLinksPerPair = 64;  // per pair
// In the order of PcieDistance.
constexpr std::array<std::string_view, 7> kDistances = {"?", "SYS", "NODE", "PHB", "PXB", "PIX", "BOARD"};

std::string link_class_text(const Pair& pair) {
  std::string text(kDistances[static_cast<std::size_t>(pair.pcie)]);
  if (pair.direct_nvlinks != 0) text += "+NV" + std::to_string(pair.direct_nvlinks);
  if (pair.switched_nvlinks != 0) text += "+NVS" + std::to_string(pair.switched_nvlinks);
  return text;
}

std::optional<Pair> parse_link_class(std::string_view text) {
  const auto parts = text::split(text, '+');
  if (parts.empty()) return std::nullopt;
  const auto* const distance = std::ranges::find(kDistances, parts.front());
  if (distance == kDistances.end()) return std::nullopt;
  Pair pair{.pcie = static_cast<PcieDistance>(distance - kDistances.begin())};
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const bool switched = parts[i].starts_with("NVS");
    if (!parts[i].starts_with("NV")) return std::nullopt;
    const auto count = text::parse_unsigned(std::string_view(parts[i]).substr(switched ? 3 : 2));
    if (!count || *count == 0 || *count > kMaxLinksPerPair) return std::nullopt;
    (switched ? pair.switched_nvlinks : pair.direct_nvlinks) = static_cast<unsigned>(*count);
  }
  return pair;
}

char class_letter(std::size_t index) {
  return static_cast<char>(index < 26 ? 'A' + index : 'a' + (index - 26));
}

std::optional<std::size_t> class_index(char c) {
  if (c >= 'A' && c <= 'Z') return static_cast<std::size_t>(c - 'A');
  if (c >= 'a' && c <= 'z') return static_cast<std::size_t>(c - 'a') + 26;
  return std::nullopt;
}

}  // namespace

LinkMatrix encode_link_matrix(const std::vector<Pair>& pairs, std::size_t size) {
  LinkMatrix matrix;
  for (std::size_t a = 0; a < size; ++a) {
    for (std::size_t b = a + 1; b < size; ++b) {
      const std::string kind = link_class_text(pairs[a * size + b]);
      auto at = std::ranges::find(matrix.classes, kind);
      if (at == matrix.classes.end() && matrix.classes.size() < kMaxLinkClasses) {
        matrix.classes.push_back(kind);
        at = matrix.classes.end() - 1;
      }
      const auto index = std::min(static_cast<std::size_t>(at - matrix.classes.begin()), kMaxLinkClasses - 1);
      matrix.pairs += class_letter(index);
    }
  }
  return matrix;
}

Result<std::vector<Pair>> decode_link_matrix(const LinkMatrix& matrix, std::size_t size) {
  const std::size_t expected = size == 0 ? 0 : size * (size - 1) / 2;
  if (matrix.pairs.size() != expected) {
    return fail(Code::kInvalidArgument, "has " + std::to_string(matrix.pairs.size()) + " pairs, expected " +
                                            std::to_string(expected) + " of " + std::to_string(size) +
                                            " GPUs");
  }
  std::vector<Pair> classes;
  for (const auto& text : matrix.classes) {
    const auto pair = parse_link_class(text);
    if (!pair)
      return fail(Code::kInvalidArgument, "'" + text + "' is not a link class such as SYS or PIX+NV4");
    classes.push_back(*pair);
  }
  std::vector<Pair> pairs(size * size);
  std::size_t next = 0;
  for (std::size_t a = 0; a < size; ++a) {
    pairs[a * size + a].pcie = PcieDistance::kInternal;
    for (std::size_t b = a + 1; b < size; ++b) {
      const auto index = class_index(matrix.pairs[next++]);
      if (!index || *index >= classes.size()) {
        return fail(Code::kInvalidArgument, "refers to a link class that is not in the list");
      }
      pairs[a * size + b] = pairs[b * size + a] = classes[*index];
    }
  }
  return pairs;
}

std::shared_ptr<const NodeLinks> NodeLinks::make_links(topology::Topology topology) {
  auto links = std::make_shared<NodeLinks>();
  links->topology = std::move(topology);
  std::vector<placement::Device> devices;
  for (std::size_t gpu = 0; gpu < std::min(links->topology.size, kMaxGpus); ++gpu) {
    links->ids.emplace_back(std::to_string(gpu));
    devices.push_back({links->ids.back(), gpu, false, 0});
  }
  links->chooser = placement::Chooser::build_chooser(links->topology, std::move(devices), {});
  return links;
}

LinkedSet choose_linked_gpus(const NodeLinks& links, GpuSet free, unsigned count) {
  std::vector<DeviceId> available;
  for (unsigned gpu = 0; gpu < links.ids.size(); ++gpu) {
    if ((free >> gpu & 1) != 0) available.push_back(links.ids[gpu]);
  }
  LinkedSet set;
  const auto choice = links.chooser->choose_devices(available, {}, count);
  if (!choice) return set;  // outside the precondition
  for (const DeviceId& id : choice->devices) {
    set.gpus |= GpuSet{1} << (std::ranges::find(links.ids, id) - links.ids.begin());
  }
  set.pair_score = mean_pair_score(links, set.gpus);
  set.free_pair_score = mean_pair_score(links, free);
  return set;
}

double mean_pair_score(const NodeLinks& links, GpuSet gpus) {
  std::int64_t sum = 0;
  std::int64_t pairs = 0;
  for (unsigned a = 0; a < links.ids.size(); ++a) {
    for (unsigned b = 0; b < a; ++b) {
      if ((gpus >> a & gpus >> b & 1) == 0) continue;
      sum += topology::pair_score(links.topology.pair_between(a, b));
      ++pairs;
    }
  }
  return pairs == 0 ? 0 : static_cast<double>(sum) / static_cast<double>(pairs);
}

std::size_t LinkChooser::KeyHash::operator()(const Key& key) const {
  StateHasher hash;
  hash.add_value(reinterpret_cast<std::uintptr_t>(key.links.get()));
  hash.add_value(std::uint64_t{key.free} << 32 | key.count);
  return hash.value();
}

LinkedSet LinkChooser::choose_gpus(const std::shared_ptr<const NodeLinks>& links, GpuSet free,
                                   unsigned count) {
  const Key key{links, free, count};
  const auto found = cache_.find(key);
  if (found != cache_.end()) return found->second;
  if (cache_.size() == kMaxCached) cache_.clear();
  return cache_.emplace(key, choose_linked_gpus(*links, free, count)).first->second;
}

}  // namespace gpulet::scheduler

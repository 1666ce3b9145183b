// The speed at which copies run on a healthy GPU of a model, by its name. Whoever is slower than half of it
// has a link that is narrower, slower or shared. Sources: PCI Express Base Specification (16
// lanes: 15.8, 31.5 and 63 GB/s by generation 3, 4 and 5), NVIDIA's data sheets for NVLink; of both, what
// single copies of 64 MiB usually reach. Pure: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace gpulet::preflight {

struct ModelFigures {
  std::optional<std::uint64_t> host_bytes_per_second, peer_bytes_per_second;  // nullopt: not known
};
// `model`: "NVIDIA H100 80GB HBM3". Nothing for a model of no row.
ModelFigures figures_of(std::string_view model);

// Whether a measured speed is less than half of the figure.
inline bool is_slow(std::uint64_t measured, std::uint64_t figure) {
  return measured < figure && measured < figure - measured;
}

}  // namespace gpulet::preflight

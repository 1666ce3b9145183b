#include "preflight/model_figures.h"

namespace gpulet::preflight {
namespace {

// Gigabytes a second in one direction; 0: not known, as for peers that are linked in different ways.
struct FigureRow {
  std::string_view part;  // of the name
  unsigned host, peer;
};
constexpr unsigned kGeneration3 = 11, kGeneration4 = 22, kGeneration5 = 45;

// The first row whose part the name has.
constexpr FigureRow kFigureRows[] = {
    {"GB200", 0, 600},
    {"GB300", 0, 600},
    {"GH200", 0, 0},
    {"B200", kGeneration5, 600},
    {"B300", kGeneration5, 600},
    {"H200 NVL", kGeneration5, 0},
    {"H200", kGeneration5, 330},
    {"H100 NVL", kGeneration5, 0},
    {"H100 PCIe", kGeneration5, 0},
    {"H100", kGeneration5, 330},
    {"A100-SXM", kGeneration4, 220},
    {"A100", kGeneration4, 0},
    {"L40", kGeneration4, 0},
    {"L4", kGeneration4, 0},
    {"A40", kGeneration4, 0},
    {"A30", kGeneration4, 0},
    {"A10", kGeneration4, 0},
    {"V100-SXM3", kGeneration3, 110},
    {"V100", kGeneration3, 0},
    {"T4", kGeneration3, 0},
};

std::optional<std::uint64_t> figure_of(unsigned gigabytes) {
  if (gigabytes == 0) return std::nullopt;
  return std::uint64_t{gigabytes} * 1'000'000'000;
}

}  // namespace

ModelFigures figures_of(std::string_view model) {
  for (const auto& row : kFigureRows) {
    if (model.find(row.part) != std::string_view::npos) return {figure_of(row.host), figure_of(row.peer)};
  }
  return {};
}

}  // namespace gpulet::preflight

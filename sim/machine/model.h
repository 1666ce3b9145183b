// What is the same for every GPU of a kind: names, clocks, limits, MIG profiles. docs/SIMULATOR.md lists the
// keys.
#pragma once

#include "sim/machine/links.h"

namespace gpulet::sim {

// A GPU that reports nothing yet.
Gpu blank_gpu();

// Takes the model's keys out of `section` into `gpu`; those that are absent leave it as it is, so that a
// model may be overridden key by key. `link` is the kind of NVLink that it has. The caller finishes the
// section.
void read_model(Problem& problem, Section& section, Gpu& gpu, NvLinkKind& link);

// What follows from the fields once all are read: events, idle state.
void complete_gpu(Gpu& gpu);

}  // namespace gpulet::sim

// What gpulet does otherwise than NVIDIA's programs on purpose, as far as it concerns what was found: each
// with the page of docs/adr that says why. Pure.
#pragma once

#include <vector>

#include "migrate/facts.h"
#include "migrate/report.h"
#include "migrate/settings.h"

namespace gpulet::migrate {

std::vector<Difference> differences_of(const Facts& facts, const Met& met);

}  // namespace gpulet::migrate

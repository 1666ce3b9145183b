// Facts in, report out: the whole judgement of `gpulet migrate check`. Pure, any thread; the same facts give
// the same report.
#pragma once

#include "migrate/facts.h"
#include "migrate/report.h"

namespace gpulet::migrate {

Report analyse(const Facts& facts);

}  // namespace gpulet::migrate

// A report of migrate/report.h as text for people, and as JSON.
#pragma once

#include <string>

#include "migrate/report.h"

namespace gpulet::cli {

// No control character of what was found reaches the screen.
std::string migrate_text(const migrate::Report& report);
std::string migrate_json(const migrate::Report& report);

}  // namespace gpulet::cli

#include "cli/main/output.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace gpulet::cli {

bool shows_color() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  const bool dumb = terminal == nullptr || std::string_view(terminal) == "dumb";
  return ::isatty(STDOUT_FILENO) != 0 && !dumb && (no_color == nullptr || *no_color == '\0');
}

}  // namespace gpulet::cli

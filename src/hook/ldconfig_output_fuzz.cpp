// Fuzzes the output of `ldconfig -v -X` over the libraries of an image, from which links are made.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "hook/ldcache.h"

namespace {

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\n\0", 3)) == std::string::npos;
}

// As ldconfig prints them.
std::string ldconfig_output(const std::vector<gpulet::hook::LibraryLink>& links) {
  std::string output;
  for (const auto& link : links)
    output += link.directory + ": (from fuzz:0)\n\t" + link.name + " -> " + link.target + "\n";
  return output;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet::hook;
  const std::string_view output(reinterpret_cast<const char*>(data), size);
  const auto links = library_links(output);
  if (links.size() > static_cast<std::size_t>(std::ranges::count(output, '\n')) + 1) std::abort();
  for (const auto& link : links) {
    // A link is made inside its directory and points to a file beside it.
    if (!is_plain_name(link.name) || !is_plain_name(link.target) || link.name == link.target) std::abort();
    if (link.directory.front() != '/' ||
        link.directory.find_first_of(std::string_view("\n\0", 2)) != std::string::npos)
      std::abort();
    if (output.find("\t" + link.name + " -> " + link.target) == std::string_view::npos) std::abort();
  }
  if (library_links(ldconfig_output(links)) != links) std::abort();
  return 0;
}

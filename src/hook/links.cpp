#include "hook/links.h"

namespace gpulet::hook {

Result<Link> parse_link(std::string_view text) {
  const auto mark = text.find("::");
  if (mark == std::string_view::npos || mark == 0 || text.find("::", mark + 2) != std::string_view::npos)
    return fail(Code::kInvalidArgument, "a link is target::path", std::string(text));
  Link link{std::string(text.substr(0, mark)), std::string(text.substr(mark + 2))};
  GPULET_TRY(split_path(link.path));
  return link;
}

Status make_links(const Container& container, const std::vector<Link>& links) {
  Status refused;
  for (const Link& link : links) {
    const Status made = container.root.make_link(link.target, link.path);
    if (!made && made.error().code() != Code::kPermissionDenied) return made;
    if (!made && refused) refused = made;
  }
  return refused;
}

}  // namespace gpulet::hook

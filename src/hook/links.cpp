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
  for (const Link& link : links) GPULET_TRY(container.root.make_link(link.target, link.path));
  return {};
}

}  // namespace gpulet::hook

// The node page: src/web/page/ as it is, in this program. It asks for nothing but the site's own paths.
#pragma once

#include <string_view>

namespace gpulet::web::page {

std::string_view html();
std::string_view css();
std::string_view js();
std::string_view icon();  // SVG

}  // namespace gpulet::web::page

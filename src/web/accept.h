// What a client would take, by its Accept and Accept-Encoding fields (RFC 9110, sections 12.4.2 and 12.5).
// Pure.
#pragma once

#include <string_view>

namespace gpulet::web {

// Whether OpenMetrics 1.0 is wanted rather than Prometheus' text format 0.0.4: it is asked for by name, in
// that version or in none, and text/plain is not wanted more.
bool prefers_open_metrics(std::string_view accept);

// Whether an answer may be compressed by gzip.
bool takes_gzip(std::string_view accept_encoding);

}  // namespace gpulet::web

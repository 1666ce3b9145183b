#include "http/message.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace gpulet::http {
namespace {

TEST(Accept, OpenMetricsOnlyOnRequest) {
  const std::vector<std::pair<std::string, bool>> cases = {
      {"", false},
      {"*/*", false},
      {"text/plain", false},
      {"text/html,application/xhtml+xml,*/*;q=0.8", false},
      {"application/openmetrics-text", true},
      {"application/openmetrics-text; version=1.0.0; charset=utf-8", true},
      {"application/openmetrics-text; version=\"1.0.0\"", true},
      {"Application/OpenMetrics-Text;Version=1.0.0", true},
      {"application/openmetrics-text; version=2.0.0", false},
      {"application/openmetrics-text; version=0.0.1, text/plain", false},
      {"application/openmetrics-text;q=0", false},
      {"application/openmetrics-text;q=0.5,text/plain;q=0.6", false},
      {"application/openmetrics-text;q=0.5,text/plain;version=1.0.0;q=0.6", true},  // an unsupported version
      {"application/openmetrics-text;q=0.5, text/plain;q=0.5", true},
      {"application/openmetrics-text;q=0.5,*/*;q=0.4", true},
      {"application/openmetrics-text;q=0.2,text/*;q=0.4,text/plain;q=0.1", true},
      {"application/openmetrics-text;q=nonsense", false},
      {"application/openmetrics-text;q=0.0001", false},
      // Prometheus 3 and 2.
      {"application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;"
       "version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/"
       "plain;version=0.0.4;q=0.2,/;q=0.1",
       true},
      {"application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
       "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
       true},
      {"text/plain;version=0.0.4;q=0.5,*/*;q=0.1", false},
      {",,;;q=,=;q", false},
  };
  for (const auto& [field, wanted] : cases) EXPECT_EQ(prefers_open_metrics(field), wanted) << field;
}

TEST(Accept, GzipOnlyIfAccepted) {
  const std::vector<std::pair<std::string, bool>> cases = {
      {"", false},
      {"gzip", true},
      {"gzip, deflate, br, zstd", true},
      {"deflate;q=1, gzip;q=0.1", true},
      {"gzip;q=0", false},
      {"gzip;q=0.000", false},
      {"*", true},
      {"*;q=0", false},
      {"identity", false},
      {"*, gzip;q=0", false},
      {"GZIP", true},
      {"x-gzip", true},
      {"br;q=1.0, *;q=0.1", true},
      {"gzip2", false},
  };
  for (const auto& [field, taken] : cases) EXPECT_EQ(accepts_gzip(field), taken) << field;
}

}  // namespace
}  // namespace gpulet::http

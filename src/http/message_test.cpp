#include "http/message.h"

#include <gtest/gtest.h>

#include <memory>
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

TEST(Gzip, PiecesAreOneText) {
  GzipWriter writer;
  std::string text;
  for (int i = 0; i < 1000; ++i) {
    const std::string piece =
        i % 7 == 0 ? std::string() : std::string(static_cast<std::size_t>(i), 'a') + std::to_string(i * 7919);
    writer.append_piece(piece);
    text += piece;
  }
  const auto packed = writer.finish_text();
  EXPECT_LT(packed.size(), text.size() / 10);
  EXPECT_EQ(gunzip(packed, text.size()), text);
  EXPECT_EQ(gunzip(packed, text.size() - 1), "") << "beyond the limit";
  EXPECT_EQ(gunzip(GzipWriter().finish_text(), 1), "");
}

// Source: RFC 9110, section 15.4.5.
TEST(ResponseHead, AnUnchangedDocumentHasItsTagAndNoBody) {
  const auto body = std::make_shared<const std::string>("text");
  const auto fresh = response_head({.body = body, .etag = "\"7\""}, true);
  EXPECT_NE(fresh.find("\r\nETag: \"7\"\r\n"), std::string::npos) << fresh;
  EXPECT_NE(fresh.find("\r\nContent-Length: 4\r\n"), std::string::npos) << fresh;
  const auto same =
      response_head({.status = 304, .body = std::make_shared<const std::string>(), .etag = "\"7\""}, true);
  EXPECT_TRUE(same.starts_with("HTTP/1.1 304 Not Modified\r\nETag: \"7\"\r\n")) << same;
  for (const char* field : {"\r\nContent-Type:", "\r\nContent-Length:"})
    EXPECT_EQ(same.find(field), std::string::npos) << same;
}

}  // namespace
}  // namespace gpulet::http

#include "web/document.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include "web/history.h"

namespace gpulet::web {
namespace {

using namespace std::chrono_literals;

std::string unpacked(const std::string& packed, std::size_t size) {
  z_stream stream{};
  EXPECT_EQ(::inflateInit2(&stream, 15 + 16), Z_OK);
  std::string text(size + 1, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  EXPECT_EQ(::inflate(&stream, Z_FINISH), Z_STREAM_END);
  text.resize(stream.total_out);
  ::inflateEnd(&stream);
  return text;
}

TEST(Document, IsCompressedOnceAndOnlyWhereThatHelps) {
  std::string metrics;
  for (int i = 0; i < 2000; ++i) metrics += "gpulet_metric{gpu=\"" + std::to_string(i) + "\"} 1\n";
  const Document document(metrics);
  const SharedText packed = document.gzipped();
  ASSERT_TRUE(packed);
  EXPECT_LT(packed->size(), metrics.size() / 4);
  EXPECT_EQ(unpacked(*packed, metrics.size()), metrics);
  EXPECT_EQ(document.gzipped(), packed);
  EXPECT_FALSE(Document("short").gzipped());
  EXPECT_FALSE(Document().gzipped());
}

SharedText sample(int number, std::size_t size = 0) {
  return std::make_shared<const std::string>("{\"n\":" + std::to_string(number) + std::string(size, ' ') +
                                             "}");
}

TEST(History, KeepsTheNewestWholeAndThinsWhatIsOlder) {
  History history;
  EXPECT_EQ(history.text(), "{\"samples\":[]}\n");
  for (int second = 0; second < 3600; ++second) history.add(sample(second), Time{} + second * 1s);
  // Two minutes of every second, thirteen of every fifth.
  EXPECT_NEAR(static_cast<double>(history.size()), 120 + 13 * 12, 3);
  const std::string text = history.text();
  EXPECT_EQ(text.find("{\"n\":2698}"), std::string::npos);  // older than 15 minutes
  for (int second = 3480; second < 3600; ++second) {
    EXPECT_NE(text.find("{\"n\":" + std::to_string(second) + "}"), std::string::npos) << second;
  }
  EXPECT_LT(text.find("{\"n\":3500}"), text.find("{\"n\":3501}"));
}

TEST(History, SamplesThatComeSeldomAllStay) {
  History history;
  for (int i = 0; i < 200; ++i) history.add(sample(i), Time{} + i * 15s);
  EXPECT_EQ(history.size(), 61u);
}

TEST(History, ItsBytesAreBounded) {
  History history;
  for (int i = 0; i < 2000; ++i) {
    history.add(sample(i, 60'000), Time{} + i * 1s);
    ASSERT_LE(history.bytes(), kMaxHistoryBytes + 60'100);
  }
  EXPECT_GE(history.size(), 4u);
  EXPECT_NE(history.text().find("\"n\":1999"), std::string::npos);
  const auto before = history.size();
  history.add(sample(1, kMaxHistoryBytes), Time{} + 2000s);
  EXPECT_EQ(history.size(), before);
}

TEST(Document, WhatWasPackedIsUnpackedWithinALimit) {
  const std::string text = std::string(100'000, 'a') + "end";
  const std::string packed = gzip(text);
  EXPECT_EQ(gunzip(packed, text.size()), text);
  EXPECT_EQ(gunzip(packed, text.size() - 1), "");
  EXPECT_EQ(gunzip(packed.substr(0, packed.size() - 1), text.size()), "");
  EXPECT_EQ(gunzip("no gzip", 100), "");
  EXPECT_EQ(gunzip("", 100), "");
}

}  // namespace
}  // namespace gpulet::web

#include "base/log.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace gpulet::log {
namespace {

std::string logged(Format format, const std::function<void()>& write) {
  configure_logging(Level::kInfo, format);
  ::testing::internal::CaptureStderr();
  write();
  auto text = ::testing::internal::GetCapturedStderr();
  configure_logging(Level::kInfo, Format::kText);
  return text;
}

TEST(Log, WritesOneLineWhateverTheMessageAndTheFields) {
  const auto write = [] {
    warning("a driver's text\n2026-01-01T00:00:00Z error forged", {{"name", "b\nc"}});
  };
  const auto text = logged(Format::kText, write);
  EXPECT_EQ(text.substr(text.find(' ')),
            " warning a driver's text\\n2026-01-01T00:00:00Z error forged name=\"b\\nc\"\n");
  const auto json = logged(Format::kJson, write);
  EXPECT_EQ(json.find('\n'), json.size() - 1);
}

TEST(Log, LeavesTextAsItIs) {
  const auto text = logged(Format::kText, [] { info("GPU 'a' → \"ü\""); });
  EXPECT_EQ(text.substr(text.find(' ')), " info GPU 'a' → \"ü\"\n");
}

}  // namespace
}  // namespace gpulet::log

// For tests that hold a page of docs/ to the code: a part of it is what the code says, and UPDATE_GOLDEN=1
// writes it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/file.h"

namespace gpulet {

// The text after the line with "<!-- MARK" and before "<!-- end -->" is `text`.
inline void expect_in_document(const std::string& path, const std::string& mark, const std::string& text) {
  auto page = read_file(path);
  ASSERT_TRUE(page) << page.error().full_message();
  const auto line = page->find("<!-- " + mark);
  ASSERT_NE(line, std::string::npos) << mark << " is missing in " << path;
  const auto begin = page->find('\n', line) + 1, end = page->find("<!-- end -->", begin);
  ASSERT_NE(end, std::string::npos) << "the end mark is missing in " << path;
  const std::string shown = page->substr(begin, end - begin);
  if (std::getenv("UPDATE_GOLDEN") && shown != text) {
    ASSERT_TRUE(write_file_atomic(path, page->replace(begin, end - begin, text)));
    return;
  }
  EXPECT_EQ(shown, text) << "UPDATE_GOLDEN=1 writes it";
}

}  // namespace gpulet

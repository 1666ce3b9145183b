#include "arguments/arguments.h"

#include <gtest/gtest.h>

namespace gpulet::arguments {
namespace {

TEST(Arguments, PrintableTextKeepsUtf8Alone) {
  EXPECT_EQ(printable_text("plain\nGPU → ü 😀"), "plain\nGPU → ü 😀");
  EXPECT_EQ(printable_text("\x1b[31m\r\t\x7f"), "\\x1b[31m\\x0d\\x09\\x7f");
  EXPECT_EQ(printable_text("a\xff\xfez"), "a\\xff\\xfez");
  EXPECT_EQ(printable_text("\xc2\x9b"
                           "2J"),
            "\\xc2\\x9b2J")
      << "a control character of terminals";
  EXPECT_EQ(printable_text("\xc0\xaf"), "\\xc0\\xaf") << "overlong";
  EXPECT_EQ(printable_text("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(printable_text("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "beyond Unicode";
  EXPECT_EQ(printable_text("\xe2\x82"), "\\xe2\\x82") << "cut off";
  EXPECT_EQ(printable_text(std::string_view("a\0b", 3)), "a\\x00b");
}

TEST(Arguments, ListsChoices) {
  const std::vector<std::string> all{"table", "wide", "json"};
  EXPECT_EQ(list_choices(all), "table, wide or json");
  EXPECT_EQ(list_choices(std::span(all).first(2)), "table or wide");
  EXPECT_EQ(list_choices(std::span(all).first(1)), "table");
  EXPECT_EQ(list_choices({}), "");
}

TEST(Arguments, WrapsAtBlanks) {
  EXPECT_EQ(wrap_text("one two  three\nfour", 9), (std::vector<std::string>{"one two", "three", "four"}));
  EXPECT_EQ(wrap_text("indivisible x", 4), (std::vector<std::string>{"indivisible", "x"}));
  EXPECT_EQ(wrap_text("", 4), std::vector<std::string>{""});
}

TEST(Arguments, WrapsLinesOfProse) {
  struct Case {
    std::string text;
    std::size_t columns, indent;
    std::string wrapped;
  };
  const Case cases[] = {
      {"one two three\n", 0, 0, "one two three\n"},
      {"one two three\n", 13, 0, "one two three\n"},
      {"one two three\nfour\n", 9, 0, "one two\nthree\nfour\n"},
      {"GPU 0: one two three", 14, 7, "GPU 0: one two\n       three"},
      {"a   b   one two three", 15, 8, "a   b   one two\n        three"},
      {"  one two three", 9, 0, "  one two\n    three"},
      {"      → one two three", 14, 4, "      → one\n        two\n        three"},
      {"indivisible", 4, 0, "indivisible"},
      {"indivisible x y", 4, 0, "indivisible\nx y"},
      {"GPU 0: indivisible", 10, 7, "GPU 0: indivisible"},  // a break would gain nothing
      {"run `one two three` now", 12, 0, "run\n`one two three`\nnow"},
      {"it`s one two", 8, 0, "it`s one\ntwo"},  // no code
      {"\x1b[31mfail\x1b[0m one two", 12, 0, "\x1b[31mfail\x1b[0m one two"},
      {"→→→ →→→ →→→", 7, 0, "→→→ →→→\n→→→"},
      {"", 4, 0, ""},
  };
  for (const auto& [text, columns, indent, wrapped] : cases)
    EXPECT_EQ(wrap_lines(text, columns, indent), wrapped) << text;
}

}  // namespace
}  // namespace gpulet::arguments

#include "runtimes/imports.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace gpulet::runtimes {
namespace {

constexpr const char* kOurs = "/etc/containerd/conf.d/99-gpulet*.toml";

std::string added(const std::string& text) {
  const auto document = toml::parse(text, "f");
  EXPECT_TRUE(document) << text;
  return with_import(text, *document, kOurs);
}
std::string taken(const std::string& text) {
  const auto document = toml::parse(text, "f");
  EXPECT_TRUE(document) << document.error().text() << "\n" << text;
  return without_import(text, *document, kOurs);
}
std::vector<std::string> imports(const std::string& text) {
  const auto document = toml::parse(text, "/etc/containerd/config.toml");
  EXPECT_TRUE(document) << document.error().text() << "\n" << text;
  return imports_of(*document, "/etc/containerd/config.toml").value();
}

TEST(Imports, ALineOfItsOwnBehindTheVersion) {
  EXPECT_EQ(
      added("# v\nversion = 2 # two\n[a]\n"),
      "# v\nversion = 2 # two\nimports = [\"/etc/containerd/conf.d/99-gpulet*.toml\"]  # by `gpulet runtime "
      "configure`\n[a]\n");
  EXPECT_EQ(added("version = 2\r\n").substr(11, 9), "\r\nimports");
  EXPECT_TRUE(added("version = 2").ends_with("\nversion = 2"));
  EXPECT_TRUE(added("[a]\n").ends_with("\n[a]\n"));
}

TEST(Imports, IntoTheListAsItIsWritten) {
  const std::string q = std::string("\"") + kOurs + "\"";
  EXPECT_EQ(added("imports = []\n"), "imports = [" + q + "]\n");
  EXPECT_EQ(added("imports = ['a' ]\n"), "imports = ['a', " + q + " ]\n");
  EXPECT_EQ(added("imports = ['a',]\n"), "imports = ['a', " + q + ",]\n");
  EXPECT_EQ(added("imports = [\n  'a',\n]\n"), "imports = [\n  'a',\n  " + q + ",\n]\n");
  EXPECT_EQ(added("imports = [\r\n\t'a'\r\n]\r\n"), "imports = [\r\n\t'a',\r\n\t" + q + "\r\n]\r\n");
  EXPECT_EQ(added("imports = [\n  'a', # why\n]\n"), "imports = [\n  'a', " + q + ", # why\n]\n");
  EXPECT_EQ(added("imports = [ # none\n]\n"), "imports = [" + q + " # none\n]\n");
}

TEST(Imports, WhatOthersAddedLaterStays) {
  const std::string q = std::string("\"") + kOurs + "\"";
  EXPECT_EQ(taken("imports = [" + q + ", 'b']\n"), "imports = ['b']\n");
  EXPECT_EQ(taken("imports = [" + q + ",]\n"), "imports = []\n");
  EXPECT_EQ(taken("imports = ['a', # x\n " + q + ", 'b']\n"), "imports = ['a', # x\n 'b']\n");
  EXPECT_EQ(imports(taken("imports = ['a', # x\n " + q + " # y\n, 'b']\n")),
            (std::vector<std::string>{"/etc/containerd/a", "/etc/containerd/b"}));
  EXPECT_EQ(taken("imports = [" + q + ", " + q + "]\n"), "imports = []\n");
  EXPECT_EQ(taken("imports = [" + q + ", 'b']  # by `gpulet runtime configure`\n"),
            "imports = ['b']  # by `gpulet runtime configure`\n");
  EXPECT_EQ(taken("imports = ['b']\n"), "imports = ['b']\n");
}

TEST(Imports, PathsAreCleanedAsContainerdDoes) {
  EXPECT_EQ(imports("imports = ['conf.d/../x/*.toml', '/a//b/./c']\n"),
            (std::vector<std::string>{"/etc/containerd/x/*.toml", "/a/b/c"}));
  EXPECT_TRUE(import_matches("/etc/containerd/conf.d/*.toml", "/etc/containerd/conf.d/99-gpulet.toml"));
  EXPECT_FALSE(import_matches("/etc/*.toml", "/etc/containerd/config.toml"));
  EXPECT_TRUE(import_matches(import_pattern("/x/a.toml"), "/x/a.toml"));
  EXPECT_TRUE(import_matches(import_pattern("/x/a.part"), "/x/a.part"));
  EXPECT_FALSE(imports_of(*toml::parse("imports = 'a'\n", "f"), "/f"));
}

// Blanks, comments, line ends and lists as people write them.
rc::Gen<std::string> any_document() {
  const auto blank = rc::gen::element<std::string>("", " ", "\t", "\n", "\n  ", " # c, \"]\n", "\r\n");
  const auto item =
      rc::gen::element<std::string>("'a'", "\"b\\\"]\"", "\"\"\"c\n\"\"\"", "'''d'''", "\"/e/*.toml\"");
  const auto list = rc::gen::exec([=] {
    std::string text = "imports =" + *rc::gen::element<std::string>(" ", "") + "[" + *blank;
    const int count = *rc::gen::inRange(0, 4);
    for (int i = 0; i < count; ++i) {
      text += *item + *blank;
      if (i + 1 < count || *rc::gen::arbitrary<bool>()) text += "," + *blank;
    }
    return text + "]" + *rc::gen::element<std::string>("", " # z") + "\n";
  });
  return rc::gen::exec([=] {
    const std::string newline = *rc::gen::element<std::string>("\n", "\r\n");
    std::string text = *rc::gen::element<std::string>("", "# head" + newline, newline);
    const std::string version = "version = " + *rc::gen::element<std::string>("2", "3", "2 # x") + newline;
    const bool first = *rc::gen::arbitrary<bool>();
    if (first) text += version;
    if (*rc::gen::arbitrary<bool>()) text += *list;
    if (!first && *rc::gen::arbitrary<bool>()) text += version;
    text +=
        *rc::gen::element<std::string>("", "[plugins]" + newline, "root = '/x'" + newline + "[a.b]" + newline,
                                       "[[s]]" + newline + "imports = [1]" + newline);
    if (*rc::gen::arbitrary<bool>() && text.ends_with(newline)) text.resize(text.size() - newline.size());
    return text;
  });
}

RC_GTEST_PROP(ImportsProperty, TakingBackIsTheIdentity, ()) {
  const std::string text = *any_document();
  const auto document = toml::parse(text, "f");
  RC_ASSERT(document.has_value());
  const std::string with = with_import(text, *document, kOurs);
  const auto edited = toml::parse(with, "f");
  RC_ASSERT(edited.has_value());
  // What was imported still is, and ours is the last; nothing else is another value.
  auto before = imports_of(*document, "/f").value();
  before.push_back(kOurs);
  RC_ASSERT(imports_of(*edited, "/f").value() == before);
  for (const auto& entry : document->entries) {
    if (entry.path == toml::Path{"imports"}) continue;
    const auto* same = edited->find(entry.path);
    RC_ASSERT(same != nullptr);
    RC_ASSERT(with.substr(same->value.begin, same->value.end - same->value.begin) ==
              text.substr(entry.value.begin, entry.value.end - entry.value.begin));
  }
  // Every byte of before is there in its order: one piece went in.
  std::size_t prefix = 0, suffix = 0;
  while (prefix < text.size() && text[prefix] == with[prefix]) ++prefix;
  while (suffix < text.size() - prefix && text[text.size() - 1 - suffix] == with[with.size() - 1 - suffix])
    ++suffix;
  RC_ASSERT(prefix + suffix == text.size());
  RC_ASSERT(without_import(with, *edited, kOurs) == text);
}

}  // namespace
}  // namespace gpulet::runtimes

#include "base/dns_name.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace gpulet {
namespace {

TEST(DnsName, LabelsAreNamesOfNamespaces) {
  for (const auto& text : std::vector<std::string>{"a", "0", "team-1", "1-team", std::string(63, 'x')})
    EXPECT_TRUE(is_dns_label(text)) << text;
  for (const auto& text : std::vector<std::string>{"", "-a", "a-", "A", "a.b", "a_b", "ä", "a/b", "..", "a b",
                                                   "a%2e", std::string(64, 'x'), std::string("a\0", 2)})
    EXPECT_FALSE(is_dns_label(text)) << text;
}

TEST(DnsName, SubdomainsAreNamesOfPodsAndNodes) {
  std::string longest = std::string(61, 'x');
  while (longest.size() < 253) longest = "ab." + longest;
  longest.resize(253, 'y');
  for (const auto& text : std::vector<std::string>{"a", "node-1.example.com", "10.0.0.1", "a.b-c.d"})
    EXPECT_TRUE(is_dns_subdomain(text)) << text;
  EXPECT_TRUE(is_dns_subdomain(longest));
  EXPECT_TRUE(is_dns_subdomain(std::string(230, 'p') + ".worker-0"));  // unlike in DNS itself
  EXPECT_FALSE(is_dns_subdomain("ab." + longest));
  for (const std::string text :
       {"", ".", "..", "a..b", ".a", "a.", "a/..", "../a", "a.-b", "a-.b", "A.b", "a%2fb", "a?b", "a b"})
    EXPECT_FALSE(is_dns_subdomain(text)) << text;
}

TEST(DnsName, QualifiedNamesAreKeysOfLabelsAndTaints) {
  for (const std::string text : {"a", "gpulet.io/not-ready", "n.io/A_b.C-1", "Dedicated"})
    EXPECT_TRUE(is_qualified_name(text)) << text;
  EXPECT_TRUE(is_qualified_name("n.io/" + std::string(63, 'a')));
  EXPECT_FALSE(is_qualified_name("n.io/" + std::string(64, 'a')));
  for (const std::string text :
       {"", "/", "/a", "a/", "a/b/c", "N.io/a", "n..io/a", "n.io/-a", "n.io/a.", "a b", "a=b"})
    EXPECT_FALSE(is_qualified_name(text)) << text;
}

TEST(DnsName, LabelCharacters) {
  for (const auto& [raw, kept] : std::vector<std::pair<std::string, std::string>>{
           {"NVIDIA A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB"},
           {"NVIDIA RTX 6000 Ada (x)", "NVIDIA-RTX-6000-Ada-x"},
           {"  -.a  b_ ", "a-b"},
           {"*", ""},
           {"", ""}})
    EXPECT_EQ(label_characters(raw), kept) << raw;
}

}  // namespace
}  // namespace gpulet

// What Kubernetes takes as a label, and how what the driver says is made so. Pure.
// Source: Kubernetes, "Labels and Selectors", syntax and character set; facts/device-plugin 1.10 for what
// NVIDIA's feature discovery drops (it cuts nothing, so that a long name is refused by the API server).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gpulet::labels {

// No value is longer, and no key's part after the '/'.
inline constexpr std::size_t kMaxLength = 63;

bool valid_value(std::string_view value);
// "nvidia.com/gpu.product": a DNS subdomain, a '/', and a name.
bool valid_key(std::string_view key);

// `raw` as a value that ends with `suffix`, in that order: letters, digits, '-', '_', '.' and blanks stay and
// all else is dropped; runs of blanks become one '-'; `raw` is cut so that the whole is at most kMaxLength;
// what is neither letter nor digit is taken from both ends. What is a valid value already stays as it is.
// Precondition: `suffix` is at most 48 bytes of letters, digits, '-', '_' and '.', and ends with a letter or
// a digit.
std::string clean_value(std::string_view raw, std::string_view suffix = {});

// `raw` as a part of a key, of at most `most` bytes: as clean_value(), but two texts that are cut do not
// become one: what is left of a cut one ends with six hexadecimal digits of its hash. "unnamed" where nothing
// is left. Precondition: most >= 16.
std::string clean_key_part(std::string_view raw, std::size_t most);

}  // namespace gpulet::labels

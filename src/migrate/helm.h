// What a Helm release of one of NVIDIA's charts was given: the Secret that Helm keeps of it, read for the
// values that are settings. A value that is none of these may be anything, a password too: only its name is
// kept. Source: Helm 3, pkg/storage/driver (base64 of gzip of JSON, in a Secret's base64).
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "migrate/facts.h"

namespace gpulet::migrate {

// A release is no larger, unpacked.
inline constexpr std::size_t kMaxReleaseBytes = 32u << 20;

// `secret`: the object as the API server sends it. Errors: kInvalidArgument for what is no release, or one
// that is too large; nothing of its content is in them.
Result<Release> release_of(std::string_view secret);

}  // namespace gpulet::migrate

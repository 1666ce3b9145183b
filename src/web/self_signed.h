// A certificate for a server that was given none, made at its start: whoever connects is encrypted to
// somebody, but cannot tell to whom.
#pragma once

#include <string>

#include "base/loop.h"
#include "base/result.h"

namespace gpulet::web {

struct KeyPair {
  std::string certificate, key;  // PEM
};

// For `name`, from an hour before `now`, as clocks differ, to `validity` after it. A key on the curve P-256.
// Errors: kInternal when OpenSSL makes none.
Result<KeyPair> self_signed(const std::string& name, WallTime now, std::chrono::hours validity);

}  // namespace gpulet::web

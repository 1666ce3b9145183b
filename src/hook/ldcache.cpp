#include "hook/ldcache.h"

namespace gpulet::hook {

Status update_ldcache(const Container&, const LdcacheOptions&) {
  return fail(Code::kUnsupported, "this build cannot update the ld cache: use --disable=update-ldcache");
}

}  // namespace gpulet::hook

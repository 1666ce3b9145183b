// What stat says, as this room's types.
#pragma once

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "cdi/root.h"

namespace gpulet::cdi {

inline FileType type_of_mode(mode_t mode) {
  if (S_ISREG(mode)) return FileType::kRegular;
  if (S_ISDIR(mode)) return FileType::kFolder;
  if (S_ISLNK(mode)) return FileType::kLink;
  if (S_ISCHR(mode)) return FileType::kCharacterDevice;
  if (S_ISSOCK(mode)) return FileType::kSocket;
  return FileType::kOther;
}

inline FileStatus status_from(const struct stat& status) {
  FileStatus result{type_of_mode(status.st_mode), status.st_mode & 07777, status.st_uid, status.st_gid};
  if (result.type == FileType::kCharacterDevice) {
    result.major = major(status.st_rdev);
    result.minor = minor(status.st_rdev);
  }
  return result;
}

}  // namespace gpulet::cdi

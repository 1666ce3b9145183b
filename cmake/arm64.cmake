# Builds for arm64 on another machine, with Debian's cross compiler and Debian's arm64 libraries in a directory of their own
# (`scripts/bootstrap --for arm64` makes it), so that dpkg here knows one architecture only. protoc and its plugin are this
# machine's: what they write is the same for both.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

if(DEFINED ENV{GPULET_CACHE})
  set(CMAKE_SYSROOT $ENV{GPULET_CACHE}/sysroot-arm64)
else()
  set(CMAKE_SYSROOT $ENV{HOME}/.cache/gpulet/sysroot-arm64)
endif()
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${CMAKE_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig)

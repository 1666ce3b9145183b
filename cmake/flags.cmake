# Compiler and linker flags of every target. A target that is loaded into other people's processes adds its own.

# A fresh clone hits the cache of the last one: paths below the source directory are hashed as relative ones.
find_program(CCACHE ccache)
if(CCACHE)
  set(_launcher env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${_launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${_launcher})
endif()

if(CMAKE_BUILD_TYPE STREQUAL "Demo")
  add_compile_options(-w) # a newcomer waits for it, perhaps with another compiler: all other builds look for warnings
else()
  add_compile_options(-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wconversion -Wno-sign-conversion -Werror)
endif()
add_compile_options(-fno-omit-frame-pointer -ffile-prefix-map=${CMAKE_SOURCE_DIR}/=)

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # gcc 12 finds an overlap in std::string's operator+ (gcc PR 105651), and uninitialised values in std::optional and
  # std::variant once it has inlined them; clang's warnings, in `make lint`, see real ones.
  add_compile_options(-Wno-restrict -Wno-maybe-uninitialized)
else()
  # gcc 12's std::stable_sort calls what it declares deprecated itself; libseccomp's SCMP_A macros leave out a field.
  add_compile_options(-Wno-deprecated-declarations -Wno-missing-field-initializers)
endif()

if(CMAKE_UNITY_BUILD)
  # What one file has in its anonymous namespace, the next one's locals may shadow and its types be made of.
  add_compile_options(-Wno-shadow -Wno-subobject-linkage)
endif()

set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g1 -D_GLIBCXX_ASSERTIONS")
set(CMAKE_C_FLAGS_DEBUG "${CMAKE_CXX_FLAGS_DEBUG}")
# -Og: against -O1 a third less to compile, for tests that take somewhat longer.
set(CMAKE_CXX_FLAGS_SANITIZE "-Og -g1 -D_GLIBCXX_ASSERTIONS")
set(CMAKE_C_FLAGS_SANITIZE "-Og -g1")
# `make demo`: what a newcomer waits for. -O0 takes two thirds of the time of -O2 to compile.
set(CMAKE_CXX_FLAGS_DEMO "-O0 -DNDEBUG")
set(CMAKE_C_FLAGS_DEMO "-O0 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_C_FLAGS_RELEASE "-O2 -DNDEBUG")

if(GPULET_SANITIZE)
  add_compile_options(-fsanitize=${GPULET_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${GPULET_SANITIZE})
  if(GPULET_SANITIZE MATCHES address AND NOT GPULET_FUZZ)
    # AddressSanitizer reports a null pointer's use too; alignment is left to `make fuzz`. A sixth less to compile.
    add_compile_options(-fno-sanitize=null,alignment)
  endif()
  # Tests check what they test, which is sanitized in full. Half as much to compile.
  set(GPULET_TEST_OPTIONS -O0 -fno-sanitize=undefined)
  if(GPULET_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-tsan) # atomic_thread_fence inside the standard library and Asio
  endif()
endif()

# Links in a tenth of the time. What ships is linked by GNU ld, which knows its hardening and size options.
find_program(MOLD mold)
if(MOLD AND NOT CMAKE_BUILD_TYPE STREQUAL "Release")
  add_link_options(-fuse-ld=mold)
endif()

if(GPULET_FUZZ) # every library reports which of its branches an input took
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

if(CMAKE_BUILD_TYPE STREQUAL "Release")
  # What runs as root on a host is hardened: PIE, full RELRO, stack protector, checked libc calls.
  include(CheckPIESupported)
  check_pie_supported()
  add_compile_options(-fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 -D_GLIBCXX_ASSERTIONS
                      -ffunction-sections -fdata-sections)
  # What ships runs on any glibc of Debian 12's age or later, whatever C++ runtime is there.
  add_link_options(-static-libstdc++ -static-libgcc)
  add_link_options(-Wl,-z,relro,-z,now,-z,noexecstack -Wl,--gc-sections -Wl,--as-needed)
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    # 0.8 MB of relocations become 0.02. Needs the glibc that the rest needs too; Debian 12's linker knows no other processor.
    add_link_options(-Wl,-z,pack-relative-relocs)
  endif()
endif()

// For tests of update-ldcache: images with a driver's library, and what ldconfig -p says of them.
#pragma once

#include <string>

#include "base/process.h"
#include "hook/test_image.h"
#include "hook/test_shared_object.h"

namespace gpulet::hook {

#if defined(__x86_64__)
inline const std::string kTestTriplet = "x86_64-linux-gnu";
inline const std::string kTestLoader = "lib64/ld-linux-x86-64.so.2";
inline const std::string kTestMusl = "x86_64";
#else
inline const std::string kTestTriplet = "aarch64-linux-gnu";
inline const std::string kTestLoader = "lib/ld-linux-aarch64.so.1";
inline const std::string kTestMusl = "aarch64";
#endif

#define SKIP_WITHOUT_LDCACHE_RIGHTS()                                                                  \
  do {                                                                                                 \
    if (::geteuid() != 0) GTEST_SKIP() << "root alone may make the mounts that ldconfig runs in here"; \
    if (::access("/sbin/ldconfig", X_OK) != 0) GTEST_SKIP() << "this machine has no /sbin/ldconfig";   \
  } while (false)

// The driver's library in `folder`, as an engine has it bound: by its version and nothing else.
inline void add_driver(const TestImage& image, const std::string& folder) {
  image.file(folder + "/libcuda.so.535.104.5", shared_object("libcuda.so.1"));
}

// UsrMerge, multiarch, ld.so.conf.d: Debian and what comes of it.
inline void make_debian(const TestImage& image) {
  image.folder("usr/lib/" + kTestTriplet);
  image.link("usr/lib", "lib");
  image.link("usr/lib64", "lib64");
  for (const char* folder : {"usr/lib64", "proc", "sys", "dev", "tmp", "var/cache/ldconfig"})
    image.folder(folder);
  image.file("etc/debian_version", "12.1\n");
  image.file("etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n");
  image.file("etc/ld.so.conf.d/libc.conf", "# libc default configuration\n/usr/local/lib\n");
  image.file("etc/ld.so.conf.d/" + kTestTriplet + ".conf",
             "/lib/" + kTestTriplet + "\n/usr/lib/" + kTestTriplet);
  image.file("usr/lib/" + kTestTriplet + "/libz.so.1.2.13", shared_object("libz.so.1"));
  image.link("libz.so.1.2.13", "usr/lib/" + kTestTriplet + "/libz.so.1");
}

// What the cache of the image says a library is, "" for nothing.
inline std::string in_cache(const TestImage& image, const std::string& library) {
  const std::string listing = image.base() / "listing";
  const FileDescriptor out(::open(listing.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  ProcessOptions options;
  options.program = "/sbin/ldconfig";
  options.arguments = {"ldconfig", "-p", "-C", image.root() / "etc/ld.so.cache"};
  options.descriptors = {{out.get(), 1}};
  const auto process = Process::start(options);
  if (!process) return process.error().text();
  if (const auto ended = (*process)->wait(std::chrono::seconds(20)); !ended || !ended->ok()) return "";
  const std::string all = TestImage::content_of(listing);
  const auto at = all.find("\t" + library + " (");
  if (at == std::string::npos) return "";
  const auto arrow = all.find("=> ", at);
  return all.substr(arrow + 3, all.find('\n', arrow) - arrow - 3);
}

// Every name, kind, content, time of the image's.
inline std::string tree_of(const TestImage& image) {
  std::vector<std::string> lines;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(image.root())) {
    struct stat status{};
    if (::lstat(entry.path().c_str(), &status) != 0) std::abort();
    std::ostringstream line;
    line << entry.path() << ' ' << status.st_mode << ' ' << status.st_ino << ' ' << status.st_size << ' '
         << status.st_mtim.tv_sec << '.' << status.st_mtim.tv_nsec;
    lines.push_back(line.str());
  }
  std::sort(lines.begin(), lines.end());
  std::string all;
  for (const auto& line : lines) all += line + "\n";
  return all;
}

inline Ran update_ldcache_of(const TestImage& image, const std::vector<std::string>& folders,
                             const std::vector<std::string>& variables = {}) {
  std::vector<std::string> arguments{"update-ldcache", "--ldconfig-path=@/sbin/ldconfig"};
  for (const auto& folder : folders) arguments.push_back("--folder=" + folder);
  return image.run(arguments, variables);
}

}  // namespace gpulet::hook

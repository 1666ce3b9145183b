#include "hook/cuda_compat.h"

#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/text.h"
#include "hook/json_reader.h"
#include "hook/requirements.h"

namespace gpulet::hook {
namespace {

constexpr std::string_view kSectionName = ".note.cuda.fwd_compatibility";
constexpr std::string_view kOwner = "NVIDIA Corporation";
constexpr std::size_t kMaxSections = 4096;
constexpr std::size_t kMaxNoteBytes = 64u << 10;
constexpr std::size_t kMaxListed = 1024;

tl::unexpected<Error> damaged_library(std::string_view what) {
  return fail(Code::kInvalidArgument, "not a readable library: " + std::string(what));
}

template <class T>
bool read_as(const ReadAt& read_at, std::uint64_t offset, T& out) {
  return read_at(offset, std::span<char>(reinterpret_cast<char*>(&out), sizeof out));
}

// Returns offset + size, or nullopt on overflow.
bool checked_sum(std::uint64_t a, std::uint64_t b, std::uint64_t& out) {
  return !__builtin_add_overflow(a, b, &out) && out < std::uint64_t{1} << 62;
}

bool is_named(const ReadAt& read_at, const Elf64_Shdr& names, std::uint32_t name) {
  std::array<char, kSectionName.size() + 1> found{};
  std::uint64_t at = 0;
  if (name >= names.sh_size || !checked_sum(names.sh_offset, name, at)) return false;
  if (!read_at(at, found)) return false;
  return found.back() == '\0' && std::string_view(found.data(), kSectionName.size()) == kSectionName;
}

Result<std::optional<CompatNote>> read_note(const ReadAt& read_at, const Elf64_Shdr& section) {
  if (section.sh_size < sizeof(Elf64_Nhdr) || section.sh_size > kMaxNoteBytes)
    return damaged_library("the note's size");
  std::string bytes(section.sh_size, '\0');
  if (!read_at(section.sh_offset, bytes)) return damaged_library("the note is cut off");
  Elf64_Nhdr header{};
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::uint64_t alignment = section.sh_addralign == 8 ? 8 : 4;
  const std::uint64_t name_bytes = (header.n_namesz + alignment - 1) / alignment * alignment;
  const std::string_view rest = std::string_view(bytes).substr(sizeof header);
  if (header.n_namesz > rest.size() || name_bytes > rest.size())
    return damaged_library("the note's name is cut off");
  std::string_view owner = rest.substr(0, header.n_namesz);
  owner = owner.substr(0, owner.find('\0'));
  if (owner != kOwner) return std::optional<CompatNote>();
  // Some libraries' notes count padding that is not there.
  std::string_view text = rest.substr(name_bytes, header.n_descsz);
  text = text.substr(0, text.find('\0'));
  if (text.empty()) return std::optional<CompatNote>();
  GPULET_TRY_ASSIGN(CompatNote note, parse_compat_note(text));
  return std::optional<CompatNote>(std::move(note));
}

}  // namespace

Result<CompatNote> parse_compat_note(std::string_view text) {
  JsonReader json(text);
  CompatNote note;
  GPULET_TRY(json.read_object([&](std::string_view key) -> Status {
    if (key == "CUDA Version") return json.read_string_into(note.cuda_version);
    if (key != "Driver" || json.consume_null()) return key == "Driver" ? Status{} : json.skip_value();
    note.drivers.clear();
    return json.read_array([&]() -> Status {
      GPULET_TRY_ASSIGN(const std::uint64_t branch, json.read_unsigned());
      if (note.drivers.size() >= kMaxListed) return damaged_library("the note lists too many drivers");
      note.drivers.push_back(branch);
      return {};
    });
  }));
  GPULET_TRY(json.expect_end());
  return note;
}

Result<std::optional<CompatNote>> read_compat_note(const ReadAt& read_at) {
  Elf64_Ehdr header{};
  if (!read_as(read_at, 0, header)) return damaged_library("too short");
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_ident[EI_DATA] != ELFDATA2LSB)
    return damaged_library("not a 64-bit little-endian ELF file");
  if (header.e_shoff == 0 || header.e_shnum == 0) return std::optional<CompatNote>();
  if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shnum > kMaxSections ||
      header.e_shstrndx >= header.e_shnum)
    return damaged_library("its section headers");
  const auto section_at = [&](std::size_t index, Elf64_Shdr& section) {
    std::uint64_t at = 0;
    return checked_sum(header.e_shoff, index * sizeof(Elf64_Shdr), at) && read_as(read_at, at, section);
  };
  Elf64_Shdr names{};
  if (!section_at(header.e_shstrndx, names)) return damaged_library("its section headers are cut off");
  for (std::size_t index = 0; index < header.e_shnum; ++index) {
    Elf64_Shdr section{};
    if (!section_at(index, section)) return damaged_library("its section headers are cut off");
    if (section.sh_type == SHT_NOTE && is_named(read_at, names, section.sh_name))
      return read_note(read_at, section);
  }
  return std::optional<CompatNote>();
}

namespace {

constexpr std::string_view kLibraryPrefix = "libcuda.so.";
constexpr std::size_t kMaxCompatFiles = 1024;
constexpr std::size_t kMaxCompatBytes = 1u << 30;

ReadAt make_file_reader(int fd) {
  return [fd](std::uint64_t offset, std::span<char> out) {
    while (!out.empty()) {
      const ssize_t got = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      out = out.subspan(static_cast<std::size_t>(got));
      offset += static_cast<std::uint64_t>(got);
    }
    return true;
  };
}

// Returns the version of the only "libcuda.so.<a>.<b>…" that is not a link; nullopt if there is none or more
// than one.
std::optional<std::string> find_compat_library(const Rootfs& root, std::string_view directory,
                                               const std::vector<std::string>& names) {
  std::optional<std::string> found;
  for (const std::string& name : names) {
    if (!text::starts_with(name, kLibraryPrefix)) continue;
    const std::string version = name.substr(kLibraryPrefix.size());
    if (version.find('.') == std::string::npos || !parse_version(version)) continue;
    if (root.read_link(std::string(directory) + "/" + name)) continue;
    if (found) return std::nullopt;
    found = version;
  }
  return found;
}

// Returns whether the container's own library should come first; false for anything unusual.
bool should_use_compat(const Rootfs& root, std::string_view directory, const HostVersions& host) {
  const auto names = root.list_directory(directory, kMaxCompatFiles);
  if (!names) return false;
  const auto version = find_compat_library(root, directory, *names);
  if (!version) return false;
  const auto file = root.open_regular(std::string(directory) + "/" + std::string(kLibraryPrefix) + *version,
                                      kMaxCompatBytes);
  if (!file) return false;
  const auto note = read_compat_note(make_file_reader(file->get()));
  return note && is_compat_usable(*note, *version, host);
}

}  // namespace

bool is_compat_usable(const std::optional<CompatNote>& note, std::string_view library,
                      const HostVersions& host) {
  const auto host_driver = parse_version(host.driver);
  const auto host_cuda = parse_version(host.cuda);
  if (note && host_driver && !note->drivers.empty() &&
      std::find(note->drivers.begin(), note->drivers.end(), host_driver->major_part()) == note->drivers.end())
    return false;
  const auto its_cuda = note ? parse_version(note->cuda_version) : std::nullopt;
  if (its_cuda && host_cuda) return *its_cuda > *host_cuda;
  const auto its_driver = parse_version(library);
  return its_driver && host_driver && its_driver->major_part() > host_driver->major_part();
}

Status enable_cuda_compat(const Container& container, const HostVersions& host, std::string_view directory) {
  // The directory's name comes from the CDI spec and becomes a line of a file that ldconfig reads.
  if (directory.empty() || directory[0] != '/' ||
      directory.find_first_of("\n\r# \t:,=") != std::string_view::npos)
    return fail(Code::kInvalidArgument, "ld.so.conf cannot express this directory", std::string(directory));
  if (should_use_compat(container.root, directory, host))
    return container.root.write_file(kCompatConfigFile, std::string(directory) + "\n");
  return container.root.remove_file(kCompatConfigFile);
}

}  // namespace gpulet::hook

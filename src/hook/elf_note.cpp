#include "hook/elf_note.h"

#include <elf.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "hook/json_reader.h"

namespace gpulet::hook {
namespace {

constexpr std::string_view kSectionName = ".note.cuda.fwd_compatibility";
constexpr std::string_view kOwner = "NVIDIA Corporation";
constexpr std::size_t kMaxSections = 4096;
constexpr std::size_t kMaxNoteBytes = 64u << 10;
constexpr std::size_t kMaxListed = 1024;

tl::unexpected<Error> damaged(std::string_view what) {
  return fail(Code::kInvalidArgument, "not a library that can be read: " + std::string(what));
}

template <class T>
bool read_as(const ReadAt& read_at, std::uint64_t offset, T& out) {
  return read_at(offset, std::span<char>(reinterpret_cast<char*>(&out), sizeof out));
}

// offset + size, unless that is more than a file can have.
bool sum(std::uint64_t a, std::uint64_t b, std::uint64_t& out) {
  return !__builtin_add_overflow(a, b, &out) && out < std::uint64_t{1} << 62;
}

bool is_named(const ReadAt& read_at, const Elf64_Shdr& names, std::uint32_t name) {
  std::array<char, kSectionName.size() + 1> found{};
  std::uint64_t at = 0;
  if (name >= names.sh_size || !sum(names.sh_offset, name, at)) return false;
  if (!read_at(at, found)) return false;
  return found.back() == '\0' && std::string_view(found.data(), kSectionName.size()) == kSectionName;
}

Result<std::optional<CompatNote>> read_note(const ReadAt& read_at, const Elf64_Shdr& section) {
  if (section.sh_size < sizeof(Elf64_Nhdr) || section.sh_size > kMaxNoteBytes)
    return damaged("the note's size");
  std::string bytes(section.sh_size, '\0');
  if (!read_at(section.sh_offset, bytes)) return damaged("the note is cut off");
  Elf64_Nhdr header{};
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::uint64_t alignment = section.sh_addralign == 8 ? 8 : 4;
  const std::uint64_t name_bytes = (header.n_namesz + alignment - 1) / alignment * alignment;
  const std::string_view rest = std::string_view(bytes).substr(sizeof header);
  if (header.n_namesz > rest.size() || name_bytes > rest.size()) return damaged("the note's name is cut off");
  std::string_view owner = rest.substr(0, header.n_namesz);
  owner = owner.substr(0, owner.find('\0'));
  if (owner != kOwner) return std::optional<CompatNote>();
  // Some libraries' notes give a size with the padding that is not there.
  std::string_view text = rest.substr(name_bytes, header.n_descsz);
  text = text.substr(0, text.find('\0'));
  if (text.empty()) return std::optional<CompatNote>();
  GPULET_TRY_ASSIGN(CompatNote note, parse_compat_text(text));
  return std::optional<CompatNote>(std::move(note));
}

}  // namespace

Result<CompatNote> parse_compat_text(std::string_view text) {
  JsonReader json(text);
  CompatNote note;
  GPULET_TRY(json.object([&](std::string_view key) -> Status {
    if (key == "CUDA Version") return json.string_into(note.cuda_version);
    if (key != "Driver" || json.take_null()) return key == "Driver" ? Status{} : json.skip();
    note.drivers.clear();
    return json.array([&]() -> Status {
      GPULET_TRY_ASSIGN(const std::uint64_t branch, json.unsigned_number());
      if (note.drivers.size() >= kMaxListed) return damaged("the note lists too many drivers");
      note.drivers.push_back(branch);
      return {};
    });
  }));
  GPULET_TRY(json.end());
  return note;
}

Result<std::optional<CompatNote>> read_compat_note(const ReadAt& read_at) {
  Elf64_Ehdr header{};
  if (!read_as(read_at, 0, header)) return damaged("too short");
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_ident[EI_DATA] != ELFDATA2LSB)
    return damaged("not a 64-bit little-endian ELF file");
  if (header.e_shoff == 0 || header.e_shnum == 0) return std::optional<CompatNote>();
  if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shnum > kMaxSections ||
      header.e_shstrndx >= header.e_shnum)
    return damaged("its section headers");
  const auto section_at = [&](std::size_t index, Elf64_Shdr& section) {
    std::uint64_t at = 0;
    return sum(header.e_shoff, index * sizeof(Elf64_Shdr), at) && read_as(read_at, at, section);
  };
  Elf64_Shdr names{};
  if (!section_at(header.e_shstrndx, names)) return damaged("its section headers are cut off");
  for (std::size_t index = 0; index < header.e_shnum; ++index) {
    Elf64_Shdr section{};
    if (!section_at(index, section)) return damaged("its section headers are cut off");
    if (section.sh_type == SHT_NOTE && is_named(read_at, names, section.sh_name))
      return read_note(read_at, section);
  }
  return std::optional<CompatNote>();
}

}  // namespace gpulet::hook

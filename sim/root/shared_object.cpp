#include "sim/root/shared_object.h"

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <iterator>

namespace gpulet::sim {
namespace {

#if defined(__x86_64__)
constexpr Elf64_Half kArchitecture = EM_X86_64;
#elif defined(__aarch64__)
constexpr Elf64_Half kArchitecture = EM_AARCH64;
#else
#error "the driver root is laid out for x86-64 and arm64"
#endif
constexpr std::uint64_t kPage = 0x10000;

template <class Part>
std::uint64_t append(std::string& file, const Part& part) {
  const std::uint64_t at = file.size();
  file.append(reinterpret_cast<const char*>(&part), sizeof(part));
  return at;
}

Elf64_Phdr segment(Elf64_Word type, Elf64_Word flags, std::uint64_t offset, std::uint64_t size,
                   std::uint64_t align) {
  Elf64_Phdr header{};
  header.p_type = type;
  header.p_flags = flags;
  header.p_offset = header.p_vaddr = header.p_paddr = offset;
  header.p_filesz = header.p_memsz = size;
  header.p_align = align;
  return header;
}

}  // namespace

std::string make_shared_object(std::string_view soname) {
  // Header, program headers, dynamic section, hash table, symbol table, strings: addresses are offsets in the
  // file.
  constexpr std::size_t kSegments = 3;
  constexpr std::size_t kDynamics = 7;
  constexpr std::uint64_t kDynamicAt = sizeof(Elf64_Ehdr) + kSegments * sizeof(Elf64_Phdr);
  constexpr std::uint64_t kHashAt = kDynamicAt + kDynamics * sizeof(Elf64_Dyn);
  constexpr Elf64_Word kHash[] = {1, 1, 0, 0};  // one bucket, one symbol: the null one
  constexpr std::uint64_t kSymbolsAt = kHashAt + sizeof(kHash);
  constexpr std::uint64_t kStringsAt = kSymbolsAt + sizeof(Elf64_Sym);
  const std::uint64_t strings_size = soname.size() + 2;
  const std::uint64_t size = kStringsAt + strings_size;

  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = ET_DYN;
  header.e_machine = kArchitecture;
  header.e_version = EV_CURRENT;
  header.e_phoff = sizeof(Elf64_Ehdr);
  header.e_ehsize = sizeof(Elf64_Ehdr);
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = kSegments;
  header.e_shentsize = sizeof(Elf64_Shdr);

  std::string file;
  append(file, header);
  append(file, segment(PT_LOAD, PF_R | PF_W, 0, size, kPage));
  append(file,
         segment(PT_DYNAMIC, PF_R | PF_W, kDynamicAt, kDynamics * sizeof(Elf64_Dyn), alignof(Elf64_Dyn)));
  append(file, segment(PT_GNU_STACK, PF_R | PF_W, 0, 0, 16));
  const std::pair<Elf64_Sxword, std::uint64_t> dynamics[] = {{DT_SONAME, 1},
                                                             {DT_HASH, kHashAt},
                                                             {DT_STRTAB, kStringsAt},
                                                             {DT_SYMTAB, kSymbolsAt},
                                                             {DT_STRSZ, strings_size},
                                                             {DT_SYMENT, sizeof(Elf64_Sym)},
                                                             {DT_NULL, 0}};
  static_assert(std::size(dynamics) == kDynamics);
  for (const auto& [tag, value] : dynamics) {
    Elf64_Dyn entry{};
    entry.d_tag = tag;
    entry.d_un.d_val = value;
    append(file, entry);
  }
  append(file, kHash);
  append(file, Elf64_Sym{});
  file.push_back('\0');
  file.append(soname);
  file.push_back('\0');
  return file;
}

}  // namespace gpulet::sim

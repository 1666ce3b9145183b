// For tests: a shared object of this machine's, made by hand, of which ldconfig believes its SONAME.
#pragma once

#include <elf.h>

#include <cstring>
#include <string>

namespace gpulet::hook {

// Header, two segments (all of it, the dynamic section), dynamic section, names.
inline std::string shared_object(const std::string& soname) {
  const std::string names = std::string(1, '\0') + "libc.so.6" + '\0' + soname + '\0';
  constexpr std::size_t kDynamic = sizeof(Elf64_Ehdr) + 2 * sizeof(Elf64_Phdr);
  constexpr std::size_t kNames = kDynamic + 5 * sizeof(Elf64_Dyn);
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = ET_DYN;
#if defined(__x86_64__)
  header.e_machine = EM_X86_64;
#else
  header.e_machine = EM_AARCH64;
#endif
  header.e_version = EV_CURRENT;
  header.e_ehsize = sizeof header;
  header.e_phoff = sizeof header;
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 2;
  Elf64_Phdr all{};
  all.p_type = PT_LOAD;
  all.p_flags = PF_R;
  all.p_filesz = all.p_memsz = kNames + names.size();
  all.p_align = 4096;
  Elf64_Phdr dynamic = all;
  dynamic.p_type = PT_DYNAMIC;
  dynamic.p_offset = dynamic.p_vaddr = dynamic.p_paddr = kDynamic;
  dynamic.p_filesz = dynamic.p_memsz = 5 * sizeof(Elf64_Dyn);
  dynamic.p_align = 8;
  Elf64_Dyn entries[5]{};
  entries[0] = {DT_NEEDED, {1}};
  entries[1] = {DT_SONAME, {11}};
  entries[2] = {DT_STRTAB, {kNames}};
  entries[3] = {DT_STRSZ, {names.size()}};
  const auto raw = [](const auto& value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
  };
  return raw(header) + raw(all) + raw(dynamic) + raw(entries) + names;
}

}  // namespace gpulet::hook

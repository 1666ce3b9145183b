// For tests: hand-made ELF files.
#pragma once

#include <elf.h>

#include <cstring>
#include <string>
#include <string_view>

namespace gpulet::hook {

// A small ELF file with the note of a forward compatible libcuda.
struct TestLibrary {
  std::string text = R"({"Format": 1, "CUDA Version": "13.1", "Driver": [535, 550, 590], "Device": [1, 2]})";
  std::string owner = "NVIDIA Corporation";
  std::string section = ".note.cuda.fwd_compatibility";
  std::uint64_t alignment = 4;
  std::uint32_t padding = 0;  // added to the description's size, as in one of NVIDIA's libraries

  // Header, note, names, section headers (null, note, names).
  std::string file_bytes() const {
    const auto padded = [&](std::string part) {
      const auto step = alignment == 8 ? 8u : 4u;
      part.resize((part.size() + step - 1) / step * step, '\0');
      return part;
    };
    const Elf64_Nhdr note{static_cast<std::uint32_t>(owner.size() + 1),
                          static_cast<std::uint32_t>(text.size() + 1) + padding, 1};
    const std::string notes = raw_bytes(note) + padded(owner + '\0') + padded(text + '\0');
    const std::string names = std::string(1, '\0') + section + '\0' + ".shstrtab" + '\0';
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_ident[EI_VERSION] = EV_CURRENT;
    header.e_type = ET_DYN;
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = 3;
    header.e_shstrndx = 2;
    header.e_shoff = sizeof header + notes.size() + names.size();
    Elf64_Shdr first{};
    first.sh_name = 1;
    first.sh_type = SHT_NOTE;
    first.sh_offset = sizeof header;
    first.sh_size = notes.size();
    first.sh_addralign = alignment;
    Elf64_Shdr second{};
    second.sh_name = static_cast<std::uint32_t>(section.size() + 2);
    second.sh_type = SHT_STRTAB;
    second.sh_offset = sizeof header + notes.size();
    second.sh_size = names.size();
    return raw_bytes(header) + notes + names + raw_bytes(Elf64_Shdr{}) + raw_bytes(first) + raw_bytes(second);
  }

 private:
  template <class T>
  static std::string raw_bytes(const T& value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
  }
};

// A shared object of this architecture whose SONAME ldconfig accepts:
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

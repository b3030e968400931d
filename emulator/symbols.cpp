// symbols.cpp: what the emulator knows from the executable's own symbol table and
// debug information: the extents of static __shared__ variables (function-local statics) and the
// source lines of reports.
#include "core.h"

#include <algorithm>
#include <cstdio>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <map>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace emu {

namespace {
struct Image {
    char *base = nullptr;  // load address
    const char *begin = nullptr, *end = nullptr;
    std::vector<std::pair<const char *, const char *>> constants;  // segments that are not writable
    std::vector<StaticVariable> statics;                           // sorted by address
    std::map<const void *, std::string> functions;                 // mangled names
};

int find_program(struct dl_phdr_info *info, size_t, void *out) {
    Image *image = (Image *)out;
    image->base = (char *)info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
        const char *begin = image->base + info->dlpi_phdr[i].p_vaddr;
        const char *end = begin + info->dlpi_phdr[i].p_memsz;
        if (!image->begin || begin < image->begin) image->begin = begin;
        if (end > image->end) image->end = end;
        if (!(info->dlpi_phdr[i].p_flags & PF_W)) image->constants.push_back({begin, end});
    }
    return 1;  // the first object is the program
}

void read_symbols(Image &image, const char *file) {
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)file;
    const Elf64_Shdr *section = (const Elf64_Shdr *)(file + header->e_shoff);
    for (int s = 0; s < header->e_shnum; s++) {
        if (section[s].sh_type != SHT_SYMTAB) continue;
        const Elf64_Sym *symbol = (const Elf64_Sym *)(file + section[s].sh_offset);
        const char *names = file + section[section[s].sh_link].sh_offset;
        for (size_t i = 0; i < section[s].sh_size / sizeof *symbol; i++) {
            std::string name = names + symbol[i].st_name;
            char *address = image.base + symbol[i].st_value;
            int type = ELF64_ST_TYPE(symbol[i].st_info);
            if (type == STT_FUNC && symbol[i].st_size) image.functions[address] = name;
            if (type == STT_OBJECT && name.compare(0, 3, "_ZZ") == 0)
                image.statics.push_back({address, address + symbol[i].st_size, name.substr(3)});
        }
    }
    std::sort(image.statics.begin(), image.statics.end(),
              [](const StaticVariable &a, const StaticVariable &b) { return a.begin < b.begin; });
}

const Image &image() {
    static Image image;
    if (image.base || image.begin) return image;
    dl_iterate_phdr(find_program, &image);
    int fd = open("/proc/self/exe", O_RDONLY);
    struct stat st;
    if (fd < 0 || fstat(fd, &st)) fatal("cannot read the program's symbols from /proc/self/exe");
    void *file = mmap(nullptr, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (file == MAP_FAILED) fatal("cannot map /proc/self/exe");
    read_symbols(image, (const char *)file);
    munmap(file, (size_t)st.st_size);
    close(fd);
    return image;
}
}  // namespace

const StaticVariable *find_static(const void *p) {
    const std::vector<StaticVariable> &all = image().statics;
    auto after =
        std::upper_bound(all.begin(), all.end(), (const char *)p,
                         [](const char *a, const StaticVariable &v) { return a < v.begin; });
    if (after == all.begin()) return nullptr;
    const StaticVariable &v = *--after;
    return (const char *)p < v.end ? &v : nullptr;
}

bool is_program(const void *pc) {
    return (const char *)pc >= image().begin && (const char *)pc < image().end;
}

bool is_constant(const void *p) {
    for (const auto &segment : image().constants)
        if ((const char *)p >= segment.first && (const char *)p < segment.second) return true;
    return false;
}

std::string function_name(const void *function) {
    auto it = image().functions.find(function);
    return it == image().functions.end() ? "" : it->second;
}

size_t static_shared_bytes(const void *function) {
    std::string name = function_name(function);
    if (name.compare(0, 2, "_Z")) return 0;
    std::string owner = name.substr(2) + "E";
    size_t bytes = 0;
    for (const StaticVariable &v : image().statics)
        if (v.owner.compare(0, owner.size(), owner) == 0) bytes += (size_t)(v.end - v.begin);
    return bytes;
}

// addr2line names the inlined callers too; the first line outside the emulator's and the
// system's headers counts
static std::string look_up(const void *pc) {
    std::string where = text("%p", pc);
    if (!is_program(pc)) return where;
    std::string command = text("addr2line -i -e /proc/%d/exe 0x%zx 2>/dev/null", (int)getpid(),
                               (size_t)((const char *)pc - image().base) - 1);
    FILE *pipe = popen(command.c_str(), "r");
    if (!pipe) return where;
    char line[1024];
    while (fgets(line, sizeof line, pipe)) {
        std::string s = line;
        s = s.substr(0, s.find_first_of(" \n"));
        bool header = s[0] == '?' || s.find("emulator/emu.h") != std::string::npos ||
                      s.find("/usr/") == 0 || s.find("/cuda") != std::string::npos;
        if (header) continue;
        where = s;
        break;
    }
    pclose(pipe);
    return where;
}

std::string source_line(const void *pc) {
    static std::map<const void *, std::string> known;
    auto it = known.find(pc);
    return it != known.end() ? it->second : known[pc] = look_up(pc);
}

}  // namespace emu

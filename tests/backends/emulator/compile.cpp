// SPDX-License-Identifier: MIT
#include "compile.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <string_view>
#include <system_error>

#include "memory.hpp"
#include "ptx.hpp"

namespace tutti::emulator {

namespace {

// Text before a program: CUDA's additions to C++. All variables in .bss are shared memory of the program's kernels.
// Variables that the emulator sets have initial values other than zero and are therefore not in .bss.
constexpr char prelude[] = R"(
#include <cmath>
#include <utility>
struct Position { unsigned x, y, z; };
struct Machine { Position thread, block, threads, blocks; void (*sync)(); void (*yield)(); void (*dependency)(bool wait); };
static Machine* tutti_machine = (Machine*)1;
static float (*tutti_from_f16)(unsigned short) = (float (*)(unsigned short))1;
static unsigned short (*tutti_to_f16)(float) = (unsigned short (*)(float))1;
extern char __bss_start[] __attribute__((visibility("hidden"))), _end[] __attribute__((visibility("hidden")));
#define TUTTI_EXPORT extern "C" __attribute__((visibility("default")))
TUTTI_EXPORT void tutti_bind(Machine* m, float (*from)(unsigned short), unsigned short (*to)(float), char** shared) {
  tutti_machine = m;
  tutti_from_f16 = from;
  tutti_to_f16 = to;
  shared[0] = __bss_start;
  shared[1] = _end;
}
#define threadIdx (tutti_machine->thread)
#define blockIdx (tutti_machine->block)
#define blockDim (tutti_machine->threads)
#define gridDim (tutti_machine->blocks)
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
static inline void __syncthreads() { tutti_machine->sync(); }
static inline void __threadfence() {}
static inline void __threadfence_system() {}
static inline float __uint_as_float(unsigned u) { float f; __builtin_memcpy(&f, &u, 4); return f; }
static inline unsigned __float_as_uint(float f) { unsigned u; __builtin_memcpy(&u, &f, 4); return u; }
static inline float __int_as_float(unsigned u) { return __uint_as_float(u); }
static inline int __float_as_int(float f) { return (int)__float_as_uint(f); }
template <class T> static inline T tutti_rounded(T x) { asm("" : "+x"(x)); return x; }
static inline float __fmul_rn(float a, float b) { return tutti_rounded(a * b); }
static inline float __fadd_rn(float a, float b) { return tutti_rounded(tutti_rounded(a) + tutti_rounded(b)); }
static inline float __fsub_rn(float a, float b) { return tutti_rounded(tutti_rounded(a) - tutti_rounded(b)); }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline double __dmul_rn(double a, double b) { return tutti_rounded(a * b); }
static inline double __dadd_rn(double a, double b) { return tutti_rounded(tutti_rounded(a) + tutti_rounded(b)); }
static inline double __dsub_rn(double a, double b) { return tutti_rounded(tutti_rounded(a) - tutti_rounded(b)); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
template <class T> static inline T __ldg(const T* p) { return *p; }
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }
#define __expf expf
static inline float __fdividef(float a, float b) { return a / b; }
using std::sqrt; using std::log;
static inline unsigned short tutti_to_bf16(float f) {
  const unsigned u = __float_as_uint(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (unsigned short)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
template <class... P, std::size_t... I>
static inline void tutti_call(void (*kernel)(P...), void** a, std::index_sequence<I...>) { kernel(*static_cast<P*>(a[I])...); }
template <class... P>
static inline void tutti_call(void (*kernel)(P...), void** a) { tutti_call(kernel, a, std::index_sequence_for<P...>()); }
template <class... P>
static inline const std::size_t* tutti_sizes(void (*)(P...)) {
  static constexpr std::size_t sizes[] = {sizeof(P)..., 0};
  return sizes;
}
)";

void replace_all(std::string& s, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = s.find(from, at)) != std::string::npos; at += to.size())
    s.replace(at, from.size(), to);
}

std::string compiler() {
  const char* const named = std::getenv("TUTTI_CXX");
  return named != nullptr && *named != '\0' ? named : "c++";
}

// Returns GCC's option against unique symbols, or an empty text for Clang: Clang has no such symbols and rejects the
// option.
const std::string& no_unique_symbols() {
  static const std::string option =
      std::system((compiler() + " --version 2>&1 | grep -q clang").c_str()) == 0 ? "" : " -fno-gnu-unique";
  return option;
}

// Returns 64 bits that depend on everything that affects a shared object.
std::string key_of(const std::string& text, const std::string& command) {
  std::error_code e;
  const auto changed = std::filesystem::last_write_time(compiler(), e).time_since_epoch().count();
  std::uint64_t h = 14695981039346656037ULL;
  for (const std::string& part : {text, command, std::to_string(e ? 0 : changed)})
    for (const char c : part) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  std::array<char, 17> hex{};
  std::snprintf(hex.data(), hex.size(), "%016llx", static_cast<unsigned long long>(h));
  return hex.data();
}

// Quotes a word for a shell's command line.
std::string quoted(std::string word) {
  replace_all(word, "'", "'\\''");
  return "'" + word + "'";
}

// Lets one process compile an object; processes that need the same object wait for it.
class Lock {
 public:
  explicit Lock(const std::string& path) : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (file_ >= 0) ::flock(file_, LOCK_EX);
  }
  ~Lock() {
    if (file_ >= 0) ::close(file_);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int file_;
};

const std::filesystem::path& kept_folder() {
  static const std::filesystem::path folder = [] {
    auto path = std::filesystem::path(TUTTI_BUILD_DIR) / "emulated_kernels";
    std::error_code e;
    std::filesystem::create_directories(path, e);
    return path;
  }();
  return folder;
}

// Returns the shared object of a text, which the build folder keeps under `key`, or an empty text if the command fails.
// command(stem) compiles stem + extension to stem.new. Its output is added to the log.
std::string kept_object(const std::string& text, const std::string& key, const std::string& extension, std::string& log,
                        const std::function<std::string(const std::string& stem)>& command) {
  const std::string stem = (kept_folder() / key_of(text, key)).string(), to = stem + ".so";
  const Lock lock(stem + ".lock");
  if (std::filesystem::exists(to)) return to;
  std::ofstream(stem + extension) << text;
  const bool good = std::system((command(stem) + " > " + quoted(stem + ".log") + " 2>&1").c_str()) == 0;
  std::ifstream said(stem + ".log");
  log.assign(std::istreambuf_iterator<char>(said), {});
  std::error_code e;
  if (good) std::filesystem::rename(stem + ".new", to, e);
  return good && !e ? to : "";
}

std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Makes the replacement of TUTTI_EMULATOR_REPLACE.
void replace_text(std::string& source) {
  const char* const file = std::getenv("TUTTI_EMULATOR_REPLACE");
  if (file == nullptr || *file == '\0') return;
  const std::string texts = text_of(file);
  const std::size_t middle = texts.find('\1');
  if (middle == std::string::npos) give_up(std::string("no byte 1 in ") + file);
  replace_all(source, texts.substr(0, middle), texts.substr(middle + 1));
}

// Returns the output of a shell's command.
std::string output_of(const std::string& command) {
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) give_up("no shell for " + command);
  std::string text;
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) text.push_back(static_cast<char>(c));
  ::pclose(pipe);
  return text;
}

std::string ptx_architecture() {
  const char* const named = std::getenv("TUTTI_PTX_ARCH");
  return named != nullptr && *named != '\0' ? named : "90";
}

bool build_from_ptx(Program& p) {
  const std::filesystem::path scripts = std::filesystem::path(TUTTI_SOURCE_DIR) / "tests" / "backends" / "emulator";
  const std::string architecture = ptx_architecture();
  // The versions and options of NVRTC and of the compiler.
  static const std::string tools = output_of("TUTTI_BUILD_DIR=" + quoted(TUTTI_BUILD_DIR) + " python3 " +
                                             quoted((scripts / "ptx_nvrtc.py").string()) + " " + quoted(architecture) +
                                             "; " + compiler() + " --version");
  std::string text = p.source, names, key = architecture + compiler() + tools;
  replace_text(text);
  p.symbols.clear();
  for (std::size_t i = 0; i < p.kernels.size(); ++i) {
    names += p.kernels[i] + "\n";
    p.symbols.push_back(std::to_string(i) + " " + p.kernels[i]);
  }
  for (const char* file :
       {"ptx.py", "ptx_arithmetic.py", "ptx_emit.py", "ptx_forms.py", "ptx_nvrtc.py", "ptx_operands.py", "ptx_parse.py",
        "ptx_runtime.hpp", "ptx_approximate.hpp", "ptx_integers.hpp"})
    key += text_of(scripts / file);
  const std::string to = kept_object(text, key + names, ".cu", p.log, [&](const std::string& stem) {
    std::ofstream(stem + ".names") << names;
    return "TUTTI_CXX=" + quoted(compiler()) + " TUTTI_BUILD_DIR=" + quoted(TUTTI_BUILD_DIR) + " python3 " +
           quoted((scripts / "ptx.py").string()) + " --arch " + quoted(architecture) + " --kernels " +
           quoted(stem + ".names") + " --objects " + quoted((kept_folder() / "ptx").string()) + " --to " +
           quoted(stem + ".new") + " " + quoted(stem + ".cu");
  });
  p.machine_code = to.empty() ? "" : to + "\n";
  return !to.empty();
}

}  // namespace

std::filesystem::path folder() {
  static const struct Folder {
    std::filesystem::path path;
    pid_t maker = ::getpid();
    Folder() {
      std::string name = (std::filesystem::temp_directory_path() / "tutti-emulator-XXXXXX").string();
      if (::mkdtemp(name.data()) == nullptr) give_up("no temporary folder");
      path = name;
    }
    ~Folder() {
      if (::getpid() != maker) return;
      std::error_code e;
      std::filesystem::remove_all(path, e);
    }
  } f;
  return f.path;
}

bool from_ptx() {
  static const bool chosen = [] {
    const char* const text = std::getenv("TUTTI_EMULATOR");
    return text != nullptr && std::string_view(text) == "ptx";
  }();
  return chosen;
}
bool has_early_kernels() { return !from_ptx() || std::atoi(ptx_architecture().c_str()) >= 90; }
bool contracts() {
  if (from_ptx()) return false;
#if defined(__x86_64__)
  return __builtin_cpu_supports("fma");
#else
  return true;
#endif
}

bool Program::build() {
  if (from_ptx() || source.starts_with(".version")) return build_from_ptx(*this);
  std::string text = source;
  // Replaces the instructions that the source contains as text.
  replace_all(text, R"(asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x.bits));)", "f = tutti_from_f16(x.bits);");
  replace_all(text, R"(asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(f));)", "r.bits = tutti_to_bf16(f);");
  replace_all(text, R"(asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(f));)", "r.bits = tutti_to_f16(f);");
  replace_all(text, R"(asm volatile("griddepcontrol.wait;" ::: "memory");)", "tutti_machine->dependency(true);");
  replace_all(text, R"(asm volatile("griddepcontrol.launch_dependents;" ::: "memory");)",
              "tutti_machine->dependency(false);");
  replace_all(
      text,
      R"(asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(v) : "memory");)",
      "before = *p; *p += v;");
  replace_all(text, R"(asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");)",
              "tutti_machine->yield(); v = *p;");
  text = prelude + ("#line 1 \"" + name + "\"\n") + text + "\n";
  symbols.clear();
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    const std::string number = std::to_string(i);
    symbols.push_back(number + " " + kernels[i]);
    text += "TUTTI_EXPORT void tutti_run_" + number + "(void** a) { tutti_call(&" + kernels[i] + ", a); }\n";
    text +=
        "TUTTI_EXPORT const std::size_t* tutti_sizes_" + number + "() { return tutti_sizes(&" + kernels[i] + "); }\n";
  }
  // A GPU faults at unaligned reads, which x86 allows. A kernel also cannot use symbols of a program.
  const std::string command = compiler() + " -std=c++17 -O1 -fno-strict-aliasing -w -fPIC -shared -fvisibility=hidden" +
                              no_unique_symbols() + " -fsanitize=alignment,bounds -fsanitize-undefined-trap-on-error";
  for (const bool contracted : {false, true}) {
    if (contracted && !contracts()) continue;
    std::string flags = contracted ? " -ffp-contract=fast -fexpensive-optimizations" : " -ffp-contract=off";
#if defined(__x86_64__)
    if (contracted) flags += " -mfma";
#endif
    const std::string to = kept_object(text, command + flags, ".cpp", log, [&](const std::string& stem) {
      return command + flags + " -o " + quoted(stem + ".new") + " " + quoted(stem + ".cpp");
    });
    if (to.empty()) return false;
    machine_code += to + "\n";
  }
  return true;
}

}  // namespace tutti::emulator

// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/backends/cuda/api/nvrtc.hpp>
#include <tutti/core/error.hpp>
#include <tutti/io/cache_folder.hpp>
#include <tutti/io/crc32c.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/file_writer.hpp>

// Compiles tutti's kernels for one architecture at run time and stores the result on disk.
namespace tutti::cuda {

// A program of kernels.
struct Source {
  std::string name;                  // for error messages, and for the name of the file in the cache
  std::string text;                  // CUDA C++
  std::vector<std::string> kernels;  // name expressions, for example "relu<float>"
};

// Machine code for one architecture.
struct Binary {
  std::vector<std::byte> cubin;
  std::vector<std::string> symbols;  // of Source::kernels, in the same order
};

// Returns the folder of compiled kernels.
[[nodiscard]] inline std::filesystem::path default_cache_folder() { return io::cache_folder("cuda"); }

class Compiler {
 public:
  // folder: stores compiled programs; empty: they are not stored. If the folder cannot be written, each process
  // compiles the programs again.
  explicit Compiler(std::filesystem::path folder = default_cache_folder()) : folder_(std::move(folder)) {}

  // Compiles for compute capability architecture / 10 (90 for 9.0), or reads the result of an earlier compilation. If
  // the source does not compile, throws a DeviceError with the compiler's log. Several threads may call it at once.
  [[nodiscard]] Binary compile(const Source& source, int architecture) {
    const std::string key = key_of(source, architecture);
    const auto file = folder_ / (source.name + "-sm_" + std::to_string(architecture) + "-" + key + ".bin");
    if (!folder_.empty())
      if (auto kept = read(file, key, source.kernels.size())) return *std::move(kept);
    Binary made = make(source, architecture);
    if (!folder_.empty()) write(file, key, made);
    return made;
  }

 private:
  static constexpr std::string_view magic = "tutti cubin 1\n";
  static constexpr std::size_t largest_file = std::size_t{256} << 20;

  static void check(nvrtcResult r, const std::string& what) {
    if (r != NVRTC_SUCCESS) fail<DeviceError>("nvrtc", what, nvrtcGetErrorString(r));
  }
  static std::vector<std::string> options(int architecture) {
    return {"--gpu-architecture=sm_" + std::to_string(architecture), "--std=c++17",
            "--device-as-default-execution-space", "--extra-device-vectorization"};
  }
  static Binary make(const Source& source, int architecture) {
    struct Program {
      nvrtcProgram p = nullptr;
      ~Program() {
        if (p != nullptr) nvrtcDestroyProgram(&p);
      }
    } program;
    check(nvrtcCreateProgram(&program.p, source.text.c_str(), (source.name + ".cu").c_str(), 0, nullptr, nullptr),
          "a program of " + source.name);
    for (const auto& k : source.kernels) check(nvrtcAddNameExpression(program.p, k.c_str()), "the kernel " + k);
    const auto texts = options(architecture);
    std::vector<const char*> pointers;
    pointers.reserve(texts.size());
    for (const auto& t : texts) pointers.push_back(t.c_str());
    const nvrtcResult r = nvrtcCompileProgram(program.p, static_cast<int>(pointers.size()), pointers.data());
    if (r != NVRTC_SUCCESS) {
      std::size_t size = 0;
      std::string log;
      if (nvrtcGetProgramLogSize(program.p, &size) == NVRTC_SUCCESS) {
        log.resize(size);
        nvrtcGetProgramLog(program.p, log.data());
      }
      while (!log.empty() && (log.back() == '\0' || log.back() == '\n')) log.pop_back();
      fail<DeviceError>(
          "nvrtc", {source.name, " compiled for sm_", architecture},
          {nvrtcGetErrorString(r), (log.empty() ? "" : ":\n" + log)},
          r == NVRTC_ERROR_INVALID_OPTION ? "this NVRTC does not support the GPU: update the CUDA toolkit" : "");
    }
    Binary b;
    std::size_t size = 0;
    check(nvrtcGetCUBINSize(program.p, &size), "machine code of " + source.name);
    b.cubin.resize(size);
    check(nvrtcGetCUBIN(program.p, reinterpret_cast<char*>(b.cubin.data())), "machine code of " + source.name);
    for (const auto& k : source.kernels) {
      const char* symbol = nullptr;
      check(nvrtcGetLoweredName(program.p, k.c_str(), &symbol), "the kernel " + k);
      b.symbols.emplace_back(symbol);
    }
    return b;
  }

  // Returns a hash of 128 bits of everything on which the machine code depends.
  static std::string key_of(const Source& source, int architecture) {
    std::uint64_t a = 14695981039346656037ULL, b = 0x9ae16a3b2f90404fULL;
    const auto add = [&](std::string_view text) {
      const auto byte = [&](unsigned char c) {
        a = (a ^ c) * 1099511628211ULL;
        b = (b + c) * 0x9ddfea08eb382d69ULL;
        b ^= b >> 29;
      };
      for (char c : text) byte(static_cast<unsigned char>(c));
      byte(0xff);
    };
    // The version of the toolkit with which the program was built. To get NVRTC's own version, the program would have
    // to open NVRTC, 100 MB, even if all programs are cached.
    add(std::to_string(CUDART_VERSION));
    for (const auto& o : options(architecture)) add(o);
    add(source.text);
    for (const auto& k : source.kernels) add(k);
    std::string text;
    for (std::uint64_t h : {a, b})
      for (int shift = 60; shift >= 0; shift -= 4) text += "0123456789abcdef"[h >> shift & 15];
    return text;
  }

  // Returns a file's content before the code. The file: magic, key, number of symbols, one symbol a line, bytes of
  // machine code, the CRC-32C of everything before and after it, the code.
  static std::string head(const std::string& key, const Binary& b) {
    std::string h(magic);
    h += key + "\n" + std::to_string(b.symbols.size()) + "\n";
    for (const auto& s : b.symbols) h += s + "\n";
    h += std::to_string(b.cubin.size()) + "\n";
    return h + std::to_string(io::crc32c(b.cubin, io::crc32c(std::as_bytes(std::span(h.data(), h.size()))))) + "\n";
  }
  // Returns an empty value if the file is missing or damaged.
  static std::optional<Binary> read(const std::filesystem::path& file, const std::string& key, std::size_t kernels) {
    try {
      if (!io::path_exists(file)) return std::nullopt;
      const std::string all = io::read_text_file(file, largest_file);
      std::size_t at = 0;
      const auto line = [&] {
        const std::size_t end = all.find('\n', at);
        if (end == std::string::npos) return std::string();
        std::string l = all.substr(at, end - at);
        at = end + 1;
        return l;
      };
      if (!all.starts_with(magic)) return std::nullopt;
      at = magic.size();
      if (line() != key || line() != std::to_string(kernels)) return std::nullopt;
      Binary b;
      for (std::size_t i = 0; i < kernels; ++i) b.symbols.push_back(line());
      line();
      line();
      const auto code = std::as_bytes(std::span(all.data(), all.size())).subspan(at);
      b.cubin.assign(code.begin(), code.end());
      if (b.cubin.empty() || all.substr(0, at) != head(key, b)) return std::nullopt;
      return b;
    } catch (const DataError&) {
      return std::nullopt;
    }
  }
  static void write(const std::filesystem::path& file, const std::string& key, const Binary& b) {
    try {
      io::make_directories(io::folder_of(file));
      io::atomic_write_file(file, [&](io::FileWriter& w) {
        w.write(head(key, b));
        w.write(b.cubin);
      });
    } catch (const DataError&) {  // each process compiles it again
    }
  }

  std::filesystem::path folder_;
};

}  // namespace tutti::cuda

// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <new>
#include <span>
#include <string_view>
#include <vector>

// Include them after <cstdio>, because they use FILE and size_t.
#include <jpeglib.h>
// clang-format off: needs jpeglib.h
#include <jerror.h>
// clang-format on

#include <tutti/core/error.hpp>
#include <tutti/data/images/image_decoder.hpp>

// Decodes JPEG with libjpeg-turbo.
namespace tutti {
namespace turbojpeg {

// A decompressor, which a thread uses for all its images. libjpeg reports an error by a function that must not return.
// Exceptions may not cross C code, so this function calls longjmp.
class Session {
 public:
  // Encoders write fewer scans than this. Each scan of a progressive image costs a pass over the whole image, even if
  // the scan has few bytes.
  static constexpr int most_scans = 256;

  Session() {
    c.err = jpeg_std_error(&errors_);
    errors_.error_exit = [](j_common_ptr p) { self(p).stop(p); };
    errors_.output_message = [](j_common_ptr) {};
    errors_.emit_message = [](j_common_ptr p, int level) {
      if (level < 0 && !harmless(p->err->msg_code)) self(p).stop(p);
    };
    c.client_data = this;
    if (setjmp(jump_) != 0) throw std::bad_alloc();
    jpeg_create_decompress(&c);
    // Set after jpeg_create_decompress, which clears all fields except `err` and `client_data`.
    progress_.progress_monitor = [](j_common_ptr p) {
      auto& s = self(p);
      if (p->is_decompressor != 0 && s.c.input_scan_number > most_scans) s.stop("at most 256 scans", "more");
    };
    c.progress = &progress_;
  }
  ~Session() { jpeg_destroy_decompress(&c); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Calls f(*this, argument). f may call libjpeg, and must have no local variable with a destructor. Throws DataError
  // if libjpeg finds an error in the data.
  template <class A>
  void run(void (*f)(Session&, A&), A& argument, std::string_view where) {
    abort();  // an exception may have ended the previous call
    if (setjmp(jump_) == 0) {
      f(*this, argument);
      return;
    }
    abort();
    fail<DataError>(where, expected_, got_, "the record is damaged or truncated");
  }

  // Frees the memory of the image. Resets pointers that libjpeg keeps: for the next image, jpeg_skip_scanlines writes
  // through `cconvert` even if merged upsampling has not set it.
  void abort() {
    jpeg_abort_decompress(&c);
    c.cconvert = nullptr;
    c.cquantize = nullptr;
  }

  // Ends run() with an error. The texts must be literals.
  [[noreturn]] void stop(const char* expected, const char* got) {
    expected_ = expected;
    got_ = got;
    std::longjmp(jump_, 1);
  }

  jpeg_decompress_struct c{};
  std::vector<std::uint8_t> cmyk;  // a few rows of CMYK

 private:
  static Session& self(j_common_ptr p) { return *static_cast<Session*>(p->client_data); }

  // Returns true for warnings after which the pixels are right. After other warnings libjpeg continues with invented
  // pixels.
  static bool harmless(int code) {
    return code == JWRN_EXTRANEOUS_DATA || code == JWRN_ADOBE_XFORM || code == JWRN_JFIF_MAJOR;
  }

  [[noreturn]] void stop(j_common_ptr p) {
    p->err->format_message(p, text_.data());
    stop("a JPEG without errors", text_.data());
  }

  jpeg_error_mgr errors_{};
  jpeg_progress_mgr progress_{};
  std::jmp_buf jump_{};
  std::array<char, JMSG_LENGTH_MAX> text_{};
  const char *expected_ = "", *got_ = "";
};

struct Job {  // data of one decompression
  std::span<const std::uint8_t> bytes;
  const ImageHeader& header;
  const DecodeRequest& request;
  DecodedImage& out;
};

// Converts CMYK to RGB. inverted: 0 means full ink, as Adobe stores it.
inline void cmyk_to_rgb(const std::uint8_t* from, std::uint8_t* to, int pixels, bool inverted) {
  const auto times = [](unsigned a, unsigned b) {  // a * b / 255, rounded
    const unsigned t = a * b + 128;
    return static_cast<std::uint8_t>((t + (t >> 8)) >> 8);
  };
  const unsigned flip = inverted ? 0 : 255;
  for (int i = 0; i < pixels; ++i, from += 4, to += 3)
    for (int k = 0; k < 3; ++k) to[k] = times(from[k] ^ flip, from[3] ^ flip);
}

inline void decode(Session& s, Job& job) {
  jpeg_decompress_struct& c = s.c;
  jpeg_mem_src(&c, job.bytes.data(), static_cast<unsigned long>(job.bytes.size()));
  (void)jpeg_read_header(&c, TRUE);
  if (static_cast<int>(c.image_width) != job.header.width || static_cast<int>(c.image_height) != job.header.height ||
      c.num_components != job.header.components)
    s.stop("one size in the JPEG", "two");
  const bool cmyk = c.num_components == 4, fast = job.request.quality == DecodeQuality::fast;
  const int d = reduction_of(job.request);
  c.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
  c.dct_method = fast ? JDCT_IFAST : JDCT_ISLOW;
  c.do_fancy_upsampling = fast ? FALSE : TRUE;
  c.scale_num = 1;
  c.scale_denom = static_cast<unsigned>(d);
  (void)jpeg_start_decompress(&c);

  // Interpolated chroma uses pixels next to the region, so some more columns are decoded.
  const int margin = fast ? 0 : 16;
  const ImageRegion& r = job.request.region;
  const int width = static_cast<int>(c.output_width), height = static_cast<int>(c.output_height);
  const int left = std::max(0, r.x / d - margin), top = r.y / d;
  const int right = std::min(width, (r.x + r.width + d - 1) / d + margin);
  const int bottom = std::min(height, (r.y + r.height + d - 1) / d);
  JDIMENSION x = static_cast<JDIMENSION>(left), w = static_cast<JDIMENSION>(right - left);
  if (right - left < width) jpeg_crop_scanline(&c, &x, &w);
  if (top > 0) (void)jpeg_skip_scanlines(&c, static_cast<JDIMENSION>(top));

  DecodedImage& out = job.out;
  out.set_size(static_cast<int>(c.output_width), bottom - top);
  out.x = static_cast<int>(x) * d;
  out.y = top * d;
  out.reduction = d;
  const std::size_t row_bytes = c.output_width * std::size_t{4};
  if (cmyk && s.cmyk.size() < row_bytes) s.cmyk.resize(row_bytes);
  for (int row = 0; row < out.height;) {
    JSAMPROW rows[8];
    const int n = cmyk ? 1 : std::min(8, out.height - row);
    for (int i = 0; i < n; ++i) rows[i] = cmyk ? s.cmyk.data() : out.row(row + i);
    const int got = static_cast<int>(jpeg_read_scanlines(&c, rows, static_cast<JDIMENSION>(n)));
    if (got == 0) s.stop("all rows of the JPEG", "none");
    if (cmyk) cmyk_to_rgb(s.cmyk.data(), out.row(row), out.width, c.saw_Adobe_marker != 0);
    row += got;
  }
  // Rows below the region are not decoded.
  s.abort();
}

}  // namespace turbojpeg

class TurbojpegDecoder final : public ImageDecoder {  // decodes JPEG with libjpeg-turbo
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "turbojpeg"; }
  [[nodiscard]] bool reads(ImageFormat format) const noexcept override { return format == ImageFormat::jpeg; }
  void decode(std::span<const std::uint8_t> bytes, const ImageHeader& header, const DecodeRequest& request,
              std::string_view where, DecodedImage& out) const override {
    thread_local turbojpeg::Session session;
    turbojpeg::Job job{bytes, header, request, out};
    session.run(&turbojpeg::decode, job, where);
  }
};

}  // namespace tutti

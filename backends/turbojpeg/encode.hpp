// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <new>
#include <string>
#include <vector>

// Include it after <cstdio>, because it uses FILE and size_t.
#include <jpeglib.h>

#include <tutti/core/error.hpp>

// Writes JPEGs with libjpeg-turbo.
namespace tutti {

// Options of a baseline JPEG with a JFIF header.
struct JpegOptions {
  int quality = 85;          // 1 to 100, libjpeg's scale
  bool halve_chroma = true;  // true: 4:2:0; false: 4:4:4
  bool optimise = true;      // Huffman tables for this image: a second pass, some percent fewer bytes
};

// A view of u8 pixels, [height, width, channels] with 1 (grey) or 3 (RGB) channels, without gaps between rows.
struct PixelView {
  const std::uint8_t* pixels = nullptr;
  int width = 0, height = 0, channels = 3;
};

namespace turbojpeg {

// A compressor, which a thread uses for all its images. libjpeg's errors call longjmp, as in decoding.
class EncodeSession {
 public:
  EncodeSession() {
    c.err = jpeg_std_error(&errors_);
    errors_.error_exit = [](j_common_ptr p) {
      p->err->format_message(p, self(p).text_.data());
      std::longjmp(self(p).jump_, 1);
    };
    errors_.output_message = [](j_common_ptr) {};
    c.client_data = this;
    if (setjmp(jump_) != 0) throw std::bad_alloc();
    jpeg_create_compress(&c);
    destination_.init_destination = [](j_compress_ptr p) { self(p).begin(); };
    destination_.empty_output_buffer = [](j_compress_ptr p) -> boolean {
      self(p).take(piece_bytes);
      self(p).begin();
      return TRUE;
    };
    destination_.term_destination = [](j_compress_ptr p) {
      self(p).take(piece_bytes - self(p).destination_.free_in_buffer);
    };
    c.dest = &destination_;
  }
  ~EncodeSession() { jpeg_destroy_compress(&c); }
  EncodeSession(const EncodeSession&) = delete;
  EncodeSession& operator=(const EncodeSession&) = delete;

  // Replaces `out` by the JPEG. The caller must have checked the arguments.
  void run(const PixelView& image, const JpegOptions& options, std::vector<std::uint8_t>& out) {
    out.clear();
    out_ = &out;
    full_ = false;
    text_[0] = '\0';
    jpeg_abort_compress(&c);
    if (setjmp(jump_) == 0) {
      compress(image, options);
      return;
    }
    jpeg_abort_compress(&c);
    if (full_) throw std::bad_alloc();
    fail<Error>("JPEG encoder", "an image that libjpeg writes", text_.data());
  }

  jpeg_compress_struct c{};

 private:
  static constexpr std::size_t piece_bytes = std::size_t{1} << 16;

  template <class P>
  static EncodeSession& self(P p) {
    return *static_cast<EncodeSession*>(p->client_data);
  }

  // Local variables must not have destructors, because libjpeg may leave this function by longjmp.
  void compress(const PixelView& image, const JpegOptions& options) {
    c.image_width = static_cast<JDIMENSION>(image.width);
    c.image_height = static_cast<JDIMENSION>(image.height);
    c.input_components = image.channels;
    c.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&c);
    jpeg_set_quality(&c, options.quality, TRUE);
    c.dct_method = JDCT_ISLOW;
    c.optimize_coding = options.optimise ? TRUE : FALSE;
    if (image.channels == 3 && !options.halve_chroma) c.comp_info[0].h_samp_factor = c.comp_info[0].v_samp_factor = 1;
    jpeg_start_compress(&c, TRUE);
    const std::size_t row_bytes = static_cast<std::size_t>(image.width) * static_cast<std::size_t>(image.channels);
    while (c.next_scanline < c.image_height) {
      JSAMPROW row = const_cast<JSAMPROW>(image.pixels + c.next_scanline * row_bytes);  // libjpeg only reads it
      (void)jpeg_write_scanlines(&c, &row, 1);
    }
    jpeg_finish_compress(&c);
  }

  void begin() noexcept {
    destination_.next_output_byte = piece_.data();
    destination_.free_in_buffer = piece_bytes;
  }
  // Catches all exceptions, because they must not pass through libjpeg.
  void take(std::size_t bytes) {
    try {
      out_->insert(out_->end(), piece_.data(), piece_.data() + bytes);
    } catch (...) {
      full_ = true;
    }
    if (full_) std::longjmp(jump_, 1);
  }

  jpeg_error_mgr errors_{};
  jpeg_destination_mgr destination_{};
  std::jmp_buf jump_{};
  std::array<char, JMSG_LENGTH_MAX> text_{};
  std::vector<JOCTET> piece_ = std::vector<JOCTET>(piece_bytes);
  std::vector<std::uint8_t>* out_ = nullptr;
  bool full_ = false;
};

}  // namespace turbojpeg

// Replaces `out` by the JPEG. Throws UsageError if the quality is outside 1 to 100, if the number of channels is not 1
// or 3, or if an extent is outside 1 to 65500, the largest one that libjpeg writes. Several threads may call it at the
// same time.
inline void encode_jpeg(const PixelView& image, const JpegOptions& options, std::vector<std::uint8_t>& out) {
  if (options.quality < 1 || options.quality > 100)
    fail<UsageError>("JPEG encoder", "a quality of 1 to 100", options.quality);
  if (image.channels != 1 && image.channels != 3) fail<UsageError>("JPEG encoder", "1 or 3 channels", image.channels);
  constexpr int most = JPEG_MAX_DIMENSION;
  if (image.pixels == nullptr || image.width < 1 || image.height < 1 || image.width > most || image.height > most)
    fail<UsageError>("JPEG encoder", {"pixels of 1x1 to ", most, "x", most}, {image.width, "x", image.height});
  thread_local turbojpeg::EncodeSession session;
  session.run(image, options, out);
}

}  // namespace tutti

# SPDX-License-Identifier: MIT
# Finds libjpeg-turbo and makes libjpegTurbo::libjpegTurbo: the libjpeg interface with jpeg_crop_scanline and
# jpeg_skip_scanlines, which other libjpegs lack. Before version 3, its TurboJPEG interface cannot decode a part of an
# image.
find_path(libjpegTurbo_INCLUDE_DIR jpeglib.h)
find_path(libjpegTurbo_CONFIG_DIR jconfig.h HINTS "${libjpegTurbo_INCLUDE_DIR}"
          PATH_SUFFIXES "${CMAKE_LIBRARY_ARCHITECTURE}")
find_library(libjpegTurbo_LIBRARY jpeg)
mark_as_advanced(libjpegTurbo_INCLUDE_DIR libjpegTurbo_CONFIG_DIR libjpegTurbo_LIBRARY)

set(libjpegTurbo_VERSION)
if(libjpegTurbo_CONFIG_DIR)
  file(READ "${libjpegTurbo_CONFIG_DIR}/jconfig.h" _libjpegTurbo_header)
  # Other libjpegs do not define it, so they have no version.
  if(_libjpegTurbo_header MATCHES "LIBJPEG_TURBO_VERSION +([0-9.]+)")
    set(libjpegTurbo_VERSION "${CMAKE_MATCH_1}")
  endif()
  unset(_libjpegTurbo_header)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  libjpegTurbo
  REQUIRED_VARS libjpegTurbo_LIBRARY libjpegTurbo_INCLUDE_DIR libjpegTurbo_CONFIG_DIR libjpegTurbo_VERSION
  VERSION_VAR libjpegTurbo_VERSION)

if(libjpegTurbo_FOUND AND NOT TARGET libjpegTurbo::libjpegTurbo)
  add_library(libjpegTurbo::libjpegTurbo UNKNOWN IMPORTED)
  set_target_properties(
    libjpegTurbo::libjpegTurbo
    PROPERTIES IMPORTED_LOCATION "${libjpegTurbo_LIBRARY}"
               INTERFACE_INCLUDE_DIRECTORIES "${libjpegTurbo_INCLUDE_DIR};${libjpegTurbo_CONFIG_DIR}")
endif()

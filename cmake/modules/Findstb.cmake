# SPDX-License-Identifier: MIT
# Finds stb_image, which is one header, and makes stb::stb.
find_path(stb_INCLUDE_DIR stb/stb_image.h)
mark_as_advanced(stb_INCLUDE_DIR)

set(stb_VERSION)
if(stb_INCLUDE_DIR)
  file(STRINGS "${stb_INCLUDE_DIR}/stb/stb_image.h" _stb_first LIMIT_COUNT 1)
  if(_stb_first MATCHES "v([0-9.]+)")
    set(stb_VERSION "${CMAKE_MATCH_1}")
  endif()
  unset(_stb_first)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  stb
  REQUIRED_VARS stb_INCLUDE_DIR
  VERSION_VAR stb_VERSION)

if(stb_FOUND AND NOT TARGET stb::stb)
  add_library(stb::stb INTERFACE IMPORTED)
  set_target_properties(stb::stb PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${stb_INCLUDE_DIR}")
endif()

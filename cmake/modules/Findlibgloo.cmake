# SPDX-License-Identifier: MIT
# Finds Gloo with its TCP transport and makes libgloo::libgloo. The CMake files of distributions differ, and
# some provide no such file.
find_path(libgloo_INCLUDE_DIR gloo/transport/tcp/device.h)
find_library(libgloo_LIBRARY gloo)
mark_as_advanced(libgloo_INCLUDE_DIR libgloo_LIBRARY)

set(libgloo_VERSION)
if(libgloo_INCLUDE_DIR)
  file(STRINGS "${libgloo_INCLUDE_DIR}/gloo/config.h" _libgloo_lines
       REGEX "^#define GLOO_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
  foreach(_libgloo_line IN LISTS _libgloo_lines)
    string(REGEX MATCH "[0-9]+" _libgloo_number "${_libgloo_line}")
    list(APPEND libgloo_VERSION ${_libgloo_number})
  endforeach()
  list(JOIN libgloo_VERSION . libgloo_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  libgloo
  REQUIRED_VARS libgloo_LIBRARY libgloo_INCLUDE_DIR
  VERSION_VAR libgloo_VERSION)

if(libgloo_FOUND AND NOT TARGET libgloo::libgloo)
  add_library(libgloo::libgloo UNKNOWN IMPORTED)
  set_target_properties(libgloo::libgloo PROPERTIES IMPORTED_LOCATION "${libgloo_LIBRARY}"
                                                    INTERFACE_INCLUDE_DIRECTORIES "${libgloo_INCLUDE_DIR}")
endif()
unset(_libgloo_lines)
unset(_libgloo_line)
unset(_libgloo_number)

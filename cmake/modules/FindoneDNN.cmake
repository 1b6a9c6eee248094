# SPDX-License-Identifier: MIT
# Finds oneDNN 2.6 or later and makes oneDNN::oneDNN. Debian's own dnnl-config.cmake requires OpenCL's development
# files. libdnnl-dev does not depend on them, and a CPU program does not need them.
find_path(oneDNN_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
find_library(oneDNN_LIBRARY dnnl)
mark_as_advanced(oneDNN_INCLUDE_DIR oneDNN_LIBRARY)

set(oneDNN_VERSION)
if(oneDNN_INCLUDE_DIR AND EXISTS "${oneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h")
  file(READ "${oneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h" _oneDNN_header)
  foreach(_oneDNN_part MAJOR MINOR PATCH)
    if(_oneDNN_header MATCHES "DNNL_VERSION_${_oneDNN_part} ([0-9]+)")
      list(APPEND oneDNN_VERSION ${CMAKE_MATCH_1})
    endif()
  endforeach()
  list(JOIN oneDNN_VERSION "." oneDNN_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  oneDNN
  REQUIRED_VARS oneDNN_LIBRARY oneDNN_INCLUDE_DIR
  VERSION_VAR oneDNN_VERSION)

if(oneDNN_FOUND AND NOT TARGET oneDNN::oneDNN)
  add_library(oneDNN::oneDNN UNKNOWN IMPORTED)
  set_target_properties(oneDNN::oneDNN PROPERTIES IMPORTED_LOCATION "${oneDNN_LIBRARY}"
                                                  INTERFACE_INCLUDE_DIRECTORIES "${oneDNN_INCLUDE_DIR}")
  # A program that sets the number of OpenMP threads calls the same runtime as the library.
  if(EXISTS "${oneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_config.h")
    file(READ "${oneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_config.h" _oneDNN_header)
    if(_oneDNN_header MATCHES "define DNNL_CPU_RUNTIME DNNL_RUNTIME_OMP")
      set_property(TARGET oneDNN::oneDNN PROPERTY INTERFACE_LINK_LIBRARIES gomp)
    endif()
  endif()
endif()
unset(_oneDNN_header)
unset(_oneDNN_part)

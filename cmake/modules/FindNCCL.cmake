# SPDX-License-Identifier: MIT
# Finds NCCL's header next to the CUDA toolkit and makes NCCL::NCCL. A program opens the library itself when it needs
# it, as it does with those of CUDAdnn::CUDAdnn, which this target includes.
find_package(CUDAdnn QUIET)
find_path(NCCL_INCLUDE_DIR nccl.h HINTS "${NCCL_ROOT}" "$ENV{NCCL_ROOT}" "${CUDAdnn_INCLUDE_DIR}" PATH_SUFFIXES include)
mark_as_advanced(NCCL_INCLUDE_DIR)

set(NCCL_VERSION)
if(NCCL_INCLUDE_DIR)
  file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" _NCCL_lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
  foreach(_NCCL_line IN LISTS _NCCL_lines)
    string(REGEX MATCH "[0-9]+" _NCCL_number "${_NCCL_line}")
    list(APPEND NCCL_VERSION ${_NCCL_number})
  endforeach()
  list(JOIN NCCL_VERSION . NCCL_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  NCCL
  REQUIRED_VARS NCCL_INCLUDE_DIR CUDAdnn_FOUND
  VERSION_VAR NCCL_VERSION)

if(NCCL_FOUND AND NOT TARGET NCCL::NCCL)
  add_library(NCCL::NCCL INTERFACE IMPORTED)
  set_target_properties(NCCL::NCCL PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR}"
                                              INTERFACE_LINK_LIBRARIES CUDAdnn::CUDAdnn)
endif()
unset(_NCCL_lines)
unset(_NCCL_line)
unset(_NCCL_number)

# SPDX-License-Identifier: MIT
# Finds ZeroMQ's C library and makes libzmq::libzmq. Distributions provide no CMake files for it, or different ones.
find_path(libzmq_INCLUDE_DIR zmq.h)
find_library(libzmq_LIBRARY zmq)
mark_as_advanced(libzmq_INCLUDE_DIR libzmq_LIBRARY)

set(libzmq_VERSION)
if(libzmq_INCLUDE_DIR)
  file(STRINGS "${libzmq_INCLUDE_DIR}/zmq.h" _libzmq_lines REGEX "^#define ZMQ_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
  foreach(_libzmq_line IN LISTS _libzmq_lines)
    string(REGEX MATCH "[0-9]+" _libzmq_number "${_libzmq_line}")
    list(APPEND libzmq_VERSION ${_libzmq_number})
  endforeach()
  list(JOIN libzmq_VERSION . libzmq_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  libzmq
  REQUIRED_VARS libzmq_LIBRARY libzmq_INCLUDE_DIR
  VERSION_VAR libzmq_VERSION)

if(libzmq_FOUND AND NOT TARGET libzmq::libzmq)
  add_library(libzmq::libzmq UNKNOWN IMPORTED)
  set_target_properties(libzmq::libzmq PROPERTIES IMPORTED_LOCATION "${libzmq_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES
                                                                                        "${libzmq_INCLUDE_DIR}")
endif()
unset(_libzmq_lines)
unset(_libzmq_line)
unset(_libzmq_number)

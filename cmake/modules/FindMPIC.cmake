# SPDX-License-Identifier: MIT
# Finds MPI and makes MPIC::MPIC, its C interface for C++ programs. CMake's own MPI::MPI_C needs a project that enables
# C, and MPI::MPI_CXX links the C++ bindings, which MPI 3 has dropped.
find_package(MPI QUIET COMPONENTS CXX)
set(MPIC_VERSION "${MPI_CXX_VERSION}")
set(MPIC_INCLUDE_DIRS ${MPI_CXX_INCLUDE_DIRS})
set(MPIC_LIBRARIES ${MPI_CXX_LIBRARIES})
list(FILTER MPIC_LIBRARIES EXCLUDE REGEX "mpi_cxx|mpicxx|mpichcxx")

# Open MPI and its version, for the bill of materials.
set(MPIC_PRODUCT)
find_file(MPIC_HEADER mpi.h HINTS ${MPIC_INCLUDE_DIRS} NO_DEFAULT_PATH)
mark_as_advanced(MPIC_HEADER)
if(MPIC_HEADER)
  set(MPIC_PRODUCT_VERSION)
  foreach(_MPIC_part MAJOR MINOR RELEASE)
    file(STRINGS "${MPIC_HEADER}" _MPIC_line REGEX "^#define OMPI_${_MPIC_part}_VERSION +[0-9]+" LIMIT_COUNT 1)
    if(_MPIC_line MATCHES " ([0-9]+)$")
      list(APPEND MPIC_PRODUCT_VERSION ${CMAKE_MATCH_1})
    endif()
  endforeach()
  list(JOIN MPIC_PRODUCT_VERSION . MPIC_PRODUCT_VERSION)
  if(MPIC_PRODUCT_VERSION)
    set(MPIC_PRODUCT "Open MPI")
  endif()
  unset(_MPIC_line)
  unset(_MPIC_part)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  MPIC
  REQUIRED_VARS MPIC_LIBRARIES MPI_CXX_FOUND
  VERSION_VAR MPIC_VERSION)

if(MPIC_FOUND AND NOT TARGET MPIC::MPIC)
  add_library(MPIC::MPIC INTERFACE IMPORTED)
  set_target_properties(MPIC::MPIC PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${MPIC_INCLUDE_DIRS}"
                                              INTERFACE_LINK_LIBRARIES "${MPIC_LIBRARIES}")
endif()

# SPDX-License-Identifier: MIT
# Finds MPI and makes MPIC::MPIC, its C interface for C++ programs. CMake's own MPI::MPI_C needs a project that enables
# C, and MPI::MPI_CXX links the C++ bindings, which MPI 3 has dropped.
find_package(MPI QUIET COMPONENTS CXX)
set(MPIC_VERSION "${MPI_CXX_VERSION}")
set(MPIC_INCLUDE_DIRS ${MPI_CXX_INCLUDE_DIRS})
set(MPIC_LIBRARIES ${MPI_CXX_LIBRARIES})
list(FILTER MPIC_LIBRARIES EXCLUDE REGEX "mpi_cxx|mpicxx|mpichcxx")

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

# SPDX-License-Identifier: MIT
# cpack reads this file for each kind of package: an archive includes the shared libraries, a Debian package depends on
# them.
include("${CMAKE_CURRENT_LIST_DIR}/source_date.cmake")
if(CPACK_TUTTI_EIGEN_NATIVE)
  message(STATUS "These programs run on processors like this one only: for others configure with -DTUTTI_EIGEN_NATIVE=OFF")
endif()
if(CPACK_TUTTI_SYSROOT)
  # The dependencies of programs for another processor.
  set(SHLIBDEPS_EXECUTABLE "${CMAKE_CURRENT_LIST_DIR}/../infra/package/shlibdeps.sh")
  set(ENV{TUTTI_SYSROOT} "${CPACK_TUTTI_SYSROOT}")
endif()
if(CPACK_GENERATOR STREQUAL "TGZ")
  set(CPACK_PACKAGING_INSTALL_PREFIX "")
  list(GET CPACK_INSTALL_CMAKE_PROJECTS 0 tutti_build)
  list(APPEND CPACK_INSTALL_CMAKE_PROJECTS "${tutti_build}" tutti libraries /)
endif()

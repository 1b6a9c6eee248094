# SPDX-License-Identifier: MIT
# Part of an installation: copies the shared libraries of tutti_programs to tutti_libraries_dir. Leaves out those of the
# C library, because each host has its own.
foreach(program IN LISTS tutti_programs)
  if(NOT EXISTS "${program}")
    list(REMOVE_ITEM tutti_programs "${program}")
  endif()
endforeach()
file(
  GET_RUNTIME_DEPENDENCIES
  EXECUTABLES ${tutti_programs}
  RESOLVED_DEPENDENCIES_VAR found
  UNRESOLVED_DEPENDENCIES_VAR missing
  PRE_EXCLUDE_REGEXES "^(libc|libm|libdl|librt|libpthread|libresolv|libutil|libnsl|libanl|ld-linux[-a-z0-9_]*)\\.so"
  POST_EXCLUDE_REGEXES "/libcuda\\.so" "/libnvidia")
if(missing)
  message(FATAL_ERROR "these shared libraries are not found: ${missing}")
endif()
foreach(library IN LISTS found)
  file(
    INSTALL "${library}"
    DESTINATION "${CMAKE_INSTALL_PREFIX}/${tutti_libraries_dir}"
    TYPE SHARED_LIBRARY FOLLOW_SYMLINK_CHAIN)
  # A library that has a search path of its own would not search in the program's folder.
  file(REAL_PATH "${library}" library)
  get_filename_component(name "${library}" NAME)
  file(RPATH_REMOVE FILE "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/${tutti_libraries_dir}/${name}")
endforeach()

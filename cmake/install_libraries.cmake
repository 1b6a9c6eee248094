# SPDX-License-Identifier: MIT
# Part of an installation: copies the shared libraries of tutti_programs to tutti_libraries_dir. Leaves out those of the
# C library, because each host has its own. Programs for another processor have theirs below tutti_sysroot.
set(c_library "^(libc|libm|libdl|librt|libpthread|libresolv|libutil|libnsl|libanl|ld-linux[-a-z0-9_]*)\\.so")
foreach(program IN LISTS tutti_programs)
  if(NOT EXISTS "${program}")
    list(REMOVE_ITEM tutti_programs "${program}")
  endif()
endforeach()
if(tutti_sysroot)
  if(NOT tutti_python OR NOT EXISTS "${tutti_python}")
    message(FATAL_ERROR "the shared libraries of programs for another processor cannot be found without python3")
  endif()
  execute_process(COMMAND "${tutti_python}" "${CMAKE_CURRENT_LIST_DIR}/../infra/package/elf_libraries.py" --root "${tutti_sysroot}"
                          ${tutti_programs} OUTPUT_VARIABLE lines RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "the shared libraries are not found: ${status}")
  endif()
  set(folder "${CMAKE_INSTALL_PREFIX}/${tutti_libraries_dir}")
  string(REGEX MATCHALL "[^\n]+" lines "${lines}")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "^([^ ]+) (.+)$" line "${line}")
    set(asked "${CMAKE_MATCH_1}")
    set(library "${CMAKE_MATCH_2}")
    if(asked MATCHES "${c_library}")
      continue()
    endif()
    get_filename_component(name "${library}" NAME)
    file(INSTALL "${library}" DESTINATION "${folder}" TYPE SHARED_LIBRARY)
    file(RPATH_REMOVE FILE "$ENV{DESTDIR}${folder}/${name}")
    if(NOT asked STREQUAL name)
      file(CREATE_LINK "${name}" "$ENV{DESTDIR}${folder}/${asked}" SYMBOLIC)
    endif()
  endforeach()
  return()
endif()
file(
  GET_RUNTIME_DEPENDENCIES
  EXECUTABLES ${tutti_programs}
  RESOLVED_DEPENDENCIES_VAR found
  UNRESOLVED_DEPENDENCIES_VAR missing
  PRE_EXCLUDE_REGEXES "${c_library}"
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

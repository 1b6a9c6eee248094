# SPDX-License-Identifier: MIT
# One component is one folder under backends/, one third-party library and one target tutti::<name>.
list(APPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}/modules")

# tutti_make_global(<target>...): makes targets that find_package found in one folder visible in all.
# find_package(GLOBAL) needs CMake 3.24.
function(tutti_make_global)
  foreach(target IN LISTS ARGN)
    if(TARGET ${target})
      get_target_property(imported ${target} IMPORTED)
      get_target_property(aliased ${target} ALIASED_TARGET)
      if(imported AND NOT aliased)
        set_target_properties(${target} PROPERTIES IMPORTED_GLOBAL TRUE)
      endif()
    endif()
  endforeach()
endfunction()

# tutti_add_backend(<name> PACKAGE <find_package name> TARGETS <imported targets> DEBIAN <packages>
#                   [VERSION <minimum>] [PC <pkg-config modules>] [PC_LIBS <flags>] [NATIVE_OPTION <option>])
#
# Finds the library and makes tutti::<name> from backends/<name>/*.hpp. If the library is absent, there is no target
# tutti::<name>, and one line names the Debian package that provides the library. The installed package always holds the
# component, because it is not known before its use whether the library exists there. NATIVE_OPTION names an option that
# adds -march=native to all targets that link the component.
function(tutti_add_backend name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "PACKAGE;VERSION;NATIVE_OPTION" "TARGETS;DEBIAN;PC;PC_LIBS")
  set(target tutti_${name})
  string(TOUPPER ${name} upper)
  list(JOIN arg_DEBIAN " " debian)

  add_library(${target} INTERFACE)
  target_link_libraries(${target} INTERFACE tutti ${arg_TARGETS})
  target_compile_definitions(${target} INTERFACE TUTTI_HAS_${upper}=1)
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  if(arg_NATIVE_OPTION AND "${${arg_NATIVE_OPTION}}")
    target_compile_options(${target} INTERFACE $<BUILD_INTERFACE:-march=native>)
  endif()

  find_package(${arg_PACKAGE} ${arg_VERSION} QUIET)
  # Scripts read from the cache which components a build has.
  set(TUTTI_BUILT_${upper} "" CACHE INTERNAL "Version of the library that the component is built with; empty: not built")
  if(${arg_PACKAGE}_FOUND)
    set_property(CACHE TUTTI_BUILT_${upper} PROPERTY VALUE "${${arg_PACKAGE}_VERSION}")
    tutti_make_global(${arg_TARGETS})
    add_library(tutti::${name} ALIAS ${target})
    message(STATUS "tutti: component ${name}: ${arg_PACKAGE} ${${arg_PACKAGE}_VERSION}")
  else()
    message(STATUS "tutti: component ${name} is not built: no ${arg_PACKAGE} (Debian: apt-get install ${debian})")
  endif()

  set_property(GLOBAL APPEND PROPERTY TUTTI_COMPONENTS ${name})
  set_property(GLOBAL PROPERTY TUTTI_DEBIAN_${name} "${debian}")
  set_property(GLOBAL PROPERTY TUTTI_PC_${name} "${arg_PC}")
  set_property(GLOBAL PROPERTY TUTTI_PC_LIBS_${name} "${arg_PC_LIBS}")
  # The facts about the component that tuttiConfig.cmake needs.
  file(
    CONFIGURE
    OUTPUT "${PROJECT_BINARY_DIR}/share/cmake/tutti/tutti-${name}.cmake"
    CONTENT
      [[set(tutti_component_package "@arg_PACKAGE@")
set(tutti_component_version "@arg_VERSION@")
set(tutti_component_debian "@debian@")
set(tutti_component_native_option "@arg_NATIVE_OPTION@")
]]
    @ONLY)
endfunction()

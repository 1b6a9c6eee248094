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

# tutti_add_dependency(<name> LICENSE <licence> LINKED <way> [VERSION <version>] [COMPONENT <name>] [DEBIAN <packages>])
#
# Adds a line to the bill of materials. The licence is an expression of SPDX; the way is header-only, static, shared, dlopen,
# or test or tool if no package contains it.
function(tutti_add_dependency name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LICENSE;LINKED;VERSION;COMPONENT" "DEBIAN")
  if(NOT arg_LICENSE OR NOT arg_LINKED MATCHES "^(header-only|static|shared|dlopen|test|tool)$")
    message(FATAL_ERROR "[${name}] expected LICENSE, and LINKED header-only, static, shared, dlopen, test or tool, "
                        "got '${arg_LICENSE}' and '${arg_LINKED}'")
  endif()
  list(JOIN arg_DEBIAN " " debian)
  set_property(GLOBAL APPEND_STRING PROPERTY TUTTI_DEPENDENCIES
               "${name}\t${arg_VERSION}\t${arg_LICENSE}\t${arg_LINKED}\t${arg_COMPONENT}\t${debian}\n")
endfunction()

# tutti_add_backend(<name> PACKAGE <find_package name> TARGETS <imported targets> DEBIAN <packages>
#                   LICENSE <licence> LINKED <way> [PRODUCT <name>]
#                   [VERSION <minimum>] [PC <pkg-config modules>] [PC_LIBS <flags>] [NATIVE_OPTION <option>])
#
# Finds the library and makes tutti::<name> from backends/<name>/*.hpp. If the library is absent, there is no target
# tutti::<name>, and one line names the Debian package that provides the library. The installed package always holds the
# component, because it is not known before its use whether the library exists there. NATIVE_OPTION names an option that
# adds -march=native to all targets that link the component. LICENSE and LINKED are those of tutti_add_dependency, PRODUCT the name
# of the library in the bill of materials, if it differs from that of the package.
function(tutti_add_backend name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "PACKAGE;VERSION;NATIVE_OPTION;LICENSE;LINKED;PRODUCT" "TARGETS;DEBIAN;PC;PC_LIBS")
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
    set(product "${arg_PACKAGE}")
    if(arg_PRODUCT)
      set(product "${arg_PRODUCT}")
    endif()
    set(version "${${arg_PACKAGE}_VERSION}")
    # The find module of a standard with several products, such as MPI, sets the product and its version.
    if(${arg_PACKAGE}_PRODUCT)
      set(product "${${arg_PACKAGE}_PRODUCT}")
      set(version "${${arg_PACKAGE}_PRODUCT_VERSION}")
    endif()
    tutti_add_dependency("${product}" VERSION "${version}" LICENSE "${arg_LICENSE}" LINKED "${arg_LINKED}" COMPONENT ${name}
                         DEBIAN ${arg_DEBIAN})
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

# SPDX-License-Identifier: MIT
# tutti::compiled: tutti and its components with TUTTI_SEPARATE_COMPILATION. It compiles the large templates once per
# project and not in every translation unit (see <tutti/core/separate.hpp>). Link it in place of tutti::tutti and
# tutti::<component>. A project that does not link it builds no part of it.
set(tutti_compiled_sources "${CMAKE_CURRENT_LIST_DIR}/src")

# tutti_add_compiled(<name> <target>): adds <target> to tutti::compiled. If src/<name>.cpp exists, also adds the library
# tutti_compiled_<name> that is built from it. <name> is "core", which comes first, or a component. tutti_compiled_make
# defines the functions that <tutti/backends/make.hpp> declares, with all components.
function(tutti_add_compiled name target)
  if(NOT TARGET tutti_compiled)
    add_library(tutti_compiled INTERFACE)
    add_library(tutti::compiled ALIAS tutti_compiled)
  endif()
  set(link ${target})
  if(NOT EXISTS "${tutti_compiled_sources}/${name}.cpp")
    target_link_libraries(tutti_compiled INTERFACE ${target})
  elseif(NOT TARGET tutti_compiled_${name})
    add_library(tutti_compiled_${name} STATIC EXCLUDE_FROM_ALL "${tutti_compiled_sources}/${name}.cpp")
    target_compile_definitions(tutti_compiled_${name} PUBLIC TUTTI_SEPARATE_COMPILATION)
    target_link_libraries(tutti_compiled_${name} PUBLIC ${target})
    if(NOT name STREQUAL "core")
      target_link_libraries(tutti_compiled_${name} PUBLIC tutti_compiled_core)
    endif()
    target_link_libraries(tutti_compiled INTERFACE tutti_compiled_${name})
  endif()
  if(TARGET tutti_compiled_${name})
    set(link tutti_compiled_${name})
  endif()
  if(NOT TARGET tutti_compiled_make)
    add_library(tutti_compiled_make STATIC EXCLUDE_FROM_ALL "${tutti_compiled_sources}/make.cpp")
    target_link_libraries(tutti_compiled_make PUBLIC ${link})
    target_link_libraries(tutti_compiled INTERFACE tutti_compiled_make)
  endif()
  target_link_libraries(tutti_compiled_make PRIVATE ${link})
endfunction()

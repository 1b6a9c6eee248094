# SPDX-License-Identifier: MIT
# Installs headers under include/, programs under bin/, and all other files under share/. The files can be moved, and
# only the programs depend on the architecture.
#   cmake --install build                           everything except the programs' shared libraries; python3 makes manual
#                                                   pages and completion from the programs' --help
#   cmake --install build --component libraries     only these, under lib/tutti; the programs search there first
#   cd build && cpack -G DEB (or TGZ)               a Debian package; an archive that includes the shared libraries
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(tutti_cmake_dir "${CMAKE_INSTALL_DATADIR}/cmake/tutti")
set(tutti_pc_dir "${CMAKE_INSTALL_DATADIR}/pkgconfig")
set(tutti_build_cmake_dir "${PROJECT_BINARY_DIR}/share/cmake/tutti")
get_property(tutti_components GLOBAL PROPERTY TUTTI_COMPONENTS)

configure_package_config_file(cmake/tuttiConfig.cmake.in "${tutti_build_cmake_dir}/tuttiConfig.cmake"
                              INSTALL_DESTINATION "${tutti_cmake_dir}")
write_basic_package_version_file("${tutti_build_cmake_dir}/tuttiConfigVersion.cmake" COMPATIBILITY SameMinorVersion
                                 ARCH_INDEPENDENT)
install(FILES "${tutti_build_cmake_dir}/tuttiConfig.cmake" "${tutti_build_cmake_dir}/tuttiConfigVersion.cmake"
        DESTINATION "${tutti_cmake_dir}")
install(DIRECTORY cmake/modules DESTINATION "${tutti_cmake_dir}")
file(COPY cmake/modules DESTINATION "${tutti_build_cmake_dir}")

# The sources of tutti::compiled.
file(GLOB tutti_compiled_files RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS src/*.cpp)
foreach(file IN LISTS tutti_compiled_files)
  configure_file("${file}" "${tutti_build_cmake_dir}/${file}" COPYONLY)
endforeach()
configure_file(cmake/TuttiCompiled.cmake "${tutti_build_cmake_dir}/TuttiCompiled.cmake" COPYONLY)
install(FILES cmake/TuttiCompiled.cmake DESTINATION "${tutti_cmake_dir}")
install(DIRECTORY src DESTINATION "${tutti_cmake_dir}" FILES_MATCHING PATTERN *.cpp)

# A pkg-config file derives its prefix from its own path.
file(RELATIVE_PATH tutti_pc_to_prefix "/prefix/${tutti_pc_dir}" "/prefix")
string(REGEX REPLACE "/$" "" tutti_pc_to_prefix "${tutti_pc_to_prefix}")
function(tutti_install_pc tutti_pc_name tutti_pc_what tutti_pc_requires tutti_pc_cflags tutti_pc_libs)
  configure_file("${PROJECT_SOURCE_DIR}/cmake/tutti.pc.in" "${PROJECT_BINARY_DIR}/pkgconfig/${tutti_pc_name}.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/pkgconfig/${tutti_pc_name}.pc" DESTINATION "${tutti_pc_dir}")
endfunction()

install(DIRECTORY include/tutti DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN *.hpp)
install(DIRECTORY backends datasets DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/tutti" FILES_MATCHING PATTERN *.hpp)

install(TARGETS tutti EXPORT tutti-targets INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT tutti-targets NAMESPACE tutti:: DESTINATION "${tutti_cmake_dir}")
export(EXPORT tutti-targets NAMESPACE tutti:: FILE "${tutti_build_cmake_dir}/tutti-targets.cmake")
tutti_install_pc(tutti "" "" "-I\${includedir} -pthread" "-pthread")

foreach(component IN LISTS tutti_components)
  install(TARGETS tutti_${component} EXPORT tutti-${component}-targets)
  install(EXPORT tutti-${component}-targets NAMESPACE tutti:: DESTINATION "${tutti_cmake_dir}")
  export(EXPORT tutti-${component}-targets NAMESPACE tutti::
         FILE "${tutti_build_cmake_dir}/tutti-${component}-targets.cmake")
  install(FILES "${tutti_build_cmake_dir}/tutti-${component}.cmake" DESTINATION "${tutti_cmake_dir}")
  get_property(requires GLOBAL PROPERTY TUTTI_PC_${component})
  get_property(libs GLOBAL PROPERTY TUTTI_PC_LIBS_${component})
  list(JOIN requires " " requires)
  list(JOIN libs " " libs)
  string(TOUPPER ${component} upper)
  tutti_install_pc(tutti-${component} " (component ${component})" "tutti ${requires}" "-DTUTTI_HAS_${upper}=1" "${libs}")
endforeach()

# Scripts that fetch and check the data sets, and those of a cluster. Two of them are also programs.
install(DIRECTORY datasets DESTINATION "${CMAKE_INSTALL_DATADIR}/tutti" USE_SOURCE_PERMISSIONS
        FILES_MATCHING PATTERN prepare PATTERN fetch.sh PATTERN SHA256SUMS PATTERN fixture EXCLUDE)
set(tutti_scripts_dir "${CMAKE_INSTALL_DATADIR}/tutti/scripts")
# The files that hosts of a cloud run, and the templates that create the hosts.
foreach(folder scripts bootstrap batch cloudformation)
  install(DIRECTORY infra/${folder} DESTINATION "${CMAKE_INSTALL_DATADIR}/tutti" USE_SOURCE_PERMISSIONS
          PATTERN __pycache__ EXCLUDE PATTERN source EXCLUDE)
endforeach()
install(PROGRAMS tools/pytorch_weights.py DESTINATION "${tutti_scripts_dir}")
install(FILES bench/scaling/simulate.py bench/scaling/model.py bench/scaling/traces.py bench/scaling/published.py bench/scaling/gpu_step.py
              bench/scaling/spot_traces.py bench/scaling/spot_model.py bench/scaling/spot_plan.py bench/scaling/plan_picture.py tools/instance-types.csv
        DESTINATION "${CMAKE_INSTALL_DATADIR}/tutti/plan")
file(RELATIVE_PATH tutti_bin_to_scripts "/prefix/${CMAKE_INSTALL_BINDIR}" "/prefix/${tutti_scripts_dir}")
file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
foreach(script IN ITEMS runclust copyclust)
  file(CREATE_LINK "${tutti_bin_to_scripts}/${script}" "${PROJECT_BINARY_DIR}/bin/${script}" SYMBOLIC)
  install(FILES "${PROJECT_BINARY_DIR}/bin/${script}" DESTINATION "${CMAKE_INSTALL_BINDIR}")
endforeach()
# The documents, with the programs that they quote. Debian's packages have their licence under this name.
set(tutti_doc_dir "${CMAKE_INSTALL_DATADIR}/doc/tutti")
install(FILES LICENSE NOTICE README.md CHANGELOG.md DESTINATION "${tutti_doc_dir}")
install(FILES LICENSE DESTINATION "${tutti_doc_dir}" RENAME copyright)
install(DIRECTORY docs DESTINATION "${tutti_doc_dir}" FILES_MATCHING PATTERN *.md PATTERN *.svg)
file(GLOB tutti_lessons CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/examples/[0-9]*.cpp")
install(FILES ${tutti_lessons} DESTINATION "${tutti_doc_dir}/examples")
install(DIRECTORY examples/downstream DESTINATION "${tutti_doc_dir}/examples")

# tutti_install_programs(<target>...): installs to bin/; the programs search for shared libraries in ../lib/tutti first.
# If some programs are not built, installs the others and prints a message.
file(RELATIVE_PATH tutti_bin_to_libraries "/prefix/${CMAKE_INSTALL_BINDIR}" "/prefix/lib/tutti")
function(tutti_install_programs)
  foreach(program IN LISTS ARGN)
    if(TARGET ${program})
      # Sets RPATH: the libraries of the libraries are also searched for there. RUNPATH does not do that.
      set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/${tutti_bin_to_libraries}")
      target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
      install(TARGETS ${program} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" OPTIONAL)
      install(CODE "if(NOT EXISTS \"$<TARGET_FILE:${program}>\")
        message(STATUS \"Not installed, because it is not built: ${program}\")
      endif()")
      set_property(GLOBAL APPEND PROPERTY TUTTI_PROGRAMS ${program})
    endif()
  endforeach()
endfunction()

# tutti_install_scripts(<file>...): installs programs that are not compiled.
function(tutti_install_scripts)
  foreach(script IN LISTS ARGN)
    install(PROGRAMS ${script} DESTINATION "${CMAKE_INSTALL_BINDIR}")
    set_property(GLOBAL APPEND PROPERTY TUTTI_SCRIPTS "${CMAKE_CURRENT_SOURCE_DIR}/${script}")
  endforeach()
endfunction()

# tutti_write_dependencies(): writes the table of all libraries that CMake found, for the bill of materials.
function(tutti_write_dependencies)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(compiler "GNU Compiler Collection")
    set(licence GPL-3.0-or-later)
    set(cxx_library ${CMAKE_CXX_COMPILER_VERSION})
  else()
    set(cxx_library)
    set(compiler "${CMAKE_CXX_COMPILER_ID}")
    set(licence "Apache-2.0 WITH LLVM-exception")
  endif()
  tutti_add_dependency("${compiler}" VERSION ${CMAKE_CXX_COMPILER_VERSION} LICENSE ${licence} LINKED tool)
  tutti_add_dependency(CMake VERSION ${CMAKE_VERSION} LICENSE BSD-3-Clause LINKED tool)
  if(NOT CMAKE_CROSSCOMPILING)
    execute_process(COMMAND getconf GNU_LIBC_VERSION OUTPUT_VARIABLE c_library ERROR_QUIET)
  elseif(EXISTS "${CMAKE_SYSROOT}/usr/include/features.h")
    file(STRINGS "${CMAKE_SYSROOT}/usr/include/features.h" c_library REGEX "^#define[ \t]+__GLIBC(_MINOR)?__[ \t]+[0-9]+$")
    string(REGEX REPLACE "^.*__GLIBC__[ \t]+([0-9]+);.*__GLIBC_MINOR__[ \t]+([0-9]+)$" "glibc \\1.\\2" c_library "${c_library}")
  endif()
  if(c_library MATCHES "glibc ([0-9.]+)")
    tutti_add_dependency("GNU C Library" VERSION ${CMAKE_MATCH_1} LICENSE LGPL-2.1-or-later LINKED shared DEBIAN libc6)
  endif()
  get_property(programs GLOBAL PROPERTY TUTTI_PROGRAMS)
  if(programs)
    tutti_add_dependency("GNU C++ library" VERSION "${cxx_library}" LICENSE "GPL-3.0-or-later WITH GCC-exception-3.1" LINKED shared
                         DEBIAN libstdc++6 libgcc-s1)
  endif()
  if("tutti-launch" IN_LIST programs)
    tutti_add_dependency("GNU C++ library of tutti-launch" VERSION "${cxx_library}" LICENSE "GPL-3.0-or-later WITH GCC-exception-3.1" LINKED static)
  endif()
  get_property(rows GLOBAL PROPERTY TUTTI_DEPENDENCIES)
  file(GENERATE OUTPUT "${PROJECT_BINARY_DIR}/dependencies.tsv" CONTENT "${rows}")
endfunction()

# tutti_install_libraries(): installs the manual pages and completion of these programs, their shared libraries except
# those of the C library, and the packages.
function(tutti_install_libraries)
  get_property(programs GLOBAL PROPERTY TUTTI_PROGRAMS)
  set(files)
  foreach(program IN LISTS programs)
    list(APPEND files "$<TARGET_FILE:${program}>")
  endforeach()
  get_property(scripts GLOBAL PROPERTY TUTTI_SCRIPTS)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  # The folder of the libraries of another processor. Scripts read it from the cache.
  set(sysroot)
  if(CMAKE_CROSSCOMPILING)
    set(sysroot "${CMAKE_SYSROOT}/")
  endif()
  set(TUTTI_SYSROOT "${CMAKE_SYSROOT}" CACHE INTERNAL "Folder with the libraries of a build for another processor")
  list(JOIN files "\" \"" files)
  list(JOIN scripts "\" \"" scripts)
  install(
    CODE "set(tutti_programs \"${files}\" \"${scripts}\")
set(tutti_python \"${Python3_EXECUTABLE}\")
set(tutti_cross \"${CMAKE_CROSSCOMPILING}\")
set(tutti_emulator \"${CMAKE_CROSSCOMPILING_EMULATOR}\")
set(tutti_version ${PROJECT_VERSION})
set(tutti_manuals \"${PROJECT_SOURCE_DIR}/cmake/manuals/manuals.py\")
set(tutti_manuals_out \"${PROJECT_BINARY_DIR}/manuals\")
set(tutti_man_dir \"${CMAKE_INSTALL_MANDIR}\")
set(tutti_data_dir \"${CMAKE_INSTALL_DATADIR}\")
set(tutti_build_dir \"${PROJECT_BINARY_DIR}\")
set(tutti_doc_dir \"${tutti_doc_dir}\")")
  install(SCRIPT "${PROJECT_SOURCE_DIR}/cmake/install_manuals.cmake")
  install(SCRIPT "${PROJECT_SOURCE_DIR}/cmake/install_bill_of_materials.cmake")
  install(
    CODE "set(tutti_programs \"${files}\")
set(tutti_python \"${Python3_EXECUTABLE}\")
set(tutti_version ${PROJECT_VERSION})
set(tutti_build_dir \"${PROJECT_BINARY_DIR}\")
set(tutti_doc_dir \"${tutti_doc_dir}\")
set(tutti_sysroot \"${sysroot}\")
set(tutti_libraries_dir lib/tutti)" COMPONENT libraries EXCLUDE_FROM_ALL)
  install(SCRIPT "${PROJECT_SOURCE_DIR}/cmake/install_libraries.cmake" COMPONENT libraries EXCLUDE_FROM_ALL)
  install(SCRIPT "${PROJECT_SOURCE_DIR}/cmake/install_bill_of_materials.cmake" COMPONENT libraries EXCLUDE_FROM_ALL)

  set(CPACK_PACKAGE_CONTACT "The tutti authors")
  set(CPACK_PACKAGE_VENDOR tutti)
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
  string(
    CONCAT CPACK_PACKAGE_DESCRIPTION
      "Programs that train ResNets on CIFAR-10, ImageNet and folders of images, alone or as many processes over MPI, Gloo or "
      "parameter servers, and the headers and CMake files for training programs of one's own.")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_GENERATOR "DEB;TGZ")
  set(CPACK_STRIP_FILES ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION science)
  # The Debian packages on this machine of the libraries that the programs link.
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "openssh-client, rsync")
  # The needs of a project that uses the headers. tutti-plan and the scripts of the cluster need Python.
  get_property(components GLOBAL PROPERTY TUTTI_COMPONENTS)
  set(suggests g++ cmake pkg-config python3)
  foreach(component IN LISTS components)
    if(TARGET tutti::${component} AND NOT component MATCHES "^(cuda|nccl)$")
      get_property(debian GLOBAL PROPERTY TUTTI_DEBIAN_${component})
      string(REPLACE " " ";" debian "${debian}")
      list(APPEND suggests ${debian})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES suggests)
  list(JOIN suggests ", " CPACK_DEBIAN_PACKAGE_SUGGESTS)
  set(CPACK_TUTTI_EIGEN_NATIVE ${TUTTI_EIGEN_NATIVE})
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
    set(CPACK_SYSTEM_NAME "${CMAKE_SYSTEM_NAME}-aarch64")
    if(CMAKE_CROSSCOMPILING)
      set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
      set(CPACK_TUTTI_SYSROOT "${CMAKE_SYSROOT}")
    endif()
  endif()
  set(CPACK_POST_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/cmake/normalise_package.cmake")
  set(CPACK_PROJECT_CONFIG_FILE "${PROJECT_SOURCE_DIR}/cmake/package_options.cmake")
  include(CPack)
endfunction()

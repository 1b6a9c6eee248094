# SPDX-License-Identifier: MIT
# Headers under include/, everything else under share/: nothing of it depends on the architecture or on where it lies.
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

# What tutti::compiled is made of.
file(GLOB tutti_compiled_files RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS src/*.cpp)
foreach(file IN LISTS tutti_compiled_files)
  configure_file("${file}" "${tutti_build_cmake_dir}/${file}" COPYONLY)
endforeach()
configure_file(cmake/TuttiCompiled.cmake "${tutti_build_cmake_dir}/TuttiCompiled.cmake" COPYONLY)
install(FILES cmake/TuttiCompiled.cmake DESTINATION "${tutti_cmake_dir}")
install(DIRECTORY src DESTINATION "${tutti_cmake_dir}" FILES_MATCHING PATTERN *.cpp)

# A pkg-config file finds its prefix from its own place.
file(RELATIVE_PATH tutti_pc_to_prefix "/prefix/${tutti_pc_dir}" "/prefix")
string(REGEX REPLACE "/$" "" tutti_pc_to_prefix "${tutti_pc_to_prefix}")
function(tutti_install_pc tutti_pc_name tutti_pc_what tutti_pc_requires tutti_pc_cflags tutti_pc_libs)
  configure_file("${PROJECT_SOURCE_DIR}/cmake/tutti.pc.in" "${PROJECT_BINARY_DIR}/pkgconfig/${tutti_pc_name}.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/pkgconfig/${tutti_pc_name}.pc" DESTINATION "${tutti_pc_dir}")
endfunction()

install(TARGETS tutti EXPORT tutti-targets FILE_SET HEADERS)
install(EXPORT tutti-targets NAMESPACE tutti:: DESTINATION "${tutti_cmake_dir}")
export(EXPORT tutti-targets NAMESPACE tutti:: FILE "${tutti_build_cmake_dir}/tutti-targets.cmake")
tutti_install_pc(tutti "" "" "-I\${includedir} -pthread" "-pthread")

foreach(component IN LISTS tutti_components)
  install(TARGETS tutti_${component} EXPORT tutti-${component}-targets FILE_SET HEADERS)
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

# The scripts that fetch and check the data sets.
install(DIRECTORY datasets DESTINATION "${CMAKE_INSTALL_DATADIR}/tutti" USE_SOURCE_PERMISSIONS
        FILES_MATCHING PATTERN prepare PATTERN fetch.sh PATTERN SHA256SUMS PATTERN fixture EXCLUDE)
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/tutti")

# SPDX-License-Identifier: MIT
# Part of an installation: writes the bill of materials to the folder of the documents. After the programs' shared libraries are
# installed, it lists these too and copies their licences.
include("${CMAKE_CURRENT_LIST_DIR}/source_date.cmake")
if(NOT tutti_python OR NOT EXISTS "${tutti_python}")
  message(STATUS "Not installed, because it takes python3: the bill of materials")
  return()
endif()
if(IS_ABSOLUTE "${tutti_doc_dir}")
  set(doc "${tutti_doc_dir}")
else()
  set(doc "${CMAKE_INSTALL_PREFIX}/${tutti_doc_dir}")
endif()
# Two installations may run at the same time.
string(RANDOM LENGTH 12 unique)
set(made "${tutti_build_dir}/bill-${unique}")
set(bundled)
set(prefix "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}")
if(tutti_libraries_dir AND IS_DIRECTORY "${prefix}/${tutti_libraries_dir}")
  set(bundled --bundled "${prefix}/${tutti_libraries_dir}" --root "${prefix}" --licences "${made}/licences")
  if(tutti_sysroot)
    list(APPEND bundled --sysroot "${tutti_sysroot}")
  endif()
endif()
execute_process(
  COMMAND "${tutti_python}" "${CMAKE_CURRENT_LIST_DIR}/bill_of_materials.py" --dependencies "${tutti_build_dir}/dependencies.tsv"
          --version ${tutti_version} --out "${made}/tutti.spdx.json" ${bundled} RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  file(REMOVE_RECURSE "${made}")
  message(FATAL_ERROR "the bill of materials cannot be made: ${status}")
endif()
file(GLOB files "${made}/*")
file(INSTALL ${files} DESTINATION "${doc}")
file(REMOVE_RECURSE "${made}")

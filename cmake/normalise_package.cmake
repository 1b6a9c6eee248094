# SPDX-License-Identifier: MIT
# cpack runs this file after it has made packages: equal contents get equal bytes. The tools for it exist on every system with
# Debian packages; on another system an archive stays as cpack has made it.
find_program(bash bash)
find_program(tar tar)
if(bash AND tar)
  execute_process(COMMAND "${tar}" --version OUTPUT_VARIABLE tar_version ERROR_QUIET)
endif()
if(tar_version MATCHES "GNU tar")
  execute_process(COMMAND "${bash}" "${CMAKE_CURRENT_LIST_DIR}/../infra/package/normalise.sh" ${CPACK_PACKAGE_FILES}
                  COMMAND_ERROR_IS_FATAL ANY)
else()
  message(STATUS "Without GNU tar, these packages differ from those of other builds: ${CPACK_PACKAGE_FILES}")
endif()

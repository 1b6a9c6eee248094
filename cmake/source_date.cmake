# SPDX-License-Identifier: MIT
# Sets SOURCE_DATE_EPOCH, the time of all files in packages, unless the caller has set it: the time of the last commit. Outside
# a clone it is 1 January 1980, the earliest time of a zip file. infra/package/common.sh has the same rule.
if("$ENV{SOURCE_DATE_EPOCH}" STREQUAL "")
  set(ENV{SOURCE_DATE_EPOCH} 315532800)
  get_filename_component(tutti_tree "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)
  if(EXISTS "${tutti_tree}/.git")
    execute_process(COMMAND git -C "${tutti_tree}" log -1 --format=%ct RESULT_VARIABLE tutti_status OUTPUT_VARIABLE tutti_date
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(tutti_status EQUAL 0)
      set(ENV{SOURCE_DATE_EPOCH} ${tutti_date})
    endif()
  endif()
endif()

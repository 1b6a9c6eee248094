# SPDX-License-Identifier: MIT
# Runs after a doctest program was built: writes one add_test per test case to list_file.
# In: program, list_file, area, topic, environment, folder, seconds.
execute_process(
  COMMAND "${program}" --list-test-cases --no-colors
  OUTPUT_VARIABLE output
  COMMAND_ERROR_IS_FATAL ANY)

# Brackets and semicolons would be taken for CMake's list syntax.
string(REPLACE "[doctest]" "" output "${output}")
string(REPLACE "[" "<lb>" output "${output}")
string(REPLACE "]" "<rb>" output "${output}")
string(REPLACE ";" "<sc>" output "${output}")
string(REGEX MATCHALL "[^\n]+" lines "${output}")

set(script "")
foreach(line IN LISTS lines)
  if(line MATCHES "^=+$" OR line MATCHES "^ (listing|unskipped)")
    continue()
  endif()
  string(REPLACE "<lb>" "[" line "${line}")
  string(REPLACE "<rb>" "]" line "${line}")
  string(REPLACE "<sc>" ";" line "${line}")
  string(REPLACE "\\" "\\\\" filter "${line}")
  string(REPLACE "," "\\," filter "${filter}")
  set(name "${area}/${topic}: ${line}")
  # Cases that need a GPU say so: "ctest -L gpu" runs them alone.
  set(labels "${area}")
  if(line MATCHES "^gpu: ")
    list(APPEND labels gpu)
  endif()
  string(APPEND script "add_test([==[${name}]==] [==[${program}]==] [==[--test-case=${filter}]==] --no-colors)\n")
  # A filter that matches nothing must not pass for success.
  string(
    APPEND
    script
    "set_tests_properties([==[${name}]==] PROPERTIES LABELS [==[${labels}]==] TIMEOUT ${seconds} WORKING_DIRECTORY [==[${folder}]==] "
    "ENVIRONMENT [==[${environment}]==] SKIP_REGULAR_EXPRESSION [==[(^|\n)SKIP: ]==] FAIL_REGULAR_EXPRESSION "
    "[==[test cases: +0 ]==])\n")
endforeach()
file(WRITE "${list_file}" "${script}")

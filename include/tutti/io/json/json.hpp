// SPDX-License-Identifier: MIT
#pragma once

// JSON: the value type, parse_json and write_json.
#include <tutti/io/json/json_parse.hpp>
#include <tutti/io/json/json_value.hpp>
#include <tutti/io/json/json_write.hpp>
